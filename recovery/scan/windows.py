"""The windows of a scan, read with pread into two buffers by turns.

While the records of one window are worked on, a thread reads the next one, walks it, and prepares its columns. NumPy
and the C module release Python's lock while they work, so that two cores share the work of one scan.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from broker.compiled import fast
from broker.format.commitlog import BLANK_SIZE
from broker.store.read.segments import Segment
from recovery.scan.framing import Walk, walk
from recovery.scan.native.columns import NOTHING, Averages, Wants, WindowPass
from recovery.scan.records import Bytes, Records

WINDOW_BYTES = 12 << 20
_PIECE_BYTES = 512 << 10  # what was read is walked while it is in the processor's cache

Prepare = Callable[[Records], object]


class Windows:
    """Reads parts of segments. What `read` or `walk` returned stands until the call after the next begins."""

    def __init__(self, segment_size: int, prepare: Prepare, wants: Wants = NOTHING) -> None:
        self._segment_size, self._prepare, self._wants = segment_size, prepare, wants
        self._averages = Averages()  # of the last window's records
        self._buffers: list[Bytes] = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._pool: ThreadPoolExecutor | None = None
        self._coming: tuple[tuple[int, int, int], Future[Walk]] | None = None

    def read(self, segment: Segment, at: int, size: int) -> Bytes:
        """`size` bytes of a segment from a position on. What a file that shrinks under us no longer holds is zero.

        Raises Missing when the segment is gone.
        """
        self._wait()
        return self._fill(segment, at, size)

    def walk(self, segment: Segment, at: int, size: int) -> Walk:
        """The records in those bytes; `ahead` may have walked them already. Raises Missing when the segment is gone.

        Either way they are prepared before anything behind them is: what prepares them sees all windows in order.
        """
        found = self._wait((segment.base, at, size))
        return found or self._walk_and_prepare(segment, at, size)

    def ahead(self, segment: Segment, at: int, size: int) -> None:
        """Begin to walk what will be asked for next; the last window stays as it is meanwhile."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkback-scan")
        self._coming = (segment.base, at, size), self._pool.submit(self._walk_and_prepare, segment, at, size)

    def _wait(self, wanted: tuple[int, int, int] | None = None) -> Walk | None:
        """What was begun, where it is what is wanted; the buffers are free again either way."""
        coming, self._coming = self._coming, None
        found = coming[1].result() if coming is not None else None
        return found if coming is not None and coming[0] == wanted else None

    def _walk(self, segment: Segment, at: int, size: int) -> Walk:
        base, segment_end = segment.base + at, segment.base + self._segment_size
        if fast is None:
            return walk(self._fill(segment, at, size), base, segment_end)
        window = self._buffer(size)
        begun = WindowPass(window, base, self._wants, self._averages)
        for first in range(0, size, _PIECE_BYTES):
            piece = window[first : first + _PIECE_BYTES]
            filled = segment.read_into(at + first, piece.data)
            if filled < len(piece):
                window[first + filled :] = 0
                break
            begun.advance(min(first + filled, segment_end - base - BLANK_SIZE))
        found = walk(window, base, segment_end, begun)
        self._averages = begun.averages
        return found

    def _walk_and_prepare(self, segment: Segment, at: int, size: int) -> Walk:
        found = self._walk(segment, at, size)
        self._prepare(found.records)
        return found

    def _buffer(self, size: int) -> Bytes:
        """The buffer whose turn it is."""
        self._buffers.reverse()
        if len(self._buffers[0]) < size:
            self._buffers[0] = np.empty(size, np.uint8)
        return self._buffers[0][:size]

    def _fill(self, segment: Segment, at: int, size: int) -> Bytes:
        window = self._buffer(size)
        window[segment.read_into(at, window.data) :] = 0
        return window

    def close(self) -> None:
        """Wait for what was begun, and let the thread go."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._coming = None
