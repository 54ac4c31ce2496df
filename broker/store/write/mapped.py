"""A queue of files to write to: of one size, allocated before they are needed, mapped when touched."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable
from itertools import islice
from random import randrange

from broker.format.consumequeue import FILLER, UNIT_SIZE, Unit
from broker.store.disk.files import Disk, Map
from broker.store.disk.maps import Flusher, keepers
from broker.store.disk.open_files import is_crowded, maps_of_queues_max
from broker.store.disk.os_errors import closed_store
from broker.store.read.segments import NAME_DIGITS

_OPEN_MAPS = 64
_MAPS_MIN = 4  # of the queues of one store
_NOWHERE: tuple[int, memoryview[int]] = (-(1 << 62), memoryview(bytearray()))
_pack_unit = Unit.STRUCT.pack_into
_FILLER = FILLER.pack()


class MappedQueue:
    """Positions in a run of bytes across files; each process has its own maps of them.

    Threads may share it: what they share is replaced whole, never changed.
    """

    def __init__(self, disk: Disk, directory: str, file_size: int, open_maps: OpenMaps | None = None) -> None:
        """`open_maps` are those of other queues, too, which one thread at a time writes to."""
        self.directory, self.file_size = directory, file_size
        self.disk = disk
        self._open_maps = open_maps
        self._maps: dict[int, Map] = {}
        self.maps_seen = object()  # another one whenever `mapped` says something else
        self._is_closed = False
        # Where the file of the last position begins, and its bytes: most positions lie there. Of use to one who writes
        # under a lock; it is replaced as one, so that `at` needs none.
        self.last = _NOWHERE

    def at(self, position: int) -> tuple[memoryview[int], int]:
        """The map that holds a position, and where in it. Raises StoreFull when its file cannot be allocated."""
        base, view = self.last
        if 0 <= position - base < self.file_size:
            return view, position - base
        base = position - position % self.file_size
        view = (self._maps.get(base) or self._open(base, allocate=True)).view
        self.last = (base, view)
        return view, position - base

    def existing(self, position: int) -> tuple[memoryview[int], int]:
        """The same for a reader, who makes no file. Raises Missing when it is not there (any more)."""
        base = position - position % self.file_size
        return (self._maps.get(base) or self._open(base, allocate=False)).view, position - base

    def _open(self, base: int, *, allocate: bool) -> Map:
        if self._is_closed:  # by a signal handler in the middle of an append: what follows is others' to write
            raise closed_store(self.directory)
        path = self.path_of(base)
        if allocate and not self._is_whole(path):
            self._make_directory()
            self.disk.allocate(path, self.file_size)
        opened = self.disk.open_map(path, self.file_size)
        self._maps[base] = opened
        while len(self._maps) > _OPEN_MAPS:
            with contextlib.suppress(RuntimeError, StopIteration):  # another thread opened one at this moment
                self._maps.pop(next(iter(self._maps)), None)  # it closes when the last one who holds it lets go
        self.maps_seen = object()
        if self._open_maps is not None:
            self._open_maps.note(self, base, is_crowded=opened.file is not None and is_crowded(opened.file.descriptor))
        return opened

    def _is_whole(self, path: str) -> bool:
        """Whether a file is there in its size: the process that began it may have been killed."""
        entry = self.disk.entry(path)
        return entry is not None and entry.size == self.file_size

    def _make_directory(self) -> None:
        if self.disk.entry(self.directory) is None:
            self.disk.create_directory(self.directory)

    def path_of(self, base: int) -> str:
        return os.path.join(self.directory, f"{base:0{NAME_DIGITS}}")

    def allocate(self, position: int) -> None:
        """Have the file that holds a position ready, so that what needs it cannot fail for want of space."""
        self.at(position)

    def read(self, position: int, size: int) -> bytes:
        """Bytes that lie in one file, as they are now."""
        view, at = self.existing(position)
        return bytes(view[at : at + size])

    def sync(self, start: int, stop: int) -> None:
        """Flush [start, stop) to disk. Raises SyncFailed, and Missing when a file is not there that should be."""
        while start < stop:
            base = start - start % self.file_size
            end = min(stop, base + self.file_size)
            mapped = self._maps.get(base) or self._open(base, allocate=False)
            mapped.sync(start - base, end - base)
            start = end

    def start_write(self, start: int, stop: int) -> None:
        """Let the disk begin with [start, stop), as far as it lies in the file of `start`, if that is mapped."""
        base = start - start % self.file_size
        mapped = self._maps.get(base)
        if mapped is not None:
            mapped.start_write(start - base, min(stop - base, self.file_size))

    def write_pages(self, start: int, stop: int) -> bool:
        """Have the pages of [start, stop) written with the next flush, as far as they lie in the file of `start`.

        False where that is not mapped here.
        """
        base = start - start % self.file_size
        mapped = self._maps.get(base)
        if mapped is not None:
            mapped.write_pages(start - base, min(stop - base, self.file_size))
        return mapped is not None

    def unmap_pages(self, start: int, stop: int) -> None:
        """Take the pages of [start, stop) out of this process's map, as far as they lie in the file of `stop`."""
        base = stop - stop % self.file_size
        mapped = self._maps.get(base)
        if mapped is not None:
            mapped.unmap_pages(max(start - base, 0), stop - base)

    def begin_flush(self, flusher: Flusher, start: int, stop: int) -> bool:
        """Have [start, stop) flushed beside this thread; False where that takes more than one file, or a new name."""
        base = start - start % self.file_size
        mapped = self._maps.get(base)
        if mapped is None or not base < start < stop <= base + self.file_size:
            return False
        return flusher.begin(mapped, start - base, stop - base)

    def mapped(self) -> list[tuple[int, Map]]:
        """Where each file begins that is mapped here, and its map."""
        return list(self._maps.items())

    def forget(self) -> None:
        """Release every map: the files of these names are others now, or are gone.

        A thread that still uses one keeps it until it is done.
        """
        self._take_maps()

    def forget_removed(self) -> None:
        """Release files that were removed: while one is mapped, its space is not free."""
        removed = [base for base in list(self._maps) if self.disk.entry(self.path_of(base)) is None]
        self._unnote(removed)
        for base in removed:
            self.release(base)

    def _unnote(self, bases: Iterable[int]) -> None:
        if self._open_maps is not None:
            self._open_maps.unnote(self, bases)

    def release(self, base: int) -> None:
        """Release the map of one file, if there is one; the next who needs it makes another."""
        self._maps.pop(base, None)
        self.maps_seen = object()
        if self.last[0] == base:
            self.last = _NOWHERE

    def close(self) -> None:
        """Release every file, for good."""
        self._is_closed = True
        self.unmap()

    def unmap(self) -> None:
        """Release every map at once; the next who needs one makes another."""
        for opened in self._take_maps().values():
            opened.close()

    def _take_maps(self) -> dict[int, Map]:
        maps, self._maps, self.last = self._maps, {}, _NOWHERE
        self.maps_seen = object()
        self._unnote(maps)
        return maps


