"""What a verb costs before it reads a byte: CPU of the whole process, with `python -c pass` beside it as the yardstick.

    python -m tests.bench.starting

CPU (user and system, of child processes), not wall time: another program on the machine must not decide. Least of 15
runs, the commands by turns. Bytecode comes from a cache, as in an installation that ran once.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import broker

RUNS = 15


def cpu_ms(words: list[str], environment: dict[str, str]) -> float:
    """The CPU that a command takes, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, stdout=subprocess.DEVNULL, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def make_tiny_store(path: Path) -> None:
    """Twenty messages, and five transactions in doubt."""
    with broker.open(path) as store:
        producer = store.producer("shop")
        for number in range(20):
            producer.send(broker.Message("orders", b"x" * 100, keys=[f"k{number}"]))
        for number in range(5):
            store.transactions.prepare(broker.Message("stock", b"x", keys=[f"h{number}"]), "shop")


def main() -> None:
    """Print a row for each command, with its ratio to the yardstick."""
    with tempfile.TemporaryDirectory(prefix="checkback-bench-") as directory:
        store = Path(directory) / "store"
        make_tiny_store(store)
        verb = ["-m", "recovery.cli"]
        commands = {
            "python -c pass": ["-c", "pass"],
            "import broker": ["-c", "import broker"],
            "import numpy, pyarrow": ["-c", "import numpy, pyarrow"],
            "checkback --help": [*verb, "--help"],
            "checkback tail": [*verb, "tail", str(store), "orders"],
            "checkback pending": [*verb, "pending", str(store)],
            "checkback info": [*verb, "info", str(store)],
            "checkback verify": [*verb, "verify", str(store)],
        }
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path(directory) / "bytecode")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        least = dict.fromkeys(commands, float("inf"))
        for _ in range(RUNS):
            for name, words in commands.items():
                least[name] = min(least[name], cpu_ms([sys.executable, *words], environment))
    yardstick = least["python -c pass"]
    for name, took_ms in least.items():
        print(f"{name:24}{took_ms:7.0f} ms CPU   {took_ms / yardstick:5.1f} x python -c pass")


if __name__ == "__main__":
    main()
