"""Every file call of the project goes through one object, so that another can stand in for it.

A crashable disk takes its place in tests. What the operating system refuses becomes a StoreError that names the path
and says what to do; what is not there becomes `Missing`, because whoever reads a store that lives expects it.

Files are read with pread into bytes, never through a map: the process that owns the store may truncate or delete a
segment at any moment, and a map would then kill us with SIGBUS.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import Any

from broker.errors import StoreError


class Missing(StoreError):
    """There is nothing at the path; inside a live store that is no fault."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands at a path; `inode` and `changed_ns` tell whether it is still the same."""

    path: str
    name: str
    is_folder: bool
    is_file: bool
    size: int
    inode: int
    changed_ns: int  # modification time: of a folder, when a name in it came or went


class ReadFile:
    """A file open for reading. It closes when the last one who holds it lets go, so no reader loses it in mid-read."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def pread(self, size: int, at: int) -> bytes:
        """The bytes from position `at` on: fewer than `size` only where the file ends."""
        try:
            data = os.pread(self._descriptor, size, at)
            while 0 < len(data) < size and (more := os.pread(self._descriptor, size - len(data), at + len(data))):
                data += more
        except OSError as error:
            raise explained(error, self.path) from error
        return data

    def pread_into(self, buffer: Any, at: int) -> int:
        """Fill a writable buffer from position `at`; returns how many bytes were there."""
        view, done = memoryview(buffer).cast("B"), 0
        try:
            while done < len(view) and (more := os.preadv(self._descriptor, [view[done:]], at + done)):
                done += more
        except OSError as error:
            raise explained(error, self.path) from error
        return done

    def next_data(self, at: int) -> int:
        """The first position at or after `at` that may hold a byte other than zero; the file's size when none does."""
        try:
            return os.lseek(self._descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return os.fstat(self._descriptor).st_size
            if error.errno in (errno.EINVAL, errno.ENOTSUP):  # this file system does not know its holes
                return at
            raise explained(error, self.path) from error


class Disk:
    """The file system of this machine."""

    def entry(self, path: str) -> Entry | None:
        """What stands at a path, links followed; None when nothing does."""
        try:
            return _entry(path, os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise explained(error, path) from error

    def entries(self, folder: str) -> list[Entry]:
        """What lies in a folder, sorted by name, without what vanishes meanwhile. Raises Missing without a folder."""
        try:
            with os.scandir(folder) as found:
                paths = sorted(item.path for item in found)
        except OSError as error:
            raise explained(error, folder) from error
        return [entry for path in paths if (entry := self.entry(path)) is not None]

    def open_read(self, path: str) -> ReadFile:
        """Raises Missing when the file is not there."""
        try:
            return ReadFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise explained(error, path) from error

    def read(self, path: str) -> bytes:
        """A whole small file. Raises Missing when it is not there."""
        file, parts, at = self.open_read(path), [], 0
        while part := file.pread(_READ_BYTES, at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)


_READ_BYTES = 1 << 20


def explained(error: OSError, path: str) -> StoreError:
    """What the operating system says, as a sentence with a next step."""
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Missing(f"{path}: there is no such file or folder", path=path)
    if isinstance(error, PermissionError):
        return StoreError(f"{path} may not be read by this user ({reason}). {_owner(path)}", path=path)
    if error.errno == errno.EIO:
        text = f"{path}: the disk cannot read it ({reason}). Copy what can be read with: checkback salvage"
        return StoreError(text, path=path)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreError(f"{path}: too many files are open ({reason}). Raise the limit with: ulimit -n", path=path)
    return StoreError(f"{path} cannot be read: {reason}. See that it is a readable file or folder", path=path)


def _owner(path: str) -> str:
    """The next step after a refusal: run as the owner of the nearest thing that can be seen."""
    while path:
        try:
            found = os.stat(path)
        except OSError:
            path = "" if path == os.path.dirname(path) else os.path.dirname(path)
            continue
        mode = stat.filemode(found.st_mode)
        return f"{path} belongs to user {found.st_uid}, group {found.st_gid}, mode {mode}: run as one who may read it"
    return "Run as a user who may read it"


def _entry(path: str, found: os.stat_result) -> Entry:
    return Entry(
        path=path,
        name=os.path.basename(path),
        is_folder=stat.S_ISDIR(found.st_mode),
        is_file=stat.S_ISREG(found.st_mode),
        size=found.st_size,
        inode=found.st_ino,
        changed_ns=found.st_mtime_ns,
    )


class OpenFiles:
    """The files used lately, kept open: a store may have more segments than a process may have open files.

    No lock: one operation on a dict is atomic, and of a file that two threads open at once, one closes when its reader
    lets go. So a fork in the middle of a read leaves nothing locked in the child.
    """

    def __init__(self, disk: Disk, limit: int = 128) -> None:
        self._disk = disk
        self._limit = limit
        self._open: dict[tuple[str, int], ReadFile] = {}
        self._closed = False

    def get(self, path: str, inode: int) -> ReadFile:
        """The file with this inode at this path. Raises Missing when it is not there (any more)."""
        if self._closed:
            raise StoreError(f"{path} belongs to a store that was closed: open it again with broker.open", path=path)
        file = self._open.get((path, inode))
        if file is None:
            file = self._open[path, inode] = self._disk.open_read(path)
            while len(self._open) > self._limit:
                self._drop_oldest()
        return file

    def forget(self, path: str, inode: int) -> None:
        """Let go of a file that was deleted: while it is open, its space is not free."""
        self._open.pop((path, inode), None)

    def _drop_oldest(self) -> None:
        try:
            self._open.pop(next(iter(self._open)), None)
        except (RuntimeError, StopIteration):  # another thread opened or dropped one at this moment
            pass

    def close(self) -> None:
        """Let go of every file; the store is closed."""
        self._closed = True
        self._open.clear()
