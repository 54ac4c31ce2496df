"""Derived files made by Spark's tasks: the cells of each split, dealt to files, and each file written by one task.

    split ──► cells (units that know their place; redo units and index items, which do not yet)
    counts of all splits ──► the place of each ──► pieces, dealt by the file that they belong to
    pieces of one file, in log order ──► the file: written aside, flushed; the driver gives it its name

Spark may run a task twice, and one that it gave up goes on for a while: each run writes files of its own, the driver
takes those of the run that counts. No two tasks write one file. An index file is filled in order, since each item names
the one before it in its slot: so items travel to one task for each file, which holds the slots (20 MB by default) and
a block of items at a time.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from broker.errors import BrokerError, StoreError
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.inventory import Misfit
from broker.store.read.layout import StoreLayout
from broker.store.read.segments import NAME_DIGITS
from broker.transaction.events import Generation
from recovery.pipeline.blocks import SCHEMA, each_of, rows_of
from recovery.pipeline.store_location import StoreLocation
from recovery.rebuild.batch_queues import as_on_disk
from recovery.rebuild.entries import SLOT, UNIT, Claim, QueueLives, keep_live_tags, owners, queue_runs, redo_units
from recovery.rebuild.file_writers import IndexFiles
from recovery.rebuild.misfits import misfits_of_records
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.spill import joined
from recovery.scan.units import Ints, Rows
from recovery.verify.index_items import EXPECTED as ITEM
from recovery.verify.index_items import IndexingRule, expected_items
from recovery.verify.kinds.batch_queues import BATCH_UNIT, BatchQueueName

CELLS, REDO, ITEMS, BATCHES, WRITTEN = "cells", "redo", "items", "batches", "filed"
BATCH_QUEUE = "batchconsumequeue"
QUEUE, REDO_LOG, TABLE, INDEX = "consumequeue", "redolog", "statetable", "index"
_INDEX_DIGITS = 17
SCRATCH = "task-"  # directories of tasks beside those of the files
_NO_NUMBERS = np.zeros(0, np.int64)
_DTYPES: dict[str, Any] = {QUEUE: UNIT, BATCH_QUEUE: BATCH_UNIT, REDO_LOG: UNIT, TABLE: SLOT}


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What every task of a rebuild gets."""

    place: StoreLocation
    directory: str  # where the files go, the same for all executors
    sizes: StoreLayout
    rule: IndexingRule
    whole_records: bool  # whether the items of a record stay in one index file
    batch_queue_bytes: int  # of a file of a BatchConsumeQueue
    table_generation: Generation  # of the transactions that have slots

    def units_in_file(self, kind: str) -> int:
        """How many units or slots a file of some kind holds."""
        sizes = self.sizes
        size = {
            QUEUE: sizes.consume_queue_bytes,
            BATCH_QUEUE: self.batch_queue_bytes,
            REDO_LOG: sizes.redo_log_bytes,
            TABLE: sizes.state_table_bytes,
        }[kind]
        return int(size // np.dtype(_DTYPES[kind]).itemsize)


class OutputFile(NamedTuple):
    """One file: its number in its directory; of the index its name."""

    kind: str
    file: int
    topic: str = ""
    queue_id: int = 0

    @property
    def part(self) -> int:
        """By which its pieces meet; another file may have the same."""
        return crc32(repr(tuple(self)).encode()) & 0x7FFFFFFF

    def path(self, rebuild_plan: RebuildPlan) -> str:
        """Where it ends up."""
        paths = Paths(rebuild_plan.directory)
        if self.kind == INDEX:
            return os.path.join(paths.index, f"{self.file:0{_INDEX_DIGITS}}")
        directory = {REDO_LOG: paths.redo_log, TABLE: paths.state_table}.get(self.kind)
        of_topic = paths.batch_queue if self.kind == BATCH_QUEUE else paths.queue
        directory = directory or of_topic(self.topic, self.queue_id)
        base = self.file * rebuild_plan.units_in_file(self.kind) * np.dtype(_DTYPES[self.kind]).itemsize
        return os.path.join(directory, f"{base:0{NAME_DIGITS}}")


@dataclass(slots=True)
class FileChunk:
    """Some cells of one file; `order` says which of two pieces comes first in the log."""

    target: OutputFile
    order: int
    numbers: Ints
    rows: Rows


@dataclass
class EntryCounts:
    """What a split has, before anything is placed."""

    redo: int = 0
    items: int = 0
    batches: dict[BatchQueueName, int] = field(default_factory=dict)  # units of each BatchConsumeQueue
    misfits: list[Misfit] = field(default_factory=list)
    again: dict[str, int] = field(default_factory=dict)  # where topics were made again: `QueueLives`


@dataclass
class WrittenFile:
    """A file that was written: its first unit and the one behind its last; of an index the time of its last item."""

    target: OutputFile
    begin: int = 0
    end: int = 0
    end_ms: int = 0
    claims: list[Claim] = field(default_factory=list)
    beside: str = ""  # where it lies until it gets its name
    error: str = ""

    def put_in_place(self, disk: Disk, rebuild_plan: RebuildPlan) -> None:
        """Give the file its name. Raises StoreError when it is not here."""
        path = self.target.path(rebuild_plan)
        if disk.entry(self.beside) is None:
            text = f"{path} was written by an executor, and is not here"
            raise StoreError(f"{text}: set TMPDIR to a directory that all machines share", path=path)
        if disk.entry(os.path.dirname(path)) is None:
            disk.create_directory(os.path.dirname(path))
        disk.rename(self.beside, path)


def chunks(rebuild_plan: RebuildPlan, target: OutputFile, order: int, numbers: Ints, rows: Rows) -> Iterator[FileChunk]:
    """Cells with their numbers, dealt to the files of the target's directory; `target.file` does not matter."""
    if not len(numbers):
        return
    files = numbers // rebuild_plan.units_in_file(target.kind)
    if files[0] == files[-1] and (files == files[0]).all():
        yield FileChunk(target._replace(file=int(files[0])), order, numbers, rows)
        return
    by_file = np.argsort(files, kind="stable")
    for run in np.split(by_file, np.flatnonzero(np.diff(files[by_file])) + 1):
        yield FileChunk(target._replace(file=int(files[run[0]])), order, numbers[run], rows[run])


class SplitBuilder:
    """Takes the records of one split."""

    def __init__(self, rebuild_plan: RebuildPlan) -> None:
        self._plan, self._files = rebuild_plan, rebuild_plan.place.files()
        self._queues: dict[tuple[str, int], list[tuple[Ints, Rows]] | None] = {}
        self._lives = QueueLives(self._files)
        self._batches: dict[BatchQueueName, list[Rows]] = {}
        self._redo: list[Rows] = []
        self._items: list[Rows] = []
        self._misfits: list[Misfit] = []

    def add(self, records: Records, kinds: Kinds) -> None:
        """Make what these records have."""
        if not self._misfits:
            self._misfits += misfits_of_records(records, kinds, self._files)
        for run in map(self._lives.present, queue_runs(records, kinds)):
            key = (run.topic, run.queue_id)
            if key not in self._queues:
                self._queues[key] = [] if self._files.expects_queue(*key) else None
            held = self._queues[key]
            if held is not None:
                keep_live_tags(run, self._files)
                held.append((run.numbers, run.units))
        for batch in self._lives.batch_runs(records, kinds):
            self._batches.setdefault((batch.topic, batch.queue_id), []).append(as_on_disk(batch))
        self._redo.append(redo_units(records, kinds))
        self._items.append(expected_items(records, kinds, self._plan.rule))

    def counts(self) -> EntryCounts:
        """How many there are of what has no place yet."""
        batches = {name: sum(map(len, runs)) for name, runs in self._batches.items()}
        redo, items = (sum(map(len, parts)) for parts in (self._redo, self._items))
        return EntryCounts(redo, items, batches, self._misfits, self._lives.again)

    def blocks(self, split_number: int) -> Iterator[tuple[str, int, Any]]:
        """Everything, once all was added."""
        for (topic, queue_id), runs in self._queues.items():
            if runs:
                numbers, units = _together(runs, UNIT)
                target = OutputFile(QUEUE, 0, topic, queue_id)
                for chunk in chunks(self._plan, target, split_number, numbers, units):
                    yield CELLS, chunk.target.part, chunk
        for name, parts in self._batches.items():
            yield BATCHES, split_number, (name, joined(parts, BATCH_UNIT))
        yield REDO, split_number, joined(self._redo, UNIT)
        yield ITEMS, split_number, joined(self._items, ITEM)


def _together(parts: Sequence[tuple[Ints, Rows]], dtype: Any) -> tuple[Ints, Rows]:
    """Numbers and cells of many parts; NumPy's own way would turn their bytes about."""
    return np.concatenate([numbers for numbers, _ in parts]), joined([rows for _, rows in parts], dtype)


def boundary(items: Rows, first: int, wanted: int, *, whole_records: bool) -> tuple[int, int]:
    """Where an index file begins that may begin at item `wanted` at the latest, and the store time of that record.

    `items` are those of a split, the first of which is number `first` of all. A file of ours begins with a record.
    """
    at = wanted - first
    if whole_records:
        offsets = items["commitlog_offset"]
        at = int(np.searchsorted(offsets[: at + 1], offsets[at], side="left"))
    return first + at, int(items["store_ms"][at])


@dataclass(frozen=True)
class Placement:
    """The place of what splits counted: the first redo unit and item of each, and where each index file begins."""

    redo: Sequence[int]
    items: Sequence[int]
    index_starts: Sequence[int] = ()
    index_names: Sequence[int] = ()
    batches: Sequence[Mapping[BatchQueueName, int]] = ()
    with_redo: bool = True


def placed(rebuild_plan: RebuildPlan, layout: Placement, tag: str, part: int, rows: Any) -> Iterator[FileChunk]:
    """The pieces of a block that a split left: cells have their place, the others get theirs."""
    if tag == CELLS:
        yield rows
    elif tag == BATCHES:
        name, units = rows
        numbers = layout.batches[part][name] + np.arange(len(units))
        yield from chunks(rebuild_plan, OutputFile(BATCH_QUEUE, 0, *name), part, numbers, units)
    elif tag == REDO and layout.with_redo:
        numbers = layout.redo[part] + np.arange(len(rows))
        yield from chunks(rebuild_plan, OutputFile(REDO_LOG, 0), part, numbers, rows)
    elif tag == ITEMS and len(rows):
        first = layout.items[part]
        cuts = [start - first for start in layout.index_starts if first < start < first + len(rows)]
        for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            file = int(np.searchsorted(layout.index_starts, first + low, side="right")) - 1
            target = OutputFile(INDEX, layout.index_names[file])
            yield FileChunk(target, part, _NO_NUMBERS, rows[low:high])  # they follow each other


def chunk_rows(found: Iterable[FileChunk]) -> Iterator[pa.RecordBatch]:
    """A row for each piece: its place in the log as the tag, so that Spark can sort by it."""
    for chunk in found:
        columns = [[f"{chunk.order:020}"], [chunk.target.part], [pickle.dumps(chunk, protocol=5)]]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )


