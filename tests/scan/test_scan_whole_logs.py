"""Logs without damage: the same records whatever the window, from any place on, in any ranges."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.format.commitlog import BLANK_SIZE, encode_blank
from recovery.scan.framing import Stop, walk
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from tests.scan.effort import tries
from tests.scan.logs import Chunk, Log, Wanted, found_by, logs, truths_and_lies

windows = st.sampled_from((64, 91, 100, 4096, 1 << 20)) | st.integers(8, 9000)


@contextmanager
def scanned(log: Log) -> Iterator[StoreFiles]:
    """The log on disk, as the engine finds it."""
    with tempfile.TemporaryDirectory() as directory:
        yield StoreFiles.open(log.write(Path(directory) / "store"))


@tries(30)
@given(logs(), windows)
def test_any_window_gives_the_same_records(log: Log, window_bytes: int) -> None:
    with scanned(log) as files:
        scan = Scan(files.commitlog, window_bytes=window_bytes)
        assert found_by(scan) == log.records
        assert scan.damages == []
        assert scan.end_offset == log.end


@tries(30)
@given(logs(min_size=1), st.data())
def test_from_any_place_on_exactly_the_records_that_begin_there_come(log: Log, data: st.DataObject) -> None:
    """Whatever the bodies hold, as long as nothing in them states its own true place.

    That is all bodies that were made before their record had a place: messages copied into messages, files of other
    logs. Who knows the place can deceive; what holds then is said by the tests of hostile bodies below.
    """
    start = data.draw(st.integers(max(log.begin - 10, 0), log.end + 10))
    window_bytes = data.draw(windows)
    with scanned(log) as files:
        scan = Scan(files.commitlog, start, resync=True, window_bytes=window_bytes)
        assert found_by(scan) == {offset: raw for offset, raw in log.records.items() if offset >= start}
        assert scan.damages == []


@tries(30)
@given(logs(min_size=1), st.data())
def test_any_ranges_give_each_record_once(log: Log, data: st.DataObject) -> None:
    last = max(log.segments) + log.segment_size
    places = st.integers(log.begin, last) | st.sampled_from([*log.records, *log.segments])
    cuts = sorted(data.draw(st.lists(places, max_size=5)))
    edges = [log.begin, *cuts, last]
    with scanned(log) as files:
        together: list[tuple[int, bytes]] = []
        for start, end in pairwise(edges):
            scan = Scan(files.commitlog, start, end, resync=True, window_bytes=data.draw(windows))
            together += found_by(scan).items()
            assert scan.damages == []
    assert together == list(log.records.items())


@tries(30)
@given(logs(truths_and_lies, min_size=1), st.data())
@example(None, None)
def test_hostile_bodies_deceive_no_one_who_begins_at_a_record(log: Log | None, data: st.DataObject | None) -> None:
    """A start at a record, or at a segment's first byte, is exact even where bodies hold records with true offsets."""
    if log is None:
        log = hostile_log("record")
    starts = [*log.records, *log.segments]
    start = data.draw(st.sampled_from(starts)) if data else starts[0]
    wanted = {offset: raw for offset, raw in log.records.items() if offset >= start}
    with scanned(log) as files:
        for resync in (False, True):
            scan = Scan(files.commitlog, start, resync=resync, window_bytes=data.draw(windows) if data else 64)
            assert found_by(scan) == wanted
            assert scan.damages == []


@tries(30)
@given(logs(truths_and_lies, min_size=1), st.data())
def test_hostile_bodies_hide_no_record(log: Log, data: st.DataObject) -> None:
    """From inside a body that knows where it lies, records may come that are none, but every true record comes.

    A record in a body with its own true offset cannot be told from the log by one who begins in the middle of it, nor
    can a blank behind such a record: see below.
    """
    start = data.draw(st.integers(log.begin, log.end))
    with scanned(log) as files:
        scan = Scan(files.commitlog, start, resync=True, window_bytes=data.draw(windows))
        found = found_by(scan)
    wanted = {offset: raw for offset, raw in log.records.items() if offset >= start}
    inside = next((at for at, raw in log.records.items() if at < start < at + len(raw)), None)
    deceived = {offset for offset in found if offset not in wanted}
    if not (deceived and inside is not None and holds_a_blank(log, inside)):
        assert wanted.items() <= found.items()
    assert all(inside is not None and inside < offset < inside + len(log.records[inside]) for offset in deceived)


