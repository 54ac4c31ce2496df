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
import errno
import functools
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from broker import compiled
from broker.store.disk.os_errors import sync_failed

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14, which Python 3.11 has no name for
_start_write: Callable[[int, int, int], None] | None = compiled.fast.start_write if compiled.fast else None


_T = TypeVar("_T")


class Keeper(Protocol):
    """What keeps files open that it could open again."""

    def release_half(self) -> bool:
        """Release half of them, in any thread; whether there were any."""


keepers: WeakSet[Keeper] = WeakSet()
"""Those of this process."""


def with_room(call: Callable[[], _T]) -> _T:
    """What a call returns that opens a file. Raises OSError.

    Where this process may open no more, a store of it releases half of what it keeps, and the call is made once more.
    """
    try:
        return call()
    except OSError as error:
        if error.errno != errno.EMFILE or not any(keeper.release_half() for keeper in list(keepers)):
            raise
    return call()


class Map:
    """A shared, writable map of a whole file. Its use after `close` raises ValueError, and never crashes.

    It closes by itself when nobody holds it, `view`, `words` or a slice of them any more.
    """

    def __init__(self, path: str, size: int, file: OpenFile) -> None:
        self.path = path
        self.size = size
        self.inode = os.fstat(file.descriptor).st_ino
        self._map: mmap.mmap | None = with_room(lambda: mmap.mmap(file.descriptor, size))
        self.file: OpenFile | None = file  # None when it is closed
        self.view = memoryview(self._map)
        self.words = self.view[: size & ~7].cast("Q")  # in the order of bytes of this machine

    def __repr__(self) -> str:
        return f"<Map {self.path!r}, {self.size} bytes>"

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        """Flush bytes start … stop - 1 to the disk; more may go with them. Raises SyncFailed.

        By fdatasync, whatever the range: it writes what is dirty, which behind a log's tail is the same, and takes as
        long as msync. But Python's msync (`mmap.flush`) stops every thread of the process until the disk is done.
        """
        mapped, file = self._map, self.file
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
        file = self.file
        if _start_write is not None and file is not None:
            _start_write(file.descriptor, start, stop - start)

    def write_pages(self, start: int, stop: int) -> None:
        """Have the pages of bytes start … stop - 1 written with the next flush, as they are, where the system can.

        Of a page that was allocated and never written, the file system first notes in its journal that it is now, and
        an fsync waits for that: one of a record of 1 KiB takes 200 µs and not 120. Of 64 pages it takes little longer.
        The system may wait for its journal here, and for a disk that does not keep up: other threads run meanwhile.
        """
        mapped, start, stop = self._map, start - start % mmap.PAGESIZE, stop - stop % mmap.PAGESIZE
        if sys.platform == "linux" and mapped is not None and start < stop:
            _populator()(mapped, start, stop - start)  # an older system, or no room: then each page takes its time

    def unmap_pages(self, start: int, stop: int) -> None:
        """Take the pages of bytes start … stop - 1 out of this process's map, but one that goes on behind them.

        A page that is touched comes back: its content stays in the system's cache. A flush stops each processor for
        each page that a process may store to meanwhile, which disturbs who appends; for these it need not.
        """
        if sys.platform != "linux":  # elsewhere the same call may mean that the content is not needed any more
            return
        start, stop = start - start % mmap.PAGESIZE, stop - stop % mmap.PAGESIZE
        mapped = self._map
        if mapped is not None and start < stop:
            with contextlib.suppress(OSError):  # of a process that locks its memory: it keeps them
                mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def close(self) -> None:
        """Release the file. A slice of `view` keeps the memory mapped until it is freed."""
        mapped, self._map, self.file = self._map, None, None
        for let_go in (self.words.release, self.view.release, mapped.close if mapped else self.view.release):
            with contextlib.suppress(BufferError):
                let_go()


@functools.cache
def _populator() -> Callable[[mmap.mmap, int, int], object]:
    """What has pages written, without the GIL, which Python's own `madvise` keeps as long as the system takes."""
    try:
        import ctypes

        call = ctypes.CDLL(None).madvise
    except (ImportError, OSError, AttributeError):
        return lambda *_: None
    call.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

    def populate(mapped: mmap.mmap, start: int, size: int) -> None:
        first = ctypes.c_char.from_buffer(mapped, start)  # while it is held, no thread unmaps the memory
        call(ctypes.addressof(first), size, _POPULATE_WRITE)

    return populate


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


class Flusher:
    """Flushes one map at a time beside the thread that asks, in a thread of the C module that runs no Python.

    flusher = disk.flusher()
    if flusher.begin(map, 4096, 5120):      # returns at once
        ...
        flusher.wait()                      # bytes 4096 … 5119, as they were at `begin`, are on disk

    One thread uses it at a time. It ends with the last one who holds it. In a forked child nothing can begin.
    """

    def __init__(self, made: Any) -> None:
        """`made` by the C module."""
        self._made = made
        self._path = ""
        self._file: OpenFile | None = None  # open as long as its number is in use

    def begin(self, mapped: Map, start: int, stop: int) -> bool:  # noqa: ARG002 - fdatasync flushes all that is dirty
        """Begin to flush bytes `start` to `stop` - 1; False when no flush can begin now: one is at work."""
        file = mapped.file
        if file is None or not compiled.fast.flush_begin(self._made, file.descriptor):  # type: ignore[union-attr]
            return False
        self._path, self._file = mapped.path, file
        return True

    def wait(self) -> None:
        """Until the flush that was begun last is done; once more it says the same. Raises SyncFailed."""
        number: int = compiled.fast.flush_wait(self._made)  # type: ignore[union-attr]
        if number:
            raise sync_failed(OSError(number, os.strerror(number)), self._path)
        self._file = None


def flusher() -> Flusher | None:
    """None without the C module, and where the system's fdatasync is not what `force` calls."""
    made = compiled.fast.flusher() if compiled.fast else None
    return None if made is None else Flusher(made)


def force(descriptor: int) -> None:
    """Bytes and size of an open file to the disk itself, through its cache. Raises OSError."""
    if sys.platform == "darwin":  # fsync stops at the disk's cache there
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)
