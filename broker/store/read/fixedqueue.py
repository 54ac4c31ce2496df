"""A queue of segments that holds values of one fixed layout: value n lies at byte n * SIZE of the segments together.

ConsumeQueue, redo log and state table are such queues. Unused values are zero; where they begin is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from shlex import quote
from typing import Generic, TypeVar

from broker.errors import CorruptStore
from broker.format.layout import Layout
from broker.store.read.directory import StoreDirectory
from broker.store.read.segments import Listing, Segment, SegmentDamage

_V = TypeVar("_V", bound=Layout)
_STEP = 4096  # values that are read at once


class FixedQueue(Generic[_V]):
    """The values of one directory, by number. Threads may share it."""

    def __init__(self, directory: StoreDirectory, path: str, layout: type[_V], is_end: Callable[[_V], bool]) -> None:
        self._queue = directory.segments(path)
        self._layout = layout
        self._is_end = is_end
        self._store_path = directory.path

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._queue.listing(fresh=True).segments

    @property
    def damages(self) -> tuple[SegmentDamage, ...]:
        return self._queue.listing(fresh=True).damages

    @property
    def first(self) -> int:
        """The number of the first value; smaller ones have expired."""
        return self._sized(self._queue.listing()).begin // self._layout.SIZE

    @property
    def stamp(self) -> tuple[int, int] | None:
        """What changes when a file of the queue comes or goes; None while there is no directory."""
        return self._queue.listing().stamp

    @property
    def end(self) -> int:
        """One more than the number of the last value in use."""
        listing = self._sized(self._queue.listing(fresh=True))
        for segment in reversed(listing.segments):
            first = segment.base // self._layout.SIZE
            count = min(segment.size, listing.segment_size) // self._layout.SIZE
            if count and not self._ends_at(first):
                return first + bisect_left(range(count), 1, key=lambda number: self._ends_at(first + number))
        return listing.begin // self._layout.SIZE

    def get(self, number: int) -> _V | None:
        """One value; None where the queue does not reach (any more, or yet)."""
        found = self._read(number, 1)
        return found[0] if found and not self._is_end(found[0]) else None

    def walk(self, start: int | None = None, end: int | None = None) -> Iterator[_V]:
        """The values from one number to another, up to the first that is not in use."""
        number = self.first if start is None else max(start, self.first)
        while end is None or number < end:
            values = self._read(number, _STEP if end is None else min(_STEP, end - number))
            for value in values:
                if self._is_end(value):
                    return
                yield value
            if not values:
                return
            number += len(values)

    def _ends_at(self, number: int) -> bool:
        return self.get(number) is None

    def raw(self, number: int, count: int, *, cached_only: bool = False) -> bytes:
        """The bytes of up to `count` values from one on, whole ones, used and unused; none where the queue has none.

        With `cached_only` raises NotCached for what is not in the system's cache.
        """
        size = self._layout.SIZE
        listing = self._queue.listing()
        if number < self._sized(listing).begin // size:
            return b""
        # At the end of the queue, not beyond: a short read would make it look again for new files.
        end = min((number + count) * size, max(listing.end, (number + 1) * size))
        read = self._queue.read_listed(listing, number * size, end - number * size, cached_only=cached_only)
        if len(read) < end - number * size:  # it looks again
            read = self._queue.read(number * size, end - number * size)
        return read[: len(read) - len(read) % size]

    def _read(self, number: int, count: int) -> list[_V]:
        return list(self._layout.iter_unpack(self.raw(number, count)))

    def _sized(self, listing: Listing) -> Listing:
        if listing.segment_size % self._layout.SIZE:
            reason = f"the segments have {listing.segment_size} bytes, no multiple of {self._layout.SIZE}"
            next_step = f"It is not what RocketMQ writes there. Run: checkback verify {quote(self._store_path)}"
            raise CorruptStore(f"{self._queue.directory}: {reason}. {next_step}", path=self._queue.directory)
        return listing
