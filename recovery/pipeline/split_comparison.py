"""The derived files against the log, a split at a time, by the same code as the local engine's.

Each task compares the part of the redo log and of the index that belongs to its split (a `DerivedRange`), and the units
of the ConsumeQueues that its records name. What stayed wrong is brought together on the driver (`Merged*`): an item
that was out of order may be what another split missed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from broker.format.consumequeue import Unit
from recovery.findings import Findings
from recovery.pipeline.splits import Split
from recovery.pipeline.store_location import StoreLocation
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.spill import joined
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import IntervalSet, UnitFile, first_run
from recovery.transactions.events import Names, Rows
from recovery.verify.consume_queues import Delays, QueueComparison
from recovery.verify.index import ITEM, IndexComparison, IndexFileView, against, last_offset, open_index
from recovery.verify.index_items import EXPECTED as EXPECTED_ITEM
from recovery.verify.index_items import IndexingRule, expected_items
from recovery.verify.redo_log import EXPECTED, NUMBERED, RedoLogComparison, without_pairs
from recovery.verify.state_table import StateTableComparison

UNIT = np.dtype(Unit.DTYPE)
_AHEAD = 1 << 16

Queue = tuple[str, int]
Held = list[tuple[int, int]]  # spans


@dataclass(frozen=True, slots=True)
class DerivedRange:
    """The units of the redo log and the items of the index (counted over all its files) that belong to a split."""

    redo: tuple[int, int] = (0, 0)
    items: tuple[int, int] = (0, 0)


@dataclass
class SplitDifferences:
    """What the derived files of one split lack, and hold too much."""

    claimed: dict[Queue, Held] = field(default_factory=dict)
    delayed: list[tuple[Queue, Rows, Delays]] = field(default_factory=list)
    redo: tuple[Rows, Rows] | None = None  # missing, strays
    index: dict[IndexingRule, tuple[Rows, Rows]] = field(default_factory=dict)


def cuts(files: StoreFiles, splits: Sequence[Split]) -> tuple[DerivedRange, ...]:
    """The part of the derived files of each split; together they are the whole.

    Where the part of a segment ends is told as the local engine tells it, by reading on; within a segment it is looked
    for, and what a damaged unit puts into the wrong split comes together again (`Merged*`).
    """
    units, places = UnitFile(files.redo_log, UNIT), _ItemPlaces(open_index(files.index, Findings()))
    reader = _ItemReader(files)
    found, redo, item = [], units.begin, 0
    for _, inside in groupby(splits, key=lambda split: split.base):
        of_segment = list(inside)
        redo_end = _redo_end(units, redo, of_segment[-1].end)
        item_end = max(item, places.number(*reader.read_to(of_segment[-1].end)))
        for split in of_segment:
            is_last = split is of_segment[-1]
            redo_stop = redo_end if is_last else min(_redo_end(units, redo, split.end), redo_end)
            item_stop = item_end if is_last else places.first_from(split.end, item, item_end)
            found.append(DerivedRange((redo, redo_stop), (item, item_stop)))
            redo, item = redo_stop, item_stop
    return tuple(found)


class _ItemReader(IndexComparison):
    """Reads the index from its beginning, as the local engine does."""

    def __init__(self, files: StoreFiles) -> None:
        super().__init__(lambda findings: open_index(files.index, findings), Findings())

    def read_to(self, commitlog_offset: int) -> tuple[int, int]:
        """The file and the item in it where those of records from an offset on begin."""
        self._ahead(commitlog_offset)
        return self._file, self._item


def _redo_end(units: UnitFile, cursor: int, stop: int) -> int:
    """Where units of records from `stop` on begin, as the local engine finds it: one unit alone may be damaged."""
    while cursor < units.end:
        rows = units.read(cursor, min(_AHEAD, units.end - cursor))
        count = first_run((rows["commitlog_offset"] >= stop) | (rows["size"] == 0))
        cursor += count
        if count < len(rows):
            break
    return cursor


class _ItemPlaces:
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

    def __init__(self, place: StoreLocation, cut: DerivedRange, split: Split, findings: Findings) -> None:
        files = place.files()
        self._split = split
        self._queues = _SplitQueues(opener(files), findings, has_ext=files.has_queue_ext) if files.has_queues else None
        self._redo = _SplitRedo(UnitFile(files.redo_log, UNIT), cut.redo, findings) if files.has_redo_log else None
        self._index = _SplitIndex(files, cut.items) if files.has_index else None

    def add(self, records: Records, kinds: Kinds) -> None:
        """Compare what these records ask for."""
        for part in (self._queues, self._redo, self._index):
            if part is not None:
                part.add(records, kinds)

    def finish(self) -> SplitDifferences:
        """What stayed wrong."""
        compared = SplitDifferences()
        if self._queues is not None:
            compared.claimed, compared.delayed = self._queues.leave()
        if self._redo is not None:
            compared.redo = self._redo.leave()
        if self._index is not None:
            compared.index = self._index.leave(self._split.start)
        return compared


def opener(files: StoreFiles) -> Callable[[str, int], UnitFile | None]:
    """Opens the ConsumeQueues that should be there."""

    def open_queue(topic: str, queue_id: int) -> UnitFile | None:
        return UnitFile(files.queue(topic, queue_id), UNIT) if files.expects_queue(topic, queue_id) else None

    return open_queue


class KnownIntervals(IntervalSet):
    """Spans that were claimed elsewhere."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        super().__init__()
        for first, stop in sorted(spans):
            if self._spans and first <= self._spans[-1][1]:
                self._spans[-1] = (self._spans[-1][0], max(stop, self._spans[-1][1]))
            else:
                self._spans.append((first, stop))


