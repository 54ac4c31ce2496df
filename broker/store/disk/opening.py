"""Opening files of a store: whose a new one is, which links root follows, which numbers no file of a store may have.

What root makes in the directory of another user belongs to that user. An operator's `sudo checkback check-back` may be
the process that makes the next segment: as root's, the application could not open it, and would accept no message from
there on. SQLite does the same for its journals.

The owner of a store may put a link in the place of any file of it, and root would write where it leads: a segment that
leads to root's authorized_keys gets what was sent. So root follows its own links, and those that lead to what belongs
to the user who made them. It goes from directory to directory by descriptors: nothing changes in between.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Iterator
from typing import TextIO

from broker.errors import StoreError
from broker.store.disk.maps import OpenFile, with_room

_FILE, _DIRECTORY = 0o666, 0o2777  # of the permissions of the directory above, those that a new entry takes over
_STREAMS = 2  # the highest number of a standard stream
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC  # O_PATH needs no right to read it
_LINKS_MAX = 40  # of root, one behind the other; as of the system's own


def opened(path: str, flags: int, *, is_copied: bool = False) -> int:
    """`os.open`; a file that is made by it belongs to the owner of its directory. Raises OSError, StoreError.

    Root follows no link of another user's where it writes, nor where it makes what it reads known: `is_copied`.
    """
    return with_room(lambda: _opened(path, flags, is_copied=is_copied))


def _opened(path: str, flags: int, *, is_copied: bool) -> int:
    if os.geteuid() != 0 or not (is_copied or flags & _WRITES):
        return _not_a_stream(os.open(path, flags | os.O_CLOEXEC, 0o666))
    with _above(path) as (name, above):
        if flags & os.O_CREAT:
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(name, flags | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=above)
                _give(descriptor, os.fstat(above), _FILE)
                return _not_a_stream(descriptor)
        return _not_a_stream(_followed(name, flags | os.O_CLOEXEC, above, path))


def give_directory(path: str, permissions: int = _DIRECTORY) -> None:
    """See that a directory that was just made belongs to the owner of the one above."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError), _above(path) as (name, above):  # its owner may have taken it away
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            try:
                _give(descriptor, os.fstat(above), permissions)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def held(path: str) -> Iterator[tuple[str, int | None]]:
    """What a path is to a call that takes `dir_fd`: of root the name, and a descriptor of the directory above it.

    Of other users, who by a link write only where they may write anyway, the path and None. Raises OSError, and
    StoreError for a link that root does not follow.
    """
    if os.geteuid() != 0:
        yield path, None
    else:
        with _above(path) as found:
            yield found


def new_text(path: str) -> TextIO:
    """A new file for text beside the one that it will replace; what a killed process left under its name goes.

    No link is followed: in a directory of everybody's, such as /tmp, another user may have put one there. Raises
    OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return open(path, "x", encoding="utf-8")


def check_no_link(path: str) -> None:
    """Raises StoreError where root would follow a link that another user made; of files that a database opens."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError), _above(path) as (name, above):
            found = os.stat(name, dir_fd=above, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode) and found.st_uid != 0:
                raise _planted(path, found.st_uid)


@contextlib.contextmanager
def _above(path: str) -> Iterator[tuple[str, int]]:
    """The name of a path, and a descriptor of the directory above it, for root. Raises OSError, StoreError."""
    above, name = os.path.split(os.path.abspath(path))
    directory = _directory(above)
    yield name, directory.descriptor


def _directory(path: str) -> OpenFile:
    """A directory, reached by root. Raises OSError, StoreError.

    By the kernel, which is quick: where that came to another place than the path, or /proc is not there, name by name.
    """
    with contextlib.suppress(OSError):
        found = OpenFile(os.open(path, _STEP))
        if os.readlink(f"/proc/self/fd/{found.descriptor}") == path:
            return found
    return OpenFile(_reached(path, _STEP, None, path))


def _reached(path: str, flags: int, start: int | None, shown: str, links: int = 0) -> int:
    """`os.open` by root from a directory on, or from `/`: one name after the other."""
    *above, last = [name for name in path.split("/") if name] or ["."]
    at = OpenFile(os.open("/" if path.startswith("/") else ".", _STEP, dir_fd=start))
    for name in above:
        at = OpenFile(_followed(name, _STEP, at.descriptor, shown, links))
    return _followed(last, flags, at.descriptor, shown, links)


def _followed(name: str, flags: int, at: int | None, shown: str, links: int = 0) -> int:
    """`os.open` by root of a name in an open directory. Raises StoreError for a link that it does not follow."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=at)
    except OSError as error:
        link = os.stat(name, dir_fd=at, follow_symlinks=False) if error.errno in (errno.ELOOP, errno.ENOTDIR) else None
        if link is None or not stat.S_ISLNK(link.st_mode) or links == _LINKS_MAX:
            raise
    if link.st_dev == _device_of_proc():  # no user made it, and its text is not where it leads
        return os.open(name, flags, dir_fd=at)
    if link.st_uid == 0:
        return _reached(os.readlink(name, dir_fd=at), flags, at, shown, links + 1)
    try:
        found = os.open(name, flags & ~os.O_CREAT, dir_fd=at)
    except FileNotFoundError:
        raise _planted(shown, link.st_uid) from None
    if os.fstat(found).st_uid != link.st_uid:
        os.close(found)
        raise _planted(shown, link.st_uid)
    return found


def _device_of_proc() -> int:
    """Of the file system by which root reaches into containers, by `root` of a process. -1 without one."""
    try:
        return os.stat("/proc/self", follow_symlinks=False).st_dev
    except OSError:
        return -1


def _planted(path: str, owner: int) -> StoreError:
    try:
        user = pwd.getpwuid(owner).pw_name
    except KeyError:
        user = f"#{owner}"
    text = f"{path} is, or is reached by, a symbolic link that the user {user} made to what does not belong to {user}"
    next_step = f"remove the link, or run this as that user: sudo -u {user} checkback"
    return StoreError(f"{text}, and root does not follow it: {next_step}", path=path)


def _give(descriptor: int, above: os.stat_result, permissions: int) -> None:
    with contextlib.suppress(OSError):  # in a container root may lack the right to give: then it stays root's
        if above.st_uid != 0:
            os.fchown(descriptor, above.st_uid, above.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(above.st_mode) & permissions)


def _not_a_stream(descriptor: int) -> int:
    """The same file under a number above those of the standard streams.

    A program that was started without standard error gives its number to the next file that it opens, and to the map of
    it. What a C library then reports there is written into the store: the control page was overwritten so.
    """
    if descriptor > _STREAMS:
        return descriptor
    try:
        higher = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _STREAMS + 1)
    finally:
        os.close(descriptor)
    while (sink := os.open(os.devnull, os.O_RDWR)) <= _STREAMS:  # stays open: `mmap` takes the lowest free number
        pass
    os.close(sink)
    return higher
