"""What the operating system refuses, as errors of ours: a sentence that names the path and says what to do."""

from __future__ import annotations

import errno
import os
import stat
from shlex import quote

from broker.errors import CorruptStore, StoreError, StoreFull, SyncFailed


class Missing(StoreError):
    """There is nothing at the path; inside a live store that is not an error."""


class NotSupported(StoreError):
    """This system or this file system cannot do it: the caller has another way."""


# No block left, no quota left, a larger file than this process may have. macOS lacks some of the names.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


_DEPTH = 6  # how far a file lies below its store at most


def explained(error: OSError | ValueError, path: str) -> StoreError:
    """Why a file cannot be read, with a next step. No file has a name that is too long or holds a zero."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | ValueError) or error.errno == errno.ENAMETOOLONG:
        return Missing(f"{path}: there is no such file or directory", path=path)
    reason = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return StoreError(f"{path} may not be read by this user ({reason}). {_owner(path, 'read')}", path=path)
    if error.errno == errno.EIO:
        text = f"{path}: the disk cannot read it ({reason}). Copy what can be read with: checkback salvage"
        return StoreError(text, path=path)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _too_many_open(path, reason)
    if error.errno in (errno.ESPIPE, errno.ENXIO):
        return CorruptStore(f"{path} is a pipe or a socket, and no store has one. Move it out of the store", path=path)
    return StoreError(f"{path} cannot be read: {reason}. See that it is a readable file or directory", path=path)


def closed_store(path: str) -> StoreError:
    """A store, or a file of one, is used after its `close`."""
    return StoreError(f"{path} belongs to a store that was closed: open it again with broker.open", path=path)


def not_written(error: OSError, path: str) -> StoreError:
    """Why what a person wanted written is not there, such as a copy or an export: StoreFull when there is no room."""
    if error.errno not in FULL:
        return refused(error, path)
    text = f"{_does_not_fit(error, path, ', or give a path on another disk')}. Nothing of it was kept"
    return StoreFull(text, path=path, free_bytes=free_bytes(path))


def temporary_not_written(error: OSError, directory: str) -> StoreError:
    """Why a directory of temporary files takes no more of them: StoreFull when there is no room."""
    if error.errno not in FULL:
        return refused(error, directory)
    text = _does_not_fit(error, directory, ", or set TMPDIR to a directory on another disk")
    return StoreFull(f"temporary files: {text}", path=directory, free_bytes=free_bytes(directory))


def not_continued(error: OSError, path: str) -> StoreError:
    """Why a work stops that goes on where it was, such as the copy of a master: StoreFull when there is no room."""
    if error.errno not in FULL:
        return refused(error, path)
    text = f"{_does_not_fit(error, path)}. Then run the same command again: it goes on where it was"
    return StoreFull(text, path=path, free_bytes=free_bytes(path))


def _does_not_fit(error: OSError, path: str, otherwise: str = "") -> str:
    room = {
        errno.EDQUOT: f"the quota of this user leaves no room for it. Raise it{otherwise}",
        errno.EFBIG: "no file of this process may grow so large. Raise the limit with: ulimit -f",
    }.get(error.errno or 0, f"its disk has {_left(path)}. Free some{otherwise}")
    return f"{path} does not fit ({error.strerror or error}): {room}"


def _too_many_open(path: str, reason: object) -> StoreError:
    text = f"{path}: too many files are open ({reason}). Open a store once in a process, not for each request; or raise"
    return StoreError(f"{text} the limit with: ulimit -n", path=path)


def refused(error: OSError, path: str, needed_bytes: int = 0) -> StoreError:
    """Why a file or directory cannot be written, with a next step."""
    reason = error.strerror or str(error)
    if error.errno in FULL:
        return full(error, path, needed_bytes)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Missing(f"{path}: there is no such file or directory", path=path)
    if error.errno == errno.EROFS:
        text = f"{path} cannot be written: its file system is mounted read-only. Mount it for writing (the system may"
        step = "have changed that when the disk failed: its log says so), or open the store with read_only=True"
        return StoreError(f"{text} {step}", path=path)
    if isinstance(error, PermissionError):
        return StoreError(f"{path} may not be written by this user ({reason}). {_owner(path, 'write')}", path=path)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _too_many_open(path, reason)
    if error.errno == errno.EXDEV:
        text = f"{path} cannot be moved to another file system, or another mount. Put the whole store on one"
        return StoreError(text, path=path)
    if error.errno == errno.ENOMEM:
        text = f"{path} cannot be mapped: this process gets no more memory ({reason}). Raise its limit (ulimit -v)"
        return StoreError(f"{text}, or that of maps (sysctl vm.max_map_count)", path=path)
    return StoreError(
        f"{path} cannot be written: {reason}. See that the disk is well and is mounted for writing", path=path
    )


def full(error: OSError, path: str, needed_bytes: int) -> StoreFull:
    """The disk has no room: how much was asked, how much there is, and what limits it."""
    free = free_bytes(path)
    store = _store_above(path)
    spare = f", or see what the store can spare with: checkback retain {quote(store)}" if store else ""
    room = {
        errno.EDQUOT: f"the quota of this user leaves none. Raise it, or delete other files{spare}",
        errno.EFBIG: "no file of this process may grow so large. Raise the limit with: ulimit -f",
    }.get(error.errno or 0, f"the disk has {_left(path)}. Delete other files{spare}")
    needs = f"{needed_bytes} bytes" if needed_bytes else "room"  # a name, a directory, a file that is made longer
    text = f"{path} needs {needs}, and {room}; nothing was lost, and sends work again when there is space"
    return StoreFull(text, path=path, needed_bytes=needed_bytes, free_bytes=free)


def _store_above(path: str) -> str:
    """The store of ours that a file lies in, with messages that could go; empty when there is none."""
    above = os.path.dirname(os.path.abspath(path))
    for _ in range(_DEPTH):
        if os.path.exists(os.path.join(above, "checkback", "store.json")):
            try:
                segments = len(os.listdir(os.path.join(above, "commitlog")))
            except OSError:
                return ""
            return above if segments > 1 else ""
        above = os.path.dirname(above)
    return ""


def free_bytes(path: str) -> int:
    """Bytes that this user may still write on the disk of a path or its nearest parent directory; 0 if unknown."""
    found = _disk_of(path)
    return 0 if found is None else found.f_bavail * found.f_frsize


def _left(path: str) -> str:
    """What is left of a full disk: it may have bytes, and no inode for another file."""
    found, free = _disk_of(path), f"{free_bytes(path)} bytes free"
    if found is None or found.f_favail or not found.f_files:  # btrfs counts no inodes
        return free
    return f"{free} but no inode, so that it takes no more files"


def _disk_of(path: str) -> os.statvfs_result | None:
    while True:
        try:
            return os.statvfs(path)
        except FileNotFoundError:
            above = os.path.dirname(os.path.abspath(path))
            if above == path:
                return None
            path = above
        except OSError:
            return None


def sync_failed(error: OSError, path: str) -> SyncFailed:
    """An fsync failed: the system may have dropped the bytes, and a second try would say nothing of it."""
    reason = error.strerror or str(error)
    text = (
        f"{path}: the disk failed to keep what was written ({reason}). What was acknowledged before is safe. See to "
        "the disk, then open the store again: it recovers what is there"
    )
    return SyncFailed(text, path=path)


def _owner(path: str, verb: str) -> str:
    """The next step after a refusal: run as the owner of the nearest thing that can be seen."""
    while path:
        try:
            found = os.stat(path)
        except OSError:
            path = "" if path == os.path.dirname(path) else os.path.dirname(path)
            continue
        mode = stat.filemode(found.st_mode)
        return f"{path} belongs to user {found.st_uid}, group {found.st_gid}, mode {mode}: run as one who may {verb} it"
    return f"Run as a user who may {verb} it"
