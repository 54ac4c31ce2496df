"""The figures in the README: how fast a verification is, how it grows, and what memory it takes.

    make bench            2 GB stores, some minutes and 6 GB of disk in a temporary directory
    make bench SIZES=1    other sizes, in GB

Each run is a process of its own, measured from outside. A yardstick runs beside it: reading the same bytes, and their
CRC alone. Figures vary with the machine; the ratios should not.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.stores import make_store

WINDOW_BYTES = 16 << 20


def measured(arguments: list[str]) -> tuple[dict[str, object], float, int]:
    """The JSON that a command prints, its seconds, and its peak memory in bytes."""
    started = time.monotonic()
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as stdout:
        output = stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return json.loads(output), time.monotonic() - started, usage.ru_maxrss << 10


def yardsticks(store: Path) -> tuple[float, float]:
    """Seconds to read the used part of a log, and to read it and sum its CRC window by window."""
    from recovery.scan.strings import crc32

    window = bytearray(WINDOW_BYTES)
    seconds = []
    for use in (lambda _: 0, crc32):
        started = time.monotonic()
        for file in sorted((store / "commitlog").iterdir()):
            with open(file, "rb", buffering=0) as log:
                while count := log.readinto(window):
                    use(memoryview(window)[:count])
        seconds.append(time.monotonic() - started)
    return seconds[0], seconds[1]


def bench(generation: str, gigabytes: float, directory: Path) -> None:
    """Make one store, verify it three times, and print the best."""
    store = directory / f"{generation}-{gigabytes}"
    make_store(store, generation, int(gigabytes * 1e9))
    runs = [measured([sys.executable, "-m", "recovery.cli", "verify", str(store), "--json"]) for _ in range(3)]
    report, wall, peak = min(runs, key=lambda run: float(str(run[0]["seconds"])))
    if not report["ok"]:
        raise SystemExit(f"{store}: the verification has findings: {report['counts']}")
    size, inner = int(str(report["bytes"])), float(str(report["seconds"]))
    read, crc = yardsticks(store)
    print(
        f"{generation:12}{size / 1e9:6.2f} GB {int(str(report['records'])):>10,} records   verify {inner:6.2f} s "
        f"({size / 1e9 / inner:.2f} GB/s; whole command {wall:.2f} s)   peak memory {peak >> 20} MB   "
        f"read alone {read:.2f} s, read and CRC {crc:.2f} s",
        flush=True,
    )


def main() -> None:
    """Print the machine and every figure."""
    model = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    print(f"{model[0] if model else platform.processor()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    sizes = [float(size) for size in os.environ.get("SIZES", "0.5 2").split()]
    with tempfile.TemporaryDirectory(prefix="checkback-bench-") as directory:
        for generation in ("state-table", "half-op"):
            for size in sizes:
                bench(generation, size, Path(directory))


if __name__ == "__main__":
    main()
