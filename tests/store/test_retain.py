"""Retention: by age, size and free space, whole segments, and never one that holds a half message in doubt."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from broker.format.consumequeue import UNIT_SIZE
from broker.format.sysflag import TransactionType
from broker.live import LiveStore, open_live
from broker.store.disk.files import Disk
from broker.store.maintain.removal import _remove_derived
from broker.store.maintain.retention import OldSegment, Retention, due_segments, going_segments, most_careful
from broker.store.shared.control import Word
from broker.store.write.pending_record import end_draft
from broker.store.writer import StoreWriter, open_writer
from recovery.cli.terminal.tables_consumer import retention
from recovery.rebuild import rebuild
from recovery.verify.verifier import verify
from tests.store.filled import SMALL, TINY, half

HOUR_S = 3600.0
ALL = Retention(keep_s=0, even_unread=True)  # nobody consumes here
DERIVED = (
    ("commitlog",),
    ("index",),
    ("consumequeue", "Orders", "1"),
    ("transaction", "statetable"),
    ("transaction", "redolog", "TRANSACTION_REDOLOG_TOPIC_XXXX", "0"),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LiveStore]:
    """Some segments of settled transactions, and the one that was made ahead of the log.

    Made here, because the background may make it at any moment of a test that takes long enough.
    """
    opened = open_live(tmp_path, layout=SMALL, sync="os")
    settled(opened.writer, 0, 1400)
    with opened.writer.upkeep_lock:
        opened.writer.upkeep.make_segment_ahead(grown=SMALL.segment_bytes)
    yield opened
    opened.close()


def settled(store: StoreWriter, first: int, count: int) -> None:
    for number in range(first, first + count):
        one = half(number)
        placed = store.append_one(one)
        kind = TransactionType.COMMIT if number % 2 else TransactionType.ROLLBACK
        store.append_one(end_draft(one, placed.commitlog_offset, placed.queue_offset, kind))


def later_ms(store: LiveStore) -> int:
    return store.writer.control[Word.STORE_MS] + 1


def names(path: Path, *parts: str) -> list[str]:
    return sorted(item.name for item in path.joinpath(*parts).iterdir())


def test_an_archive_of_what_was_removed_is_no_part_of_the_log(store: LiveStore, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    shutil.copy(tmp_path / "commitlog" / f"{0:020}", tmp_path / "archive")
    done = store.retain(ALL, now_ms=later_ms(store))
    report = verify(tmp_path)
    assert report.findings.counts == {}
    with broker.open(tmp_path, read_only=True) as reader:
        assert next(iter(reader.records())).commitlog_offset == done.begin


def test_old_segments_go_and_what_is_derived_from_them(store: LiveStore, tmp_path: Path) -> None:
    before = {part: len(names(tmp_path, *part)) for part in DERIVED}
    used = Disk().used_bytes(str(tmp_path))
    done = store.retain(ALL, now_ms=later_ms(store))
    tail = store.writer.control[Word.TAIL]
    last = tail - tail % SMALL.segment_bytes
    assert [int(name) for name in names(tmp_path, "commitlog")] == [last, last + SMALL.segment_bytes]
    assert (len(done.segments), done.due, done.pins) == (before["commitlog",] - 2, len(done.segments), [])
    assert done.begin == last
    assert done.used_bytes == used
    assert Disk().used_bytes(str(tmp_path)) <= used - done.bytes
    for part in DERIVED:
        assert 0 < len(names(tmp_path, *part)) < before[part], part
    settled(store.writer, 1400, 60)
    report = verify(tmp_path)
    assert report.ok, [str(finding) for finding in report.findings][:4]
    with broker.open(tmp_path, read_only=True) as reader:
        assert reader.begin_offset == done.begin


def test_a_dry_run_says_the_same_and_removes_nothing(store: LiveStore, tmp_path: Path) -> None:
    before = names(tmp_path, "commitlog")
    now_ms = later_ms(store)
    told = store.retain(ALL, dry_run=True, now_ms=now_ms)
    assert names(tmp_path, "commitlog") == before
    done = store.retain(ALL, now_ms=now_ms)
    assert (told.segments, told.begin, told.unread) == (done.segments, done.begin, done.unread)
    assert (told.applied, done.applied) == (False, True)


def test_the_oldest_segment_goes_first(store: LiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is gone before the next one goes: a power cut leaves a log that begins later, and no hole."""
    disk, removed = store.writer.disk, list[tuple[str, bool]]()
    remove = disk.remove

    def noted(path: str, *, durable: bool = True) -> None:
        removed.append((path, durable))
        remove(path, durable=durable)

    monkeypatch.setattr(disk, "remove", noted)
    done = store.retain(ALL, now_ms=later_ms(store))
    log = [one for one in removed if f"{os.sep}commitlog{os.sep}" in one[0]]
    assert log == [(path, True) for path in sorted(done.segments)]
    assert len(log) > 1


