"""Are the files that a live store writes to still those that its names lead to?

A file that is deleted lives on in the processes that map it: stores and fsyncs still work, on what nobody will ever
open again. So whenever the log is flushed, and twice a second besides, each file is compared with what stands at its
path: the same number (inode), the same size. It costs four calls for each fsync, none for a message; the C module asks
without the files' times, see docs/decisions/0046. What does not fit stops the appends of every process (Word.POISON)
before anything more is acknowledged.

A truncated file cannot be detected in time: a process that stores beyond its new end is killed by SIGBUS, and has
acknowledged nothing. Retention may remove segments, but only the oldest, and never the one that is written to.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Callable, Iterable
from shlex import quote

from broker import compiled
from broker.errors import StoreError
from broker.store.disk.files import Disk, Entry, Map
from broker.store.disk.paths import Paths
from broker.store.read.segments import is_base
from broker.store.shared.control import Word
from broker.store.write.mapped import MappedQueue

Files = tuple[tuple[bytes, int, int], ...]  # path, inode, size in bytes; -1: any size
# Fast path: the interpreter's lock is given away once, and not for each file, and no file's times are asked for: a put
# in mode each takes 112 µs, not 148. The general twin is `Disk.stands`; tests/store/test_files_lost.py runs both.
_fast_stand: Callable[[Files], bool | None] | None = compiled.fast.stand if compiled.fast else None


class Poison(enum.IntEnum):
    """Why nobody may append any more, in the control page."""

    NONE = 0
    SYNC_FAILED = 1
    FILES_LOST = 2


class FilesInPlace:
    """The files of one process's hold on a store. Threads may share it."""

    def __init__(self, disk: Disk, paths: Paths, store_id: int, control: Map, logs: Iterable[MappedQueue]) -> None:
        self._disk, self._paths, self._control, self._logs = disk, paths, control, tuple(logs)
        self._lock, self._store_json, self._store_id = paths.lock, paths.store_json, store_id
        self._lock_inode = disk.inode(paths.lock)
        self._found: StoreError | None = None
        self._identity_inode = disk.inode(paths.store_json)
        self._expected: tuple[list[object], Files] = ([], ())  # which maps were seen, and what follows from them

    def check(self) -> None:
        """Raises StoreError, which names the first file that is not in its place any more; from then on always."""
        if self._found is not None:
            raise self._found
        if not self._is_as_before():
            self._look_closely()

    def _is_as_before(self) -> bool:
        """Whether every file stands where it stood; False as well for what may be so, and has to be looked at."""
        seen = [log.maps_seen for log in self._logs]
        known, files = self._expected
        if seen != known:
            files = self._expect()
            self._expected = seen, files
        if _fast_stand is not None and (answer := _fast_stand(files)) is not None:
            return answer
        stands = self._disk.stands
        return all(stands(os.fsdecode(path), inode, None if size < 0 else size) for path, inode, size in files)

    def _expect(self) -> Files:
        """Path, inode and size of each file; the appends and the fsyncs map the same segments, which are there once."""
        control = self._control
        files = [(self._lock, self._lock_inode, -1), (self._store_json, self._identity_inode, -1)]
        files.append((control.path, control.inode, control.size))
        for log in self._logs:
            files += [(one.path, one.inode, log.file_size) for _, one in log.mapped()]
        return tuple({(os.fsencode(path), inode, size): None for path, inode, size in files})

    def _look_closely(self) -> None:
        entry = self._disk.entry
        self._compare(self._lock, entry(self._lock), self._lock_inode)
        self._check_identity()
        control = self._control
        self._compare(control.path, entry(control.path), control.inode, control.size)
        mapped = {(base, one.inode): (one.path, log) for log in self._logs for base, one in log.mapped()}
        for (base, inode), (path, log) in mapped.items():
            found = entry(path)
            if found is None and self._is_expired(log, base):
                continue
            self._compare(path, found, inode, log.file_size)

    def _is_expired(self, log: MappedQueue, base: int) -> bool:
        """Whether retention may have removed a segment: it takes the oldest, of those that are durable as a whole."""
        if base + log.file_size > self._control.words[Word.DURABLE]:
            return False
        others = self._disk.entries(log.directory) if self._disk.entry(log.directory) is not None else []
        bases = [int(entry.name) for entry in others if is_base(entry.name)]
        return bool(bases) and base < min(bases)

    def _check_identity(self) -> None:
        """store.json may be written again, whole, as long as it says the same id."""
        path = self._store_json
        entry = self._disk.entry(path)
        if entry is None:
            raise self._lost(path, "was deleted")
        if entry.inode != self._identity_inode:
            try:
                stored_id = int(json.loads(self._disk.read(path))["id"], 16)
            except (KeyError, TypeError, ValueError):
                stored_id = -1
            if stored_id != self._store_id:
                raise self._lost(path, "was replaced by that of another store")
            self._identity_inode, self._expected = entry.inode, ([], ())

    def _compare(self, path: str, found: Entry | None, inode: int, size: int | None = None) -> None:
        if found is None:
            raise self._lost(path, "was deleted")
        if found.inode != inode:
            raise self._lost(path, "was replaced by another file")
        if size is not None and found.size != size:
            raise self._lost(path, f"was cut from {size} to {found.size} bytes")

    def _lost(self, path: str, what: str) -> StoreError:
        text = f"{path} {what} while the store was open. What was sent since the last send that returned is not stored,"
        text = f"{text} and nothing more is accepted. Close the store in every process, put the file back from a backup"
        text = f"{text} or a replica, and run: checkback verify {quote(self._paths.store)}"
        self._found = StoreError(text, path=path)
        return self._found


def files_lost(store: str) -> StoreError:
    """The error where another process found it, and this one sees every file in its place."""
    text = f"{store}: a file of this store was deleted, replaced or cut while it was open, so that nothing more is"
    return StoreError(
        f"{text} accepted. Close the store in every process, and run: checkback verify {quote(store)}", path=store
    )
