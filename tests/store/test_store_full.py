"""A disk that fills up refuses what it has no room for, loses nothing, and takes more when there is space again."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import broker
from broker.errors import StoreFull
from broker.format.sysflag import TransactionType
from broker.store.disk.files import Disk
from broker.store.maintain.background import BackgroundTasks
from broker.store.read.layout import StoreLayout
from broker.store.shared.control import Word
from broker.store.write.pending_record import PendingRecord, draft, end_draft
from broker.store.writer import StoreWriter, open_writer
from recovery.verify.verifier import verify
from tests.store.filled import half
from tests.store.full_disk import KIB, MIB, fill_disk, small

__all__ = ["small"]

# Each is the kind of file of which a new one is needed soon, while all others have room for long.
ROOMY = StoreLayout(4 * MIB, 60_000, 240_000, 400_000, 100, 20_000)
LAYOUTS = {
    "commitlog": replace(ROOMY, segment_bytes=256 * KIB),
    "consumequeue": replace(ROOMY, consume_queue_bytes=20 * 100),
    "statetable": replace(ROOMY, state_table_bytes=24 * 200),
    "redolog": replace(ROOMY, redo_log_bytes=20 * 200),
    "index": replace(ROOMY, index_items=800),
}


@pytest.fixture
def no_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make the next segment before it is needed, and give back a block when it replaces a small file."""
    monkeypatch.setattr(BackgroundTasks, "start", lambda self: None)


def plain(number: int) -> PendingRecord:
    return draft("Orders", b"x", {"UNIQ_KEY": f"P{number}"}, queue_id=number % 4, born_timestamp_ms=1)


def transactions(store: StoreWriter, first: int, stop: int, seen: dict[int, int]) -> None:
    """Commit one after another; notes the last type of each that was acknowledged."""
    for number in range(first, stop):
        one = half(number)
        placed = store.append_one(one)
        seen[number] = int(TransactionType.PREPARED)
        store.append_one(end_draft(one, placed.commitlog_offset, placed.queue_offset, TransactionType.COMMIT))
        seen[number] = int(TransactionType.COMMIT)


@pytest.mark.usefixtures("no_upkeep")
@pytest.mark.parametrize("kind", LAYOUTS)
def test_each_kind_of_file_refuses_and_goes_on(small: Path, kind: str) -> None:
    store = open_writer(str(small / "store"), Disk(), LAYOUTS[kind], sync="os")
    seen: dict[int, int] = {}
    transactions(store, 0, 20, seen)
    filler = fill_disk(small)
    with pytest.raises(StoreFull) as caught:
        transactions(store, 20, 20_000, seen)
    assert {"consumequeue": "begun/queue", "redolog": "begun/redolog"}.get(kind, kind) in str(caught.value.path)
    assert caught.value.needed_bytes > 0
    refused = max(seen) if seen[max(seen)] == TransactionType.PREPARED else max(seen) + 1
    words = [store.control[word] for word in (Word.TAIL, Word.INTENT, Word.DISPATCHED)]
    assert len(set(words)) == 1
    several = [plain(number) if kind == "consumequeue" else half(90_000 + number) for number in range(40)]
    for _ in range(2):  # again and again, and nothing was written
        with pytest.raises(StoreFull):
            store.append(several)
    assert [store.control[word] for word in (Word.TAIL, Word.INTENT, Word.DISPATCHED)] == words
    filler.unlink()
    transactions(store, 30_000, 30_400, seen)
    store.close()
    report = verify(small / "store")
    assert report.ok, [str(finding) for finding in report.findings][:4]
    committed = sum(kind == TransactionType.COMMIT for kind in seen.values())
    assert report.transactions["committed"] == committed
    assert report.transactions["in_doubt"] == len(seen) - committed <= 1
    assert refused > 20


def test_no_room_for_a_new_store(small: Path) -> None:
    filler = fill_disk(small)
    with pytest.raises(StoreFull):
        open_writer(str(small / "store"), Disk(), LAYOUTS["commitlog"])
    filler.unlink()
    open_writer(str(small / "store"), Disk(), LAYOUTS["commitlog"]).close()


@pytest.mark.usefixtures("no_upkeep")
def test_no_room_for_a_checkpoint(small: Path) -> None:
    """The old one stays, appends go on in the files that are there, and the next one works."""
    store = open_writer(str(small / "store"), Disk(), LAYOUTS["commitlog"], sync="os")
    transactions(store, 0, 5, {})
    store.checkpoint()
    before = (small / "store" / "checkback" / "checkpoint").read_bytes()
    filler = fill_disk(small)
    transactions(store, 5, 9, {})
    with pytest.raises(StoreFull):
        store.checkpoint()
    assert (small / "store" / "checkback" / "checkpoint").read_bytes() == before
    filler.unlink()
    store.checkpoint()
    assert (small / "store" / "checkback" / "checkpoint").read_bytes() != before
    store.close()
    assert verify(small / "store").ok


@pytest.mark.usefixtures("no_upkeep")
def test_mode_os_flushes_without_room_for_the_next_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends go on to the end of this one, and a power cut is to take the last seconds of them alone."""

    def full(*_: object) -> None:
        raise StoreFull("there is no room")

    monkeypatch.setattr(BackgroundTasks, "make_segment_ahead", full)
    store = open_writer(str(tmp_path), Disk(), ROOMY, sync="os")
    placed = store.append_one(half(0))
    store.upkeep._forced_s = float("-inf")
    store.upkeep._care()
    assert store.control[Word.DURABLE] >= placed.end
    store.close()


@pytest.mark.parametrize("work", ["_care", "_share", "_sync"])
def test_a_lack_of_memory_ends_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """No checkpoint was written any more, and nothing flushed that nobody waits for, however much there was later."""
    is_again, calls = threading.Event(), itertools.count()

    def fails(_self: BackgroundTasks) -> None:
        if next(calls):
            is_again.set()
        raise MemoryError

    fails.__name__ = work
    monkeypatch.setattr(BackgroundTasks, work, fails)
    with broker.open(tmp_path / "store", sync="group") as store:
        store.append(broker.Message("orders", b"x"))
        assert is_again.wait(20)