def test_a_queue_file_stays_whose_last_message_is_the_first_that_is_kept(tmp_path: Path) -> None:
    with open_live(tmp_path, layout=TINY, sync="os") as opened:
        placed = [opened.append(broker.Message("orders", b"x"), queue_id=0) for _ in range(45)]
        last = TINY.consume_queue_bytes // UNIT_SIZE - 1
        for kept, files in ((last, 3), (last + 1, 2)):
            _remove_derived(opened.writer.parts, placed[kept].commitlog_offset)
            assert len(names(tmp_path, "consumequeue", "orders", "0")) == files


def test_what_is_young_stays(store: LiveStore) -> None:
    assert store.retain(Retention(keep_s=HOUR_S, even_unread=True), now_ms=later_ms(store)).segments == []


def test_a_half_message_in_doubt_keeps_its_segment(store: LiveStore) -> None:
    """Whatever `even_unread` says; parked or not."""
    writer = store.writer
    pin = writer.append_one(half(5000))
    settled(writer, 2000, 1200)
    done = store.retain(ALL, now_ms=later_ms(store))
    assert done.segments
    assert done.begin <= pin.commitlog_offset < done.begin + SMALL.segment_bytes
    assert [(one.kind, one.commitlog_offset) for one in done.pins] == [("half message", pin.commitlog_offset)]
    step = f"checkback check-back {store.path}, or manually: checkback resolve {store.path} {pin.commitlog_offset}"
    assert done.pins[0].text.endswith(f"is in doubt. Settle it: {step}")
    assert writer.dispatcher.slot(pin.queue_offset).state == TransactionType.PREPARED
    writer.append_one(end_draft(half(5000), pin.commitlog_offset, pin.queue_offset, TransactionType.COMMIT))
    assert store.retain(ALL, now_ms=later_ms(store)).begin > pin.commitlog_offset


