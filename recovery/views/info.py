"""What a store is, at a glance: its files, queues, groups and small files, without reading the whole log.

    info = look("shop.store")
    info.as_json()

The generation is recognised from records at both ends of the log; `count=True` reads all of them. What cannot be read
does not end the look: it is one of the `damages`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from broker.errors import CorruptRecord, StoreError
from broker.format import config
from broker.format.checkpoint import Checkpoint
from broker.format.topics import TIMER_TOPIC
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths
from broker.store.read.fixedqueue import FixedQueue
from broker.store.read.kinds.rocksdb import NoRocksDB
from broker.store.read.segments import Listing, Segment
from broker.store.read.store import Store, open_store
from recovery.findings import Findings
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.transactions.tracker import TransactionTracker
from recovery.verify.index_files import open_index
from recovery.verify.kinds.batch_queues import offsets_of
from recovery.verify.open_by import Writer, writers
from recovery.views.messages.waiting import count_timers

Progress = Callable[[int, int], None]  # bytes done, bytes in all

SAMPLE_BYTES = 16 << 20  # of the log's beginning and of its end


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One file of the CommitLog."""

    name: str
    commitlog_offset: int
    size: int
    on_disk: int  # less than `size` where the file has holes


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One ConsumeQueue: from the first message that is kept to the one that comes next."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """Where a consumer group stands in one queue; `lag` is None when the queue is not there."""

    group: str
    topic: str
    queue_id: int
    position: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """One file of the index."""

    name: str
    size: int
    items: int
    begin_timestamp_ms: int
    end_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class UnitsInfo:
    """The state table or the redo log."""

    files: int
    size: int
    used: int | None  # slots or units; None when that is unknown


@dataclass(frozen=True, slots=True)
class TimersInfo:
    """The messages in the timer wheel, and on their way into it."""

    waiting: int
    first_due_ms: int
    last_due_ms: int  # of those that are not rolled
    rolled: int  # of those that wait: due later than the wheel says
    not_in_wheel: int  # records of the timer topic that the broker has yet to put into the wheel


@dataclass(frozen=True, slots=True)
class DamageInfo:
    """Something that could not be read as what it should be."""

    kind: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Info:
    """The look; `as_json` is its public form."""

    path: str
    generation: str = "none"
    generation_from: str = "all records"  # or "a sample"
    begin_offset: int = 0
    end_offset: int = 0
    segment_size: int = 0
    segments: list[SegmentInfo] = field(default_factory=list)
    records: int | None = None  # only counted on request
    queues: list[QueueInfo] = field(default_factory=list)
    groups: list[GroupInfo] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    abort: bool = False
    abort_pid: int | None = None
    writers: list[Writer] | None = None  # None: this system does not say
    index: list[IndexInfo] = field(default_factory=list)
    state_table: UnitsInfo | None = None
    redo_log: UnitsInfo | None = None
    timers: TimersInfo | None = None
    queues_up_to: int | None = None  # CommitLog offset of the queues in a RocksDB whose broker has newer ones in memory
    damages: list[DamageInfo] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def look(path: str | os.PathLike[str], *, count: bool = False, progress: Progress | None = None) -> Info:
    """Look at the store at `path`. Raises NotAStore, or StoreError where this user may not look."""
    files = StoreFiles.open(path)
    with open_store(files.path) as store:
        return _InfoReader(files, store).take(count, progress)


class _InfoReader:
    """One look; what fails becomes a damage."""

    def __init__(self, files: StoreFiles, store: Store) -> None:
        self._files, self._store = files, store
        self._damages: list[DamageInfo] = []

    def take(self, count: bool, progress: Progress | None) -> Info:
        listing = self._files.commitlog
        self._damages += [DamageInfo(damage.kind, damage.path, damage.reason) for damage in listing.damages]
        info = Info(
            path=self._files.path,
            begin_offset=listing.begin,
            segment_size=listing.segment_size,
            segments=[_segment(segment) for segment in listing.segments],
            queues=list(self._queues()),
            index=list(self._index()),
            writers=writers(self._files.path),
            state_table=self._units(self._store.state_table, self._files.has_state_table),
            redo_log=self._units(self._store.redo_log, self._files.has_redo_log),
            queues_up_to=self._queues_up_to(),
            damages=self._damages,
        )
        timers, groups = self._timers(info.queues), self._groups(info.queues)
        info = replace(info, timers=timers, groups=groups, **self._small_files())
        return self._counted(info, progress) if count else self._sampled(info)

    def _queues(self) -> Iterator[QueueInfo]:
        names = {*self._files.queues(), *self._queues_in_rocksdb()}
        for topic, queue_id in sorted(names):
            try:
                yield QueueInfo(topic, queue_id, *self._store.queue_range(topic, queue_id))
            except Missing:
                continue
            except StoreError as error:
                self._damaged("queue", Paths(self._files.path).queue(topic, queue_id), error)
        for topic, queue_id in sorted(self._files.batch_queues()):
            yield QueueInfo(topic, queue_id, *offsets_of(self._files.batch_units(topic, queue_id)))

    def _queues_in_rocksdb(self) -> list[tuple[str, int]]:
        try:
            queues = self._files.rocksdb_queues
        except StoreError as error:
            kind = "not-read" if isinstance(error, NoRocksDB) else "file-damaged"
            self._damaged(kind, self._files.rocksdb or self._files.path, error)
            return []
        return list(queues.ends) if queues is not None else []

    def _queues_up_to(self) -> int | None:
        with contextlib.suppress(StoreError):  # which is named with the queues
            return self._files.rocksdb_up_to
        return None

    def _timers(self, queues: list[QueueInfo]) -> TimersInfo | None:
        queue = next((one for one in queues if one.topic == TIMER_TOPIC), None)
        counted = TimersInfo(*count_timers(self._files.path, (queue.min_offset, queue.max_offset) if queue else (0, 0)))
        return counted if counted.waiting or counted.not_in_wheel else None

    def _groups(self, queues: list[QueueInfo]) -> list[GroupInfo]:
        ranges = {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in queues}
        try:
            positions = self._store.consumer_offsets().positions
        except StoreError as error:
            self._damaged("file-damaged", Paths(self._files.path).config("consumerOffset.json"), error)
            return []
        found = []
        for (topic, group), of_queues in sorted(positions.items()):
            filled = {queue_id for (of, queue_id), (begin, end) in ranges.items() if of == topic and begin < end}
            for queue_id in sorted({*of_queues, *filled}):
                begin, end = ranges.get((topic, queue_id), (0, None))
                position = of_queues.get(queue_id, begin)
                # What was removed is behind nobody, and nor is a position beyond the end: consumer_lag counts so, too.
                lag = None if end is None else max(0, end - max(position, begin))
                found.append(GroupInfo(group, topic, queue_id, position, lag))
        return found

    def _index(self) -> Iterator[IndexInfo]:
        for segment in self._files.index:
            findings = Findings()
            for file in open_index([segment], findings, capacity=self._files.index_counts):
                header = file.header
                stored_ms = (header.begin_timestamp_ms, header.end_timestamp_ms)
                yield IndexInfo(segment.name, segment.size, file.used, *stored_ms)
            self._damages += [DamageInfo(finding.kind, finding.file, finding.text) for finding in findings]

    def _units(self, queue: FixedQueue[Any], is_there: bool) -> UnitsInfo | None:
        if not is_there:
            return None
        segments = queue.segments
        self._damages += [DamageInfo(damage.kind, damage.path, damage.reason) for damage in queue.damages]
        try:
            used = queue.end - queue.first
        except StoreError as error:
            self._damaged("queue", segments[0].path if segments else self._files.path, error)
            used = None
        return UnitsInfo(len(segments), sum(segment.size for segment in segments), used)

    def _small_files(self) -> dict[str, Any]:
        paths = Paths(self._files.path)
        found: dict[str, Any] = {}
        try:
            found["checkpoint"] = self._store.checkpoint()
        except CorruptRecord as error:
            self._damaged("file-damaged", paths.checkpoint, error)
        if self._store.has_abort:
            found["abort"] = True
            try:
                found["abort_pid"] = config.decode_abort(Disk().read(paths.abort))
            except StoreError:
                pass
        return found

    def _counted(self, info: Info, progress: Progress | None) -> Info:
        """With the number of records, the true end and the generation from all of them."""
        total = self._files.commitlog_bytes
        scan = Scan(self._files.commitlog, progress=lambda done: progress(done, total) if progress else None)
        tracker = TransactionTracker(self._files)
        try:
            for records in scan:
                tracker.add(records)
        finally:
            tracker.close()
        self._note(scan, self._files.commitlog)
        generation = tracker.generation.label
        return replace(info, records=tracker.records, generation=generation, end_offset=scan.end_offset)

    def _sampled(self, info: Info) -> Info:
        """The generation from both ends of the log, and where it ends."""
        listing, tracker = self._files.commitlog, TransactionTracker(self._files)
        tail = self._tail(info)
        head_end = listing.begin + SAMPLE_BYTES
        scan = Scan(listing, start=listing.begin, end=head_end if tail > head_end else None)
        scans = [scan, Scan(listing, start=tail, resync=True)] if tail > head_end else [scan]
        try:
            for scan in scans:
                for records in scan:
                    tracker.add(records)
                self._note(scan, listing)
        finally:
            tracker.close()
        source = "a sample" if len(scans) > 1 else "all records"
        end_offset = max(scan.end_offset for scan in scans)
        if len(scans) > 1 and end_offset == tail:  # nothing is there: the log ends before what the queues name
            end_offset = self._store.end_offset
        return replace(info, generation=tracker.generation.label, generation_from=source, end_offset=end_offset)

    def _tail(self, info: Info) -> int:
        """Where to begin to look for the end: ConsumeQueues name records close to it; else the last used segment."""
        begin = self._files.commitlog.begin
        used = [segment.base for segment in self._files.commitlog.segments if _is_used(segment)]
        newest = max(used, default=begin)
        for queue in info.queues:
            if queue.max_offset > queue.min_offset:
                found = self._store.every_queue.queue(queue.topic, queue.queue_id)
                unit = found.get(queue.max_offset - 1) if found else None
                if unit is not None and self._files.commitlog.at(unit.commitlog_offset) is not None:
                    newest = max(newest, unit.commitlog_offset)
        last = self._files.commitlog.at(newest)
        return max(begin, newest - SAMPLE_BYTES, last.base if last else begin)

    def _note(self, scan: Scan, listing: Listing) -> None:
        """What the scan found damaged; the file damages are known already."""
        known = {(damage.kind, damage.path) for damage in listing.damages}
        for damage in scan.damages:
            if (damage.kind, damage.file) not in known:
                reason = f"{damage.reason} ({damage.size} bytes at CommitLog offset {damage.commitlog_offset})"
                self._damages.append(DamageInfo(damage.kind, damage.file, reason))

    def _damaged(self, kind: str, path: str, error: StoreError) -> None:
        reason = error.reason if isinstance(error, CorruptRecord) else str(error)
        self._damages.append(DamageInfo(kind, path, reason))


def _segment(segment: Segment) -> SegmentInfo:
    try:
        on_disk = 512 * os.stat(segment.path).st_blocks
    except FileNotFoundError:  # it expired under us
        on_disk = 0
    return SegmentInfo(segment.name, segment.base, segment.size, on_disk)


def _is_used(segment: Segment) -> bool:
    try:
        return any(segment.read(0, 8))
    except Missing:
        return False
