"""A store that was closed: every call that needs it says so, and none speaks of memory."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.errors import StoreError
from broker.live import open_live
from broker.store.disk.files import Disk, Entry
from broker.testing.crash_disk import CrashDisk
from broker.testing.fixtures import SMALL

CLOSED = r"belongs to a store that was closed: open it again with broker\.open"

CALLS: dict[str, Callable[[Any], Any]] = {
    "append": lambda store: store.append(broker.Message("orders", b"x")),
    "append_batch": lambda store: store.append_batch([broker.Message("orders", b"x")]),
    "create_topic": lambda store: store.create_topic("boxes"),
    "consumer of a group that was there": lambda store: store.consumer("packers", "orders"),
    "consumer of a new group": lambda store: store.consumer("others", "orders"),
    "pause_group": lambda store: store.pause_group("packers"),
    "queue_end": lambda store: store.queue_end("orders", 0),
    "queue_range": lambda store: store.queue_range("orders", 0),
    "message": lambda store: store.message("orders", 0, 0),
    "record": lambda store: store.record(0),
    "records": lambda store: list(store.records()),
    "records_between": lambda store: list(store.records_between(0, 1 << 50)),
    "by_key": lambda store: store.by_key("orders", "4711"),
    "end_offset": lambda store: store.end_offset,
    "visible_end": lambda store: store.visible_end,
    "sync_now": lambda store: store.sync_now(),
    "retain": lambda store: store.retain(broker.Retention(keep_s=1)),
    "prepare": lambda store: store.transactions.prepare(broker.Message("orders", b"x"), "web"),
    "parked": lambda store: store.transactions.parked(),
    "in_doubt": lambda store: list(store.transactions.in_doubt()),
    "in_doubt_slots": lambda store: store.transactions.in_doubt_slots(),
    "with": lambda store: store.__enter__(),
    "serve": lambda store: broker.serve(store, "127.0.0.1:0"),
}


@pytest.fixture(scope="module", params=["state-table", "half-op"])
def closed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[broker.LiveStore]:
    path = tmp_path_factory.mktemp("closed") / "store"
    store = broker.open(path, layout=broker.StoreLayout.small(), transactions=request.param)
    for _ in range(4):
        store.append(broker.Message("orders", b"x", keys=["4711"]))
    with store.consumer("packers", "orders") as consumer:
        message = consumer.receive(5)
        assert message is not None
        consumer.ack(message)
    store.transactions.prepare(broker.Message("orders", b"half"), "web")
    store.close()
    yield store
    store.close()  # a second call does nothing


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_store_says_so(closed: broker.LiveStore, name: str) -> None:
    with pytest.raises(broker.StoreError, match=CLOSED):
        pytest.fail(f"{name}: {CALLS[name](closed)!r}")


def test_a_consumer_of_a_closed_store_says_so(tmp_path: Path) -> None:
    store = broker.open(tmp_path / "store", layout=broker.StoreLayout.small())
    consumer = store.consumer("packers", "orders")
    store.close()
    with pytest.raises(broker.StoreError, match=CLOSED):
        consumer.receive(5)
    consumer.close()


def test_a_closed_reader_says_so(tmp_path: Path) -> None:
    with broker.open(tmp_path / "store", layout=broker.StoreLayout.small()) as live:
        live.append(broker.Message("orders", b"x"))
    reader = broker.open(tmp_path / "store", read_only=True)
    with reader:
        assert len(list(reader.records())) == 1
    with pytest.raises(broker.StoreError, match=CLOSED):
        list(reader.records())
    with pytest.raises(broker.StoreError, match=CLOSED), reader:
        pytest.fail("it was entered")


def test_a_close_that_fails_locks_nobody_out(tmp_path: Path) -> None:
    """What it could not flush is the next open's to recover, in whichever process, while this one lives on."""
    disk = CrashDisk(tmp_path / "disk")
    path = str(disk.root / "store")
    store = open_live(path, disk=disk, layout=SMALL, sync="os")
    store.append(broker.Message("orders", b"x"))
    disk.fail_next_sync("store/commitlog/*")
    with pytest.raises(broker.SyncFailed):
        store.close()
    store.close()
    with open_live(path, disk=disk, layout=SMALL) as again:
        assert again.message("orders", 0, 0) is not None
    with pytest.raises(broker.StoreError, match=CLOSED):
        list(store.records())


class OpensAllBut(Disk):
    """A disk that has no descriptor left for one file."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def open_lock(self, path: str, *, write: bool = True) -> int:
        if os.path.basename(path) == self._name:
            raise StoreError(f"{path}: too many files are open", path=path)
        return super().open_lock(path, write=write)


@pytest.mark.parametrize("name", ["append.lock", "sync.lock", "upkeep.lock"])
def test_an_open_that_fails_keeps_no_descriptor(tmp_path: Path, name: str) -> None:
    """A process that tries again for long would run out of them: a collection of garbage comes when it comes."""
    broker.open(tmp_path / "store").close()
    _check_nothing_stays(lambda: open_live(str(tmp_path / "store"), disk=OpensAllBut(name)))


def test_an_open_that_is_refused_keeps_no_descriptor(tmp_path: Path) -> None:
    with broker.open(tmp_path / "store") as store:
        first = store.append_batch([broker.Message("orders", b"x") for _ in range(9)])[1].commitlog_offset
        shutil.copytree(tmp_path / "store", tmp_path / "copy")  # as after a crash
    (tmp_path / "copy" / "checkback" / "control").unlink()
    with (tmp_path / "copy" / "commitlog" / "00000000000000000000").open("r+b") as log:
        log.seek(first)
        log.write(b"\xff" * 100)
    _check_nothing_stays(lambda: broker.open(tmp_path / "copy"))


def _check_nothing_stays(opens: Callable[[], object]) -> None:
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(broker.BrokerError):
            opens()
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


class _Unreadable(Disk):
    """The lock file cannot be looked at once it was opened."""

    def entry(self, path: str) -> Entry | None:
        if path.endswith("/lock"):
            raise broker.StoreError(f"{path}: Input/output error")
        return super().entry(path)


def test_an_open_that_fails_locks_nobody_out(tmp_path: Path) -> None:
    """Also as long as somebody has its error."""
    with pytest.raises(broker.StoreError, match="Input/output error") as failed:
        open_live(str(tmp_path / "store"), disk=_Unreadable(), layout=SMALL)
    broker.open(tmp_path / "store").close()
    assert failed.value
