"""Queues of segments, and what is read by number from them."""

from __future__ import annotations

import contextlib
import os
from itertools import combinations
from pathlib import Path

import pytest

import broker
from broker.format.consumequeue import FILLER
from broker.format.statetable import Slot
from broker.store.disk.files import Disk
from broker.store.disk.open_files import OpenFiles
from broker.store.read.directory import StoreDirectory
from broker.store.read.segments import SegmentQueue, segment_size
from broker.store.read.transaction_files import StateTable
from broker.store.writer import open_writer
from recovery.views.info import look
from tests.store.build import START_MS, Log, units_of, write_queue
from tests.store.filled import SMALL, few_open_files, fill_queues


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 20])
def test_where_a_queue_ends(tmp_path: Path, count: int) -> None:
    log = Log()
    log.append(count) if count else None
    path = log.write(tmp_path)
    write_queue(path, units_of(log.records))
    with broker.open(path, read_only=True) as store:
        assert store.queue_range("orders", 0) == (0, count)
        assert [store.message("orders", 0, n) is not None for n in (0, count - 1, count, count + 99)] == [
            count > 0,
            count > 0,
            False,
            False,
        ]
        queue = store.consumequeues.queue("orders", 0)
        assert queue is not None
        assert list(queue.walk()) == units_of(log.records)
        assert list(queue.walk(3, 5)) == units_of(log.records)[3:5]


def test_fillers_are_no_messages(tmp_path: Path) -> None:
    """The first file of a queue that began late is filled up to its first message."""
    log = Log()
    log.append(10)
    path = log.write(tmp_path)
    write_queue(path, [FILLER] * 6 + units_of(log.records)[6:])
    with broker.open(path, read_only=True) as store:
        assert store.queue_range("orders", 0) == (6, 10)
        assert store.message("orders", 0, 5) is None
        assert store.offset_at_time("orders", 0, 0) == 6
        assert store.offset_at_time("orders", 0, START_MS + 8000) == 8
        assert store.offset_at_time("orders", 0, START_MS + 9001) == 10


def test_topics_and_queues(tmp_path: Path) -> None:
    path = Log().write(tmp_path)
    write_queue(path, [], topic="b", queue_id=10)
    write_queue(path, [], topic="b", queue_id=9)
    write_queue(path, [], topic="%RETRY%group", queue_id=0)
    (path / "consumequeue/b/junk").mkdir()
    (path / "consumequeue/b/007").mkdir()
    (path / "consumequeue/note").touch()
    with broker.open(path, read_only=True) as store:
        assert store.topics() == ["%RETRY%group", "b"]
        assert store.queues("b") == [9, 10]
        assert store.queue_range("b", 9) == (0, 0)


@pytest.mark.parametrize("kind", ["consumequeue", "batchconsumequeue"])
def test_a_directory_that_is_not_a_number_is_no_queue(tmp_path: Path, kind: str) -> None:
    log = Log()
    log.append(1)
    path = log.write(tmp_path)
    for name in ("3", "04", "٥", "-6", "seven"):
        (Path(path) / kind / "batched" / name).mkdir(parents=True)
    with broker.open(path, read_only=True) as store:
        assert store.queues("batched") == [3]
    assert [one.queue_id for one in look(path).queues if one.topic == "batched"] == [3]


@pytest.mark.parametrize("turn", [5, 20, 21, 47, 59])
def test_a_search_by_time_where_the_clock_was_set_back(tmp_path: Path, turn: int) -> None:
    """By days, in the middle of a segment: what came behind a record of later than the end was hidden."""
    log, days_ms = Log(), 5 * 86_400_000
    log.append(60)
    for number, record in enumerate(log.records):
        at, back_ms = record.commitlog_offset + 56, days_ms if number >= turn else 0
        log.data[at : at + 8] = (record.store_timestamp_ms - back_ms).to_bytes(8, "big")
    with broker.open(log.write(tmp_path, spare=True), read_only=True) as store:
        times = [record.store_timestamp_ms for record in store.records()]
        for begin, end in combinations((0, START_MS - days_ms, *sorted(times)[::7], START_MS + days_ms), 2):
            found = [record.store_timestamp_ms for record in store.records_between(begin, end)]
            assert found == [time_ms for time_ms in times if begin <= time_ms < end]


