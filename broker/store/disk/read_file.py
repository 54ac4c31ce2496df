"""A file open for reading: pread into bytes, never a map, since its owner may truncate it at any moment."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

from broker.store.disk.maps import OpenFile
from broker.store.disk.os_errors import explained

_WARM_PIECE_BYTES = 1 << 20
_CACHED_ONLY = getattr(os, "RWF_NOWAIT", 0)


class NotCached(Exception):
    """Bytes are not in the system's cache: to read them may take as long as the disk takes."""


class ReadFile(OpenFile):
    """A file open for reading. It closes when the last one who holds it lets go, so no reader loses it in mid-read."""

    def __init__(self, path: str, descriptor: int) -> None:
        super().__init__(descriptor)
        self.path = path

    def pread(self, size: int, at: int) -> bytes:
        """The bytes from position `at` on: fewer than `size` only where the file ends."""
        try:
            data = os.pread(self.descriptor, size, at)
            while 0 < len(data) < size and (more := os.pread(self.descriptor, size - len(data), at + len(data))):
                data += more
        except OSError as error:
            raise explained(error, self.path) from error
        return data

    def pread_cached(self, size: int, at: int) -> bytes:
        """The bytes from position `at` on, if that waits for no disk. Raises NotCached, also where nobody can tell.

        Linux tells, on most of its file systems.
        """
        data = bytearray(size)
        try:
            done = os.preadv(self.descriptor, [data], at, _CACHED_ONLY) if _CACHED_ONLY else 0
        except OSError:
            done = 0
        if done < size:
            raise NotCached(self.path)
        return bytes(data)

    def pread_into(self, buffer: Any, at: int) -> int:
        """Fill a writable buffer from position `at`; returns how many bytes were there."""
        view, done = memoryview(buffer).cast("B"), 0
        try:
            while done < len(view) and (more := os.preadv(self.descriptor, [view[done:]], at + done)):
                done += more
        except OSError as error:
            raise explained(error, self.path) from error
        return done

    def warm(self, start: int, stop: int) -> None:
        """Have these bytes in the system's cache, in one call, during which other threads go on."""
        pieces = (stop - start) // _WARM_PIECE_BYTES  # all of them into one, which nobody looks at
        with contextlib.suppress(OSError):  # a process that stores to them gets the error
            os.preadv(self.descriptor, [bytearray(_WARM_PIECE_BYTES)] * pieces, start)

    def next_data(self, at: int) -> int:
        """The first position at or after `at` that may hold a byte other than zero; the file's size when none does."""
        try:
            return os.lseek(self.descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return os.fstat(self.descriptor).st_size
            if error.errno in (errno.EINVAL, errno.ENOTSUP):  # this file system does not know its holes
                return at
            raise explained(error, self.path) from error

    def filled(self, start: int) -> list[tuple[int, int]]:
        """The stretches from `start` on that may hold a byte other than zero, found before any of them is read.

        A read fills the system's cache ahead of itself, and what is cached is not a hole any more.
        """
        found: list[tuple[int, int]] = []
        size = os.fstat(self.descriptor).st_size
        at = self.next_data(start) if start < size else size
        while at < size:
            try:
                stop = os.lseek(self.descriptor, at, os.SEEK_HOLE)
            except OSError:  # as above: no holes are known here
                stop = size
            found.append((at, stop))
            at = self.next_data(stop) if stop < size else size
        return found
