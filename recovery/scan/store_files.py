"""Everything in a store directory that a verification compares, found and opened for reading."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Self

import numpy as np

from broker.errors import CorruptRecord, CorruptStore, StoreError
from broker.format import checkpoint, config
from broker.format.commitlog import BLANK_SIZE, MAGIC_BLANK
from broker.format.consumequeue import UNIT_SIZE, BatchUnit, Unit
from broker.format.index import HEADER_SIZE, IndexHeader
from broker.format.statetable import Slot
from broker.format.topics import BATCH_QUEUE, LMQ_PREFIX, QUEUE_TYPE
from broker.store.disk.files import Disk, Entry, Missing
from broker.store.disk.paths import STATE_TABLE, given_path, is_topic_directory
from broker.store.disk.store_lock import is_held
from broker.store.read.consumequeue import directories_in, queue_ids_in
from broker.store.read.detect import check_is_store
from broker.store.read.directory import StoreDirectory
from broker.store.read.index import in_log_order
from broker.store.read.kinds.log_directories import other_log_directories
from broker.store.read.kinds.rocksdb_config import damaged_config_databases, read_config_database
from broker.store.read.kinds.rocksdb_queues import RocksDBQueues, queue_database
from broker.store.read.layout import read_engine, read_layout
from broker.store.read.segments import Listing, Segment, SegmentDamage, damages_of
from broker.store.recover.watermark import DerivedCounts, Watermark, published, queue_ends
from broker.transaction.events import Generation
from recovery.findings import Finding
from recovery.scan.records import Bytes
from recovery.scan.small_files import CONFIGS, check_checkpoint, check_store_file
from recovery.scan.units import UnitFile
from recovery.scan.windows import WINDOW_BYTES

_UNIT, _SLOT, _BATCH_UNIT = np.dtype(Unit.DTYPE), np.dtype(Slot.DTYPE), np.dtype(BatchUnit.DTYPE)
_BETWEEN_TWO_WRITES_MS = 1000


class StoreFiles:
    """A store directory as it was when it was opened; the CommitLog's end is fixed by the scan.

    Who verifies a store of ours reads its watermark first, and gives it here: `judged`, `queue_units`, `redo_units`,
    `slot_units` and the index files then leave out what no writer has finished.
    """

    def __init__(self, directory: StoreDirectory, watermark: Watermark | None = None) -> None:
        self.path, self._directory, self.watermark = directory.path, directory, watermark
        paths = directory.paths
        self.opened_ms, self.was_held = time.time_ns() // 1_000_000, False
        with contextlib.suppress(StoreError):  # a later query reports why it cannot be read
            self.was_held = is_held(paths.lock)
        self.log_directories = tuple(other_log_directories(directory.disk, directory.path))
        self.commitlog = self.commitlog_now()
        self.compared = compared_part(self.commitlog, watermark, paths.commitlog)
        self.engine = read_engine(directory.disk, paths)
        self.table = paths.table_of(self.engine)  # the directory of the slots
        self.redo_log, self.state_table = self._listing(paths.redo_log), self._listing(self.table)
        self.commitlog_bytes = sum(segment.size for segment in self.commitlog.segments)
        self.has_queues, self.has_index = self._is_directory(paths.consumequeue), self._is_directory(paths.index)
        self.has_queue_ext = self._is_directory(paths.consumequeue_ext)
        self.rocksdb = queue_database(paths, directory.disk)  # of queues, in place of files or beside them
        self.has_redo_log = self.engine == STATE_TABLE and self._is_directory(paths.redo_log)
        self.has_state_table = self._is_directory(self.table)
        self._index = self._numbered(paths.index) if self.has_index else []
        layout = read_layout(directory.disk, paths)  # of a store of ours
        self.index_counts = (layout.index_slots, layout.index_items) if layout is not None else None
        topics = self._known_topics()
        self._topics = frozenset(topics) if topics is not None else None
        typed = {name for name, topic in (topics or {}).items() if topic.attributes.get(QUEUE_TYPE) == BATCH_QUEUE}
        self.batch_topics = frozenset(filter(is_topic_directory, (*typed, *(name for name, _ in self.batch_queues()))))

    @classmethod
    def open(cls, path: str | os.PathLike[str], watermark: Watermark | None = None) -> Self:
        """The store at a path. Raises NotAStore, or StoreError where this user may not look."""
        text, disk = given_path(path), Disk()
        check_is_store(text, disk)
        return cls(StoreDirectory(text, disk), watermark)

    @cached_property
    def index(self) -> list[Segment]:
        """The files of the index that were there, in the order of the log. It reads the head of each."""
        return in_log_order(self._index)

    @cached_property
    def rocksdb_queues(self) -> RocksDBQueues | None:
        """The queues in a RocksDB; None without one. Raises NoRocksDB, CorruptStore."""
        return None if self.rocksdb is None else RocksDBQueues(self.rocksdb, self.disk)

    @property
    def rocksdb_up_to(self) -> int | None:
        """The CommitLog offset up to which a RocksDB has the queues, if its broker kept newer units in its memory.

        None where the queues are in files, or the store was closed. Raises NoRocksDB, CorruptStore.
        """
        queues = self.rocksdb_queues if self.closed_at_ms() is None else None
        return None if queues is None else queues.dispatched or 0

    def _listing(self, directory: str) -> Listing:
        return self._directory.segments(directory).listing(fresh=True)

    def _is_directory(self, path: str) -> bool:
        entry = self._directory.disk.entry(path)
        return entry is not None and entry.is_directory

    def _entries(self, directory: str) -> list[Entry]:
        try:
            return self._directory.disk.entries(directory)
        except Missing:
            return []

    def _numbered(self, directory: str) -> list[Segment]:
        """The files of the index, as they are named."""
        entries = [entry for entry in self._entries(directory) if entry.is_file and entry.name.isdecimal()]
        counts = self.watermark.counts if self.watermark is not None else None
        if counts is not None:  # a file behind the one in use was only begun
            entries = [entry for entry in entries if int(entry.name) <= counts.index]
        files = self._directory.files
        return [Segment(int(one.name), one.size, one.path, one.inode, files) for one in entries]

    def _known_topics(self) -> Mapping[str, config.TopicConfig] | None:
        """The topics of topics.json, or of the RocksDB in its place; None when it cannot be read."""
        paths, disk = self._directory.paths, self._directory.disk
        try:
            raw = read_config_database("topics.json", paths, disk) or disk.read(paths.config("topics.json"))
            return config.decode_topics(raw).topics
        except (Missing, CorruptStore):
            return None

    def commitlog_now(self) -> Listing:
        """The segments as they are by now: a live broker may have begun another."""
        return self._directory.log_segments(self.log_directories).listing(fresh=True)

    def index_now(self) -> list[Segment]:
        """The files of the index as they are by now, in the order of the log."""
        return in_log_order(self._numbered(self._directory.paths.index))

    def commitlog_file(self, commitlog_offset: int) -> str:
        """The path of the segment that holds an offset, or would."""
        segment = self.commitlog.at(commitlog_offset)
        return segment.path if segment else self._directory.paths.commitlog

    @property
    def table_generation(self) -> Generation:
        """The generation of the transactions that have slots in the table."""
        return Generation.STATE_TABLE if self.engine == STATE_TABLE else Generation.HALF_OP

    @property
    def disk(self) -> Disk:
        """The disk that the store lies on."""
        return self._directory.disk

    @property
    def checkpoint(self) -> str:
        """The path of RocketMQ's checkpoint."""
        return self._directory.paths.checkpoint

    def closed_at_ms(self) -> int | None:
        """The store time that the checkpoint states for the last record; None for a store that was not closed."""
        if self.disk.entry(self._directory.paths.abort) is not None:
            return None
        try:
            return checkpoint.decode(self.disk.read(self.checkpoint)).commitlog_timestamp_ms
        except (Missing, CorruptStore):
            return None

    @property
    def lock(self) -> str:
        """The path of the lock that a 5.x broker holds."""
        return self._directory.paths.lock

    def read(self, segment: Segment, at: int, size: int = WINDOW_BYTES) -> Bytes:
        """The bytes of a segment from a position on, at most `size`."""
        buffer = np.empty(max(min(size, segment.size - at), 0), np.uint8)
        return buffer[: segment.read_into(at, buffer.data)]

    def queue(self, topic: str, queue_id: int) -> Listing:
        """The files of a ConsumeQueue; none for a queue that is not there."""
        return self._listing(self._directory.paths.queue(topic, queue_id))

    def queues(self) -> Iterator[tuple[str, int]]:
        """The ConsumeQueues that are on disk."""
        yield from self._queues_in(self._directory.paths.consumequeue)

    def batch_queues(self) -> Iterator[tuple[str, int]]:
        """The BatchConsumeQueues that are on disk."""
        yield from self._queues_in(self._directory.paths.batchconsumequeue)

    def _queues_in(self, directory: str) -> Iterator[tuple[str, int]]:
        for topic in directories_in(self.disk, directory):
            for queue_id in queue_ids_in(self.disk, os.path.join(directory, topic)):
                yield topic, queue_id

    def queue_ext(self, topic: str, queue_id: int) -> Listing:
        """The files of the ConsumeQueueExt of a queue."""
        return self._listing(os.path.join(self._directory.paths.consumequeue_ext, topic, str(queue_id)))

    def batch_units(self, topic: str, queue_id: int) -> UnitFile:
        """The units of a BatchConsumeQueue, numbered from the first file on."""
        return UnitFile(self._listing(self._directory.paths.batch_queue(topic, queue_id)), _BATCH_UNIT)

    # The units that may be verified

    def queue_units(self, topic: str, queue_id: int) -> UnitFile:
        """The units of a ConsumeQueue. A directory that belongs to no queue of ours is verified as a whole."""
        limits, stop = self._limits, None
        if limits is not None:
            stop = limits.queues.get((topic, queue_id))
            if stop is None and (topic, queue_id) in queue_ends(self.path, self._directory.disk):
                stop = 0  # made since the watermark was read
        return UnitFile(self.queue(topic, queue_id), _UNIT, stop)

    def expected_queue_units(self, topic: str, queue_id: int) -> UnitFile | None:
        """The units of a ConsumeQueue that should be there; None where there need not be one."""
        return self.queue_units(topic, queue_id) if self.expects_queue(topic, queue_id) else None

    def slots_now(self) -> Listing:
        """The files of the table of slots as they are by now."""
        return self._listing(self.table)

    def redo_units(self) -> UnitFile:
        """The units of the redo log."""
        return UnitFile(self.redo_log, _UNIT, self._limits.redo_units if self._limits else None)

    def slot_units(self) -> UnitFile:
        """The slots of the state table."""
        return UnitFile(self.state_table, _SLOT, self._limits.slots if self._limits else None)

    @property
    def _limits(self) -> DerivedCounts | None:
        return self.watermark.limits if self.watermark is not None else None

    @property
    def ignore_from(self) -> int | None:
        """The CommitLog offset from which on records are not compared, as the watermark says."""
        return self.watermark.ignore_from if self.watermark is not None else None

    @property
    def is_index_growing(self) -> bool:
        """Whether the last file of the index may be written to while it is read."""
        return self.watermark is not None and not self.watermark.is_at_rest

    def expects_queue(self, topic: str, queue_id: int) -> bool:
        """Whether a queue should be there: a deleted topic takes its queues along, and one like `..` has none."""
        if topic in self.batch_topics or not is_topic_directory(topic):
            return False
        if self._is_directory(self._directory.paths.queue(topic, queue_id)):
            return True
        known = self._topics is None or topic in self._topics or topic.startswith(LMQ_PREFIX)
        return known and self.rocksdb is None

    def knows_topic(self, topic: str) -> bool:
        """Whether topics.json names a topic."""
        return self._topics is not None and topic in self._topics

    def wrong_sizes(self) -> Iterator[Finding]:
        """Files of the derived queues that were cut, or are missing between others."""
        counts = self.watermark.counts if self.watermark is not None else None
        # A queue without a number has no unit: a process may have been killed while it made the first file.
        ends = {name: counts.queues.get(name, 0) if counts else None for name in self.queues()}
        queues = [_begun_left_out(self.queue(*name), UNIT_SIZE, end) for name, end in ends.items()]
        yield from _wrong_sizes(queues, UNIT_SIZE)
        redo_log = _begun_left_out(self.redo_log, UNIT_SIZE, counts.redo_units if counts else None)
        yield from _wrong_sizes([redo_log], UNIT_SIZE)
        table = _begun_left_out(self.state_table, Slot.SIZE, counts.slots if counts else None)
        yield from _wrong_sizes([table], Slot.SIZE)
        sizes = Counter(segment.size for segment in self.index)
        for segment in self.index:
            if segment.size != max(sizes, key=lambda size: (sizes[size], size)):
                text = f"this index file has {segment.size} bytes, unlike others"
                yield Finding("segment-size", 0, text, segment.path)

    def damaged_small_files(self, last_store_ms: int, stored_ms: Callable[[int], int | None]) -> Iterator[Finding]:
        """Small files that do not read as what they should be; `last_store_ms` is the newest record's store time, and
        `stored_ms` says that of the record at a CommitLog offset, None where none begins.

        The checkpoint of a store of ours may be of a later record than those that are verified.
        """
        for name, decode in CONFIGS.items():
            yield from self._damaged(self._directory.paths.config(name), decode)
        for database, error in damaged_config_databases(self._directory.paths, self.disk).items():
            yield Finding("file-damaged", 0, str(error), database)
        yield from check_store_file(self.disk, self._directory.paths)
        path, newest_ms, known = self.checkpoint, self._newest_ms(last_store_ms), self._queues_end(stored_ms)
        yield from self._damaged(path, lambda raw: check_checkpoint(raw, newest_ms, self.index_headers(), known))

    def _queues_end(self, stored_ms: Callable[[int], int | None]) -> Callable[[int, int], bool]:
        """Whether an offset may be that of the last record in the queues, which was stored at a time.

        A broker that is killed may have written the one before the other; one before 5.5 that went on with the store
        writes the time alone, and leaves the offset of an older record. A record whose segment was removed fits.
        """
        begin, tolerance_ms = self.commitlog.begin, 0 if self.closed_at_ms() is not None else _BETWEEN_TWO_WRITES_MS

        def fits(commitlog_offset: int, queue_ms: int) -> bool:
            found_ms = stored_ms(commitlog_offset)
            if found_ms is None:
                return 0 <= commitlog_offset < begin
            return found_ms <= queue_ms + tolerance_ms

        return fits

    def _newest_ms(self, last_store_ms: int) -> int:
        if self.watermark is None:
            return last_store_ms
        return max(last_store_ms, published(self.path, self._directory.disk)[1])

    def index_headers(self) -> list[IndexHeader]:
        """What the files of the index say of themselves, in order."""
        headers = []
        for segment in self.index:
            with contextlib.suppress(Missing, CorruptRecord):
                headers.append(IndexHeader.unpack_from(segment.read(0, HEADER_SIZE)))
        return headers

    def _damaged(self, path: str, decode: object) -> Iterator[Finding]:
        try:
            if raw := self._directory.disk.read(path):  # RocketMQ takes an empty file for one that is not there
                decode(raw)  # type: ignore[operator]
        except Missing:
            return
        except CorruptStore as error:
            yield Finding("file-damaged", 0, error.reason if isinstance(error, CorruptRecord) else str(error), path)


