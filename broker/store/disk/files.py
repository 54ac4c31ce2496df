"""Every file call of the project goes through one object, so that another can stand in for it.

A crashable disk takes its place in tests (`broker.testing.crash_disk.CrashDisk`). What the operating system refuses
becomes a StoreError that names the path and says what to do; what is not there becomes `Missing`, because a process
that reads a store that lives expects it.

Readers of a store that others own read files with pread into bytes, never through a map: the owner may truncate or
delete a segment at any moment, and a map would then kill us with SIGBUS. A process that writes to a store has maps of
it, of files that were allocated in full.

What the writing side does is on disk when it returns, names included, unless `durable=False` says that the caller will
flush it later or can do without.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from broker.errors import StoreError
from broker.store.disk import platform_info as machine
from broker.store.disk.maps import Map as Map
from broker.store.disk.maps import OpenFile, with_room
from broker.store.disk.opening import give_directory, opened
from broker.store.disk.os_errors import Missing as Missing
from broker.store.disk.os_errors import NotSupported as NotSupported
from broker.store.disk.os_errors import explained as explained
from broker.store.disk.os_errors import free_bytes, refused
from broker.store.disk.read_file import ReadFile as ReadFile
from broker.store.disk.syscalls import CAN_RESERVE, Calls

# A pipe in place of a file would else wait for its writer.
_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_UNFINISHED = re.compile(r".+\.(\d+)\.tmp")  # of a process: see `write_file`


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands at a path; `inode` and `changed_ns` tell whether it is still the same."""

    path: str
    name: str
    is_directory: bool
    is_file: bool
    size: int
    inode: int
    changed_ns: int  # modification time: of a directory, when a name in it came or went


