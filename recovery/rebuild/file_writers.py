"""Derived files, made from columns of records: units at their places, and an index file after another.

Written through `broker.store.disk.files`, as the live ones are, in a directory of their own.
`recovery.rebuild.rebuilder` decides what goes in and where they end up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from broker.format.index import HEADER_SIZE, TIME_DIFF_S_MAX, IndexHeader, IndexItem, file_size, item_at, slot_at
from broker.store.disk.files import Disk, Map
from broker.store.disk.maps import OpenFile
from broker.store.write.mapped import MappedQueue, OpenMaps
from recovery.scan.units import Ints, Rows
from recovery.verify.index_files import previous_in_slot
from recovery.verify.index_items import IndexingRule

_ITEM = np.dtype(IndexItem.DTYPE)


class UnitFiles:
    """A queue of files of fixed-size units, written by number. Units that follow each other are written at once."""

    def __init__(
        self, disk: Disk, directory: str, file_bytes: int, dtype: Any, open_maps: OpenMaps | None = None
    ) -> None:
        self.dtype = np.dtype(dtype)
        self._queue = MappedQueue(disk, directory, file_bytes, open_maps)
        self.begin, self.end = -1, 0  # the numbers of the first unit and behind the last

    def write(self, numbers: Ints, rows: Rows) -> None:
        """Put each row at its number; of two with one number the later stays."""
        if not len(numbers):
            return
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        starts = np.concatenate(([0], cuts, [len(numbers)]))
        for first, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            self._write_run(int(numbers[first]), rows[first:stop])
        least = int(numbers.min())
        self.begin = least if self.begin < 0 else min(self.begin, least)
        self.end = max(self.end, int(numbers.max()) + 1)

    def _write_run(self, number: int, rows: Rows) -> None:
        width, size = self.dtype.itemsize, self._queue.file_size
        raw, start = np.ascontiguousarray(rows).view(np.uint8).data.cast("B"), number * width
        done = 0
        while done < len(raw):
            view, at = self._queue.at(start + done)
            count = min(len(raw) - done, size - at)
            view[at : at + count] = raw[done : done + count]
            done += count

    def read(self, first: int, count: int) -> Rows:
        """Units that lie in what was written, or right before it in its first file; zero where nothing was."""
        rows, width = np.zeros(count, self.dtype), self.dtype.itemsize
        raw, start, done = rows.view(np.uint8), first * width, 0
        while done < len(raw):
            view, at = self._queue.at(start + done)
            part = min(len(raw) - done, self._queue.file_size - at)
            raw[done : done + part] = np.frombuffer(view[at : at + part], np.uint8)
            done += part
        return rows

    def holds(self, begin: int, end: int) -> None:
        """That units begin … end - 1 were written by others, into the files of this directory."""
        self.begin = begin if self.begin < 0 else min(self.begin, begin)
        self.end = max(self.end, end)

    def fill_front(self, stop: int, unit: bytes) -> None:
        """Put a unit into all empty places from the beginning of the first file up to the number `stop`."""
        first = self.first_of_file()
        if first < stop:
            rows = self.read(first, stop - first)
            rows[rows["size"] == 0] = np.frombuffer(unit, self.dtype)
            self._write_run(first, rows)

    def bases(self) -> Iterator[int]:
        """Where each file begins."""
        if self.begin >= 0:
            size = self._queue.file_size
            yield from range(self.begin * self.dtype.itemsize // size * size, self.end * self.dtype.itemsize, size)

    def first_of_file(self) -> int:
        """The number of the first unit of the first file."""
        return next(self.bases(), 0) // int(self.dtype.itemsize)

    def fill_gaps(self) -> None:
        """Make the files in which no unit lies, between others."""
        for base in self.bases():
            self._queue.allocate(base)

    def force(self) -> None:
        """Everything to the disk."""
        for base in self.bases():
            self._queue.sync(base, base + self._queue.file_size)

    def close(self) -> None:
        """Release the files."""
        self._queue.close()


class IndexFiles:
    """The files of an index, filled one after another by a generation's rule."""

    def __init__(
        self, disk: Disk, directory: str, slots: int, items: int, rule: IndexingRule, *, names: Sequence[int] = (),
        whole_records: bool = False,
    ) -> None:  # fmt: skip
        self._disk, self._directory, self._slots, self._items = disk, directory, slots, items
        self._rule, self._names, self.whole_records = rule, list(names), whole_records
        self.counts = slots, items
        self.numbers: list[int] = []
        self._map: Map | None = None
        self._newest = np.zeros(slots, np.int32)
        self._header = IndexHeader(0, 0, 0, 0, 0, 1)
        self.last_full_ms = 0  # store time at which the last full file ended

    def add(self, items: Rows) -> None:
        """Add items (commitlog_offset, key_hash, store_ms) in their order."""
        while len(items):
            if self._map is None:
                self._begin(items[0])
            room = self._items - self._header.next_item
            count = min(len(items), room)
            if self.whole_records and count < len(items):  # our writer begins a file when a record does not fit
                at = items["commitlog_offset"]
                count = int(np.searchsorted(at[:count], at[count], side="left"))
            if count:
                self._fill(items[:count])
            items = items[count:]
            if len(items):
                self._end()

    def name(self, moment_ms: int) -> int:
        """The number by which the next file goes: that of the live file, else the time of its first record."""
        text = time.strftime("%Y%m%d%H%M%S", time.localtime(moment_ms // 1000)) + f"{moment_ms % 1000:03}"
        known = self._names[len(self.numbers)] if len(self.numbers) < len(self._names) else int(text)
        return max(known, self.numbers[-1] + 1 if self.numbers else 0)

    def resume(self, numbers: Sequence[int], last_full_ms: int) -> None:
        """Go on behind files that others filled by the same rule; the last may have room."""
        self.numbers, self.last_full_ms = list(numbers), last_full_ms
        if not self.numbers:
            return
        path = os.path.join(self._directory, f"{self.numbers[-1]:017}")
        self._map = self._disk.open_map(path, file_size(self._slots, self._items))
        self._header = IndexHeader.unpack_from(bytes(self._map.view[:HEADER_SIZE]))
        held = self._map.view[slot_at(0) : slot_at(self._slots)]
        self._newest = np.frombuffer(bytes(held), ">i4").astype(np.int32)

    def _begin(self, first: Any) -> None:
        moment_ms, number = int(first["store_ms"]), self.name(int(first["store_ms"]))
        size = file_size(self._slots, self._items)
        path = os.path.join(self._directory, f"{number:017}")
        if self._disk.entry(self._directory) is None:
            self._disk.create_directory(self._directory)
        self._disk.allocate(path, size)
        self._map = self._disk.open_map(path, size)
        self._newest[:] = 0
        offset = int(first["commitlog_offset"])
        self._header = IndexHeader(moment_ms, moment_ms, offset, offset, 0, 1)
        self.numbers.append(number)

    def _fill(self, items: Rows) -> None:
        assert self._map is not None
        header = self._header
        rows = np.zeros(len(items), _ITEM)
        rows["key_hash"], rows["commitlog_offset"] = items["key_hash"], items["commitlog_offset"]
        after_ms = np.maximum(items["store_ms"] - header.begin_timestamp_ms, 0)
        exact = np.minimum(after_ms // 1000, TIME_DIFF_S_MAX)
        rows["time_diff_s"] = (
            exact if self._rule is not IndexingRule.V3 else np.minimum(after_ms, TIME_DIFF_S_MAX) // 1000
        )
        slots = np.abs(items["key_hash"].astype(np.int64)) % self._slots
        numbers = header.next_item + np.arange(len(items))
        rows["previous"] = previous = previous_in_slot(slots, numbers, self._newest)
        counts_items = self._rule in (IndexingRule.V3, IndexingRule.V32)  # in place of slots
        used = header.used_slots + (len(items) if counts_items else int((previous == 0).sum()))
        at = item_at(header.next_item, self._slots)
        raw = rows.view(np.uint8).data.cast("B")
        self._map.view[at : at + len(raw)] = raw
        last = items[-1]
        self._header = IndexHeader(
            header.begin_timestamp_ms, int(last["store_ms"]), header.begin_commitlog_offset,
            int(last["commitlog_offset"]), used, header.next_item + len(items),
        )  # fmt: skip

    def _end(self) -> None:
        """Write what is known when a file is full, or the log ends."""
        if self._map is None:
            return
        self._map.view[:HEADER_SIZE] = self._header.pack()
        at = slot_at(0)
        raw = self._newest.astype(">i4").view(np.uint8).data.cast("B")
        self._map.view[at : at + len(raw)] = raw
        self._map.sync()
        self._map.close()
        self._map = None
        self.last_full_ms = self._header.end_timestamp_ms

    def finish(self) -> None:
        """Write the last file's slots and header, and flush it. Nothing can be added afterwards."""
        before = self.last_full_ms
        full = self._map is not None and self._header.next_item >= self._items
        self._end()
        if not full:
            self.last_full_ms = before


class _UnflushedDisk(Disk):
    """For files that are made to be compared, and thrown away: nothing of them has to outlive the power."""

    def _force(self, descriptor: int, path: str) -> None:
        """Nothing: allocating the files of thousands of queues would wait for the disk, some times for each."""

    def _force_directory(self, path: str) -> None:
        """Nothing."""

    def _map(self, path: str, size: int, file: OpenFile) -> Map:
        return _UnflushedMap(path, size, file)


class _UnflushedMap(Map):
    def sync(self, start: int = 0, stop: int | None = None) -> None:
        """Nothing: an index file may have half a gigabyte."""


def unflushed(disk: Disk) -> Disk:
    """A disk for what is only compared; one that stands in for a disk itself."""
    return _UnflushedDisk() if type(disk) is Disk else disk


def filled_units(rows: Rows) -> Any:
    """Which units hold anything."""
    return rows.view(np.uint8).reshape(len(rows), -1).any(axis=1) if len(rows) else np.zeros(0, np.bool_)