def compared_part(listing: Listing, mark: Watermark | None, path: str) -> Listing:
    """What of a CommitLog may be verified: up to the watermark, and with the segments that it says must be there."""
    if mark is None:
        return listing
    published_segments = [segment for segment in listing.segments if segment.base < mark.dispatched]
    damages = damages_of(published_segments, mark.segment_bytes)
    end = published_segments[-1].base + mark.segment_bytes if published_segments else 0
    if end < mark.dispatched and not mark.is_copy:
        reason = f"the log was published up to {mark.dispatched}, and its segments end at {end}"
        damages.append(SegmentDamage("segment-missing", end, mark.dispatched, path, reason))
    if mark.is_at_rest:
        return replace(listing, segment_size=mark.segment_bytes, damages=tuple(damages))
    cut = [replace(one, size=min(one.size, mark.dispatched - one.base)) for one in published_segments]
    return replace(listing, segments=tuple(cut), segment_size=mark.segment_bytes, damages=tuple(damages))


def breaks_off(files: StoreFiles, end_offset: int) -> int | None:
    """Where a log whose last record was found to end at an offset lacks records that were published; None for nowhere.

    Zeros at the end of a log say nothing by themselves; behind a watermark they do.
    """
    mark, at = files.watermark, end_offset
    if mark is None or mark.is_copy:
        return None
    while at < mark.dispatched:
        segment = files.commitlog.at(at)
        raw = files.read(segment, at - segment.base, BLANK_SIZE).tobytes() if segment is not None else b""
        following = at - at % mark.segment_bytes + mark.segment_bytes
        is_blank = int.from_bytes(raw[4:8], "big", signed=True) == MAGIC_BLANK
        if not is_blank or int.from_bytes(raw[:4], "big", signed=True) != following - at:
            return at
        at = following
    return None


def _begun_left_out(listing: Listing, unit_size: int, units: int | None) -> Listing:
    """A queue without the files behind its last unit, in whose making a process may have been killed."""
    if units is None:
        return listing
    kept = tuple(segment for segment in listing.segments if segment.base < units * unit_size)
    damages = tuple(one for one in listing.damages if one.start < units * unit_size)
    return replace(listing, segments=kept, damages=damages)


def _wrong_sizes(listings: list[Listing], unit_size: int) -> Iterator[Finding]:
    """Cut and missing files among queues that all have the same configured file size."""
    sizes = Counter(segment.size for listing in listings for segment in listing.segments)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    for listing in listings:
        for damage in (one for one in listing.damages if one.kind != "segment-size"):
            yield Finding(damage.kind, 0, damage.reason, damage.path, {"position": damage.start})
        for segment in listing.segments:
            if segment.size != usual:
                text = f"the file has {segment.size} bytes, the others have {usual}"
                yield Finding("segment-size", 0, text, segment.path, {"size": segment.size})
            elif segment.size % unit_size:
                text = f"the file has {segment.size} bytes, no whole number of units of {unit_size}: it was cut"
                yield Finding("segment-size", 0, text, segment.path, {"size": segment.size})
