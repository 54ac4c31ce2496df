"""What stands behind a blank, and what else in a body can end a scan. Those that fail say why."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from broker.format.commitlog import BLANK_SIZE, BODY_AT, RECORD_SIZE_MIN, RecordMiddle, encode
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.verify.verifier import verify
from tests.scan.logs import Chunk, Log, Wanted, found_by, record
from tests.spark.inline import comparable, verify_inline

SEGMENT = 8192
STALE = "a scan that is not sure takes what an older run left behind the blank for records"


def plain(size: int) -> Wanted:
    return Wanted(chunks=(Chunk("bytes", b"x" * size),))


def written_again() -> Log:
    """A log that RocketMQ cut and wrote on: it zeroes nothing, so whole records of the older run, at their true places,
    lie behind the blank of the newer one."""
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


@pytest.mark.xfail(strict=True, reason=STALE)
def test_a_scan_from_the_middle_ends_at_the_blank(tmp_path: Path) -> None:
    log = written_again()
    start = list(log.records)[5]
    scan = Scan(StoreFiles.open(log.write(tmp_path / "store")).commitlog, start, resync=True)
    assert set(found_by(scan)) == {offset for offset in log.records if offset >= start}
    assert scan.damages == []


@pytest.mark.xfail(strict=True, reason=STALE)
def test_a_scan_past_one_damaged_record_ends_at_the_blank(tmp_path: Path) -> None:
    log = written_again()
    damaged = list(log.records)[3]
    log.segments[0][damaged + 4] ^= 1
    scan = Scan(StoreFiles.open(log.write(tmp_path / "store")).commitlog)
    assert set(found_by(scan)) == set(log.records) - {damaged}
    assert [damage.commitlog_offset for damage in scan.damages] == [damaged]


@pytest.mark.xfail(strict=True, reason=STALE)
def test_both_engines_see_the_same_log(tmp_path: Path) -> None:
    path = str(written_again().write(tmp_path / "store"))
    assert comparable(verify_inline(path, 2048)) == comparable(verify(path))


class HeadInTheBody:
    """A body that holds the head of a record with its true place, which takes the rest of the segment."""

    def at(self, offset: int, segment_end: int) -> bytes:
        place = offset + BODY_AT[False, False]
        size = segment_end - place
        fake = bytearray(encode(record("", b"", b"", place)))
        struct.pack_into(">i", fake, 0, size)
        body_at = BODY_AT[False, False]
        struct.pack_into(
            ">i", fake, body_at - RecordMiddle.SIZE + RecordMiddle.OFFSET["body_length"], size - RECORD_SIZE_MIN
        )
        return Wanted(chunks=(Chunk("bytes", bytes(fake[:body_at])), Chunk("bytes", b"y" * 10))).at(offset, segment_end)


@pytest.mark.xfail(
    strict=True, reason="a record that seems to fill the segment ends it for a scan that is not sure, too"
)
def test_a_head_in_a_body_hides_no_record(tmp_path: Path) -> None:
    """The zeros at the segment's end are its topic and properties, both empty."""
    log = Log(SEGMENT)
    log.append(HeadInTheBody())
    honest = {log.append(plain(50)) for _ in range(5)}
    log.segments[0][4] ^= 1  # the magic of the record around it
    assert honest <= set(found_by(Scan(StoreFiles.open(log.write(tmp_path / "store")).commitlog)))


@pytest.mark.xfail(
    strict=True, reason="the search behind a blank ends where the range does, the one past damage does not"
)
def test_ranges_name_the_damage_that_the_whole_names(tmp_path: Path) -> None:
    log = Log(SEGMENT)
    chunks = (Chunk("record", b"fake", 0), Chunk("blank", b"", 0), Chunk("bytes", b"y" * 1000))
    log.append(Wanted(chunks=chunks))
    log.append(plain(50))
    log.segments[0][4] ^= 1
    listing = StoreFiles.open(log.write(tmp_path / "store")).commitlog
    whole = Scan(listing, window_bytes=128)
    found_by(whole)
    ranges = [Scan(listing, start, end, resync=True, window_bytes=128) for start, end in ((0, 400), (400, SEGMENT))]
    for scan in ranges:
        found_by(scan)
    assert [damage for scan in ranges for damage in scan.damages] == whole.damages
