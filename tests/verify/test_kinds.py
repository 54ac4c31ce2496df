"""Stores of today's brokers in settings that people run: judged as their clients' truth says, by both engines.

The stores are in tests/golden/kinds; the numbers are what the producers sent and answered.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import broker
from broker.errors import CorruptStore, NotAStore
from broker.format.checkpoint import Checkpoint
from broker.format.consumequeue import BatchUnit, ExtUnit, Unit
from broker.format.index import IndexHeader, IndexItem
from recovery.rebuild.rebuilder import rebuild
from recovery.repair.salvage import salvage
from recovery.scan import scan
from recovery.scan.record_at import record_at
from recovery.scan.store_files import StoreFiles
from recovery.verify.verifier import verify
from recovery.views.figures import survey
from recovery.views.html_report import html_report
from recovery.views.info import look
from tests.cli.command import command
from tests.spark.inline import comparable, verify_inline


class Verdict(NamedTuple):
    """What is right about a store: its transactions by state, its findings by kind, what is not judged."""

    committed: int = 0
    rolled_back: int = 0
    in_doubt: int = 0
    parked: int = 0
    counts: dict[str, int] = {}  # noqa: RUF012
    not_judged: tuple[str, ...] = ()


VERDICTS = {
    "rocketmq-3.2.6-clean": Verdict(8, 4),
    # Gone on with by 4.2.0 and 5.4.0, which delivered a transaction twice.
    "rocketmq-3.2.6-upgraded": Verdict(24, 12, counts={"delivered-twice": 1}),
    "rocketmq-4.9.7-clean": Verdict(12, 6, parked=2),
    "rocketmq-5.5.0-clean": Verdict(12, 6, parked=2),
    "rocketmq-5.5.0-default": Verdict(),
    "rocketmq-5.3.3-batchcq": Verdict(),
    # The broker asked about four transactions before it had written the op message, and delivered them twice.
    "rocketmq-5.3.3-batches": Verdict(4, 4, parked=2, counts={"delivered-twice": 4}),
    "rocketmq-5.3.3-lmq": Verdict(),
    "rocketmq-5.5.0-lights": Verdict(4, 4, parked=2),
    "rocketmq-5.3.3-ext": Verdict(),
    "rocketmq-5.3.3-filters": Verdict(4, 4, parked=2),
    "rocketmq-5.3.3-rocksdb": Verdict(6, 3),
    "rocketmq-5.5.0-rocksdb": Verdict(6, 3),
    # transRocksDBEnable without transWriteOriginTransHalfEnable. It forgets those in doubt, and parks none.
    "rocketmq-5.5.0-rocksdb-halves": Verdict(24, 12, in_doubt=4, not_judged=("rocksdbstore",)),
    "rocketmq-5.3.3-double": Verdict(),
    # Twelve half messages with a delay; op messages for them name halves of the half topic by mistake.
    "rocketmq-5.3.3-timed-halves": Verdict(0, 3, parked=7, counts={"half-diverted": 12, "double-end": 8}),
}
_ITEMS = 200  # of each file of the index, as the brokers were set


@pytest.fixture
def store(golden_copy: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of the stores, for one test alone."""
    (tmp_path / "kinds").mkdir()
    return lambda name: golden_copy(f"kinds/{name}")


@pytest.mark.parametrize("name", VERDICTS)
def test_a_store_is_judged_as_its_clients_say(store: Callable[[str], Path], name: str) -> None:
    path, right = store(name), VERDICTS[name]
    report = verify(path)
    found = [report.transactions[state] for state in ("committed", "rolled_back", "in_doubt", "parked")]
    assert found == [right.committed, right.rolled_back, right.in_doubt, right.parked]
    assert dict(report.findings.counts) == right.counts
    assert {os.path.relpath(one.path, path) for one in report.not_judged} == set(right.not_judged)
    assert comparable(verify_inline(str(path), 4000)) == comparable(report)


