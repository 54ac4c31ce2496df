"""A queue of segments to write to: files of one size, allocated before they are needed, mapped when touched."""

from __future__ import annotations

import os

from broker.store.disk import Disk, Map
from broker.store.segments import NAME_DIGITS

_OPEN_MAPS = 64


class MappedQueue:
    """Positions in a run of bytes across files; each process has its own maps of them."""

    def __init__(self, disk: Disk, folder: str, file_size: int) -> None:
        self.folder, self.file_size = folder, file_size
        self._disk = disk
        self._maps: dict[int, Map] = {}

    def at(self, position: int) -> tuple[memoryview[int], int]:
        """The map that holds a position, and where in it. Raises StoreFull when its file cannot be allocated."""
        base = position - position % self.file_size
        found = self._maps.get(base)
        if found is None:
            found = self._open(base)
        return found.view, position - base

    def _open(self, base: int) -> Map:
        path = self.path_of(base)
        entry = self._disk.entry(path)
        if entry is None or entry.size != self.file_size:  # whoever began it may have been killed
            if self._disk.entry(self.folder) is None:
                self._disk.create_folder(self.folder)
            self._disk.allocate(path, self.file_size)
        opened = self._disk.open_map(path, self.file_size)
        self._maps[base] = opened
        while len(self._maps) > _OPEN_MAPS:
            self._maps.pop(next(iter(self._maps)))  # it closes when the last one who holds it lets go
        return opened

    def path_of(self, base: int) -> str:
        return os.path.join(self.folder, f"{base:0{NAME_DIGITS}}")

    def allocate(self, position: int) -> None:
        """Have the file that holds a position ready, so that what needs it cannot fail for want of space."""
        self.at(position)

    def read(self, position: int, size: int) -> bytes:
        """Bytes that lie in one file, as they are now."""
        view, at = self.at(position)
        return bytes(view[at : at + size])

    def sync(self, start: int, stop: int) -> None:
        """Force [start, stop) to disk. Raises SyncFailed."""
        while start < stop:
            base = start - start % self.file_size
            end = min(stop, base + self.file_size)
            view_owner = self._maps.get(base) or self._open(base)
            view_owner.sync(start - base, end - base)
            start = end

    def close(self) -> None:
        for opened in self._maps.values():
            opened.close()
        self._maps.clear()


def zero(queue: MappedQueue, start: int, stop: int) -> None:
    """Clear [start, stop), across files."""
    while start < stop:
        view, at = queue.at(start)
        size = min(stop - start, queue.file_size - at)
        view[at : at + size] = bytes(size)
        start += size