def held_spans(spans: IntervalSet, first: int, stop: int) -> Held:
    """What was claimed of [first, stop)."""
    held, at = [], first
    for low, high in spans.gaps(first, stop):
        if low > at:
            held.append((at, low))
        at = high
    return [*held, (at, stop)] if at < stop else held


class _SplitQueues(QueueComparison):
    """The queues of one split. How long a delayed message waits is told by its neighbours, so those are left to the
    driver, which sees all of a segment."""

    def __init__(
        self, open_queue: Callable[[str, int], UnitFile | None], findings: Findings, *, has_ext: bool = True
    ) -> None:
        super().__init__(open_queue, findings, has_ext=has_ext)
        self._delayed: list[tuple[Queue, Rows, Delays]] = []

    def _compare(self, queue: Any, expected: Rows, delays: Delays | None) -> None:
        if delays is None:
            super()._compare(queue, expected, None)
        else:
            self._delayed.append(((queue.topic, queue.queue_id), expected, delays))

    def leave(self) -> tuple[dict[Queue, Held], list[tuple[Queue, Rows, Delays]]]:
        """What was claimed, and the delayed records."""
        self._settle()
        claimed = {
            (queue.topic, queue.queue_id): held_spans(queue.claimed, queue.units.begin, queue.units.end)
            for queue in self._queues.values()
            if queue is not None
        }
        return claimed, self._delayed


class MergedQueues(QueueComparison):
    """The queues of all splits, on the driver."""

    def take(self, splits: Sequence[Split], parts: Sequence[SplitDifferences]) -> None:
        """What each split claimed; delayed records are compared a segment at a time."""
        claimed: dict[Queue, Held] = defaultdict(list)
        delayed: dict[tuple[Queue, int], list[tuple[Rows, Delays]]] = defaultdict(list)
        for split, part in zip(splits, parts, strict=True):
            for name, spans in part.claimed.items():
                claimed[name].extend(spans)
            for name, expected, delays in part.delayed:
                delayed[name, split.base].append((expected, delays))
        for (topic, queue_id), spans in claimed.items():
            queue = self._queue(topic.encode(), queue_id)
            if queue is not None:
                queue.claimed = KnownIntervals(spans)
        for (name, _), runs in delayed.items():
            queue = self._queue(name[0].encode(), name[1])
            if queue is not None:
                together = Delays(*(np.concatenate(columns) for columns in zip(*(one for _, one in runs), strict=True)))
                self._compare(queue, np.concatenate([rows for rows, _ in runs]), together)


class _SplitRedo(RedoLogComparison):
    """The redo log's units of one split."""

    def __init__(self, units: UnitFile, cut: tuple[int, int], findings: Findings) -> None:
        super().__init__(units, findings)
        self._cursor, units.end = cut

    def leave(self) -> tuple[Rows, Rows]:
        """The units that are missing, and those that no record asked for."""
        missing = np.concatenate([np.zeros(0, EXPECTED), *self._missing])
        return missing, self._all_strays()


