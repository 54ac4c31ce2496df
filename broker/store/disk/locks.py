"""The two locks of a store. The system lets go of both when their process dies, however it dies.

    StoreLock("shop.store/lock")                    shared by every open process; exclusive while one recovers
    AppendLock("shop.store/checkback/append.lock")  one thread of one process at a time, for a microsecond

`StoreLock` locks byte 0 as RocketMQ 5.x does (`DefaultMessageStore`: `tryLock(0, 1)`), so that neither program starts
on a store that the other has open. It is an open-file-description lock: Java's POSIX lock belongs to a process, is lost
when any descriptor of the file closes, and would not keep two threads or a forked child apart.

`AppendLock` is flock, which is faster, under a lock for the threads of the process. flock belongs to the open file
description, which a fork shares: a child would hold what its parent holds. So a child opens its own at once.
It is tried without giving up the GIL: `fcntl.flock` does around each call of half a microsecond, and a thread among
many then waits four times in each append for the others, with the file locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType

from broker.errors import StoreError, StoreLocked
from broker.store.disk.files import Disk, Missing
from broker.store.disk.os_errors import refused

_POLL_S = 0.002
_SPINS = 12  # an append of another process takes less than as many tries, and to sleep and wake takes more
_CLOSE_S = 5.0
_LET_GO_S = 0.005
_SHARED, _EXCLUSIVE = "shared", "exclusive"
_flock, _LOCK, _TRY, _UNLOCK = fcntl.flock, fcntl.LOCK_EX, fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN

# By number: Python names them only where its build machine had them.
_OFD_GETLK, _OFD_SETLK = 36, 37
# On 64-bit Linux. Elsewhere flock takes their place: on macOS and BSD it conflicts with a POSIX lock too.
_HAS_OFD = sys.platform == "linux" and sys.maxsize > 1 << 32


class StoreLock:
    """Byte 0 of STORE/lock. One for each open store of a process; the store's own lock keeps its threads apart."""

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.path = path
        self.held = ""  # or "shared" or "exclusive"
        self._disk = disk or Disk()
        self._descriptor = -1
        _forked.add(self)

    def __del__(self) -> None:
        self.release()

    def try_exclusive(self) -> bool:
        """Take it alone, from nothing or from shared. False when others hold it: then what was held is still held."""
        return self._try(_EXCLUSIVE)

    def try_share(self) -> bool:
        """Take it together with others. False while one process is alone with the store."""
        return self._try(_SHARED)

    def share(self, timeout_s: float = 10.0) -> None:
        """Take it together with others, once a recovery elsewhere is done. Raises StoreLocked when it takes longer."""
        deadline = time.monotonic() + timeout_s
        while not self.try_share():
            if time.monotonic() >= deadline:
                raise self.locked()
            time.sleep(_POLL_S)

    def downgrade(self) -> None:
        """From exclusive to shared, with no moment between in which another could take it. Raises StoreLocked."""
        if not self.try_share():  # only where flock stands in, which has such a moment
            raise self.locked()

    def release(self) -> None:
        """Let go; nothing held is no fault. A forked child that shares it goes on to hold it."""
        descriptor, self._descriptor, self.held = self.__dict__.get("_descriptor", -1), -1, ""
        if descriptor >= 0:
            os.close(descriptor)  # never F_UNLCK: a child that was forked just now may not have its own yet

    def locked(self) -> StoreLocked:
        """The error for whoever did not get it."""
        pid = self.holder()
        who = f"process {pid}" if pid else "another process"
        text = (
            f"{self.path} is locked by {who}: a broker that runs on the store, or a recovery. Wait for it, or stop it"
        )
        return StoreLocked(text, path=self.path)

    def holder(self) -> int | None:
        """The process that holds it, of several any; None when nobody does or nobody can tell."""
        try:
            descriptor = self._disk.open_lock(self.path, write=False)
        except StoreError:
            return None
        try:
            kind, pid = _ask(descriptor)
            return None if kind == fcntl.F_UNLCK else pid or _holder_in_proc(os.fstat(descriptor))
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _try(self, kind: str) -> bool:
        while True:
            if self._descriptor < 0:
                self._descriptor = self._disk.open_lock(self.path)
            try:
                if not _set(self._descriptor, kind):
                    if not self.held:
                        self.release()
                    return False
            except OSError as error:
                raise refused(error, self.path) from error
            if self.held or self._is_current():
                self.held = kind
                return True
            self.release()  # the file was replaced while we opened it: a lock on the old one keeps nobody out

    def _is_current(self) -> bool:
        entry = self._disk.entry(self.path)
        return entry is not None and entry.inode == os.fstat(self._descriptor).st_ino

    def _after_fork(self) -> None:
        """In the child: a lock of its own before it lets go of its parent's, which it holds meanwhile."""
        inherited, held = self._descriptor, self.held
        self._descriptor, self.held = -1, ""
        if inherited < 0:
            return
        try:
            if held == _SHARED:
                self._descriptor = _reopened(inherited, self.path, self._disk)
                self.held = held if _set(self._descriptor, held) else ""
        finally:
            os.close(inherited)


