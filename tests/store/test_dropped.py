"""A store that nobody closes and nobody refers to any more, as in a cell of a notebook that runs again."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from pathlib import Path

import pytest

import broker


def _held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def _wait_for(held: tuple[int, int]) -> None:
    deadline = time.monotonic() + 20
    while _held() != held and time.monotonic() < deadline:
        time.sleep(0.02)
    assert _held() == held


@pytest.mark.parametrize("retention", [None, broker.Retention(keep_s=3600)])
def test_a_store_that_was_dropped_keeps_no_thread_and_no_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, retention: broker.Retention | None
) -> None:
    """Each kept three threads and fifteen files: an application that opens one for each request had none left."""
    layout = broker.StoreLayout.small()
    with broker.open(tmp_path, layout=layout):
        pass
    gc.collect()
    held = _held()
    with caplog.at_level(logging.WARNING, "broker"):
        for count in range(3):
            store = broker.open(tmp_path, retention=retention)
            store.producer("shop").send(broker.Message("orders", b"%d" % count))
            del store
            gc.collect()
        _wait_for(held)
    assert [getattr(record, "checkback", {}).get("event") for record in caplog.records] == ["store-dropped"] * 3
    assert not (tmp_path / "abort").exists()  # it was closed as one that somebody closes
    with broker.open(tmp_path) as store, store.consumer("billing", "orders") as consumer:
        assert {consumer.receive(5).body for _ in range(3)} == {b"0", b"1", b"2"}  # type: ignore[union-attr]


def test_a_store_that_futures_were_made_of_is_dropped_when_they_are_done(tmp_path: Path) -> None:
    """The thread that waits for the disk on their behalf held it, with its threads and its files."""
    with broker.open(tmp_path, layout=broker.StoreLayout.small()):
        pass
    gc.collect()
    held = _held()
    store = broker.open(tmp_path)
    for _ in range(2):
        store.transactions.prepare_async(broker.Message("orders", b"1"), "shop").result(timeout=20)
        time.sleep(1.2)  # the thread has ended, and another one begins
    del store
    gc.collect()
    _wait_for(held)


def test_what_was_made_of_a_store_keeps_it(tmp_path: Path) -> None:
    producer = broker.open(tmp_path, layout=broker.StoreLayout.small()).producer("shop")
    transactions = broker.open(tmp_path).transactions
    for _ in range(2):
        gc.collect()
        producer.send(broker.Message("orders", b"1"))
        half = transactions.prepare(broker.Message("payments", b"2"), "payer")
        transactions.commit(half)
        time.sleep(0.2)  # the threads of a dropped store look ten times a second
