"""What the operating system offers for locks: open-file-description locks, flock, and who holds one.

`StoreLock` locks byte 0 as RocketMQ 5.x does (`DefaultMessageStore`: `tryLock(0, 1)`), by an open-file-description
lock. Java's POSIX lock belongs to a process, is lost when any descriptor of the file closes, and would not keep two
threads or a forked child apart. Where there is no such lock, flock takes its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from broker.errors import StoreError, StoreLocked
from broker.store.disk.files import Disk

SHARED, EXCLUSIVE = "shared", "exclusive"
STOPPED_S = 10.0  # how long a process that is stopped may keep a file from others
_POLL_S = 0.01

# By number: Python names them only where its build machine had them.
_OFD_GETLK, _OFD_SETLK = 36, 37
# On 64-bit Linux. Elsewhere flock takes their place: on macOS and BSD it conflicts with a POSIX lock too.
_HAS_OFD = sys.platform == "linux" and sys.maxsize > 1 << 32

forked: weakref.WeakSet[Any] = weakref.WeakSet()
"""The locks of this process. After a fork each side opens its own: `after_fork` and `after_fork_in_parent`."""


def _forked_now() -> list[Any]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread opened or dropped one at this moment
            return list(forked)


def _after_fork() -> None:
    for lock in _forked_now():
        with contextlib.suppress(BaseException):  # what fails for one must not leave the next one its parent's
            lock.after_fork()


def _after_fork_in_parent() -> None:
    for lock in _forked_now():
        with contextlib.suppress(BaseException):
            lock.after_fork_in_parent()


os.register_at_fork(after_in_child=_after_fork, after_in_parent=_after_fork_in_parent)


def forked_unseen(path: str, process: int) -> StoreError:
    """The error of a process that was forked without Python's handlers, as uWSGI does by default.

    It shares the locks of its parent: both would be inside at once, and write at one offset.
    """
    text = f"{path} was opened in process {process}, and this one was forked from it without Python's knowledge"
    step = "open the store after the fork (uWSGI: lazy-apps), or have Python know of it (uWSGI: py-call-osafterfork)"
    return StoreError(f"{text}: nothing was stored, since both would write at one place. So {step}", path=path)


def set_lock(descriptor: int, kind: str) -> bool:
    """Take or change the lock on byte 0, at once or not at all. Raises OSError."""
    try:
        if _HAS_OFD:
            wanted = fcntl.F_RDLCK if kind == SHARED else fcntl.F_WRLCK
            fcntl.fcntl(descriptor, _OFD_SETLK, _byte_0(wanted))
        else:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if kind == SHARED else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
        return False
    return True


def ask_lock(descriptor: int) -> tuple[int, int]:
    """(kind, process) of a lock that keeps us from being alone; F_UNLCK without one, 0 for a process nobody knows."""
    if not _HAS_OFD:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when the descriptor closes
        except BlockingIOError:
            return fcntl.F_WRLCK, 0
        return fcntl.F_UNLCK, 0
    found = fcntl.fcntl(descriptor, _OFD_GETLK, _byte_0(fcntl.F_WRLCK))
    kind = int.from_bytes(found[:2], sys.byteorder)
    return kind, max(0, int.from_bytes(found[24:28], sys.byteorder, signed=True))


def _byte_0(kind: int) -> bytes:
    """Linux's struct flock for byte 0: i16 kind, i16 whence, i64 start (aligned), i64 length, i32 process, padded."""
    return kind.to_bytes(2, sys.byteorder) + bytes(14) + (1).to_bytes(8, sys.byteorder) + bytes(8)


def reopened(descriptor: int, path: str, disk: Disk) -> int:
    """A new open file description of the same file, even if it was renamed. Raises OSError, StoreError."""
    own = f"/proc/self/fd/{descriptor}"
    return disk.open_lock(own if os.path.exists(own) else path)


@functools.cache
def flock_keeping_gil() -> Callable[[int, int], int]:
    """C's flock, which keeps the GIL; returns 0, or something else when it failed, as it always does without ctypes.

    Python's own flock releases the GIL around each call of half a microsecond. A thread among several then waits four
    times in each append for the other threads, with the file locked: `make bench`, "threads on one store".
    """
    try:
        import ctypes

        function = ctypes.PyDLL(None).flock
    except (ImportError, OSError, AttributeError):
        return lambda *_: -1
    function.argtypes, function.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return function


def is_flocked(disk: Disk, path: str) -> bool:
    """Whether a process that lives holds the flock of a file alone. Raises Missing, StoreError.

    Two that ask at one moment may both get yes; the next time they get the right answer.
    """
    descriptor = disk.open_lock(path, write=False)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def alone_at(disk: Disk, path: str) -> Iterator[None]:
    """Hold the flock of a file or a directory, which keeps out other threads, too.

    Raises Missing, StoreError; StoreLocked when a process that is stopped holds it for 10 s.
    """
    descriptor = disk.open_lock(path, write=False)
    try:
        _wait_alone(descriptor, path)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor, too
    finally:
        os.close(descriptor)


def _wait_alone(descriptor: int, path: str) -> None:
    """Take the flock. Who holds it writes a small file, which may take long on a slow disk, but not while stopped."""
    deadline_s = time.monotonic() + STOPPED_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline_s and (holder := flock_holder(path)) and is_stopped(holder):
                text = f"{path}: process {holder} is stopped while it writes there: continue or end it"
                raise StoreLocked(text, path=path) from None
            time.sleep(_POLL_S)


def flock_holder(path: str) -> int | None:
    """The process that took the flock of a file, where the system reports it; it may have passed it on by a fork."""
    try:
        file = f":{os.stat(path).st_ino} "
        with open("/proc/locks", encoding="ascii") as locks:
            held = [line.split() for line in locks if " FLOCK " in line and file in line and "->" not in line]
    except OSError:
        return None
    return int(held[0][4]) if held and held[0][4].isdecimal() else None


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by SIGSTOP or a debugger, where the system reports it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    except OSError:
        return False


def ofd_holder(lock: os.stat_result) -> int | None:
    """The process with an open-file-description lock on a file: the kernel names none, but each lists its own."""
    file = f":{lock.st_ino} "
    for pid in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else []):
        with contextlib.suppress(OSError):  # gone, or another user's
            for number in os.listdir(f"/proc/{pid}/fdinfo"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as info:
                    if any(line.startswith("lock:") and "OFDLCK" in line and file in line for line in info):
                        return int(pid)
    return None
