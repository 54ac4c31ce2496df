"""Behind a blank whole records of an older run may lie, at their true places: nobody takes them for the log's."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.format.commitlog import BLANK_SIZE
from recovery.scan import scan
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.verify.verifier import verify
from tests.scan.logs import Chunk, Log, Wanted, found_by
from tests.spark.inline import comparable, verify_inline

SEGMENT = 8192


def plain(size: int) -> Wanted:
    return Wanted(chunks=(Chunk("bytes", b"x" * size),))


def written_again() -> Log:
    """A log that RocketMQ cut after a crash and wrote on: it zeroes nothing that it cuts."""
    older, log = Log(SEGMENT), Log(SEGMENT)
    while older.end + 150 < SEGMENT:
        older.append(plain(30))
    while log.end < 7000:
        log.append(plain(200))
    for size in (1500, 700):  # the first no longer fits into the segment
        log.append(plain(size))
    behind = log.blanks[0] + BLANK_SIZE
    log.segments[0][behind:] = older.segments[0][behind:]
    assert any(offset >= behind for offset in older.records)
    return log


def test_a_scan_from_the_beginning_ends_at_the_blank(tmp_path: Path) -> None:
    log = written_again()
    scan = Scan(StoreFiles.open(log.write(tmp_path / "store")).commitlog)
    assert found_by(scan) == log.records
    assert scan.damages == []


def test_a_scan_from_the_middle_ends_at_the_blank(tmp_path: Path) -> None:
    log = written_again()
    start = list(log.records)[5]
    scan = Scan(StoreFiles.open(log.write(tmp_path / "store")).commitlog, start, resync=True)
    assert set(found_by(scan)) == {offset for offset in log.records if offset >= start}
    assert scan.damages == []


def test_a_scan_past_one_damaged_record_ends_at_the_blank(tmp_path: Path) -> None:
    log = written_again()
    damaged = list(log.records)[3]
    log.segments[0][damaged + 4] ^= 1
    scan = Scan(StoreFiles.open(log.write(tmp_path / "store")).commitlog)
    assert set(found_by(scan)) == set(log.records) - {damaged}
    assert [damage.commitlog_offset for damage in scan.damages] == [damaged]


@pytest.mark.parametrize("distance", [BLANK_SIZE, 400])
def test_batches_from_behind_the_blank_begin_with_the_next_segment(tmp_path: Path, distance: int) -> None:
    """They held the messages that RocketMQ had cut off."""
    log = written_again()
    start = log.blanks[0] + distance
    batches = scan(log.write(tmp_path / "store"), start=start, columns=["commitlog_offset"])
    found = [at for batch in batches for at in batch.column(0).to_pylist()]
    assert found == [offset for offset in log.records if offset >= SEGMENT]


def test_both_engines_see_the_same_log(tmp_path: Path) -> None:
    path = str(written_again().write(tmp_path / "store"))
    assert comparable(verify_inline(path, 2048)) == comparable(verify(path))
