"""What a message costs a consumer: `receive` and `ack`, with huey's dequeue from SQLite as the yardstick beside it.

    uv pip install huey && python -m tests.bench.consuming

Messages of 1 KiB with a key, in mode `os`; the least of several turns, ours and huey's by turns. One consumer: CPU of
its thread, since wall time is that of the whole machine. Four consumers in two processes: messages by wall time, and
the CPU of both processes. A dequeue is less than a message acknowledged: what a worker took is lost when it dies.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import broker

BODY = b"x" * 1024
CHUNK, CHUNKS, SHARED = 1000, 15, 8000
PROCESSES, THREADS, TURNS = 2, 2, 3
QUEUES = PROCESSES * THREADS
_SETTLES_S = 2.5  # until the queues are shared among consumers that came one after the other
_EMPTY_S = 0.3


def fill(kind: str, path: Path, count: int) -> None:
    """Messages that wait."""
    if kind == "huey":
        storage = _huey(path)
        for _ in range(count):
            storage.enqueue(BODY)
        return
    with broker.open(path, sync="os") as store:
        store.create_topic("orders", queues=QUEUES)
        producer = store.producer("bench")
        for number in range(count):
            producer.send(broker.Message("orders", BODY, keys=[f"k{number}"]))


def _huey(path: Path) -> Any:
    from huey import SqliteHuey  # type: ignore[import-not-found, unused-ignore]

    return SqliteHuey("bench", filename=str(path), timeout=60).storage


def one_consumer(kind: str, path: Path) -> None:
    """A process that takes CHUNK messages for each line of its input, and prints the µs of CPU of each."""
    take: Callable[[], Any]
    if kind == "huey":
        take = _huey(path).dequeue
    else:
        consumer = broker.open(path, sync="os").consumer("bench", "orders")
        consumer.ack(consumer.receive(timeout_s=5))

        def take() -> None:
            consumer.ack(consumer.receive(timeout_s=5))

    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.thread_time()
        for _ in range(CHUNK):
            take()
        print((time.thread_time() - started) / CHUNK * 1e6, flush=True)


def several_consumers(kind: str, path: Path) -> None:
    """A process of THREADS consumers that take what there is, and its count, begin, end and CPU."""
    taken = [0] * THREADS
    if kind == "huey":
        dequeues = [_huey(path).dequeue] * THREADS
    else:
        store = broker.open(path, sync="os")
        dequeues = [_receive_and_ack(store.consumer("bench", "orders")) for _ in range(THREADS)]
        time.sleep(_SETTLES_S)

    def run(number: int) -> None:
        while dequeues[number]():
            taken[number] += 1

    print("ready", flush=True)
    sys.stdin.readline()
    cpu, began = time.process_time(), time.time()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = time.time() - (0 if kind == "huey" else _EMPTY_S)
    print(json.dumps([sum(taken), began, ended, time.process_time() - cpu]), flush=True)


def _receive_and_ack(consumer: broker.Consumer) -> Callable[[], bool]:
    def take() -> bool:
        message = consumer.receive(timeout_s=_EMPTY_S)
        return message is not None and consumer.ack(message)

    return take


def _started(role: str, kind: str, path: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.bench.consuming", role, kind, str(path)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def measure_one(kinds: list[str], directory: Path) -> dict[str, float]:
    """The least CPU of a message in µs, by turns."""
    for kind in kinds:
        fill(kind, directory / f"one-{kind}", CHUNK * CHUNKS + 1)
    processes = {kind: _started("one", kind, directory / f"one-{kind}") for kind in kinds}
    for process in processes.values():
        _answer(process)
    least = dict.fromkeys(kinds, float("inf"))
    for _ in range(CHUNKS):
        for kind, process in processes.items():
            _go(process)
            least[kind] = min(least[kind], float(_answer(process)))
    for process in processes.values():
        process.communicate()
    return least


def measure_several(kind: str, path: Path) -> tuple[float, float]:
    """Messages a second of all processes together, and µs of CPU for each."""
    fill(kind, path, SHARED)
    processes = [_started("several", kind, path) for _ in range(PROCESSES)]
    for process in processes:
        _answer(process)
    for process in processes:
        _go(process)
    parts = [json.loads(_answer(process)) for process in processes]
    for process in processes:
        process.communicate()
    count = sum(part[0] for part in parts)
    return count / (max(part[2] for part in parts) - min(part[1] for part in parts)), sum(
        part[3] for part in parts
    ) / count * 1e6


def main() -> None:
    """Print both, with their ratios."""
    kinds = ["ours", *(["huey"] if importlib.util.find_spec("huey") else [])]
    with tempfile.TemporaryDirectory(prefix="checkback-bench-") as name:
        one = measure_one(kinds, Path(name))
        turns: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for turn in range(TURNS):
            for kind in kinds:
                turns[kind].append(measure_several(kind, Path(name) / f"several-{kind}-{turn}"))
    rates = {kind: max(rate for rate, _ in turns[kind]) for kind in kinds}
    cpus = {kind: min(cpu for _, cpu in turns[kind]) for kind in kinds}
    for kind in kinds:
        print(f"{kind:6}one consumer {one[kind]:6.1f} µs CPU a message   {QUEUES} in {PROCESSES} processes "
              f"{rates[kind]:8,.0f}/s, {cpus[kind]:6.1f} µs CPU")  # fmt: skip
    if "huey" in kinds:
        print(f"ratio one {one['huey'] / one['ours']:.1f} (CPU), {QUEUES} in {PROCESSES} processes "
              f"{rates['ours'] / rates['huey']:.1f} (rate), {cpus['huey'] / cpus['ours']:.1f} (CPU)")  # fmt: skip


if __name__ == "__main__":
    roles = {"one": one_consumer, "several": several_consumers}
    roles[sys.argv[1]](sys.argv[2], Path(sys.argv[3])) if len(sys.argv) > 1 else main()