def test_what_is_not_judged_is_said_everywhere(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = store("rocketmq-5.3.3-rocksdb")
    (path / "futurequeue").mkdir()
    (path / "kvStore").mkdir()
    (path / "kvStore" / "000012.sst").write_bytes(b"x")
    ran = command(capsys, "verify", path)
    assert ran.code == 0
    assert f"{path}/kvStore (the key-value service of POP): checkback has no rule for what is in this" in ran.out
    assert "may be newer than RocketMQ 5.5" in ran.out
    assert "futurequeue" in html_report(survey(str(path), 0))


# What damage does to the new kinds


def _flip(file: Path, at: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)


def test_a_damaged_unit_of_a_batch_queue_is_found(store: Callable[[str], Path]) -> None:
    path = store("rocketmq-5.3.3-batches")
    before = verify(path).findings.counts
    queue = path / "batchconsumequeue" / "Bat" / "0" / f"{0:020}"
    for number in range(3):
        for name, at in BatchUnit.OFFSET.items():
            if name in ("compacted_offset", "reserved"):
                continue
            _flip(queue, number * 7 * BatchUnit.SIZE + at)
            report = verify(path)
            assert report.findings.counts - before == Counter({"queue-missing": 1, "queue-orphan": 1}), name
            assert comparable(verify_inline(str(path), 4000)) == comparable(report)
            _flip(queue, number * 7 * BatchUnit.SIZE + at)
    shutil.rmtree(path / "batchconsumequeue")
    assert verify(path).findings.counts["queue-missing"] == 30


def test_info_lists_batch_queues(store: Callable[[str], Path]) -> None:
    info = look(store("rocketmq-5.3.3-batches"))
    queues = {(one.topic, one.queue_id): (one.min_offset, one.max_offset) for one in info.queues}
    assert queues["Bat", 0] == queues["Bat", 1] == (0, 33)


def test_a_damaged_light_queue_is_found(store: Callable[[str], Path]) -> None:
    path = store("rocketmq-5.5.0-lights")
    queue = path / "consumequeue" / "%LMQ%qa" / "0" / f"{0:020}"
    _flip(queue, Unit.SIZE + Unit.OFFSET["tags_code"])
    assert verify(path).findings.counts == {"queue-missing": 1}
    units = np.frombuffer(queue.read_bytes(), np.dtype(Unit.DTYPE))
    shutil.rmtree(queue.parent)
    assert verify(path).findings.counts == {"queue-missing": int((units["size"] > 0).sum())}


def test_a_damaged_place_in_the_queue_ext_is_found(store: Callable[[str], Path]) -> None:
    path = store("rocketmq-5.3.3-filters")
    ext = path / "consumequeue_ext" / "Plain" / "0" / f"{0:020}"
    for at in (0, 5, 12, 18):  # size, tags code, store time, size of the bitmap
        _flip(ext, at)
        assert verify(path).findings.counts["queue-missing"] == 1, at
        _flip(ext, at)
    assert verify(path).ok


def test_a_damaged_place_of_a_message_that_waits_is_made_again(store: Callable[[str], Path]) -> None:
    """verify named the unit, and rebuild, which it advises, took the number of the place for the time it is due."""
    path, topic = store("rocketmq-5.5.0-clean"), "SCHEDULE_TOPIC_XXXX"
    queue, ext = (path / directory / topic / "0" / f"{0:020}" for directory in ("consumequeue", "consumequeue_ext"))
    raw = bytearray(queue.read_bytes())
    unit = Unit.unpack_from(raw)
    record = record_at(StoreFiles.open(str(path)).commitlog, unit.commitlog_offset)
    assert record is not None
    stored_ms = int(record.field("store_timestamp_ms")[0])
    ext.parent.mkdir(parents=True)
    ext.write_bytes(ExtUnit(ExtUnit.SIZE, unit.tags_code, stored_ms, 0).pack())
    raw[: Unit.SIZE] = replace(unit, tags_code=-(1 << 63)).pack()
    queue.write_bytes(raw)
    assert verify(path).ok
    assert rebuild(path).ok
    _flip(ext, 1)
    assert verify(path).findings.counts == {"queue-missing": 1}
    assert [(one.part, one.kind) for one in rebuild(path).differences] == [("consumequeue", "different")]


def test_an_older_broker_leaves_the_place_that_one_of_5_5_wrote(store: Callable[[str], Path]) -> None:
    """verify called the checkpoint damaged of a store that went from 5.5.0 back to 5.3.3, which knows no such field."""
    path = store("rocketmq-5.5.0-clean")
    file = path / "checkpoint"
    stated = Checkpoint.unpack_from(file.read_bytes())
    (batch, *_) = scan(path, columns=["commitlog_offset"])
    place = batch[0][1].as_py()
    for offset, damaged in ((place, 0), (place + 1, 1)):
        made = replace(stated, queue_timestamp_ms=stated.commitlog_timestamp_ms, queue_commitlog_offset=offset)
        file.write_bytes(made.pack().ljust(4096, b"\0"))
        assert verify(path).findings.counts["file-damaged"] == damaged


def test_a_lost_item_of_tags_is_found(store: Callable[[str], Path]) -> None:
    path = store("rocketmq-5.5.0-clean")
    file = min((path / "index").iterdir())
    header = IndexHeader.unpack_from(file.read_bytes())
    items = file.stat().st_size - _ITEMS * IndexItem.SIZE
    assert header.next_item > 6
    _flip(file, items + 6 * IndexItem.SIZE + 3)  # of a record with a unique key, four other keys, and tags
    assert verify(path).findings.counts == {"index-missing": 1, "index-orphan": 1, "index-damaged": 2}


# Causes before consequences


@pytest.fixture
def small_segments(store: Callable[[str], Path]) -> Path:
    """A store of some segments of 32 KiB that a broker closed."""
    return store("rocketmq-5.5.0-segments")


def _causes(report: Any) -> list[tuple[str, dict[str, int]]]:
    return [(cause.kind, dict(cause.consequences)) for cause in report.causes]


def test_a_packed_segment_in_place_of_one_is_named(small_segments: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segments = sorted((small_segments / "commitlog").iterdir())
    middle = segments[len(segments) // 2]
    with gzip.open(f"{middle}.gz", "wb") as packed:
        packed.write(middle.read_bytes())
    middle.unlink()
    report = verify(small_segments)
    (cause,) = report.causes
    assert cause.kind == "segment-missing"
    assert f"{middle.name}.gz lies in its place" in cause.text
    assert report.findings.counts == cause.consequences + Counter({"segment-missing": 1})
    ran = command(capsys, "verify", small_segments, "--limit", "0")
    assert f"{middle.name}.gz lies in its place" in ran.out
    assert f"explains {cause.consequences.most_common(1)[0][1]:,} " in ran.out
    assert "checkback rebuild" not in ran.out, "no advice to build queues from a log with a hole"


def test_a_packed_segment_that_was_cut_is_damage(small_segments: Path) -> None:
    """Half an archive is a damaged log, exit code 4; the sentence says how the rest is read nevertheless."""
    segment = min((small_segments / "commitlog").iterdir())
    packed = gzip.compress(segment.read_bytes())
    (archive := segment.with_name(f"{segment.name}.gz")).write_bytes(packed[: len(packed) // 2])
    segment.unlink()
    with pytest.raises(
        CorruptStore, match=r"0\.gz cannot be unpacked as gzip: .* Put a whole copy in its place, or move"
    ):
        verify_inline(str(small_segments), 4000)
    archive.unlink()
    assert verify_inline(str(small_segments), 4000).records


def test_the_last_segment_is_missing(small_segments: Path) -> None:
    last = max((small_segments / "commitlog").iterdir())
    last.unlink()
    report = verify(small_segments)
    (cause,) = report.causes
    assert f"segment {last.name} is missing" in cause.text
    assert cause.consequences == report.findings.counts


def test_the_first_segment_is_missing(small_segments: Path) -> None:
    min((small_segments / "commitlog").iterdir()).unlink()
    (entry,) = verify(small_segments).not_judged
    assert "retention removed them, or they were lost" in entry.why


def test_what_lies_beside_the_segments_is_not_judged(small_segments: Path) -> None:
    """A segment with another name, or in a directory, may be a part of the log: `ok` alone would hide that."""
    log = small_segments / "commitlog"
    for name in ("00000000000099999999.bak", ".DS_Store"):
        (log / name).write_bytes(b"?")
    (log / "00000000000088888888").mkdir()
    report = verify(small_segments)
    assert report.ok
    names = {"00000000000099999999.bak", "00000000000088888888"}
    assert {one.path for one in report.not_judged} == {str(log / name) for name in names}
    assert comparable(verify_inline(str(small_segments), 4000)) == comparable(report)


def test_a_copy_whose_log_is_older_than_its_queues(small_segments: Path) -> None:
    report = verify(small_segments)
    last = max((small_segments / "commitlog").iterdir())
    at = int(last.name)
    raw = last.read_bytes()
    half = (report.end_offset - at) // 2
    last.write_bytes(raw[:half] + bytes(len(raw) - half))
    (small_segments / "abort").touch()
    report = verify(small_segments)
    kinds = _causes(report)
    assert [kind for kind, _ in kinds if kind != "torn-tail"] == ["log-short"]
    assert "copied while a broker wrote to it" in report.causes[-1].text
    explained: Counter[str] = sum((cause.consequences for cause in report.causes), Counter())
    assert set(report.findings.counts - explained) <= {"torn-tail"}


def test_a_copy_whose_queues_are_older_than_its_log(small_segments: Path) -> None:
    middle = verify(small_segments).end_offset // 2
    for file in (small_segments / "consumequeue").rglob("0" * 16 + "*"):
        rows = np.frombuffer(bytearray(file.read_bytes()), np.dtype(Unit.DTYPE))
        rows[rows["commitlog_offset"] >= middle] = np.zeros(1, rows.dtype)
        file.write_bytes(rows.tobytes())
    (small_segments / "abort").touch()
    report = verify(small_segments)
    (cause,) = report.causes
    assert cause.kind == "derived-late"
    assert cause.consequences == report.findings.counts
    assert set(cause.consequences) == {"queue-missing"}


# What is no damage


def test_zeros_that_a_copy_dropped_are_no_damage(store: Callable[[str], Path]) -> None:
    path = store("rocketmq-4.9.7-clean")
    report = verify(path)
    (segment,) = (path / "commitlog").iterdir()
    os.truncate(segment, report.end_offset)
    cut = verify(path)
    assert cut.ok
    assert (cut.records, cut.digest) == (report.records, report.digest)
    assert comparable(verify_inline(str(path), 4000)) == comparable(cut)


def test_zeros_that_a_copy_dropped_from_every_segment(small_segments: Path) -> None:
    """Each segment is named with what it lacks: no record, and no segment that there never was."""
    before = verify(small_segments)
    for segment in (small_segments / "commitlog").iterdir():
        os.truncate(segment, len(segment.read_bytes().rstrip(b"\0")))
    report = verify(small_segments)
    assert report.findings.counts == {"segment-size": len(list((small_segments / "commitlog").iterdir()))}
    assert (report.records, report.digest) == (before.records, before.digest)
    assert all("from name to name there are 32768" in one["text"] for one in report.as_json()["findings"])
    assert comparable(verify_inline(str(small_segments), 4000)) == comparable(report)


def test_bytes_of_an_older_write_behind_the_last_record(store: Callable[[str], Path]) -> None:
    """writeWithoutMmap of 5.5 writes a buffer as a whole, with what it held behind the record."""
    path = store("rocketmq-5.5.0-clean")
    report = verify(path)
    (segment,) = (path / "commitlog").iterdir()
    raw = bytearray(segment.read_bytes())
    raw[report.end_offset : report.end_offset + 120] = raw[900:1020]
    segment.write_bytes(raw)
    assert verify(path).ok
    (path / "abort").touch()
    assert verify(path).findings.counts == {"torn-tail": 1}, "after a crash they may be half a record"


def test_several_log_directories(small_segments: Path) -> None:
    report = verify(small_segments)
    other = small_segments / "commitlog2"
    other.mkdir()
    for segment in sorted((small_segments / "commitlog").iterdir())[1::2]:
        segment.rename(other / segment.name)
    again = verify(small_segments)
    assert (again.findings.counts, again.digest, again.records) == (
        report.findings.counts,
        report.digest,
        report.records,
    )
    assert comparable(verify_inline(str(small_segments), 1 << 20)) == comparable(again)


def test_messages_in_another_log_directory_are_read(small_segments: Path) -> None:
    """`find` said that they are not there, and `tail` that their queue is that of another log."""

    def messages() -> list[tuple[str, int, bytes]]:
        with broker.open(small_segments, read_only=True) as opened:
            queues = [(topic, queue_id) for topic in opened.topics() for queue_id in opened.queues(topic)]
            numbers = ((name, number) for name in queues for number in range(*opened.queue_range(*name)))
            found = (opened.message(*name, number) for name, number in numbers)
            return [(one.topic, one.commitlog_offset, one.body) for one in found if one is not None]

    before = messages()
    other = small_segments / "commitlog2"
    other.mkdir()
    for segment in sorted((small_segments / "commitlog").iterdir())[1::2]:
        segment.rename(other / segment.name)
    assert before
    assert messages() == before
    (misfit,) = rebuild(small_segments).misfits
    assert (misfit.path, misfit.what) == (str(other), "a directory of segments beside commitlog/")


def test_a_log_of_dledger_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(NotAStore, match="DLedger"):
        verify(tmp_path)


def test_how_far_nothing_was_compacted_is_no_compacted_topic(store: Callable[[str], Path], tmp_path: Path) -> None:
    """Each broker of 5.x notes it, and keeps the note of before: it counted as a topic that a salvage lost."""
    path = store("rocketmq-5.3.3-plain")
    for name in ("position-checkpoint", "position-checkpoint.bak"):
        (path / "compaction" / name).write_text('{"offsetTable":{},"dataVersion":{}}')
    assert verify(path).not_judged == ()
    assert salvage(path, tmp_path / "out").left_behind == []
