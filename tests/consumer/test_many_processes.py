"""Many consumer processes on one group, killed at random: delivered at least once, processed once, none skipped."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sqlalchemy import create_engine

import broker
from broker.database.dedup import Processed
from broker.testing.crash_disk import SMALL
from recovery.torture.notes import read_notes

PROCESSES, MESSAGES, KILLS = 3, 240, 8
WAIT_S = 120


def test_every_message_is_processed_once_whoever_is_killed(tmp_path: Path) -> None:
    store_path, database, deliveries = tmp_path / "store", tmp_path / "billing.db", tmp_path / "deliveries"
    engine = create_engine(f"sqlite:///{database}")
    Processed().create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE effects (order_id TEXT)")
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    engine.dispose()
    chance, workers = random.Random(17), []

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.consumer.worker", store_path, database, deliveries],
            stderr=subprocess.PIPE,
        )

    with broker.open(store_path, layout=SMALL) as store:
        store.create_topic("orders", queues=6)
        workers = [start() for _ in range(PROCESSES)]
        try:
            sent = 0
            for kill in range(KILLS):
                for _ in range(MESSAGES // KILLS):
                    store.append(broker.Message("orders", b"%d" % sent), queue_id=sent % 6)
                    sent += 1
                _until(lambda half=sent // 2: _effects(database).total() > half, workers)
                time.sleep(chance.random() * 0.1)
                victim = kill % PROCESSES
                _kill(workers[victim])
                workers[victim] = start()
            _until(lambda: len(_effects(database)) == sent, workers)
            deadline = time.monotonic() + WAIT_S
            while len(_who(deliveries)) <= PROCESSES:  # the last to start may have come to nothing yet
                assert time.monotonic() < deadline, "nobody took over from the killed"
                for queue in range(6):
                    store.append(broker.Message("orders", b"%d" % sent), queue_id=queue)
                    sent += 1
                _until(lambda wanted=sent: len(_effects(database)) == wanted, workers)
        finally:
            for worker in workers:
                _kill(worker)
        with store.consumer("billing", "orders") as consumer:  # what was in hand when they were killed
            while (message := consumer.receive(1.0)) is not None:
                consumer.ack(message)
            ends = {queue: store.queue_range(*queue)[1] for queue in consumer.positions()}
            assert consumer.positions() == ends
    assert sorted(_effects(database).items()) == sorted((str(number), 1) for number in range(sent))
    assert {note["order"] for note in read_notes(deliveries)} == {str(number) for number in range(sent)}


def _who(deliveries: Path) -> set[int]:
    """The processes that got a message."""
    return {note["process"] for note in read_notes(deliveries)}


def _effects(database: Path) -> Counter[str]:
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        return Counter(order for (order,) in connection.execute("SELECT order_id FROM effects"))


def _until(true: Callable[[], bool], workers: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        for worker in workers:
            assert worker.poll() is None, worker.communicate()[1].decode()
        time.sleep(0.01)


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """By its own id, and gone when this returns."""
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
