"""RocketMQ's own store (3.1.4), without a broker around it, in a process beside ours: `java/StoreYardstick.java`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.compat.rocketmq import OPENED, Installation, NotToBeHad, install

SOURCE = Path(__file__).resolve().parent / "java" / "StoreYardstick.java"


class Yardstick:
    """Runs the Java program. Raises NotToBeHad without Java or the jars."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._installation: Installation = install("3.1.4")
        words = ["javac", "-nowarn", "-d", str(home), "-cp", f"{self._installation.lib}/*", str(SOURCE)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotToBeHad(f"the yardstick does not compile: {done.stderr[-1000:]}")

    def write(self, root: Path, transactions: int, *, sync: bool, threads: int, warm: int) -> float:
        """Seconds for these many transactions of 1 KiB, after `warm` others."""
        flush = "SYNC" if sync else "ASYNC"
        return self._run("write", root, str(transactions), "1024", flush, str(threads), str(warm))

    def load(self, root: Path) -> float:
        """Seconds that its load takes, whatever state the store is in."""
        return self._run("load", root)

    def _run(self, verb: str, root: Path, *words: str) -> float:
        opened = [f"--add-{how}=java.base/{name}=ALL-UNNAMED" for name in OPENED for how in ("opens", "exports")]
        command = ["java", *opened, f"-Duser.home={self._home}", "-cp", f"{self._home}:{self._installation.lib}/*"]
        done = subprocess.run(
            [*command, "StoreYardstick", verb, str(root), *words], capture_output=True, text=True, check=False
        )
        for line in done.stdout.splitlines():
            if line.startswith("yardstick true "):
                return float(line.split()[2])
        raise RuntimeError(f"the yardstick failed: {(done.stdout + done.stderr)[-2000:]}")
