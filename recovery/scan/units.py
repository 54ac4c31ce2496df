"""Derived files as arrays: fixed-size units numbered across the files of a queue, and which of them were claimed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store.disk.files import Missing
from broker.store.read.segments import NAME_DIGITS, Listing, SegmentDamage

Rows = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

_AT_ONCE = 1 << 16
_GAP = 256  # units that are read for nothing rather than read twice


class NumberedUnits(ABC):
    """Units of a fixed layout, by number: in files, or in a RocksDB."""

    dtype: np.dtype[Any]
    begin: int
    end: int

    @abstractmethod
    def read(self, first: int, count: int) -> Rows:
        """Units first … first + count - 1; those that are not there are zero."""

    @abstractmethod
    def filled(self, first: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Runs of units in [first, stop): the number of the first, and the units."""

    @abstractmethod
    def file_of(self, unit: int) -> str:
        """The path of what holds a unit, or would."""

    @property
    def damages(self) -> tuple[SegmentDamage, ...]:
        """What is wrong with the files as files."""
        return ()

    def holds(self, expected: Rows) -> npt.NDArray[np.bool_] | None:
        """Which of the expected units must be there; None for all."""
        del expected
        return None

    def take(self, numbers: Ints) -> Rows:
        """The units with these numbers, which mostly follow each other; zero where no file holds one."""
        if len(numbers) and int(numbers[0]) >= self.begin and int(numbers[-1]) < self.end and _is_run(numbers):
            return self.read(int(numbers[0]), len(numbers))
        rows = np.zeros(len(numbers), self.dtype)
        inside = np.flatnonzero((numbers >= self.begin) & (numbers < self.end))
        order = inside
        if (np.diff(numbers[inside]) < 0).any():
            order = inside[np.argsort(numbers[inside], kind="stable")]
        ranked, plain = numbers[order], f"V{self.dtype.itemsize}"  # NumPy copies a structure field by field
        if not len(ranked):
            return rows
        for run in np.split(np.arange(len(ranked)), np.flatnonzero(np.diff(ranked) > _GAP) + 1):
            low, high = int(ranked[run[0]]), int(ranked[run[-1]])
            rows.view(plain)[order[run]] = self.read(low, high - low + 1).view(plain)[ranked[run] - low]
        return rows


class UnitFile(NumberedUnits):
    """Unit n lies at byte n * size of the queue, as RocketMQ's logical offsets say."""

    def __init__(self, listing: Listing, dtype: Any, stop: int | None = None) -> None:
        """Units from `stop` on do not count."""
        self.listing, self.dtype = listing, np.dtype(dtype)
        width = self.dtype.itemsize
        self.begin = -(-listing.begin // width)
        self.end = max((segment.base + segment.size for segment in listing.segments), default=0) // width
        self.stop = stop
        if stop is not None:
            self.end = min(self.end, stop)

    def __bool__(self) -> bool:
        return bool(self.listing.segments)

    @property
    def damages(self) -> tuple[SegmentDamage, ...]:
        """What is wrong with the files as files."""
        return self.listing.damages

    def file_of(self, unit: int) -> str:
        """The path of the file that holds a unit, or would."""
        at, size = unit * self.dtype.itemsize, self.listing.segment_size
        segment = self.listing.at(at)
        if segment is not None:
            return segment.path
        if not self.listing.segments or not size:
            return ""
        return os.path.join(os.path.dirname(self.listing.segments[0].path), f"{at // size * size:0{NAME_DIGITS}}")

    def read(self, first: int, count: int) -> Rows:
        """Units first … first + count - 1; those that no file holds, or that do not count, are zero."""
        rows = np.zeros(count, self.dtype)
        raw, width = rows.view(np.uint8), self.dtype.itemsize
        start, stop = first * width, (first + count) * width
        stop = stop if self.stop is None else min(stop, self.stop * width)
        for segment in self.listing.segments:
            low, high = max(start, segment.base), min(stop, segment.base + segment.size)
            if low < high:
                try:
                    segment.read_into(low - segment.base, raw[low - start : high - start].data)
                except Missing:  # it expired under us
                    continue
        return rows

    def filled(self, first: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Runs of units in [first, stop) without the holes of the files: the number of the first, and the units."""
        width = self.dtype.itemsize
        for segment in self.listing.segments:
            at = max(first, -(-segment.base // width))
            end = min(stop, (segment.base + segment.size) // width)
            while at < end:
                try:
                    at = max(at, (segment.next_data(at * width - segment.base) + segment.base) // width)
                except Missing:
                    break
                if at >= end:
                    break
                yield at, self.read(at, min(_AT_ONCE, end - at))
                at += _AT_ONCE


def _is_run(numbers: Ints) -> bool:
    return int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1 and bool((np.diff(numbers) == 1).all())


def first_sustained(later: npt.NDArray[np.bool_]) -> int:
    """Where two in a row are True for the first time, or the last is; the length when that is nowhere.

    Units and items stand in log order: one alone that seems to belong further on is damaged, and no end.
    """
    found = np.flatnonzero(later & np.append(later[1:], True))
    return int(found[0]) if len(found) else len(later)


Interval = tuple[int, int]  # half-open


class IntervalSet:
    """Which numbers were claimed, as half-open intervals: one interval while all goes well."""

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self._intervals: list[Interval] = []
        for first, stop in sorted(intervals):
            if self._intervals and first <= self._intervals[-1][1]:
                self._intervals[-1] = (self._intervals[-1][0], max(stop, self._intervals[-1][1]))
            else:
                self._intervals.append((first, stop))

    def add(self, numbers: Ints) -> None:
        """Claim numbers, in any order."""
        if not len(numbers):
            return
        if not (np.diff(numbers) == 1).all():
            numbers = np.unique(numbers)
        if int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1:
            self._add(int(numbers[0]), int(numbers[-1]) + 1)
            return
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            self._add(int(run[0]), int(run[-1]) + 1)

    def _add(self, first: int, stop: int) -> None:
        if self._intervals and self._intervals[-1][1] == first:
            self._intervals[-1] = (self._intervals[-1][0], stop)
        else:
            self._intervals.append((first, stop))

    def within(self, first: int, stop: int) -> list[Interval]:
        """The intervals of [first, stop) that were claimed."""
        held, at = [], first
        for low, high in self.gaps(first, stop):
            if low > at:
                held.append((at, low))
            at = high
        return [*held, (at, stop)] if at < stop else held

    def gaps(self, first: int, stop: int) -> Iterator[Interval]:
        """The intervals of [first, stop) that were not claimed."""
        at = first
        for low, high in sorted(self._intervals):
            if low > at:
                yield at, min(low, stop)
            at = max(at, high)
            if at >= stop:
                return
        if at < stop:
            yield at, stop