def test_slots_of_files_that_begin_late(tmp_path: Path) -> None:
    directory = tmp_path / "transaction" / "statetable"
    directory.mkdir(parents=True)
    slots = [Slot(1000 * n, 300, 1_700_000_000 + n, 7, 4 + 4 * (n % 3)) for n in range(25)]
    for first in (10, 20):
        raw = b"".join(slot.pack() for slot in slots[first : first + 10])
        (directory / f"{first * Slot.SIZE:020}").write_bytes(raw.ljust(240, b"\0"))
    table = StateTable(StoreDirectory(str(tmp_path), Disk()))
    assert (table.first, table.end) == (10, 25)
    assert (table.get(9), table.get(10), table.get(24), table.get(25)) == (None, slots[10], slots[24], None)
    assert list(table.walk()) == slots[10:]


def make_queue(directory: Path, sizes: dict[int, int]) -> SegmentQueue:
    directory.mkdir(exist_ok=True)
    for base, size in sizes.items():
        (directory / f"{base:020}").write_bytes(bytes(base // 100 % 251 + 1 for _ in range(size)))
    disk = Disk()
    return SegmentQueue(disk, OpenFiles(disk), str(directory), str(directory.parent))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, 0),
        ({0: 0}, 0),
        ({0: 100}, 100),
        ({300: 100, 400: 0}, 100),
        ({0: 100, 100: 100, 200: 60}, 100),
        ({0: 60, 100: 100}, 100),
        ({0: 100, 100: 60}, 100),
        ({0: 100, 300: 100}, 100),
        ({0: 60, 100: 70, 200: 100}, 100),
        ({0: 0, 100: 0}, 100),
        ({0: 98, 100: 92, 200: 40}, 100),
        ({0: 92, 100: 92, 200: 100, 300: 92}, 100),
        ({100: 92, 200: 92, 400: 92, 500: 0}, 100),
        ({0: 100, 100: 100, 130: 100}, 100),
    ],
)
def test_the_size_of_segments(tmp_path: Path, sizes: dict[int, int], expected: int) -> None:
    """What most files have, else what the names agree with."""
    assert segment_size(make_queue(tmp_path / "queue", sizes).listing().segments) == expected


def test_reads_cross_segments(tmp_path: Path) -> None:
    queue = make_queue(tmp_path / "queue", {100: 100, 200: 100, 300: 100})
    assert queue.read(150, 200) == b"\2" * 50 + b"\3" * 100 + b"\4" * 50
    assert queue.read(350, 200) == b"\4" * 50
    assert queue.read(400, 1) == b""
    assert queue.read(0, 10) == b""
    segment = queue.listing().segments[1]
    buffer = bytearray(60)
    assert (segment.read_into(70, buffer), bytes(buffer[:30])) == (30, b"\3" * 30)
    assert segment.next_data(5) == 5


def test_a_file_that_grows_is_seen(tmp_path: Path) -> None:
    """RocketMQ creates a file empty and then gives it its size: the directory does not change then."""
    queue = make_queue(tmp_path / "queue", {0: 100, 100: 0})
    assert queue.read(90, 20) == b"\1" * 10
    (tmp_path / "queue" / f"{100:020}").write_bytes(b"\2" * 100)
    assert queue.read(90, 20) == b"\1" * 10 + b"\2" * 10


def test_a_store_releases_what_it_keeps_where_the_application_took_the_rest(tmp_path: Path) -> None:
    """What it kept open stayed open, and each further queue was refused, until the application closed something."""
    path = str(tmp_path / "a")
    with contextlib.closing(open_writer(path, Disk(), SMALL, sync="os")) as store:
        fill_queues(store, 60)
    with broker.open(path, read_only=True) as reader, few_open_files(300), contextlib.ExitStack() as others:
        for queue_id in range(20):
            assert reader.message("Many", queue_id, 0) is not None
        with contextlib.suppress(OSError):
            while True:
                others.enter_context(open(os.devnull))
        assert all(reader.message("Many", queue_id, 0) is not None for queue_id in range(20, 60))


def test_many_stores_are_read_with_the_open_files_of_a_process(tmp_path: Path) -> None:
    """Each kept 128 files open: four of 150 queues ended their consumers with a limit of 1,024."""
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        store = open_writer(str(path), Disk(), SMALL, sync="os")
        fill_queues(store, 90)
        store.close()
    stores = [broker.open(path, read_only=True) for path in paths]
    with few_open_files(200):
        assert all(store.message("Many", queue_id, 0) is not None for store in stores for queue_id in range(90))
    for store in stores:
        store.close()
