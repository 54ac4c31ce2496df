"""What a put and a take cost here and in embedded queues of others, each in turn in one run.

    python -m tests.bench.queues [--count 4000]

Messages of 1 KiB with a key where the contender has keys. Each figure is the best of several turns; beside it the CPU
of the process, and what survives: a crash of the process (all of them) or a power cut too. `pure` is checkback without
its C module. A take of huey and of lmdb is not an acknowledgement: what a worker took is lost when it dies.

The libraries of others are installed from tests/bench/queues.txt (hashes) into build/queues-venv.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import broker
from tests.bench.queue_contender import BODY, run
from tests.house.tree import ROOT

VENV, REQUIREMENTS = ROOT / "build" / "queues-venv", ROOT / "tests" / "bench" / "queues.txt"
TURNS = 3


@dataclass(frozen=True)
class Figure:
    """One row: a contender, or a mode of ours, with threads and processes."""

    name: str
    title: str
    durability: str
    threads: int = 1
    processes: int = 1
    takes: bool = True

    @property
    def is_ours(self) -> bool:
        return self.name in ("os", "group", "each")


FIGURES = (
    Figure("os", "checkback `os`", "process"),
    Figure("os", "checkback `os`, 4 threads", "process", threads=4, takes=False),
    Figure("os", "checkback `os`, 2 processes", "process", processes=2, takes=False),
    Figure("each", "checkback `each`", "power cut"),
    Figure("group", "checkback `group`", "power cut"),
    Figure("group", "checkback `group`, 16 threads", "power cut", threads=16, takes=False),
    Figure("python", "Python alone", "process", takes=False),
    Figure("python", "Python alone, 4 threads", "process", threads=4, takes=False),
    Figure("python", "Python alone, 2 processes", "process", processes=2, takes=False),
    Figure("sqlite-normal", "SQLite row, WAL, NORMAL", "process"),
    Figure("sqlite-full", "SQLite row, WAL, FULL", "power cut"),
    Figure("huey", "huey", "process"),
    Figure("huey-fsync", "huey, fsync", "power cut"),
    Figure("litequeue", "litequeue", "process"),
    Figure("persist-queue", "persist-queue SQLiteAckQueue", "power cut"),
    Figure("lmdb", "lmdb", "power cut"),
    Figure("lmdb-nosync", "lmdb, no sync", "process"),
)
# What is divided by what, and at least how much. Four threads that only compute do not reach the rate of one, nor two
# processes twice that of one: the rows of Python alone say by how much on this machine.
GOALS = (
    ("put", "checkback `os`", "SQLite row, WAL, NORMAL", 1.5),
    ("put", "checkback `os`, 4 threads", "checkback `os`", 1.0),
    ("put", "checkback `os`, 2 processes", "checkback `os`", 1.6),
    ("put", "checkback `each`", "SQLite row, WAL, FULL", 0.9),
    ("put", "checkback `group`, 16 threads", "SQLite row, WAL, FULL", 2.0),
    ("put", "Python alone, 4 threads", "Python alone", None),
    ("put", "Python alone, 2 processes", "Python alone", None),
    ("take", "checkback `os`", "huey", 1.5),
)


def ours(verb: str, mode: str, path: str, count: str, threads: str) -> None:
    """A process that puts, or takes and acknowledges, in a store."""
    with broker.open(path, sync=mode) as store:
        if verb == "put":
            producer = store.producer("bench")
            producer.send(broker.Message("orders", BODY))
            run(lambda n: producer.send(broker.Message("orders", BODY, keys=[f"k{n}"])), int(count), int(threads))
            return
        with store.consumer("bench", "orders") as consumer:
            consumer.ack(consumer.receive(timeout_s=5))
            run(lambda _number: consumer.ack(consumer.receive(timeout_s=5)), int(count), int(threads))


def others_python() -> str:
    """The interpreter of the environment with the others' libraries, which is made on first use."""
    python, mark = VENV / "bin" / "python", VENV / "made-from"
    if not mark.exists() or mark.read_bytes() != REQUIREMENTS.read_bytes():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(REQUIREMENTS)]
        subprocess.run([str(python), *install], check=True)
        mark.write_bytes(REQUIREMENTS.read_bytes())
    return str(python)


def measure(figure: Figure, verb: str, path: Path, count: int, *, pure: bool) -> tuple[float, float]:
    """Operations a second of all processes together, and µs of CPU for each."""
    program = [sys.executable, "-m", "tests.bench.queues", "ours"] if figure.is_ours else [others_python(), CONTENDER]
    environment = {**os.environ, "CHECKBACK_PURE": "1"} if pure else None
    words = [*program, verb, figure.name, str(path), str(count // figure.processes), str(figure.threads)]
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment) for _ in range(figure.processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    parts = [json.loads(worker.communicate()[0]) for worker in workers]
    return count / max(part[0] for part in parts), sum(part[1] for part in parts) / count * 1e6


CONTENDER = str(ROOT / "tests" / "bench" / "queue_contender.py")


def turn(figure: Figure, directory: Path, count: int, *, pure: bool) -> dict[str, tuple[float, float]]:
    """One turn of one row: what a put reached, and a take."""
    path = directory / "queue"
    shutil.rmtree(path, ignore_errors=True)
    for left in directory.glob("queue*"):
        left.unlink()
    many = count * (20 if figure.durability == "process" else 1)
    reached = {"put": measure(figure, "put", path, many, pure=pure)}
    if figure.takes:
        reached["take"] = measure(figure, "take", path, min(count, 1500), pure=pure)
    return reached


def main(count: int) -> None:
    """Print the table and the goals."""
    rows = [(figure, False) for figure in FIGURES] + [(figure, True) for figure in FIGURES if figure.is_ours]
    best: dict[tuple[str, bool, str], tuple[float, float]] = {}
    with tempfile.TemporaryDirectory(prefix="checkback-bench-") as name:
        for _ in range(TURNS):
            for figure, pure in rows:
                for verb, reached in turn(figure, Path(name), count, pure=pure).items():
                    key = (figure.title, pure, verb)
                    best[key] = max(best.get(key, (0.0, 0.0)), reached)
    for figure, pure in rows:
        line = f"{figure.title + (', pure' if pure else ''):40} survives a {figure.durability:10}"
        for verb in ("put", "take") if figure.takes else ("put",):
            rate, cpu_us = best[figure.title, pure, verb]
            line += f" {verb} {rate:9,.0f}/s {cpu_us:6.1f} µs"
        print(line)
    for verb, above, below, goal in GOALS:
        ratios = [
            best[above, pure, verb][0] / best.get((below, pure, verb), best[below, False, verb])[0]
            for pure in ((False, True) if goal else (False,))
        ]
        line = f"{verb}: {above} / {below}: {ratios[0]:.2f}"
        print(f"{line}, pure {ratios[1]:.2f} (goal {goal})" if goal else line)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ours"]:
        ours(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description="Puts and takes beside embedded queues of others.")
        parser.add_argument("--count", type=int, default=4000)
        main(parser.parse_args().count)
