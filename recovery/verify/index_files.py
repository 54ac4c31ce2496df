"""The files of the index as they are on disk: which can be read, and whether their chains and headers hold together.

RocketMQ: IndexFile.putKey (5.3.3; 3.1.4).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.compiled import fast
from broker.errors import CorruptRecord, CorruptStore
from broker.format.index import HEADER_SIZE, IndexHeader, IndexItem, item_at, slot_at
from broker.store.disk.files import Missing
from broker.store.read.index import work_out
from broker.store.read.segments import Segment
from recovery.findings import Finding, Findings
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Ints, Rows

_ON_DISK = np.dtype(IndexItem.DTYPE)
_AT_ONCE = 1 << 18
_NUMBER_MAX = (1 << 31) - 1
_PAUSES_S = (0.001, 0.01, 0.1)  # an item is written in less


@dataclass(frozen=True, slots=True)
class IndexFileView:
    """One file of the index with what its header says."""

    segment: Segment
    header: IndexHeader
    slots: int
    items: int  # that fit
    is_growing: bool = False  # items may be added while it is read: what follows the counted ones is uncommitted
    before_ms: tuple[int, ...] | None = ()  # ends of files from which its first item may count; None: retention took it

    @property
    def used(self) -> int:
        """How many items are written."""
        return self.header.next_item - 1

    def read(self, first: int, count: int) -> Rows:
        """Items first … first + count - 1 as they are on disk."""
        rows = np.zeros(max(count, 0), _ON_DISK)
        self.segment.read_into(item_at(first, self.slots), rows.view(np.uint8).data)
        return rows


def open_live_index(files: StoreFiles, findings: Findings) -> list[IndexFileView]:
    """The index files of a store as they are now, as `open_index`."""
    return open_index_of(files, files.index_now(), findings)


def open_index_of(files: StoreFiles, segments: Sequence[Segment], findings: Findings) -> list[IndexFileView]:
    """These index files of a store, as `open_index`."""
    return open_index(segments, findings, is_growing=files.is_index_growing, capacity=files.index_counts)


def open_index(
    segments: Sequence[Segment],
    findings: Findings,
    *,
    is_growing: bool = False,
    capacity: tuple[int, int] | None = None,
) -> list[IndexFileView]:
    """The index files that can be read, in order; a finding for each that cannot. Of a growing index the last grows.

    `capacity` is the number of slots and of items that a store of ours states; others are worked out from the contents.
    """
    files: list[IndexFileView] = []
    for segment in segments:
        grows = is_growing and segment is segments[-1]
        try:
            header = IndexHeader.unpack_from(segment.read(0, HEADER_SIZE))
            if grows:  # the count is raised last: what the header says after it was read holds for all that it counts
                counted = header.item_count
                header = replace(IndexHeader.unpack_from(segment.read(0, HEADER_SIZE)), item_count=counted)
            file = segment.files.get(segment.path, segment.inode)
            store_path = os.path.dirname(os.path.dirname(segment.path))
            found = work_out(file, header, segment.size, store_path, capacity=capacity)
            before_ms = _ends_before(files) if files or header.begin_commitlog_offset == 0 else None
            files.append(IndexFileView(segment, header, found.slots, found.items, grows, before_ms))
            if header.next_item - 1 > found.items:
                raise CorruptRecord(f"its header counts {header.next_item - 1} items, {found.items} fit")
        except Missing:
            continue
        except CorruptRecord as error:
            findings.add(Finding("index-damaged", 0, error.reason, segment.path))
        except CorruptStore as error:
            findings.add(Finding("index-damaged", 0, str(error), segment.path))
    return files


def _ends_before(files: Sequence[IndexFileView]) -> tuple[int, ...]:
    """The ends of the files that a broker may have had for the last one when it began the next.

    That is the last in the log, and the last by name for a broker that was started since.
    """
    last_named = max(files, key=lambda file: file.segment.base, default=None)
    return () if last_named is None else (files[-1].header.end_timestamp_ms, last_named.header.end_timestamp_ms)


def previous_in_slot(slots: Ints, numbers: Ints, newest: npt.NDArray[np.int32]) -> Ints:
    """The item before each of some new ones in its slot; `newest`, the last of each slot, takes note of them."""
    order = np.argsort(slots, kind="stable")
    ranked = slots[order]
    again = np.concatenate(([False], ranked[1:] == ranked[:-1]))
    previous = np.zeros(len(slots), np.int64)
    previous[order] = np.where(again, np.concatenate(([0], numbers[order][:-1])), newest[ranked])
    newest[slots] = numbers
    return previous


class Chains:
    """The chains of one file, followed from its first item to its last as they were made."""

    def __init__(self, file: IndexFileView, findings: Findings) -> None:
        self._file, self._findings = file, findings
        self._newest = np.zeros(file.slots, np.int32)

    def check(self) -> None:
        """Report whatever in the file does not agree with its items."""
        file, first_item, last_item = self._file, None, None
        for first in range(1, file.used + 1, _AT_ONCE):
            rows = file.read(first, min(_AT_ONCE, file.used - first + 1))
            for index in np.flatnonzero(self._wrong(rows, first)):
                text = f"item {first + index} names a wrong item before it"
                self._report(text, int(rows["commitlog_offset"][index]))
            first_item = first_item if first_item is not None else rows[0]
            last_item = rows[-1]
        self._check_slots()
        self._check_header(first_item, last_item)
        self._check_unused()

    def _wrong(self, rows: Rows, first: int) -> npt.NDArray[np.bool_]:
        """Which of the items do not name the one before them in their slot; takes note of the newest."""
        if fast is not None and first + len(rows) <= _NUMBER_MAX:
            wrong = np.empty(len(rows), np.uint8)
            fast.index_chains(rows.view(np.uint8), first, self._newest, wrong)
            return wrong.view(np.bool_)
        slots = np.abs(rows["key_hash"].astype(np.int64)) % self._file.slots
        return np.asarray(previous_in_slot(slots, first + np.arange(len(rows)), self._newest) != rows["previous"])

    def _check_slots(self) -> None:
        held = self._newest_counted()
        for pause_s in _PAUSES_S if self._file.is_growing else ():
            if (held == self._newest).all():
                break
            time.sleep(pause_s)
            held = self._newest_counted()
        for slot in np.flatnonzero(held != self._newest):
            self._report(f"slot {slot} names item {held[slot]}, its newest is {self._newest[slot]}", 0)

    def _newest_counted(self) -> npt.NDArray[np.int32]:
        """The item that each slot names; in a file that grows, the first that is counted in the chain of that one.

        An item is written before its slot names it, and is counted after that. So what a slot names is whole, counted
        or not, unless its writer was killed and another one writes it again at this moment: then looking again helps.
        """
        file = self._file
        newest = np.zeros(file.slots, np.int32)  # 20 MB in a file of RocketMQ's own size: no wider, and no copy
        file.segment.read_into(slot_at(0), newest.view(np.uint8).data)
        if sys.byteorder == "little":
            newest.byteswap(inplace=True)
        if not file.is_growing or int(newest.max(initial=0)) <= file.used:
            return newest
        last = min(int(newest.max()), file.items)
        previous = file.read(file.used + 1, last - file.used)["previous"].astype(np.int64)
        while len(later := np.flatnonzero((newest > file.used) & (newest <= last))):
            items = newest[later]
            before = previous[items - file.used - 1]
            newest[later] = np.where(before < items, before, 0)
        return newest

    def _check_header(self, first: Any, last: Any) -> None:
        if self._file.is_growing:  # its counts and its end are of a later item than the last one that was read
            if first is not None and self._file.header.begin_commitlog_offset != first["commitlog_offset"]:
                self._report("the header begins with another record than its first item", 0)
            return
        header, used_slots = self._file.header, int(np.count_nonzero(self._newest))
        if header.used_slots not in (used_slots, self._file.used):
            self._report(f"the header counts {header.used_slots} used slots, {used_slots} are", 0)
        if first is None:
            return
        if header.begin_commitlog_offset != first["commitlog_offset"]:
            self._report("the header begins with another record than its first item", header.begin_commitlog_offset)
        if header.end_commitlog_offset != last["commitlog_offset"]:
            self._report("the header ends with another record than its last item", header.end_commitlog_offset)

    def _check_unused(self) -> None:
        """Item 0 and everything behind the last item was never written."""
        file, segment = self._file, self._file.segment
        if file.read(0, 1).view(np.uint8).any():
            self._report("item 0, which is never used, is not zero", 0)
        if file.is_growing:
            return
        at = segment.next_data(item_at(file.used + 1, file.slots))
        while at < segment.size:
            rest = np.zeros(min(_AT_ONCE * _ON_DISK.itemsize, segment.size - at), np.uint8)
            segment.read_into(at, rest.data)
            if rest.any():
                self._report(f"byte {at + int(np.flatnonzero(rest)[0])} behind the last item is not zero", 0)
                return
            at = segment.next_data(at + len(rest))

    def _report(self, text: str, commitlog_offset: int) -> None:
        self._findings.add(Finding("index-damaged", commitlog_offset, text, self._file.segment.path))
