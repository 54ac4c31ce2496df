"""Opening files of a store: whose a new one is, and which numbers no file of a store may have.

What root makes in the directory of another user belongs to that user. An operator's `sudo checkback check-back` may be
the process that makes the next segment: as root's, the application could not open it, and would accept no message from
there on. SQLite does the same for its journals.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

_FILE, _DIRECTORY = 0o666, 0o2777  # of the permissions of the directory above, those that a new entry takes over
_STREAMS = 2  # the highest number of a standard stream


def opened(path: str, flags: int) -> int:
    """`os.open`; a file that is made by it belongs to the owner of its directory. Raises OSError."""
    if flags & os.O_CREAT and os.geteuid() == 0:
        with contextlib.suppress(FileExistsError):
            # O_EXCL follows no link: root gives nobody a file that lies elsewhere.
            descriptor = os.open(path, flags | os.O_EXCL | os.O_CLOEXEC, 0o666)
            _give(descriptor, path, _FILE)
            return _not_a_stream(descriptor)
    return _not_a_stream(os.open(path, flags | os.O_CLOEXEC, 0o666))


def give_directory(path: str) -> None:
    """See that a directory that was just made belongs to the owner of the one above."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # its owner may have taken it away
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                _give(descriptor, path, _DIRECTORY)
            finally:
                os.close(descriptor)


def _give(descriptor: int, path: str, permissions: int) -> None:
    with contextlib.suppress(OSError):  # in a container root may lack the right to give: then it stays root's
        above = os.stat(os.path.dirname(os.path.abspath(path)))
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
