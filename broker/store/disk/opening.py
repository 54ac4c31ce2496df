"""Opening files of a store: whose a new one is.

What root makes in the directory of another user belongs to that user. An operator's `sudo checkback check-back` may be
the process that makes the next segment: as root's, the application could not open it, and would accept no message from
there on. SQLite does the same for its journals.
"""

from __future__ import annotations

import contextlib
import os
import stat

_FILE, _DIRECTORY = 0o666, 0o2777  # of the permissions of the directory above, those that a new entry takes over


def opened(path: str, flags: int) -> int:
    """`os.open`; a file that is made by it belongs to the owner of its directory. Raises OSError."""
    if flags & os.O_CREAT and os.geteuid() == 0:
        with contextlib.suppress(FileExistsError):
            # O_EXCL follows no link: root gives nobody a file that lies elsewhere.
            descriptor = os.open(path, flags | os.O_EXCL | os.O_CLOEXEC, 0o666)
            _give(descriptor, path, _FILE)
            return descriptor
    return os.open(path, flags | os.O_CLOEXEC, 0o666)


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