# Files


class _UnitFileWriter:
    """A file of units or slots, in memory until it is complete: 6 MB of a ConsumeQueue, 48 MB of a state table."""

    def __init__(self, rebuild_plan: RebuildPlan, target: OutputFile) -> None:
        self._plan, self._target = rebuild_plan, target
        self._cells: list[tuple[Ints, Rows]] = []
        count, dtype = rebuild_plan.units_in_file(target.kind), np.dtype(_DTYPES[target.kind])
        self._first, self._rows = target.file * count, np.zeros(count, dtype)
        self._written = WrittenFile(target)

    def add(self, chunk: FileChunk) -> None:
        """Put cells at their numbers; of two with one number the later stays."""
        if self._target.kind == TABLE:  # who owns a slot is known when all who claim it are
            self._cells.append((chunk.numbers, chunk.rows))
        else:
            self._put(chunk.numbers, chunk.rows)

    def _put(self, numbers: Ints, rows: Rows) -> None:
        plain = f"V{self._rows.dtype.itemsize}"  # NumPy copies a structure field by field
        self._rows.view(plain)[numbers - self._first] = np.ascontiguousarray(rows, self._rows.dtype).view(plain)
        written, least = self._written, int(numbers.min())
        written.begin = least if not written.end else min(written.begin, least)
        written.end = max(written.end, int(numbers.max()) + 1)

    def finish(self, disk: Disk, scratch: str) -> WrittenFile:
        """Write the file."""
        if self._cells:
            numbers, slots = _together(self._cells, SLOT)
            order = np.lexsort((slots["commitlog_offset"], numbers))
            self._put(*owners(numbers[order], slots[order], self._written.claims))
        self._written.beside = os.path.join(scratch, uuid.uuid4().hex)
        disk.write_file(self._written.beside, self._rows.tobytes())
        return self._written


