"""Where the live derived files differ from what was built: counted by part and kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.format.consumequeue import FILLER_SIZE
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.directory import StoreDirectory
from broker.store.read.segments import Segment
from broker.transaction.events import TransactionState
from recovery.findings import Findings
from recovery.rebuild.batch_queues import in_order
from recovery.rebuild.builder import Build, listing_of
from recovery.rebuild.entries import SLOT, UNIT
from recovery.rebuild.file_writers import filled_units
from recovery.scan.kinds import Kinds
from recovery.scan.record_at import record_at
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Rows, UnitFile
from recovery.verify.comparison import FinishContext
from recovery.verify.index import IndexComparison
from recovery.verify.index_files import Chains, IndexFileView, open_index, open_live_index
from recovery.verify.kinds.batch_queues import BATCH_UNIT
from recovery.verify.later_ends import SETTLED, is_settled_by, later_ends

_AT_ONCE = 1 << 16
_PREPARED = int(TransactionState.PREPARED)
_SETTLED = (int(TransactionState.COMMITTED), int(TransactionState.ROLLED_BACK))

# Each kind with the sentence that explains it; docs/recovery.md prints this table.
DIFFERENCES: dict[str, str] = {
    "missing": "the live file lacks it",
    "extra": "the live file has it, and no record says it",
    "different": "the live file says something else",
    "size": "the live file was cut, or is longer than the others are: a broker does not start with it",
    "chains": "the items are right, but the live file's chains, slots or header do not agree with them",
}


_SLOTS_LISTED = 20


@dataclass(frozen=True, slots=True)
class SlotChange:
    """One slot of the state table that differs: its transaction, the state that is there, the one that the log says."""

    slot: int
    commitlog_offset: int  # of the half message
    live: int | None  # a TransactionState as a number; None where there is no slot
    made: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """So many units, slots or items of one directory are not what the log says."""

    part: str
    kind: str
    count: int
    directory: str
    first: int  # the number of the first of them
    slots: tuple[SlotChange, ...] = ()  # of the state table: the first of them

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        return {
            "part": self.part, "kind": self.kind, "count": self.count, "directory": self.directory, "first": self.first,
        }  # fmt: skip

    @property
    def text(self) -> str:
        """What differs, without the directory."""
        if self.kind == "size":
            return f"{self.count} with the wrong file size, the first begins with number {self.first}"
        return f"{self.count} {self.kind}, the first is number {self.first}"

    def __str__(self) -> str:
        return f"{self.directory}: {self.text}"


def differences(build: Build, live: StoreFiles, disk: Disk, end: int) -> list[Difference]:
    """All of them, for the parts that the store's generation has; `end` is where the log was read to.

    What a live store dispatched for records from there on is not verified.
    """
    found: list[Difference] = []
    parts = [part for part, _, _ in build.parts()]
    now = StoreFiles.open(live.path, live.watermark)  # with the files that came and went while the log was read
    kept = (now.commitlog.begin, end)
    for topic, queue_id in sorted({*build.queues, *now.queues()}):
        directory = Paths(live.path).queue(topic, queue_id)
        held = now.queue_units(topic, queue_id)
        ours = UnitFile(listing_of(disk, build.paths.queue(topic, queue_id)), UNIT, held.stop)
        found += _of_units("consumequeue", directory, ours, held, kept)
    if "batchconsumequeue" in parts:
        for name in sorted({*build.batches.queues, *now.batch_queues()}):
            ours = UnitFile(listing_of(disk, build.paths.batch_queue(*name)), BATCH_UNIT)
            directory, live_units = Paths(live.path).batch_queue(*name), now.batch_units(*name)
            found += _of_runs("batchconsumequeue", directory, in_order(ours, kept), in_order(live_units, kept))
    if "redolog" in parts:
        ours = UnitFile(listing_of(disk, build.paths.redo_log), UNIT)
        found += _of_units("redolog", Paths(live.path).redo_log, ours, now.redo_units(), kept)
    if "statetable" in parts:
        ours = UnitFile(listing_of(disk, build.paths.state_table), SLOT)
        settled = _SettledLater(now)
        found += _of_units("statetable", live.table, ours, now.slot_units(), kept, settled)
    return [*found, *_of_index(build, now, disk, end), *_of_sizes(build, now)]


class _SettledLater:
    """Which slots that differ were settled by an end behind the log that was read."""

    def __init__(self, live: StoreFiles) -> None:
        self._live = live

    def __call__(self, made: Rows, held: Rows) -> npt.NDArray[np.bool_]:
        """Of slots that differ; they were read before, so that their ends are published by now."""
        mark = self._live.watermark
        if mark is None or mark.ignore_from is None:
            return np.zeros(len(made), np.bool_)
        rows = np.zeros(len(made), SETTLED)
        rows["half"], rows["state"] = held["commitlog_offset"], held["state"]
        as_made = held.copy()
        as_made["state"] = made["state"]
        explained = (made["state"] == _PREPARED) & (made == as_made) & np.isin(held["state"], _SETTLED)
        if explained.any():
            explained &= is_settled_by(rows, later_ends(self._live))
        return np.asarray(explained)


def _of_sizes(build: Build, live: StoreFiles) -> Iterator[Difference]:
    """Files that were cut, by directory; what they hold may be right."""
    wrong: dict[str, list[int]] = {}
    for one in live.wrong_sizes():
        if one.kind == "segment-size":
            wrong.setdefault(os.path.dirname(one.file), []).append(int(os.path.basename(one.file)))
    for part, directory, _ in build.parts():
        unit_bytes = (SLOT if part == "statetable" else UNIT).itemsize
        for place, bases in wrong.items():
            if place == directory or place.startswith(f"{directory}{os.sep}"):
                first = 0 if part == "index" else min(bases) // unit_bytes
                yield Difference(part, "size", len(bases), place, first)


def _of_units(
    part: str,
    directory: str,
    ours: UnitFile,
    live: UnitFile,
    kept: tuple[int, int],
    is_explained: Callable[[Rows, Rows], npt.NDArray[np.bool_]] | None = None,
) -> Iterator[Difference]:
    counts = dict.fromkeys(("missing", "extra", "different"), 0)
    first: dict[str, int] = {}
    slots: dict[str, list[SlotChange]] = {kind: [] for kind in counts}
    for start in _stretches(ours, live):
        count = min(_AT_ONCE, max(ours.end, live.end) - start)
        made, held = ours.read(start, count), live.read(start, count)
        has_made, has_held = filled_units(made), filled_units(held)
        at = held["commitlog_offset"]
        in_front = (made["size"] == FILLER_SIZE) & (np.arange(start, start + count) >= live.begin)
        stale = ((at >= 0) & (at < kept[0])) | (at >= kept[1])
        unequal = (made.view(np.uint8).reshape(count, -1) != held.view(np.uint8).reshape(count, -1)).any(axis=1)
        masks = {
            "missing": has_made & ~has_held & ((made["commitlog_offset"] >= kept[0]) | in_front),
            "extra": ~has_made & has_held & ~(stale & (held["size"] > 0)),
            "different": has_made & has_held & unequal,
        }
        if is_explained is not None and masks["different"].any():
            which = np.flatnonzero(masks["different"])
            masks["different"][which[is_explained(made[which], held[which])]] = False
        for kind, mask in masks.items():
            if mask.any():
                counts[kind] += int(mask.sum())
                first.setdefault(kind, start + int(np.flatnonzero(mask)[0]))
                if part == "statetable":
                    slots[kind] += _slot_changes(kind, start, mask, made, held)
    for kind, number in first.items():
        yield Difference(part, kind, counts[kind], directory, number, tuple(slots[kind][:_SLOTS_LISTED]))


def _stretches(ours: UnitFile, live: UnitFile) -> list[int]:
    """Where to read from, as far as there are files: a name may say that one is farther away than any count gets."""
    starts, width = set[int](), ours.dtype.itemsize
    for segment in (*ours.listing.segments, *live.listing.segments):
        first, end = segment.base // width, -(-(segment.base + segment.size) // width)
        starts.update(range(first - first % _AT_ONCE, min(end, max(ours.end, live.end)), _AT_ONCE))
    return sorted(starts)


def _slot_changes(kind: str, start: int, mask: npt.NDArray[np.bool_], made: Rows, held: Rows) -> Iterator[SlotChange]:
    for row in np.flatnonzero(mask)[:_SLOTS_LISTED].tolist():
        live = None if kind == "missing" else int(held["state"][row])
        wanted = None if kind == "extra" else int(made["state"][row])
        half = (held if wanted is None else made)["commitlog_offset"][row]
        yield SlotChange(start + row, int(half), live, wanted)


def _of_index(build: Build, live: StoreFiles, disk: Disk, end: int) -> Iterator[Difference]:
    """Items one after another, wherever files begin; then whether the live files are right in themselves."""
    directory, findings = Paths(live.path).index, Findings()
    kept = (live.commitlog.begin, end)
    made = _items(open_index(_index_of(build, disk), Findings(), capacity=build.index.counts), kept)
    held_files = open_index(live.index_now(), findings, is_growing=live.is_index_growing, capacity=live.index_counts)
    differences = list(_of_runs("index", directory, made, _items(held_files, kept), _items_differ))
    if build.ours or not differences or not held_files or not _is_right_in_parts(live, end):
        yield from differences
    for file in held_files:
        Chains(file, findings).check()
    if len(findings):
        yield Difference("index", "chains", len(findings), directory, 0)


def _is_right_in_parts(live: StoreFiles, end: int) -> bool:
    """Whether the index of a broker holds what a verification asks for, though no rule makes it as it is.

    A broker that was exchanged for one of another version leaves items by one rule, and behind them by another one; one
    that comes back after a crash indexes its last records again.
    """
    findings = Findings()
    comparison = IndexComparison(partial(open_live_index, live), findings)
    for records in filter(len, Scan(live.compared, live.commitlog.begin, end)):
        comparison.add(records, Kinds(records))
    look = partial(record_at, live.commitlog)
    comparison.finish(FinishContext(begin_offset=live.commitlog.begin, ignore_from=end, look=look))
    return not len(findings)


def _rows_differ(made: Rows, held: Rows) -> npt.NDArray[np.bool_]:
    return np.asarray((made != held).any(axis=1))


def _of_runs(
    part: str,
    directory: str,
    made: Iterator[Rows],
    held: Iterator[Rows],
    differ: Callable[[Rows, Rows], npt.NDArray[np.bool_]] = _rows_differ,
) -> Iterator[Difference]:
    """What differs between two runs of rows of shape (n, k), one row after another."""
    counts = dict.fromkeys(("missing", "extra", "different"), 0)
    first: dict[str, int] = {}
    none = np.zeros((0, 0))
    number, rest_made, rest_held = 0, none, none
    while True:
        rest_made = rest_made if len(rest_made) else next(made, none)
        rest_held = rest_held if len(rest_held) else next(held, none)
        count = min(len(rest_made), len(rest_held))
        kind = "different"
        wrong = differ(rest_made[:count], rest_held[:count]) if count else np.zeros(0, np.bool_)
        if not count:
            rest = max(rest_made, rest_held, key=len)
            if not len(rest):
                break
            kind, count, wrong = "missing" if len(rest_made) else "extra", len(rest), np.ones(len(rest), np.bool_)
        if wrong.any():
            counts[kind] += int(wrong.sum())
            first.setdefault(kind, number + int(np.flatnonzero(wrong)[0]))
        number += count
        rest_made, rest_held = rest_made[count:], rest_held[count:]
    for kind, place in first.items():
        yield Difference(part, kind, counts[kind], directory, place)


def _items(files: list[IndexFileView], kept: tuple[int, int]) -> Iterator[Rows]:
    """The items that are about records between two offsets, in their order: what `_items_differ` compares.

    Columns: offset, hash; offset and time of the file's first item, seconds since then, the file's end (of its last
    item). Quirk: the first item of a file counts from the end of the file before it. RocketMQ: IndexFile.putKey.
    """
    for file in files:
        header, begin = file.header, int(file.read(1, 1)["commitlog_offset"][0]) if file.used else 0
        for first in range(1, file.used + 1, _AT_ONCE):
            rows = file.read(first, min(_AT_ONCE, file.used - first + 1))
            numbers = np.arange(first, first + len(rows))
            at = rows["commitlog_offset"].astype(np.int64)
            columns = np.zeros((len(rows), 6), np.int64)
            columns[:, 0], columns[:, 1] = at, rows["key_hash"]
            columns[:, 2], columns[:, 3] = begin, header.begin_timestamp_ms
            columns[:, 4] = np.where(numbers > 1, rows["time_diff_s"], 0)
            columns[:, 5] = np.where((numbers == file.used) & (not file.is_growing), header.end_timestamp_ms, 0)
            columns = columns[(at >= kept[0]) & (at < kept[1])]
            if len(columns):
                yield columns


def _items_differ(made: Rows, held: Rows) -> npt.NDArray[np.bool_]:
    """Times only where both files begin with one item: they count from there."""
    begin_together = made[:, 2] == held[:, 2]
    ends = (made[:, 5] != held[:, 5]) & (made[:, 5] > 0) & (held[:, 5] != 0)
    times_differ = _rows_differ(made[:, 3:5], held[:, 3:5]) | ends
    return np.asarray(_rows_differ(made[:, :2], held[:, :2]) | begin_together & times_differ)


def _index_of(build: Build, disk: Disk) -> list[Segment]:
    files = StoreDirectory(build.paths.store, disk).files
    found = disk.entries(build.paths.index)
    return [Segment(int(one.name), one.size, one.path, one.inode, files) for one in found if one.name.isdecimal()]