def is_held(path: str, disk: Disk | None = None) -> bool:
    """Whether any process has the store open for writing, a RocketMQ broker of 5.x included. Changes nothing.

    Needs permission to read the lock file alone; false when there is none.
    """
    try:
        descriptor = (disk or Disk()).open_lock(path, write=False)
    except Missing:
        return False
    try:
        return bool(_ask(descriptor)[0] != fcntl.F_UNLCK)
    except OSError as error:
        raise refused(error, path) from error
    finally:
        os.close(descriptor)


class AppendLock:
    """Keeps out every other thread and process: `with lock: ...`. Not to be taken twice by one thread.

    Its holder may be killed at any instant; the next one gets it at once, and must expect work half done.

    A process that is alone with a store may keep the file locked from one append to the next (`keep`), which spares two
    system calls. It must `let_go` every few milliseconds, from another thread.
    """

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.path = path
        self._disk = disk or Disk()
        self._alone: Callable[[], bool] | None = None  # set while the file may stay locked
        self._kept = False  # the file is locked, and nobody is inside
        self._threads = threading.RLock()  # knows its owner, so that what an interrupt left can be told
        self._held = False
        self._at_once = _flock_at_once()
        self._descriptor = self._disk.open_lock(path)
        _forked.add(self)

    def __del__(self) -> None:
        self._drop()

    def __enter__(self) -> None:
        """Raises StoreError when the lock is closed, or when this thread has it already."""
        try:
            self._threads.acquire()
            if self._held:
                raise self._taken_twice()
            if not self._kept and self._at_once(self._descriptor, _TRY):
                for _ in range(_SPINS):
                    if not self._at_once(self._descriptor, _TRY):
                        break
                else:
                    _flock(self._descriptor, _LOCK)
            self._held, self._kept = True, False
        except BaseException as error:
            self._back_out()
            if isinstance(error, OSError | ValueError):
                raise self._unusable(error) from error
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held:  # else a fork inside of `with` came here: the child never had it
            alone = self._alone  # read once: another thread may take it away
            if alone is not None and alone():
                self._kept, self._held = True, False
            else:
                self._held = False
                if self._descriptor >= 0 and self._at_once(self._descriptor, _UNLOCK):
                    _flock(self._descriptor, _UNLOCK)  # says what is wrong
            self._threads.release()

    def keep(self, alone: Callable[[], bool]) -> None:
        """Leave the file locked when this process is done with it, as long as `alone` says that no other wants it."""
        self._alone = alone

    def let_go(self) -> None:
        """Keep it no longer: at once if nobody is inside, else when they leave."""
        self._alone = None
        if self._threads.acquire(timeout=_LET_GO_S):  # in vain: someone is inside, and will see
            try:
                if self._kept and self._descriptor >= 0:
                    self._kept = False
                    _flock(self._descriptor, _UNLOCK)
            finally:
                self._threads.release()

    def try_acquire(self) -> bool:
        """Take it if nobody has it; then `release` it. Raises StoreError when it is closed."""
        if not self._threads.acquire(blocking=False):
            return False
        try:
            if not self._held:
                if not self._kept:
                    _flock(self._descriptor, _TRY)
                self._held, self._kept = True, False
                return True
            self._threads.release()
        except BaseException as error:
            self._back_out()
            if isinstance(error, BlockingIOError):
                return False
            if isinstance(error, OSError | ValueError):
                raise self._unusable(error) from error
            raise
        return False

    def acquire(self) -> None:
        """What `with` does first."""
        self.__enter__()

    def release(self) -> None:
        """What `with` does last."""
        self.__exit__(None, None, None)

    def close(self) -> None:
        """Let go of the file, once the append of another thread is done; afterwards nobody in this process gets it."""
        quiet = self._threads.acquire(timeout=_CLOSE_S)  # a thread that an interrupt took out of an append never ends
        self._drop()
        if quiet:
            self._threads.release()

    def _drop(self) -> None:
        descriptor, self._descriptor = self.__dict__.get("_descriptor", -1), -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                if self._held or self._kept:  # a child may share the description: closing it alone would not unlock
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _back_out(self) -> None:
        """An interrupt can come at any line of `__enter__`: leave nothing taken by it."""
        if self._threads._is_owned():  # type: ignore[attr-defined] # noqa: SLF001 - as threading.Condition asks it
            if not self._held and self._descriptor >= 0:
                self._kept = False
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._threads.release()

    def _taken_twice(self) -> StoreError:
        """Waiting would be for ever, and going on would write over what is half done."""
        text = (
            f"{self.path}: this thread is already inside of an append, which a signal handler interrupted, or which an "
            "exception from one (Ctrl-C) ended halfway. Nothing was lost. Close the store and open it again"
        )
        return StoreError(text, path=self.path)

    def _unusable(self, error: Exception) -> StoreError:
        if self._descriptor < 0:
            text = f"{self.path} belongs to a store that was closed: open it again with broker.open"
            return StoreError(text, path=self.path)
        return refused(error, self.path) if isinstance(error, OSError) else StoreError(str(error), path=self.path)

    def _after_fork(self) -> None:
        """In the child, where no other thread lives: whatever its parent held, it holds nothing."""
        inherited = self._descriptor
        self._threads, self._held, self._descriptor = threading.RLock(), False, -1
        self._alone, self._kept = None, False
        if inherited < 0:
            return
        try:
            self._descriptor = _reopened(inherited, self.path, self._disk)
        finally:
            os.close(inherited)  # never LOCK_UN: it would take the lock from the parent