class MergedRedo(RedoLogComparison):
    """The redo log of all splits, on the driver."""

    def take(self, splits: Sequence[Split], parts: Sequence[SplitDifferences], cut: Sequence[DerivedRange]) -> None:
        """What each split missed; within a segment a unit may stand in another split's part."""
        by_segment: dict[int, list[tuple[Rows, Rows]]] = defaultdict(list)
        stops: dict[int, int] = {}
        for split, part, own in zip(splits, parts, cut, strict=True):
            if part.redo is not None:
                by_segment[split.base].append(part.redo)
                stops[split.base] = own.redo[1]
        left_over = np.zeros(0, NUMBERED)
        for base, found in sorted(by_segment.items()):
            missing = np.concatenate([one for one, _ in found])
            strays = np.concatenate([left_over, *(one for _, one in found)])
            missing, strays = without_pairs(missing, strays)
            # A segment that lacks nothing asked for its units alone; what its part has behind them is the next one's:
            # where the last units are damaged, the part ends too late.
            is_behind = not len(missing) and len(strays) and strays["number"].min() == stops[base] - len(strays)
            left_over = strays if is_behind else left_over[:0]
            self._missing.append(missing)
            self._strays.append(strays[: 0 if is_behind else None])
        self._strays.append(left_over)
        self._cursor = cut[-1].redo[1] if cut else self._cursor


class _SplitIndex(IndexComparison):
    """The index items of one split, under each rule: which one holds is told by all of a segment."""

    def __init__(self, files: StoreFiles, items: tuple[int, int]) -> None:
        super().__init__(lambda findings: open_index(files.index, findings), Findings())
        self._cut = items
        self._wanted: dict[IndexingRule, list[Rows]] = {rule: [] for rule in IndexingRule}

    def add(self, records: Records, kinds: Kinds) -> None:
        """Take note of the items that these records ask for."""
        for rule in IndexingRule:
            self._wanted[rule].append(expected_items(records, kinds, rule))

    def leave(self, base: int) -> dict[IndexingRule, tuple[Rows, Rows]]:
        """The items that are missing and those that no key asked for, under each rule."""
        live = _ItemPlaces(self._files).read(*self._cut)
        found = {}
        for rule, wanted in self._wanted.items():
            expected = joined(wanted, EXPECTED_ITEM)
            missing, known = self._match(expected, live, base)
            found[rule] = expected[missing], live[~known]
        return found


class MergedIndex(IndexComparison):
    """The index of all splits, on the driver."""

    def take(self, splits: Sequence[Split], parts: Sequence[SplitDifferences], cut: Sequence[DerivedRange]) -> None:
        """What each split missed, by the rule that fits a segment best."""
        by_segment: dict[int, list[dict[IndexingRule, tuple[Rows, Rows]]]] = defaultdict(list)
        places, last = _ItemPlaces(self._files), dict[int, int]()
        for split, part, own in zip(splits, parts, cut, strict=True):
            if part.index:
                by_segment[split.base].append(part.index)
                first, stop = own.items
                if (said := last_offset(places.read(max(first, stop - 1), stop))) is not None:
                    last[split.base] = said
        for base in sorted(by_segment):
            found = {rule: self._paired([one[rule] for one in by_segment[base]], base) for rule in IndexingRule}
            wrong = {rule: against(lacking, len(strays), last.get(base)) for rule, (lacking, strays) in found.items()}
            self._rule = min(IndexingRule, key=lambda rule: (wrong[rule], rule is not self._rule))
            self._missing.append(found[self._rule][0])
            self._strays.append(found[self._rule][1])
        end = cut[-1].items[1] if cut else 0
        self._file, self._item = places.place(end) if end < places.count else (len(self._files), 1)

    def _paired(self, parts: Sequence[tuple[Rows, Rows]], base: int) -> tuple[Rows, Rows]:
        """What a segment lacks, and its strays, without the items that only stood in another split's part."""
        missing = np.concatenate([one for one, _ in parts])
        strays = np.concatenate([one for _, one in parts])
        if not len(missing) or not len(strays):
            return missing, strays
        still, known = self._match(missing, strays, base)
        return missing[still], strays[~known]


class PartTable(StateTableComparison):
    """The slots of some transactions."""

    def leave(self) -> tuple[Held, Rows]:
        """The slots that are claimed, and the verdicts whose slot holds something else."""
        return held_spans(self._claimed, self._units.begin, self._units.end), self._elsewhere.take(0)


class MergedTable(StateTableComparison):
    """The state table of all partitions, on the driver."""

    def take(self, parts: Iterable[tuple[Held, Rows, list[bytes]]], names: Names) -> None:
        """What each partition claimed, and what it did not find in its place."""
        claimed: Held = []
        for spans, rows, own in parts:
            claimed.extend(spans)
            numbers = np.array([names.number(name) for name in own], np.int32)
            for column in ("group", "topic"):
                rows[column] = numbers[rows[column]]
            self._elsewhere.add(rows, self._partition(rows["half"]))
        self._claimed = KnownIntervals(claimed)
