"""Processes that write to one store in every way while one after another is killed; a verification runs beside them.

`python -m tests.verify.beside_writers STORE LAYOUT KILLS SEED ENGINE` forks workers and kills one after 2 to 200 ms.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import broker
from broker.live import LiveStore
from broker.store.read.layout import StoreLayout
from recovery.rebuild.rebuilder import rebuild
from recovery.verify.verifier import verify

WORKERS = 3
TOPICS = ("Orders", "Payments")
LAYOUTS = {"small": StoreLayout(1 << 20, 60_000, 24_000, 20_000, 1000, 4000), "big": StoreLayout.rocketmq()}
_STARTED_S = 60.0


# The workers


def _send(store: LiveStore, chance: random.Random, number: int) -> None:
    """One message, some at once, or one that waits for a delay level."""
    message = _message(chance, number)
    way = chance.random()
    if way < 0.5:
        store.append(message, queue_id=chance.randrange(3))
    elif way < 0.8:
        keys = [[f"b{number}", f"c{one}"] for one in range(9)]
        batch = [broker.Message(message.topic, chance.randbytes(40), keys=one) for one in keys]
        store.append_batch(batch, queue_id=chance.randrange(3))
    else:
        store.append(message, queue_id=0, extra_properties={"DELAY": str(chance.randint(1, 18))})


def _transact(store: LiveStore, chance: random.Random, number: int) -> None:
    """A half message, and mostly its end; now and then that of one which another process left."""
    half = store.transactions.prepare(_message(chance, number), "workers", queue_id=chance.randrange(3))
    end = chance.choice(["commit", "commit", "roll back", "leave"])
    if end == "commit":
        store.transactions.commit(half)
    elif end == "roll back":
        store.transactions.rollback(half)


def _message(chance: random.Random, number: int) -> broker.Message:
    keys = [f"k{number}", f"m{chance.randrange(50)}"][: chance.randint(0, 2)]
    return broker.Message(chance.choice(TOPICS), chance.randbytes(chance.randint(1, 900)), tag="T", keys=keys)


def _work(path: str, seed: int) -> None:
    chance = random.Random(seed)
    with broker.open(path, sync=chance.choice(["os", "os", "group"])) as store:
        for number in range(1 << 40):
            (_send if chance.random() < 0.4 else _transact)(store, chance, number)


def _fork(path: str, seed: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _work(path, seed)
        except BaseException:  # noqa: BLE001 - a worker that ends by itself says why
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def main(path: str, layout: str, kills: str, seed: str, engine: str) -> None:
    """Keep the workers at work and kill one after another, all of them in the end; exit 1 when one ended by itself."""
    chance = random.Random(int(seed))
    with broker.open(path, sync="os", layout=LAYOUTS[layout], transactions=engine) as store:
        for topic in TOPICS:
            store.create_topic(topic, queues=3, message_type="MIXED")
    workers = [_fork(path, number) for number in range(WORKERS)]
    for number in range(int(kills)):
        time.sleep(chance.choice([chance.uniform(0.002, 0.02), chance.uniform(0.02, 0.2)]))
        _kill(workers.pop(chance.randrange(WORKERS)))
        workers.append(_fork(path, WORKERS + number))
    for worker in workers:
        _kill(worker)


def _kill(worker: int) -> None:
    os.kill(worker, signal.SIGKILL)
    _, status = os.waitpid(worker, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        sys.exit(f"worker {worker} ended by itself")


# Beside them


@dataclass
class Watch:
    """What was seen beside the writers."""

    kills: int = 0
    verifications: int = 0
    rebuilds: int = 0
    live: int = 0
    records: int = 0
    found: list[str] = field(default_factory=list)


@contextmanager
def writers(store: Path, layout: str, kills: int, seed: int, engine: str) -> Iterator[subprocess.Popen[str]]:
    """The processes, from when the store is there; ended by the number of the one that started them."""
    words = [sys.executable, "-m", "tests.verify.beside_writers", str(store), layout, str(kills), str(seed), engine]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        try:
            deadline = time.monotonic() + _STARTED_S
            while not (store / "checkback" / "queues").exists() and running.poll() is None:
                assert time.monotonic() < deadline, "the writers did not start"
                time.sleep(0.01)
            yield running
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)


def watch(
    store: Path,
    layout: str,
    kills: int,
    seed: int,
    engine: str,
    judges: Callable[[int], Callable[[Path], Any]] | None = None,
) -> Watch:
    """Judge the store all the time while its writers are killed, and right after the last of them was."""
    seen, number = Watch(kills + WORKERS), 0
    with writers(store, layout, kills, seed, engine) as running:
        is_over = False
        while not is_over:
            is_over = running.poll() is not None
            _look(store, number, seen, judges)
            _look(store, number + 1, seen, judges)
            number += 2
        assert running.returncode == 0, running.stderr.read() if running.stderr else ""
    return seen


def _look(store: Path, number: int, seen: Watch, judges: Callable[[int], Callable[[Path], Any]] | None) -> None:
    judge = judges(number) if judges is not None else (verify, rebuild)[number % 2]
    report = judge(store)
    seen.records = report.records
    if hasattr(report, "findings"):
        seen.verifications += 1
        seen.live += report.live
        seen.found += [str(finding) for finding in report.findings]
    else:
        seen.rebuilds += 1
        seen.found += [str(difference) for difference in (*report.differences, *report.misfits)]


if __name__ == "__main__":
    main(*sys.argv[1:])
