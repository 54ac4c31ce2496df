"""The files that a store reads, kept open while they are in use."""

from __future__ import annotations

import resource

from broker.store.disk.files import Disk, ReadFile
from broker.store.disk.maps import keepers
from broker.store.disk.os_errors import closed_store

_MAPS_MIN, _MAPS_MAX = 32, 8192  # Linux gives a process 65,530 maps
_FILES_OF_A_MAP = 2  # Python's mmap has a descriptor of its own
_OTHERS = 256  # files of a store that are open besides; a quarter of what this process may have open stays free
_READ_MIN = 4  # of one store


def maps_of_queues_max() -> int:
    """How many files of ConsumeQueues a process may have mapped at one time: by its limit of open files, as it is."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    maps = (limit * 3 // 4 - _OTHERS) // _FILES_OF_A_MAP
    return _MAPS_MAX if limit == resource.RLIM_INFINITY else min(max(maps, _MAPS_MIN), _MAPS_MAX)


def is_crowded(descriptor: int) -> bool:
    """Whether a file that was given this number took one of the last quarter that this process may have.

    A new file gets the lowest number that is free, so all below it were taken: by stores, or by the application itself.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= limit * 3 // 4


class OpenFiles:
    """The files used lately, kept open: a store may have more segments than a process may have open files.

    No lock: one operation on a dict is atomic, and of a file that two threads open at once, one closes when its reader
    lets go. So a fork in the middle of a read leaves nothing locked in the child.
    """

    def __init__(self, disk: Disk, limit: int = 128) -> None:
        self._disk = disk
        self._limit = limit
        self._open: dict[tuple[str, int], ReadFile] = {}
        keepers.add(self)
        self.is_closed = False

    def get(self, path: str, inode: int) -> ReadFile:
        """The file with this inode at this path. Raises Missing when it is not there (any more)."""
        if self.is_closed:
            raise closed_store(path)
        file = self._open.get((path, inode))
        if file is None:
            file = self._open[path, inode] = self._disk.open_read(path)
            fewer = max(len(self._open) - 2, _READ_MIN) if is_crowded(file.descriptor) else self._limit
            while len(self._open) > min(fewer, self._limit):
                self._drop_oldest()
        return file

    def forget(self, path: str, inode: int) -> None:
        """Release a file that was deleted: while it is open, its space is not free."""
        self._open.pop((path, inode), None)

    def forget_removed(self) -> None:
        """Close all files that were deleted or replaced since they were opened: until then their space is not free."""
        for path, inode in list(self._open):
            found = self._disk.entry(path)
            if found is None or found.inode != inode:
                self.forget(path, inode)

    def release_half(self) -> bool:
        """As a `Keeper`."""
        count = len(self._open)
        for _ in range(-(-count // 2)):
            self._drop_oldest()
        return count > 0

    def _drop_oldest(self) -> None:
        try:
            self._open.pop(next(iter(self._open)), None)
        except (RuntimeError, StopIteration):  # another thread opened or dropped one at this moment
            pass

    def close(self) -> None:
        """Release every file; the store is closed."""
        self.is_closed = True
        self._open.clear()