class _IndexFileWriter:
    """An index file, filled as its items come."""

    def __init__(self, rebuild_plan: RebuildPlan, target: OutputFile, disk: Disk, scratch: str) -> None:
        self._target = target
        self._directory = os.path.join(scratch, uuid.uuid4().hex)
        sizes = rebuild_plan.sizes
        self._files = IndexFiles(
            disk, self._directory, sizes.index_slots, sizes.index_items, rebuild_plan.rule, names=[target.file]
        )
        self._end_ms = 0

    def add(self, chunk: FileChunk) -> None:
        """Items behind those that were added before."""
        self._files.add(chunk.rows)
        self._end_ms = int(chunk.rows["store_ms"][-1])

    def finish(self, disk: Disk, scratch: str) -> WrittenFile:
        """Write its slots and header."""
        del disk, scratch
        self._files.finish()
        beside = os.path.join(self._directory, f"{self._target.file:0{_INDEX_DIGITS}}")
        return WrittenFile(self._target, end_ms=self._end_ms, beside=beside)


def file_writer(rebuild_plan: RebuildPlan) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A task: pieces, sorted by what they meet by and then as in the log, become files; a row says of each that it is.

    What fails is a row, too: Spark would run the task again, and then show its own traceback.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for written in _written(rebuild_plan, batches):
                yield from rows_of([(WRITTEN, 0, written)])
        except (BrokerError, OSError) as error:
            yield from rows_of([(WRITTEN, 0, WrittenFile(OutputFile("", 0), error=str(error)))])

    return write