def hostile_log(*kinds: str) -> Log:
    """One record whose body holds truthful records and blanks, and an honest one after it."""
    log = Log(4096)
    fakes = [Chunk(kind, b"fake", 0) for kind in kinds]
    log.append(Wanted(chunks=(Chunk("bytes", b"x" * 10), *fakes, Chunk("bytes", b"y" * 10))))
    log.append(Wanted(chunks=(Chunk("bytes", b"honest"),)))
    return log


def holds_a_blank(log: Log, offset: int) -> bool:
    """Whether a record's bytes hold what would be the segment's blank where it lies."""
    raw, end = log.records[offset], offset - offset % log.segment_size + log.segment_size
    return any(raw[at : at + BLANK_SIZE] == encode_blank(end - offset - at) for at in range(len(raw) - BLANK_SIZE))


def test_a_blank_in_a_body_hides_nothing() -> None:
    log = hostile_log("blank")
    with scanned(log) as files:
        for start in range(1, len(log.records[0])):
            assert sorted(found_by(Scan(files.commitlog, start, resync=True, window_bytes=64))) == [len(log.records[0])]


def test_a_record_that_begins_where_the_scan_does_may_be_larger_than_its_window() -> None:
    log = Log(8192)
    for _ in range(2):
        log.append(Wanted(chunks=(Chunk("bytes", b"x" * 3000),)))
    start = max(log.records)
    with scanned(log) as files:
        assert sorted(found_by(Scan(files.commitlog, start, resync=True, window_bytes=64))) == [start]


@pytest.mark.parametrize("what", ["deleted", "cut"])
def test_a_file_that_changes_under_the_scan_ends_it(what: str) -> None:
    """Retention deletes segments; nobody should cut one, but a scan that then never ended would be worse."""
    log = Log(4096)
    while len(log.segments) < 3:
        log.append(Wanted(chunks=(Chunk("bytes", b"x" * 500),)))
    with scanned(log) as files:
        first = files.commitlog.segments[0]
        scan = Scan(files.commitlog, window_bytes=64)
        if what == "deleted":
            os.remove(first.path)
        else:
            os.truncate(first.path, 1000)
        kept = {at: raw for at, raw in log.records.items() if at >= 4096 or (what == "cut" and at + len(raw) <= 1000)}
        assert found_by(scan) == kept
        assert {damage.kind for damage in scan.damages} == (set() if what == "deleted" else {"corrupt-region"})


def test_a_record_in_a_body_that_knows_its_place_is_believed() -> None:
    """The limit of what can be promised, kept as a test: if this fails, the promise above can be made stronger."""
    log = hostile_log("record")
    with scanned(log) as files:
        found = found_by(Scan(files.commitlog, 50, resync=True))
    assert sorted(found) == [98, len(log.records[0])]


def test_a_record_and_a_blank_in_a_body_that_know_their_places_end_the_segment() -> None:
    """Likewise a limit. Whoever searched on behind the blank would take an older run's records for this one's.

    See tests/scan/test_behind_the_blank.py.
    """
    log = hostile_log("record", "blank")
    with scanned(log) as files:
        assert sorted(found_by(Scan(files.commitlog, 50, resync=True))) == [98]


@tries(20)
@given(logs(min_size=1), st.integers(0, 9000))
def test_a_walk_says_why_it_ends(log: Log, size: int) -> None:
    base, held = next(iter(log.segments.items()))
    step = walk(np.frombuffer(held, np.uint8)[:size], base, base + log.segment_size)
    inside = [offset for offset, raw in log.records.items() if offset + len(raw) <= base + min(size, log.segment_size)]
    assert step.records.offsets.tolist() == inside
    assert base + step.at == (inside[-1] + len(log.records[inside[-1]]) if inside else base)
    if size >= log.segment_size:
        assert step.stop is (Stop.BLANK if base + step.at in log.blanks else Stop.EMPTY)
    else:
        cut = base + step.at in log.records or base + step.at + 8 > base + size
        at_end = Stop.BLANK if base + step.at in log.blanks else Stop.EMPTY
        assert step.stop is (Stop.MORE if cut else at_end)
        assert step.claims <= max(len(log.records.get(base + step.at, b"")), 8)