class OpenMaps:
    """The maps of many queues: a store may have more of them than a process may have open files.

    One of the older half is released, any of them: where queues are written to by turns, the oldest is the next one
    that is needed. The stores of a process share what it may have: each has its part, and what the others leave, and
    gives up two for one where the process has few numbers left, whatever has them.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[MappedQueue, int], None] = {}  # in this order
        _of_process.add(self)
        keepers.add(self)

    def note(self, queue: MappedQueue, base: int, *, is_crowded: bool) -> None:
        """That a queue has mapped the file that begins at `base`."""
        self._made.pop((queue, base), None)
        self._made[queue, base] = None
        most = min(self._most(), max(len(self._made) - 2, _MAPS_MIN) if is_crowded else len(self._made))
        self._release_down_to(most)

    def release_half(self) -> bool:
        """As a `Keeper`."""
        count = len(self._made)
        self._release_down_to(count // 2)
        return len(self._made) < count

    def _release_down_to(self, most: int) -> None:
        with contextlib.suppress(RuntimeError, StopIteration):  # another thread opens or closes one at this moment
            while (count := len(self._made)) > max(most, 1):
                old, at = next(islice(self._made, randrange(count // 2), None))
                self._made.pop((old, at), None)
                old.release(at)

    def unnote(self, queue: MappedQueue, bases: Iterable[int]) -> None:
        """That a queue has released the maps of these files."""
        for base in bases:
            self._made.pop((queue, base), None)

    def _most(self) -> int:
        most, others = maps_of_queues_max(), [len(one._made) for one in _of_process if one is not self]  # noqa: SLF001
        return max(most // (1 + len(others)), most - sum(others), _MAPS_MIN)


_of_process: weakref.WeakSet[OpenMaps] = weakref.WeakSet()


class NewNames:
    """Flushes the directories in which queues get files: at once, or `late`, all of them before the next checkpoint.

    Late is for the replay of a recovery: a machine that stops meanwhile begins it again, and removes those files. For
    each of thousands of queues it would wait for the disk four times more.
    """

    def __init__(self, disk: Disk, store: str) -> None:
        self._disk, self._store, self.late = disk, store, False
        self._directories = set[str]()

    def note(self, directory: str) -> None:
        """That a directory of the store, which is to be flushed late, got a name; it may have got its own one, too."""
        while directory not in self._directories and len(directory) >= len(self._store):
            self._directories.add(directory)
            directory = os.path.dirname(directory)

    def flush(self) -> None:
        """Flush what was left for later. Raises SyncFailed."""
        while self._directories:
            self._disk.sync_directory(self._directories.pop())


class UnitQueue(MappedQueue):
    """The same for units of a ConsumeQueue, or of a redo log of its form: no file of it is ever seen without a unit.

    A broker that recovers takes the first 20 bytes of the last file for a unit whatever they say, so that an empty file
    counts as one message: a queue offset would be skipped for good. So a file gets its first unit under another name.
    RocketMQ: ConsumeQueue.truncateDirtyLogicFiles (3.1.4 to 5.5.0).
    """

    def __init__(
        self, disk: Disk, directory: str, file_size: int, beside: str, open_maps: OpenMaps, new_names: NewNames
    ) -> None:
        """Files are begun at the path `beside` with their position behind it, on the same file system."""
        super().__init__(disk, directory, file_size, open_maps)
        self._beside, self._new_names = beside, new_names
        self._begun = -1  # the file that has its first unit already, and not its name

    def make_ready(self, position: int, commitlog_offset: int, size: int, tags_code: int) -> None:
        """Have all that can fail behind us before `put`: a file that is there, or one begun with this unit in it.

        Raises StoreFull, SyncFailed, and StoreError for a file that is larger than it should be.
        """
        base = position - position % self.file_size
        if base in self._maps or self.disk.entry(self.path_of(base)) is not None:
            self.at(position)
        elif base != self._begun or position == base:  # the next units of a batch need nothing more
            self._begin(base, position - base, (commitlog_offset, size, tags_code))

    def put(self, position: int, commitlog_offset: int, size: int, tags_code: int) -> None:
        """Write the unit of a position; a file that it is the first of gets its name now."""
        base, view = self.last
        if not 0 <= position - base < self.file_size:
            base = position - position % self.file_size
            if base not in self._maps and self.disk.entry(path := self.path_of(base)) is None:
                if base != self._begun:  # nobody made it ready: this is a replay
                    self._begin(base, position - base, (commitlog_offset, size, tags_code))
                self.disk.rename(self._begun_path(base), path, durable=not self._new_names.late)
                if self._new_names.late:
                    self._new_names.note(self.directory)
            self._begun = -1
            view, _ = self.at(position)
        _pack_unit(view, position - base, commitlog_offset, size, tags_code)

    def forget(self) -> None:
        super().forget()
        self._begun = -1

    def _begun_path(self, base: int) -> str:
        return f"{self._beside}-{base:0{NAME_DIGITS}}"

    def _begin(self, base: int, at: int, unit: tuple[int, int, int]) -> None:
        """A killed process may have begun it: its unit was for the same place, and is replaced.

        Where the first records of a queue are gone its first file begins within: readers would take the empty units in
        front for the end of the queue. RocketMQ: ConsumeQueue.fillPreBlank (3.1.4 to 5.5.0).
        """
        path = self._begun_path(base)
        for directory in (self.directory, os.path.dirname(path)):
            if self.disk.entry(directory) is None:
                self.disk.create_directory(directory, durable=not self._new_names.late)
        self.disk.check_renames(os.path.dirname(path), self.directory)  # later, with the record, it would be too late
        if not self._is_whole(path):
            self.disk.allocate(path, self.file_size, durable=False)
        opened = self.disk.open_map(path, self.file_size)
        opened.view[:at] = _FILLER * (at // UNIT_SIZE)
        _pack_unit(opened.view, at, *unit)
        opened.sync()
        opened.close()
        self._begun = base


def zero(queue: MappedQueue, start: int, stop: int) -> None:
    """Clear [start, stop), across files."""
    while start < stop:
        view, at = queue.at(start)
        size = min(stop - start, queue.file_size - at)
        view[at : at + size] = bytes(size)
        start += size
