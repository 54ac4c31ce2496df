"""The derived files against the log, a split at a time, by the same code as the local engine's.

Each task compares the part of the redo log and of the index that belongs to its split (a `DerivedRange`), and the units
of the ConsumeQueues that its records name. What stayed wrong is brought together by `recovery.pipeline.merging`: an
item that was out of order may be what another split missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import numpy as np

from recovery.findings import Findings
from recovery.pipeline.splits import Split
from recovery.pipeline.store_location import LogManifest
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.spill import joined
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Interval, UnitFile, first_sustained
from recovery.transactions.events import Rows
from recovery.verify.consume_queues import DelayedRecords, QueueComparison
from recovery.verify.index import ITEM, IndexComparison, match_items
from recovery.verify.index_files import IndexFileView, open_index_of
from recovery.verify.index_items import EXPECTED as EXPECTED_ITEM
from recovery.verify.index_items import IndexingRule, expected_items
from recovery.verify.kinds.batch_queues import BatchQueueComparison, BatchQueueName
from recovery.verify.kinds.queue_ext import queue_ext_of
from recovery.verify.kinds.rocksdb_queues import rocksdb_comparison
from recovery.verify.kinds.timers import TimerComparison, timers_of
from recovery.verify.record_checks import have_keys
from recovery.verify.redo_log import RedoDifferences, RedoLogComparison

_AHEAD = 1 << 16

Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class DerivedRange:
    """The units of the redo log and the items of the index (counted over all its files) that belong to a split."""

    redo: tuple[int, int] = (0, 0)
    items: tuple[int, int] = (0, 0)


@dataclass
class QueueClaims:
    """What the records of one split claimed of the ConsumeQueues, and those that are still to be compared."""

    claimed: dict[Queue, list[Interval]] = field(default_factory=dict)
    delayed: list[DelayedRecords] = field(default_factory=list)


@dataclass
class SplitDifferences:
    """What the derived files of one split lack, and hold too much."""

    queues: QueueClaims = field(default_factory=QueueClaims)
    rocksdb_queues: QueueClaims = field(default_factory=QueueClaims)
    batch_claimed: dict[BatchQueueName, list[Interval]] = field(default_factory=dict)
    timers: list[Rows] = field(default_factory=list)
    redo: RedoDifferences | None = None
    index: dict[IndexingRule, tuple[Rows, Rows]] = field(default_factory=dict)  # missing, strays
    has_keys: bool = False  # whether any record has a key; looked for only where there is no index


def derived_ranges(files: StoreFiles, splits: Sequence[Split]) -> tuple[DerivedRange, ...]:
    """The part of the derived files of each split; together they are the whole.

    Where the part of a segment ends is found as the local engine finds it, by reading on; within a segment by a search,
    and what a damaged unit puts into the wrong split comes together again (`recovery.pipeline.merging`).
    """
    open_files = partial(open_index_of, files, files.index)
    units, items = files.redo_units(), NumberedItems(open_files(Findings()))
    reader = IndexComparison(open_files, Findings())
    ranges, redo, item = [], units.begin, 0
    for _, inside in groupby(splits, key=lambda split: split.base):
        of_segment = list(inside)
        redo_end = _redo_end(units, redo, of_segment[-1].end)
        item_end = max(item, items.number(*reader.skip_to(of_segment[-1].end)))
        for split in of_segment:
            is_last = split is of_segment[-1]
            redo_stop = redo_end if is_last else min(_redo_end(units, redo, split.end), redo_end)
            item_stop = item_end if is_last else items.first_from(split.end, item, item_end)
            ranges.append(DerivedRange((redo, redo_stop), (item, item_stop)))
            redo, item = redo_stop, item_stop
    return tuple(ranges)


def _redo_end(units: UnitFile, cursor: int, stop: int) -> int:
    """Where units of records from `stop` on begin, as the local engine finds it: one unit alone may be damaged."""
    while cursor < units.end:
        rows = units.read(cursor, min(_AHEAD, units.end - cursor))
        count = first_sustained((rows["commitlog_offset"] >= stop) | (rows["size"] == 0))
        cursor += count
        if count < len(rows):
            break
    return cursor


class NumberedItems:
    """The items of all index files, counted through."""

    def __init__(self, files: Sequence[IndexFileView]) -> None:
        self.files = files
        self.starts = np.concatenate(([0], np.cumsum([max(file.used, 0) for file in files]))).astype(np.int64)

    @property
    def count(self) -> int:
        return int(self.starts[-1])

    def first_from(self, commitlog_offset: int, low: int, high: int) -> int:
        """The first of these items of a record at or behind an offset; a damaged one may lead astray."""
        while low < high:
            middle = (low + high) // 2
            if int(self.read(middle, middle + 1)["commitlog_offset"][0]) < commitlog_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def read(self, first: int, stop: int) -> Rows:
        """Items first … stop - 1 with their numbers and files."""
        parts = [np.zeros(0, ITEM)]
        for number, file in enumerate(self.files):
            low, high = max(first, int(self.starts[number])), min(stop, int(self.starts[number + 1]))
            if low < high:
                item = low - int(self.starts[number]) + 1
                rows = file.read(item, high - low)
                part = np.zeros(len(rows), ITEM)
                for name in rows.dtype.names or ():
                    part[name] = rows[name]
                part["number"], part["file"] = item + np.arange(len(rows)), number
                parts.append(part)
        return np.concatenate(parts)

    def number(self, file: int, item: int) -> int:
        """How many items lie before one."""
        return min(int(self.starts[min(file, len(self.files))]) + item - 1, self.count)

    def place(self, item: int) -> tuple[int, int]:
        """The file and the number in it of an item."""
        number = int(np.searchsorted(self.starts, item, side="right")) - 1
        return number, item - int(self.starts[number]) + 1


class SplitComparison:
    """Takes the records of one split."""

    def __init__(self, log: LogManifest, part: DerivedRange, split: Split, findings: Findings) -> None:
        files = log.store_files()
        self._split = split
        self._queues: QueueComparison | None = None
        if files.has_queues:
            self._queues = QueueComparison(
                files.expected_queue_units, findings, open_ext=partial(queue_ext_of, files), defers_delayed=True
            )
        self._rocksdb_queues = rocksdb_comparison(files, findings, defers_delayed=True)
        self._batch_queues = BatchQueueComparison(files, findings) if files.batch_topics else None
        self._redo = RedoLogComparison(files.redo_units(), findings, part.redo) if files.has_redo_log else None
        timers = timers_of(files)
        self._timers = TimerComparison(timers, findings) if timers is not None else None
        self._index = _SplitIndex(files, part.items) if files.index else None
        self._has_keys = False

    def add(self, records: Records, kinds: Kinds) -> None:
        """Compare what these records ask for."""
        every = (self._queues, self._rocksdb_queues, self._batch_queues, self._redo, self._timers, self._index)
        for comparison in every:
            if comparison is not None:
                comparison.add(records, kinds)
        if self._index is None:
            self._has_keys = self._has_keys or have_keys(records)

    def differences(self) -> SplitDifferences:
        """What stayed wrong."""
        differences = SplitDifferences(has_keys=self._has_keys)
        if self._queues is not None:
            differences.queues = QueueClaims(self._queues.claims(), self._queues.deferred)
        if self._rocksdb_queues is not None:
            differences.rocksdb_queues = QueueClaims(self._rocksdb_queues.claims(), self._rocksdb_queues.deferred)
        if self._batch_queues is not None:
            differences.batch_claimed = self._batch_queues.claims()
        if self._redo is not None:
            differences.redo = self._redo.differences()
        if self._timers is not None:
            differences.timers = self._timers.waiting
        if self._index is not None:
            differences.index = self._index.differences(self._split.start)
        return differences


class _SplitIndex:
    """The index items of one split, under each rule: which one holds is decided by all of a segment."""

    def __init__(self, files: StoreFiles, items: Interval) -> None:
        self._files, self._items = open_index_of(files, files.index, Findings()), items
        self._wanted: dict[IndexingRule, list[Rows]] = {rule: [] for rule in IndexingRule}

    def add(self, records: Records, kinds: Kinds) -> None:
        """Take note of the items that these records ask for."""
        for rule in IndexingRule:
            self._wanted[rule].append(expected_items(records, kinds, rule))

    def differences(self, base: int) -> dict[IndexingRule, tuple[Rows, Rows]]:
        """The items that are missing and those that no key asked for, under each rule."""
        live = NumberedItems(self._files).read(*self._items)
        differences = {}
        for rule, wanted in self._wanted.items():
            expected = joined(wanted, EXPECTED_ITEM)
            missing, known = match_items(self._files, expected, live, base)
            differences[rule] = expected[missing], live[~known]
        return differences
