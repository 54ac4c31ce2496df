"""How fast we write, against RocketMQ's own store beside it in the same run: transactions of 1 KiB, half and end.

    python -m tests.bench.write            everything; some minutes, some GB in a temporary directory
    python -m tests.bench.write os each    only these: os each group open load
    OPEN_GB=10 LOAD_TRANSACTIONS=1000000   larger stores for `open` and `load`

Each figure is the best of several turns, ours and Java's by turns, so that a busy machine harms both. What matters is
the ratio. Both write the same records, of which nine in ten transactions commit. Java is measured from its first record
on, as StoreBench31 is; what it has compiled by then runs faster. `os` is measured at the store, as Java is, and once
more as an application calls it, with all the checks of a message. In `each` both records are forced; in `group` our end
record is not: what it says survives a crash anyway, since check-back asks for the half message (RocketMQ forces both).
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from broker.format.sysflag import TransactionType
from broker.live import LiveStore, open_live
from broker.message import Message
from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout
from broker.store.write.pending_record import draft, end_draft
from broker.store.writer import StoreWriter, open_writer
from tests.bench.yardstick import Yardstick

BODY = b"x" * 1024
LAYOUT = replace(StoreLayout.rocketmq(), segment_bytes=1 << 28)  # that of the yardstick
PREPARED, COMMIT, ROLLBACK = TransactionType.PREPARED, TransactionType.COMMIT, TransactionType.ROLLBACK
TURNS = 3


def transactions(store: StoreWriter, first: int, count: int) -> None:
    """Append a half message and its end, so many times."""
    append, append_end = store.append_one, store.append_one if store.sync == "each" else store.appender.append_one
    for number in range(first, first + count):
        now_ms = time.time_ns() // 1_000_000
        properties = {
            "orderId": f"o{number}",
            "KEYS": f"key-{number}",
            "TAGS": "TagA",
            "TRAN_MSG": "true",
            "PGROUP": "order_producer",
        }
        half = draft("OrderTopic", BODY, properties, queue_id=number & 3, born_timestamp_ms=now_ms, kind=PREPARED)
        placed = append(half)
        kind = COMMIT if number % 10 else ROLLBACK
        append_end(end_draft(half, placed.commitlog_offset, placed.queue_offset, kind))


def called(store: LiveStore, first: int, count: int) -> None:
    """The same as an application calls it."""
    service = store.transactions
    for number in range(first, first + count):
        properties = {"orderId": f"o{number}"}
        message = Message("OrderTopic", BODY, tag="TagA", keys=[f"key-{number}"], properties=properties)
        half = service.prepare(message, "order_producer", queue_id=number & 3)
        if number % 10:
            service.commit(half)
        else:
            service.rollback(half)


# What runs in a process of its own, and prints JSON


def write(path: str, sync: str, count: str, threads: str, leave: str) -> None:
    """Seconds for so many transactions; then close the store, or leave it as a crash does."""
    store = open_writer(path, Disk(), LAYOUT, sync=sync)
    each = int(count) // int(threads)
    transactions(store, 0, 200)
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    workers = [threading.Thread(target=transactions, args=(store, 1000 + n * each, each)) for n in range(int(threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
    if leave == "crash":
        os._exit(0)
    store.close()


def call(path: str, count: str) -> None:
    """Seconds for so many transactions by `broker.open`."""
    with open_live(path, sync="os", layout=LAYOUT) as store:
        called(store, 0, 200)
        started = time.perf_counter()
        called(store, 1000, int(count))
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


def open_once(path: str) -> None:
    """Seconds, bytes read and pages touched to open a store."""
    read, faults, started = _bytes_read(), _faults(), time.perf_counter()
    store = open_writer(path, Disk())
    said = {"seconds": time.perf_counter() - started, "bytes": _bytes_read() - read, "pages": _faults() - faults}
    store.close()
    print(json.dumps(said))


def _bytes_read() -> int:
    words = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(words["rchar"])


def _faults() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


# What runs them


def ours(path: Path, sync: str, count: int, *, threads: int = 1, processes: int = 1, leave: str = "close") -> float:
    """Seconds for so many transactions in all."""
    words = ["write", str(path), sync, str(count // processes), str(threads // processes), leave]
    command = [sys.executable, "-m", "tests.bench.write", *words]
    pipe = subprocess.PIPE
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(processes)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    seconds = []
    for worker in workers:
        output, _ = worker.communicate()
        seconds.append(float(json.loads(output)["seconds"]))
    return max(seconds)


def beside(
    title: str,
    goal: float,
    directory: Path,
    count: int,
    our_turn: Callable[[Path], float],
    java_turn: Callable[[Path], float],
) -> None:
    """Take turns, and print the best of each and their ratio."""
    best_ours = best_java = float("inf")
    for _ in range(TURNS):
        for name, turn in (("java", java_turn), ("ours", our_turn)):
            store = directory / name
            shutil.rmtree(store, ignore_errors=True)
            seconds = turn(store)
            if name == "ours":
                best_ours = min(best_ours, seconds)
            else:
                best_java = min(best_java, seconds)
    rates = count / best_ours, count / best_java
    print(
        f"{title:44} {rates[0]:>9,.0f} tx/s   Java {rates[1]:>9,.0f} tx/s   "
        f"ratio {rates[0] / rates[1]:6.2f}   (goal {goal})",
        flush=True,
    )


def bench_os(directory: Path, java: Yardstick) -> None:
    """One thread, nothing forced by whoever appends."""
    count = int(os.environ.get("TRANSACTIONS", "500000"))
    beside("os, 1 thread", 1.0, directory, count, lambda store: ours(store, "os", count),
           lambda store: java.write(store, count, sync=False, threads=1, warm=0))  # fmt: skip
    command = [sys.executable, "-m", "tests.bench.write", "call"]

    def by_calls(store: Path) -> float:
        done = subprocess.run([*command, str(store), str(count)], capture_output=True, check=True)
        return float(json.loads(done.stdout)["seconds"])

    beside("os, 1 thread, prepare and commit", 1.0, directory, count, by_calls,
           lambda store: java.write(store, count, sync=False, threads=1, warm=0))  # fmt: skip


def bench_each(directory: Path, java: Yardstick) -> None:
    """One thread, each record forced."""
    count = 2000
    beside("each, 1 thread", 4.0, directory, count, lambda store: ours(store, "each", count),
           lambda store: java.write(store, count, sync=True, threads=1, warm=200))  # fmt: skip


def bench_group(directory: Path, java: Yardstick) -> None:
    """Sixteen threads that share forced writes, in one process and in two."""
    _bench_group(directory, java, 1)
    _bench_group(directory, java, 2)


def _bench_group(directory: Path, java: Yardstick, processes: int) -> None:
    count, title = 16_000, f"group, {processes} x {16 // processes} threads"
    beside(title, 1.0, directory, count, lambda store: ours(store, "group", count, threads=16, processes=processes),
           lambda store: java.write(store, count, sync=True, threads=16, warm=3200))  # fmt: skip


def bench_open(directory: Path, _java: Yardstick | None) -> None:
    """A store that was closed well opens in the same time whatever its size."""
    sizes = {"1 MB": 1 << 20, "large": int(float(os.environ.get("OPEN_GB", "2")) * 1e9)}
    for title, size in sizes.items():
        store = directory / "open"
        shutil.rmtree(store, ignore_errors=True)
        ours(store, "os", max(1, size // 2300))
        command = [sys.executable, "-m", "tests.bench.write", "open_once", str(store)]
        runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(5)]
        best = min(runs, key=lambda run: float(run["seconds"]))
        log = sum(file.stat().st_size for file in (store / "commitlog").iterdir())
        print(
            f"open, {title:6} ({log / 1e9:.2f} GB of segments) {best['seconds'] * 1000:9.2f} ms   "
            f"{best['bytes']:>9,} bytes read   {best['pages']:>6,} pages touched",
            flush=True,
        )


def bench_load(directory: Path, java: Yardstick) -> None:
    """The machine stopped after so many transactions: ours from its last checkpoint, ours without one, and Java's."""
    count = int(os.environ.get("LOAD_TRANSACTIONS", "300000"))
    seconds: dict[str, float] = {}
    for name in ("from a checkpoint", "without one"):
        store = directory / "ours"
        shutil.rmtree(store, ignore_errors=True)
        ours(store, "os", count, leave="crash")
        (store / "checkback" / "control").unlink()  # it is of another boot then
        if name == "without one":
            (store / "checkback" / "checkpoint").unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.bench.write", "open_once", str(store)]
        done = subprocess.run(command, capture_output=True, check=True)
        seconds[name] = float(json.loads(done.stdout)["seconds"])
    store = directory / "java"
    shutil.rmtree(store, ignore_errors=True)
    java.write(store, count, sync=False, threads=1, warm=0)
    slow = java.load(store)
    for name, taken in seconds.items():
        print(
            f"load after a crash, {count:,} transactions, {name:17} {taken:7.2f} s   Java {slow:7.2f} s   "
            f"ratio {slow / taken:6.2f}   (goal 2.0)",
            flush=True,
        )


BENCHES = {"os": bench_os, "each": bench_each, "group": bench_group, "open": bench_open, "load": bench_load}


def main(words: list[str]) -> None:
    """Print the machine, and the figures that were asked for."""
    model = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    print(f"{model[0] if model else platform.processor()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory(prefix="checkback-bench-") as name:
        directory = Path(name)
        java = Yardstick(directory)
        for word in words or BENCHES:
            BENCHES[word](directory, java)


if __name__ == "__main__":
    verb, *rest = sys.argv[1:] or [""]
    if verb in ("write", "call", "open_once"):
        {"write": write, "call": call, "open_once": open_once}[verb](*rest)
    else:
        main(sys.argv[1:])
