"""A file seen as memory, shared by every process that maps it.

    map = disk.open_map("shop.store/commitlog/00000000000000000000", 1 << 30)
    map.view[4096:5120] = record        # visible to all others at once, on disk whenever the system likes
    map.words[0] = 5120                 # one aligned store of 8 bytes: never half of it, whichever process is killed
    map.sync(4096, 5120)                # on disk now

The file must be allocated in full (`Disk.allocate`): a store to a page for which the disk has no block kills the
process with SIGBUS. A forked child shares the map.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Callable

from broker import compiled
from broker.store.disk.os_errors import sync_failed

_start_write: Callable[[int, int, int], None] | None = compiled.fast.start_write if compiled.fast else None


class Map:
    """A shared, writable map of a whole file. Its use after `close` raises ValueError, and never crashes.

    It closes by itself when nobody holds it, `view`, `words` or a slice of them any more.
    """

    def __init__(self, path: str, size: int, file: OpenFile) -> None:
        self.path = path
        self.size = size
        self.inode = os.fstat(file.descriptor).st_ino
        self._map: mmap.mmap | None = mmap.mmap(file.descriptor, size)
        self._file: OpenFile | None = file
        self.view = memoryview(self._map)
        self.words = self.view[: size & ~7].cast("Q")  # in the order of bytes of this machine

    def __repr__(self) -> str:
        return f"<Map {self.path!r}, {self.size} bytes>"

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        """Flush bytes start … stop - 1 to the disk; more may go with them. Raises SyncFailed.

        By fdatasync, whatever the range: it writes what is dirty, which behind a log's tail is the same, and takes as
        long as msync. But Python's msync (`mmap.flush`) stops every thread of the process until the disk is done.
        """
        mapped, file = self._map, self._file
        if mapped is None or file is None:
            raise ValueError(f"{self.path}: the map is closed")
        try:
            if sys.platform == "darwin":  # fsync does not see what was stored through a map there
                start -= start % mmap.PAGESIZE
                mapped.flush(start, (self.size if stop is None else stop) - start)
            force(file.descriptor)
        except OSError as error:
            raise sync_failed(error, self.path) from error

    def start_write(self, start: int, stop: int) -> None:
        """Let the disk begin with bytes start … stop - 1, where the system can be asked to; nothing waits for them.

        A flush that comes some 20 µs later, or a whole local transaction, then takes half the time. A page that cannot
        be written fails that flush: `sync` raises what is wrong.
        """
        file = self._file
        if _start_write is not None and file is not None:
            _start_write(file.descriptor, start, stop - start)

    def close(self) -> None:
        """Release the file. A slice of `view` keeps the memory mapped until it is freed."""
        mapped, self._map, self._file = self._map, None, None
        for let_go in (self.words.release, self.view.release, mapped.close if mapped else self.view.release):
            with contextlib.suppress(BufferError):
                let_go()


class OpenFile:
    """A descriptor that closes when the last one who holds it lets go, and only then.

    A sync never meets a number that means another file by now, and an interrupt, which may come between any two lines,
    never closes one twice.
    """

    descriptor = -1  # until it is there

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def force(descriptor: int) -> None:
    """Bytes and size of an open file to the disk itself, through its cache. Raises OSError."""
    if sys.platform == "darwin":  # fsync stops at the disk's cache there
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)
