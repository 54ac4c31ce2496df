"""Retention: by age and by the disk, whole segments, and never one that holds a half message in doubt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from broker.format.sysflag import TransactionType
from broker.store.disk.files import Disk
from broker.store.maintain.retention import Old, due_segments, expire
from broker.store.write.control import Word
from broker.store.write.pending_record import end_draft
from broker.store.writer import StoreWriter
from recovery.verify.verifier import verify
from tests.store.filled import SMALL, half

HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreWriter]:
    """Some segments of settled transactions."""
    opened = StoreWriter(str(tmp_path), Disk(), SMALL, sync="os")
    settled(opened, 0, 1400)
    yield opened
    opened.close()


def settled(store: StoreWriter, first: int, count: int) -> None:
    for number in range(first, first + count):
        one = half(number)
        placed = store.append_one(one)
        kind = TransactionType.COMMIT if number % 2 else TransactionType.ROLLBACK
        store.append_one(end_draft(one, placed.commitlog_offset, placed.queue_offset, kind))


def later_ms(store: StoreWriter) -> int:
    return store.control[Word.STORE_MS] + 1


def names(path: Path, *parts: str) -> list[str]:
    return sorted(item.name for item in path.joinpath(*parts).iterdir())


def test_old_segments_go_and_what_is_derived_from_them(store: StoreWriter, tmp_path: Path) -> None:
    before = {part: len(names(tmp_path, *part)) for part in DERIVED}
    done = expire(store, 0, now_ms=later_ms(store))
    assert len(names(tmp_path, "commitlog")) == 1
    assert done.segments
    assert done.pinned_by is None
    assert done.begin == int(names(tmp_path, "commitlog")[0])
    for part in DERIVED:
        assert 0 < len(names(tmp_path, *part)) < before[part], part
    settled(store, 1400, 60)
    report = verify(tmp_path)
    assert report.ok, [str(finding) for finding in report.findings][:4]
    with broker.open(tmp_path, read_only=True) as reader:
        assert reader.begin_offset == done.begin


DERIVED = (
    ("commitlog",),
    ("index",),
    ("consumequeue", "Orders", "1"),
    ("transaction", "statetable"),
    ("transaction", "redolog", "TRANSACTION_REDOLOG_TOPIC_XXXX", "0"),
)


def test_what_is_young_stays(store: StoreWriter) -> None:
    assert expire(store, HOUR_MS, now_ms=later_ms(store)).segments == []


def test_a_half_message_in_doubt_keeps_its_segment(store: StoreWriter, tmp_path: Path) -> None:
    pin = store.append_one(half(5000))
    settled(store, 2000, 1200)
    done = expire(store, 0, now_ms=later_ms(store))
    assert done.segments
    assert done.begin <= pin.commitlog_offset < done.begin + SMALL.segment_bytes
    assert done.pinned_by == pin.commitlog_offset
    assert store.dispatcher.slot(pin.queue_offset).state == TransactionType.PREPARED
    store.append_one(end_draft(half(5000), pin.commitlog_offset, pin.queue_offset, TransactionType.COMMIT))
    assert expire(store, 0, now_ms=later_ms(store)).begin > pin.commitlog_offset


def test_what_the_caller_pins_stays(store: StoreWriter) -> None:
    done = expire(store, 0, now_ms=later_ms(store), pinned=[SMALL.segment_bytes + 5])
    assert (done.begin, done.pinned_by) == (SMALL.segment_bytes, SMALL.segment_bytes + 5)


def test_a_full_disk_takes_the_oldest(store: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """However young: two segments are above the share that is allowed."""
    size = 100 * SMALL.segment_bytes
    monkeypatch.setattr(Disk, "used_share", lambda self, path: (0.5 + 1.5 / 100, size))
    done = expire(store, HOUR_MS, now_ms=later_ms(store), disk_share=0.5)
    assert done.begin == 2 * SMALL.segment_bytes


def test_segments_are_due_one_after_another() -> None:
    """A young one keeps those behind it, old as they may say they are."""
    old = [Old(0, 10), Old(100, 20), Old(200, 90), Old(300, 30)]
    assert due_segments(old, 100, 50, 0) == [0, 100]
    assert due_segments(old, 100, 50, 250) == [0, 100, 200, 300]
    assert due_segments(old, 100, 0, -5) == []


def test_a_store_recovers_after_retention(store: StoreWriter, tmp_path: Path) -> None:
    """With a checkpoint that speaks of what is kept, and without any."""
    expire(store, 0, now_ms=later_ms(store))
    settled(store, 1400, 30)
    store.close()
    for lost in ("control", "checkpoint"):
        (tmp_path / "checkback" / "control").unlink()
        (tmp_path / "checkback" / lost).unlink(missing_ok=True)
        again = StoreWriter(str(tmp_path), Disk(), sync="os")
        settled(again, 3000, 30)
        again.close()
        report = verify(tmp_path)
        assert report.ok, [str(finding) for finding in report.findings][:4]


def test_an_end_whose_half_is_gone_settles_nothing(store: StoreWriter, tmp_path: Path) -> None:
    """Killed before it was dispatched: the next process finds no half, and goes on."""
    expire(store, 0, now_ms=later_ms(store))
    store.append_one(end_draft(half(0), 0, 0, TransactionType.COMMIT))
    store.control[Word.DISPATCHED] = store.control[Word.TAIL] - len(half(0).raw)
    store.append_one(half(7000))
    assert store.dispatcher.slot(store.control[Word.SLOTS] - 1).state == TransactionType.PREPARED