def test_of_many_half_messages_in_doubt_the_first_are_listed(store: LiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million had a sentence each: in each application, in 190 MB of JSON and in Airflow's database."""
    monkeypatch.setattr("broker.retainer.HALVES_LISTED", 3)
    pins = [store.writer.append_one(half(5000 + number)).commitlog_offset for number in range(5)]
    settled(store.writer, 2000, 1200)
    done = store.retain(ALL, dry_run=True, now_ms=later_ms(store))
    assert [one.commitlog_offset for one in done.pins] == pins[:3]
    assert done.pins_omitted == done.as_json()["pins_omitted"] == 2
    assert "  and 2 more" in list(retention(done, None, {}))


def test_a_store_above_its_limit_takes_the_oldest(store: LiveStore, tmp_path: Path) -> None:
    """However young; as many segments as are above it, and no more."""
    used = Disk().used_bytes(str(tmp_path))
    limit = used - SMALL.segment_bytes - 1
    done = store.retain(Retention(keep_s=HOUR_S, max_bytes=limit, even_unread=True), now_ms=later_ms(store))
    assert done.begin == 2 * SMALL.segment_bytes
    assert Disk().used_bytes(str(tmp_path)) <= limit


def test_a_disk_that_others_filled_takes_nothing_younger(store: LiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless space on the disk is what the retention asks for."""
    monkeypatch.setattr(Disk, "free_bytes", lambda self, path: 1000)
    now_ms = later_ms(store)
    limits = {"max_bytes": 1 << 30, "keep_s": HOUR_S}
    assert store.retain(Retention(**limits, even_unread=True), now_ms=now_ms).due == 0
    asked = Retention(**limits, free_bytes=1000 + SMALL.segment_bytes, even_unread=True)
    assert store.retain(asked, now_ms=now_ms).begin == SMALL.segment_bytes


def test_segments_are_due_one_after_another() -> None:
    """A young one keeps those behind it, old as they may say they are."""
    old = [OldSegment(0, 10), OldSegment(100, 20), OldSegment(200, 90), OldSegment(300, 30)]
    assert due_segments(old, 100, 50, 0) == [0, 100]
    assert due_segments(old, 100, 50, 250) == [0, 100, 200, 300]
    assert due_segments(old, 100, 0, -5) == []
    assert going_segments([0, 100, 200], 100, 250) == [0, 100]
    assert going_segments([0, 100], 100, None) == [0, 100]
    assert going_segments([0, 100], 100, 0) == []
    assert going_segments([0, 100, 200], 100, 200) == [0, 100], "the first record that must stay begins a segment"


def test_the_most_careful_settings_count() -> None:
    """A rule that one process lacks removes nothing for that one, so it removes nothing."""
    short = Retention(keep_s=10, max_bytes=1000, free_bytes=50, gone_after_s=5, even_unread=True)
    long = Retention(keep_s=99, max_bytes=5000, free_bytes=10, gone_after_s=None)
    assert most_careful([short, long]) == Retention(keep_s=99, max_bytes=5000, free_bytes=10, gone_after_s=None)
    assert most_careful([short, Retention(keep_s=20)]) == Retention(keep_s=20)
    assert most_careful([Retention(keep_s=20), Retention(max_bytes=1000)]) is None
    assert most_careful([]) is None


@pytest.mark.parametrize(
    "wrong",
    [{}, {"keep_s": -1}, {"keep_s": "72h"}, {"keep_s": True}, {"keep_s": float("nan")}, {"max_bytes": 0},
     {"max_bytes": 1.5}, {"free_bytes": -1}, {"keep_s": 1, "gone_after_s": -1}, {"keep_s": 1, "even_unread": 1}],
)  # fmt: skip
def test_settings_that_make_no_sense_get_a_sentence(wrong: dict[str, object]) -> None:
    with pytest.raises(broker.BrokerError, match=r"seconds|bytes|True or False|needs a rule"):
        Retention(**wrong)  # type: ignore[arg-type]


def test_a_limit_that_the_layout_cannot_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(broker.BrokerError, match="two segments"):
        broker.open(tmp_path / "store", layout=SMALL, retention=Retention(max_bytes=SMALL.segment_bytes))


@pytest.mark.parametrize("part", DERIVED[1:], ids="-".join)
def test_a_derived_file_that_was_cut_is_named_with_what_to_do(tmp_path: Path, part: tuple[str, ...]) -> None:
    """By its path, and its rebuild lets retention go on."""
    with open_live(tmp_path, layout=SMALL, sync="os") as store:
        settled(store.writer, 0, 1400)
    cut = tmp_path.joinpath(*part, names(tmp_path, *part)[0])
    os.truncate(cut, 10)
    with open_live(tmp_path) as store, pytest.raises(broker.CorruptStore, match=f"^{cut}.*Run: checkback"):
        store.retain(ALL, now_ms=later_ms(store))
    rebuild(tmp_path, apply=True)
    with open_live(tmp_path) as store:
        store.retain(ALL, now_ms=later_ms(store))
    assert verify(tmp_path).ok


def test_a_store_recovers_after_retention(store: LiveStore, tmp_path: Path) -> None:
    """With a checkpoint that speaks of what is kept, and without any."""
    store.retain(ALL, now_ms=later_ms(store))
    settled(store.writer, 1400, 30)
    store.close()
    for lost in ("control", "checkpoint"):
        (tmp_path / "checkback" / "control").unlink()
        (tmp_path / "checkback" / lost).unlink(missing_ok=True)
        again = open_writer(str(tmp_path), Disk(), sync="os")
        settled(again, 3000, 30)
        again.close()
        report = verify(tmp_path)
        assert report.ok, [str(finding) for finding in report.findings][:4]


def test_what_retention_left_is_received_after_a_recovery_without_a_checkpoint(
    store: LiveStore, tmp_path: Path
) -> None:
    """Each queue begins within a file: what is in front of its first unit is not the end of the queue."""
    store.retain(ALL)
    queues = [(topic, queue_id) for topic in store.topics() for queue_id in store.queues(topic)]
    before = {queue: store.queue_range(*queue) for queue in queues}
    store.close()
    for name in ("control", "checkpoint"):
        (tmp_path / "checkback" / name).unlink()
    open_writer(str(tmp_path), Disk(), sync="os").close()
    with broker.open(tmp_path, read_only=True) as reader:
        assert {queue: reader.queue_range(*queue) for queue in queues} == before
    assert any(first for first, _ in before.values())
    assert verify(tmp_path).ok


def test_a_queue_all_of_whose_messages_expired_goes_on_at_its_number(tmp_path: Path) -> None:
    """After a recovery without a checkpoint, too: below the group's position nobody would receive what comes."""
    with broker.open(tmp_path, layout=SMALL, sync="os") as opened:
        for _ in range(3):
            opened.append(broker.Message("idle", b"old"))
        with opened.consumer("billing", "idle") as consumer:
            for _ in range(3):
                consumer.ack(received(consumer))
        settled(opened.writer, 0, 1400)
        opened.retain(ALL)
        assert opened.queue_range("idle", 0) == (3, 3)
    before = {path.name: path.read_bytes() for path in (tmp_path / "consumequeue" / "idle" / "0").iterdir()}
    for name in ("control", "checkpoint"):
        (tmp_path / "checkback" / name).unlink()
    with broker.open(tmp_path, sync="os") as opened:
        assert opened.queue_range("idle", 0) == (3, 3)
        assert {path.name: path.read_bytes() for path in (tmp_path / "consumequeue" / "idle" / "0").iterdir()} == before
        assert opened.append(broker.Message("idle", b"new")).queue_offset == 3
        with opened.consumer("billing", "idle") as consumer:
            assert received(consumer).body == b"new"
    assert verify(tmp_path).ok


def received(consumer: broker.Consumer) -> broker.ReceivedMessage:
    message = consumer.receive(timeout_s=20)
    assert message is not None
    return message


def test_an_end_whose_half_is_gone_settles_nothing(store: LiveStore) -> None:
    """Killed before it was dispatched: the next process finds no half, and goes on."""
    store.retain(ALL, now_ms=later_ms(store))
    writer = store.writer
    writer.append_one(end_draft(half(0), 0, 0, TransactionType.COMMIT))
    writer.control[Word.DISPATCHED] = writer.control[Word.TAIL] - len(half(0).raw)
    writer.append_one(half(7000))
    assert writer.dispatcher.slot(writer.control[Word.SLOTS] - 1).state == TransactionType.PREPARED


def test_what_is_parked_stays_parked_when_older_park_records_are_gone(tmp_path: Path) -> None:
    """Whoever opens the store begins to read the park topic at its first record that is kept."""
    with broker.open(tmp_path / "store", layout=SMALL, sync="os") as store:
        settled_one = store.transactions.prepare(broker.Message("orders", b"1"), "shop")
        store.transactions.park(settled_one, "no answer")
        store.transactions.rollback(settled_one)
        for _ in range(2 * SMALL.segment_bytes // 1000):
            store.append(broker.Message("plain", bytes(1000)))
        waiting = store.transactions.prepare(broker.Message("orders", b"2"), "shop")
        store.transactions.park(waiting, "no answer")
        for _ in range(SMALL.segment_bytes // 1000):
            store.append(broker.Message("plain", bytes(1000)))
        assert store.retain(ALL, now_ms=1 << 42).begin > settled_one.commitlog_offset
    with broker.open(tmp_path / "store", sync="os") as store:
        assert set(store.transactions.parked()) == {waiting.commitlog_offset}
        assert store.transactions.state(waiting) is broker.TransactionState.PARKED