class Disk(Calls):
    """The file system of this machine."""

    background = True  # whether threads that no append waits for may use it

    def entry(self, path: str) -> Entry | None:
        """What stands at a path, links followed; None when nothing does."""
        try:
            return _entry(path, os.stat(path))
        except (OSError, ValueError) as error:
            fault = explained(error, path)
            if isinstance(fault, Missing):
                return None
            raise fault from error

    def stamp(self, path: str) -> tuple[int, int] | None:
        """`inode` and `changed_ns` of what stands at a path, in half the time of `entry`; None when nothing does."""
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            entry = self.entry(path)  # says what is wrong
            return None if entry is None else (entry.inode, entry.changed_ns)
        return found.st_ino, found.st_mtime_ns

    def stands(self, path: str, inode: int, size: int | None = None) -> bool:
        """Whether the file of this number, and of this size if it is given, stands at a path; else ask `entry` why."""
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            return False
        return found.st_ino == inode and (size is None or found.st_size == size)

    def entries(self, directory: str) -> list[Entry]:
        """The entries of a directory, sorted by name, without what vanishes meanwhile. Raises Missing without it."""
        try:
            with with_room(lambda: os.scandir(directory)) as found:
                paths = sorted(item.path for item in found)
        except (OSError, ValueError) as error:
            raise explained(error, directory) from error
        return [entry for path in paths if (entry := self.entry(path)) is not None]

    def entries_if_any(self, directory: str) -> list[Entry]:
        """The same; none where the directory is not there."""
        try:
            return self.entries(directory)
        except Missing:
            return []

    def open_read(self, path: str) -> ReadFile:
        """Raises Missing when the file is not there. A pipe in its place raises CorruptStore at the first read."""
        try:
            return ReadFile(path, opened(path, _READ_ONLY))
        except (OSError, ValueError) as error:
            raise explained(error, path) from error

    def open_to_copy(self, path: str) -> ReadFile:
        """The same; raises StoreError for a link through which root would copy a file that is not its maker's."""
        try:
            return ReadFile(path, opened(path, _READ_ONLY, is_copied=True))
        except (OSError, ValueError) as error:
            raise explained(error, path) from error

    def read(self, path: str) -> bytes:
        """A whole small file. Raises Missing when it is not there."""
        file, parts, at = self.open_read(path), [], 0
        while part := file.pread(_READ_BYTES, at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def inode(self, path: str) -> int:
        """The number that a file keeps when its name changes. Raises Missing when it is not there."""
        entry = self.entry(path)
        if entry is None:
            raise Missing(f"{path}: there is no such file or directory", path=path)
        return entry.inode

    def inode_if_any(self, path: str) -> int:
        """The same; 0 when nothing is there."""
        entry = self.entry(path)
        return entry.inode if entry is not None else 0

    # The machine

    def free_bytes(self, path: str) -> int:
        """What may still be written on the disk where a path lies or will lie."""
        return free_bytes(path)

    def used_bytes(self, path: str) -> int:
        """The blocks that a file, or a directory and all in it, take on the disk, in bytes; links are not followed.

        What vanishes meanwhile counts as nothing, as does what lies in a directory that is closed to this user: root's
        lost+found of a volume, say.
        """
        try:
            found, names = os.lstat(path), list[str]()
            if stat.S_ISDIR(found.st_mode):
                with contextlib.suppress(PermissionError):
                    names = os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as error:
            raise explained(error, path) from error
        return found.st_blocks * 512 + sum(self.used_bytes(os.path.join(path, name)) for name in names)

    def file_system(self, path: str) -> str:
        """The kind of file system that a path lies on; empty when the system does not tell."""
        return machine.file_system(path)

    def is_local(self, path: str) -> bool:
        """Whether locks and maps there reach everyone who can write there: false on network file systems."""
        return not machine.is_remote(self.file_system(path))

    def boot_id(self) -> str:
        """A name for the time since the machine was started; empty when the system does not tell."""
        return machine.boot_id()

    # Changing directories

    def create_directory(self, path: str, *, durable: bool = True, in_store: bool = True) -> None:
        """Create a directory, and those above it that are missing; one that is there stays. Raises StoreFull.

        What root makes `in_store` belongs to the owner of the directory above; a store itself to the user who makes it.
        """
        made = [os.path.abspath(path)]
        while not os.path.isdir(above := os.path.dirname(made[-1])):
            made.append(above)
        for directory in reversed(made):
            if not os.path.isdir(directory):
                self._make_directory(directory)
                if in_store:
                    give_directory(directory)
            if durable:
                self._force_directory(os.path.dirname(directory))

    def create_in_store(self, store: str, path: str) -> None:
        """Create a directory of a store that is open. Raises Missing when the store is not in its place any more."""
        if self.entry(path) is None:
            if self.entry(store) is None:
                text = f"{store} was moved or deleted while it was open. Close it in every process"
                raise Missing(f"{text}, and open it where it is", path=store)
            self.create_directory(path)

    def sync_directory(self, path: str) -> None:
        """Flush the names in a directory: what was created, renamed and removed in it. Raises SyncFailed."""
        self._force_directory(path)

    # Changing files

    def allocate(self, path: str, size: int, *, durable: bool = True) -> None:
        """See that there is a file of this size with a block for each byte: zeros where it had none, the rest stays.

        What fails leaves nothing behind. A size that is too small was left by someone who was killed here: it grows.
        Raises StoreFull, and StoreError when the file is larger.
        """
        with self._growing(path, self.entry(path), size, durable=durable) as descriptor:
            self._reserve(descriptor, path, size)

    def allocate_head(self, path: str, size: int, head: int) -> None:
        """See that there is a file of this size with a block for each of its first `head` bytes; the rest is a hole.

        For a table that fills from its front: `reserve` gives it more blocks before more of it is written to. Where
        the system cannot do that, it gets all of its blocks now. Raises StoreFull, StoreError as `allocate` does.
        """
        found = self.entry(path)
        with self._growing(path, found, size, durable=True) as descriptor:
            if found is None or found.size < size:  # killed in here: it is short, and nothing was written to it
                self._reserve(descriptor, path, min(head, size) if CAN_RESERVE else size)
                self._cut(descriptor, path, size)

    @contextlib.contextmanager
    def _growing(self, path: str, found: Entry | None, size: int, *, durable: bool) -> Iterator[int]:
        """A file that the caller brings to a size, made where it was not found; a new one goes again if that fails."""
        self._check_size(found, size)
        descriptor = self._create(path) if found is None else self._open(path, os.O_RDWR)
        try:
            try:
                yield descriptor
            except StoreError:
                if found is None:
                    self._remove_file(path)
                raise
            if durable:
                self._force(descriptor, path)
        finally:
            os.close(descriptor)
        if durable:
            self._force_directory(_above(path))

    def reserve(self, path: str, stop: int) -> None:
        """Have a block for each byte below `stop` of a file that `allocate_head` made. Raises StoreFull."""
        descriptor = self._open(path, os.O_RDWR)
        try:
            self._reserve(descriptor, path, stop)
        finally:
            os.close(descriptor)

    def open_map(self, path: str, size: int) -> Map:
        """Map a file, which must be allocated. Raises Missing, and StoreError when it has another size."""
        file = OpenFile(self._open(path, os.O_RDWR))
        try:
            found = os.fstat(file.descriptor).st_size
            if found != size:
                raise _wrong_size(path, found, size)
            return self._map(path, size, file)
        except OSError as error:
            raise refused(error, path, size) from error

    def write_file(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Put a small file in place of another, whole: a reader sees the old one or the new one.

        Raises StoreFull; the old file is there then, and nothing else.
        """
        beside = f"{path}.{os.getpid()}.tmp"  # one process after another writes under a lock; two never share a name
        if self.entry(beside) is not None:
            self._remove_file(beside)
        descriptor = self._create(beside)
        try:
            try:
                self._write(descriptor, beside, data)
                if durable:
                    self._force(descriptor, beside)
            finally:
                os.close(descriptor)
            self._rename(beside, path)
        except StoreError:
            if self.entry(beside) is not None:
                self._remove_file(beside)
            raise
        if durable:
            self._force_directory(_above(path))

    def remove_unfinished(self, directory: str) -> None:
        """Remove what processes that were killed in `write_file` left there. Nobody else may write to it meanwhile."""
        for entry in self.entries(directory):
            found = _UNFINISHED.fullmatch(entry.name)
            if found and entry.is_file and not os.path.exists(f"/proc/{found[1]}"):
                self.remove(entry.path, durable=False)

    def sync_file(self, path: str) -> None:
        """Flush what was written to a file, by any process and in any way. Raises SyncFailed, and Missing."""
        descriptor = self._open(path, os.O_RDONLY)
        try:
            self._force(descriptor, path)
        finally:
            os.close(descriptor)

    def truncate(self, path: str, size: int, *, durable: bool = True) -> None:
        """Cut a file. No process may have a map of what goes: it would be killed by SIGBUS."""
        descriptor = self._open(path, os.O_RDWR)
        try:
            self._cut(descriptor, path, size)
            if durable:
                self._force(descriptor, path)
        finally:
            os.close(descriptor)

    @staticmethod
    def _check_size(found: Entry | None, size: int) -> None:
        if found is not None and found.size > size:
            raise _wrong_size(found.path, found.size, size)

    # Changing names

    def rename(self, old: str, new: str, *, durable: bool = True) -> None:
        """Give a file or directory another name, in place of what has that name now, in one step."""
        self._rename(old, new)
        if durable:
            self._force_directories(old, new)

    def check_renames(self, source: str, target: str) -> None:
        """Raises StoreError where no name can move from one directory to another. Changes nothing."""
        name, crosses = "nothing-has-this-name", False
        try:
            crosses = os.stat(source).st_dev != os.stat(target).st_dev  # of btrfs, a subvolume
            os.rename(os.path.join(source, name), os.path.join(target, name))
        except OSError as error:
            crosses = crosses or error.errno == errno.EXDEV  # Linux says so first, of two mounts of one disk, too
        if crosses:
            text = f"{target} is another file system, or another mount, than {source}, from which files are moved to it"
            raise StoreError(f"{text}. Put both on one: a copy in place of the link or the mount", path=target)

    def exchange(self, path_a: str, path_b: str, *, durable: bool = True) -> None:
        """Swap two files or directories in one step. Raises NotSupported, with nothing changed, where it takes more."""
        self._exchange(path_a, path_b)
        if durable:
            self._force_directories(path_a, path_b)

    def remove(self, path: str, *, durable: bool = True) -> None:
        """Remove a file. Raises Missing when it is not there."""
        self._remove_file(path)
        if durable:
            self._force_directory(_above(path))

    def remove_tree(self, path: str, *, durable: bool = True) -> None:
        """Remove a directory and all that lies in it, if it is there. Links in it are removed, not followed."""
        if not os.path.lexists(path):
            return
        if os.path.isdir(path) and not os.path.islink(path):
            for name in self._names(path):
                self.remove_tree(os.path.join(path, name), durable=False)
            self._remove_directory(path)
        else:
            self._remove_file(path)
        if durable:
            self._force_directory(_above(path))

    def open_lock(self, path: str, *, write: bool = True) -> int:
        """A descriptor of its own for a lock file, created when missing if `write`. Raises Missing."""
        return self._open(path, os.O_RDWR | os.O_CREAT if write else _READ_ONLY)

    def _force_directories(self, *paths: str) -> None:
        """Flush the directories that hold these names, the last named first: a name that moved is in the new one before
        it is gone from the old one."""
        for directory in dict.fromkeys(_above(path) for path in reversed(paths)):
            self._force_directory(directory)


_READ_BYTES = 1 << 20


def _above(path: str) -> str:
    """The directory that holds the name."""
    return os.path.dirname(os.path.abspath(path))


def _entry(path: str, found: os.stat_result) -> Entry:
    return Entry(
        path=path,
        name=os.path.basename(path),
        is_directory=stat.S_ISDIR(found.st_mode),
        is_file=stat.S_ISREG(found.st_mode),
        size=found.st_size,
        inode=found.st_ino,
        changed_ns=found.st_mtime_ns,
    )


def _wrong_size(path: str, found: int, size: int) -> StoreError:
    text = f"{path} has {found} bytes where {size} are expected"
    if found > size:
        return StoreError(f"{text}: another program made it", path=path)
    text = f"{text}: it was cut. Put it back from a backup, or give it its size: truncate -s {size} {quote(path)}"
    return StoreError(f"{text}. See what is missing then with: checkback verify STORE", path=path)
