"""The windows of a scan: read with pread into two buffers by turns, the next one while the last one is worked on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from broker.store.segments import Segment
from recovery.records import Bytes


class Windows:
    """Reads parts of segments. What `read` returned stands until the read after the next begins."""

    def __init__(self) -> None:
        self._buffers: list[Bytes] = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._pool: ThreadPoolExecutor | None = None
        self._coming: tuple[tuple[int, int, int], Future[Bytes]] | None = None

    def read(self, segment: Segment, at: int, size: int) -> Bytes:
        """`size` bytes of a segment from a position on. What a file that shrinks under us no longer holds is zero.

        Raises Missing when the segment is gone.
        """
        coming, self._coming = self._coming, None
        if coming is not None:
            window = coming[1].result()
            if coming[0] == (segment.base, at, size):
                return window
        return self._fill(segment, at, size)

    def ahead(self, segment: Segment, at: int, size: int) -> None:
        """Begin to read what will be asked for next; the last window stays as it is meanwhile."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkback-read")
        self._coming = (segment.base, at, size), self._pool.submit(self._fill, segment, at, size)

    def _fill(self, segment: Segment, at: int, size: int) -> Bytes:
        self._buffers.reverse()
        if len(self._buffers[0]) < size:
            self._buffers[0] = np.empty(size, np.uint8)
        window = self._buffers[0][:size]
        window[segment.read_into(at, window.data) :] = 0
        return window

    def close(self) -> None:
        """Wait for what was begun, and let the thread go."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._coming = None