@functools.cache
def _flock_at_once() -> Callable[[int, int], int]:
    """C's flock, for what does not wait: not 0 when it failed, as it always does where there is none. Keeps the GIL."""
    try:
        import ctypes

        function = ctypes.PyDLL(None).flock
    except (ImportError, OSError, AttributeError):
        return lambda *_: -1
    function.argtypes, function.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return function


_forked: weakref.WeakSet[StoreLock | AppendLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_forked):
        with contextlib.suppress(BaseException):  # what fails for one must not leave the next one its parent's
            lock._after_fork()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_after_fork)


def _reopened(descriptor: int, path: str, disk: Disk) -> int:
    """A new open file description of the same file, even if it was renamed. Raises OSError, StoreError."""
    own = f"/proc/self/fd/{descriptor}"
    return disk.open_lock(own if os.path.exists(own) else path)


def _set(descriptor: int, kind: str) -> bool:
    """Take or change the lock on byte 0, at once or not at all. Raises OSError."""
    try:
        if _HAS_OFD:
            wanted = fcntl.F_RDLCK if kind == _SHARED else fcntl.F_WRLCK
            fcntl.fcntl(descriptor, _OFD_SETLK, _byte_0(wanted))
        else:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if kind == _SHARED else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as the system likes
        return False
    return True


def _ask(descriptor: int) -> tuple[int, int]:
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


def flock_holder(path: str) -> int | None:
    """The process that took the flock of a file, where the system tells; it may have passed it on by a fork."""
    try:
        file = f":{os.stat(path).st_ino} "
        with open("/proc/locks", encoding="ascii") as locks:
            held = [line.split() for line in locks if " FLOCK " in line and file in line and "->" not in line]
    except OSError:
        return None
    return int(held[0][4]) if held and held[0][4].isdecimal() else None


def _holder_in_proc(lock: os.stat_result) -> int | None:
    """The process with an open-file-description lock on a file: the kernel names none, but each lists its own."""
    file = f":{lock.st_ino} "
    for pid in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else []):
        with contextlib.suppress(OSError):  # gone, or another user's
            for number in os.listdir(f"/proc/{pid}/fdinfo"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as info:
                    if any(line.startswith("lock:") and "OFDLCK" in line and file in line for line in info):
                        return int(pid)
    return None