def _written(rebuild_plan: RebuildPlan, batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
    disk, scratch = Disk(), os.path.join(rebuild_plan.directory, f"{SCRATCH}{uuid.uuid4().hex}")
    open_files: dict[OutputFile, _UnitFileWriter | _IndexFileWriter] = {}
    part = -1
    for batch in batches:
        for _, found, chunk in each_of(batch):
            if found != part:
                yield from _finished(open_files, disk, scratch)
                part = found
            if chunk.target not in open_files:
                _ready(disk, rebuild_plan, scratch)
                open_files[chunk.target] = (
                    _IndexFileWriter(rebuild_plan, chunk.target, disk, scratch)
                    if chunk.target.kind == INDEX
                    else _UnitFileWriter(rebuild_plan, chunk.target)
                )
            open_files[chunk.target].add(chunk)
    yield from _finished(open_files, disk, scratch)


def _ready(disk: Disk, rebuild_plan: RebuildPlan, scratch: str) -> None:
    if disk.entry(rebuild_plan.directory) is None:
        raise BrokerError(
            f"an executor does not see {rebuild_plan.directory}: files are rebuilt in a directory that all share. "
            "Set TMPDIR to one, or use --apply on a store that they share"
        )
    if disk.entry(scratch) is None:
        disk.create_directory(scratch)


def _finished(
    open_files: dict[OutputFile, _UnitFileWriter | _IndexFileWriter], disk: Disk, scratch: str
) -> Iterator[WrittenFile]:  # fmt: skip
    for one in open_files.values():
        yield one.finish(disk, scratch)
    open_files.clear()


def prefix_sums(counts: Sequence[int], first: int = 0) -> list[int]:
    """The number of the first of each split's, where the first of all has the number `first`."""
    return [first, *(first + np.cumsum(counts)).tolist()][: len(counts)]


def least_and_most(written: Iterable[WrittenFile]) -> Mapping[tuple[str, str, int], tuple[int, int]]:
    """The first unit and the one behind the last of each directory of units that was written to."""
    spans: dict[tuple[str, str, int], tuple[int, int]] = {}
    for one in written:
        if one.target.kind != INDEX and one.end:
            key = (one.target.kind, one.target.topic, one.target.queue_id)
            low, high = spans.get(key, (one.begin, one.end))
            spans[key] = min(low, one.begin), max(high, one.end)
    return spans
