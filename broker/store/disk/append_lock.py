"""A lock that is held for a microsecond, by one thread of one process at a time.

It is flock, which is faster than an open-file-description lock, under a lock for the threads of the process. flock
belongs to the open file description, which a fork shares: a child would hold what its parent holds, so it opens its own
at once. The system releases it when its process dies, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

from broker.errors import StoreError
from broker.store.disk.files import Disk
from broker.store.disk.lock_calls import flock_keeping_gil, forked, forked_unseen, reopened
from broker.store.disk.os_errors import closed_store, refused

_SPINS = 12  # an append of another process takes less than as many tries, and to sleep and wake takes more
_NAPS, _NAP_S = 50, 50e-6
_CLOSE_S = 5.0
_LET_GO_S = 0.005
_flock, _LOCK, _TRY, _UNLOCK = fcntl.flock, fcntl.LOCK_EX, fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN


class AppendLock:
    """Keeps out every other thread and process: `with lock: ...`. Not to be taken twice by one thread.

    Its holder may be killed at any instant; the next one gets it at once, and must expect work half done.

    A process that is alone with a store may keep the file locked from one append to the next, which spares two system
    calls (`hold_across_appends`). It must `release_kept` every few milliseconds, from another thread.
    """

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.path = path
        self._disk = disk or Disk()
        self._alone: Callable[[], bool] | None = None  # set while the file may stay locked
        self._kept = False  # the file is locked, and nobody is inside
        self._threads = threading.RLock()  # knows its owner, so that what an interrupt left can be detected
        self._held = False
        self._process = os.getpid()
        self._flock_now = flock_keeping_gil()
        self._descriptor = self._disk.open_lock(path)
        forked.add(self)

    def __del__(self) -> None:
        self._drop()

    def __enter__(self) -> None:
        """Raises StoreError when the lock is closed, when this thread has it already, and after an unseen fork."""
        if self._process != os.getpid():
            raise forked_unseen(self.path, self._process)
        try:
            if not self._threads.acquire(blocking=False):
                self._wait_for_threads()
            if self._held:
                raise self.taken_twice()
            if not self._kept and self._flock_now(self._descriptor, _TRY):
                for _ in range(_SPINS):
                    if not self._flock_now(self._descriptor, _TRY):
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
        if not self._held:  # a fork inside `with` came here: the child never had it
            if self._descriptor < 0 and isinstance(error, ValueError | TypeError):  # of memory that is mapped no more
                text = "the store was closed within this call, as by a signal handler, so it may be done or not"
                raise StoreError(f"{self.path}: {text}. Open it again with broker.open", path=self.path) from error
            return
        is_free = False
        try:
            alone = self._alone  # read once: another thread may take it away
            self._kept = alone is not None and alone()
            self._held = False
            if not self._kept and self._descriptor >= 0 and self._flock_now(self._descriptor, _UNLOCK):
                _flock(self._descriptor, _UNLOCK)  # says what is wrong
            is_free = True
        finally:
            if not is_free:  # an interrupt in here, after which the thread may end: the others would wait forever
                self._held = self._kept = False
                with contextlib.suppress(OSError, ValueError):
                    _flock(self._descriptor, _UNLOCK)
            try:
                self._threads.release()
            except RuntimeError:  # a signal handler in here closed the store: it is released
                pass

    def _wait_for_threads(self) -> None:
        """Nap and try, before waiting for the lock itself.

        A thread that waits gets the lock while another one has the GIL, and then waits for that. The thread that runs
        meets a taken lock and waits in turn, and from then on each append costs two switches of threads.
        """
        for _ in range(_NAPS):
            time.sleep(_NAP_S)
            if self._threads.acquire(blocking=False):
                return
        self._threads.acquire()

    def hold_across_appends(self, alone: Callable[[], bool]) -> None:
        """Leave the file locked when this process is done with it, as long as `alone` says that no other wants it."""
        self._alone = alone

    def release_kept(self) -> None:
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
        """Take it if nobody has it; then `release` it. Raises StoreError as `with` does."""
        if self._process != os.getpid():
            raise forked_unseen(self.path, self._process)
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

    @property
    def is_mine(self) -> bool:
        """Whether this thread is inside: it is a signal handler then, which interrupted it."""
        return self._held and self._threads._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001

    def acquire(self) -> None:
        """What `with` does first."""
        self.__enter__()

    def release(self) -> None:
        """What `with` does last."""
        self.__exit__(None, None, None)

    def give_back(self) -> None:
        """Release what an interrupt left this thread with: before a close, which waits for threads that wait for it."""
        if self._threads._is_owned() and self._held:  # type: ignore[attr-defined] # noqa: SLF001 - as `_back_out`
            self.__exit__(None, None, None)
        else:
            self._back_out()  # what an interrupt in the middle of `__exit__` left

    def close(self) -> None:
        """Release the file, once the append of another thread is done; afterwards nobody in this process gets it."""
        quiet = self._threads.acquire(timeout=_CLOSE_S)  # a thread that an interrupt took out of an append never ends
        self._drop()
        if quiet:
            self._threads.release()

    def _drop(self) -> None:
        descriptor = self.__dict__.get("_descriptor", -1)
        # A child may share the description: closing it alone would not unlock. One that was forked without Python's
        # handlers has its parent's lock, and may not unlock it. First: behind the next line nobody could any more.
        # Always: what interrupts left may be locked without anybody inside.
        if descriptor >= 0 and self._process == os.getpid():
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        descriptor, self._descriptor = self.__dict__.get("_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)

    def _back_out(self) -> None:
        """An interrupt can come at any line of `__enter__`: leave nothing taken by it."""
        if self._threads._is_owned():  # type: ignore[attr-defined] # noqa: SLF001 - as threading.Condition asks it
            if not self._held and self._descriptor >= 0:
                self._kept = False
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._threads.release()

    def taken_twice(self) -> StoreError:
        """Waiting would never end, and going on would overwrite what is half done."""
        text = (
            f"{self.path}: this thread is already inside an append, which a signal handler interrupted, or which an "
            "exception from one (Ctrl-C) ended halfway. Nothing was lost. Close the store and open it again"
        )
        return StoreError(text, path=self.path)

    def _unusable(self, error: Exception) -> StoreError:
        if self._descriptor < 0:
            return closed_store(self.path)
        return refused(error, self.path) if isinstance(error, OSError) else StoreError(str(error), path=self.path)

    def after_fork_in_parent(self) -> None:
        """In the parent: it goes on as it was, and the child lets the shared description alone."""

    def after_fork(self) -> None:
        """In the child, where no other thread lives: whatever its parent held, it holds nothing."""
        inherited = self._descriptor
        self._threads, self._held, self._descriptor = threading.RLock(), False, -1
        self._alone, self._kept, self._process = None, False, os.getpid()
        if inherited < 0:
            return
        try:
            self._descriptor = reopened(inherited, self.path, self._disk)
        finally:
            os.close(inherited)  # never LOCK_UN: it would take the lock from the parent
