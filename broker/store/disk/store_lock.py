"""STORE/lock: shared by every process that has the store open, exclusive while one recovers it.

The system releases it when its process dies, however it dies. It is the lock that RocketMQ 5.x takes, so that neither
program starts on a store that the other has open.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time

from broker.errors import StoreError, StoreLocked
from broker.store.disk.files import Disk, Missing
from broker.store.disk.lock_calls import EXCLUSIVE, SHARED, ask_lock, forked, ofd_holder, reopened, set_lock
from broker.store.disk.os_errors import refused

_POLL_S = 0.002


class StoreLock:
    """Byte 0 of STORE/lock. One for each open store of a process; the store's own lock keeps its threads apart."""

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.path = path
        self.held = ""  # or "shared" or "exclusive"
        self._disk = disk or Disk()
        self._descriptor = -1
        self._process = os.getpid()
        self._threads = threading.RLock()  # around each use of the number: a fork replaces it, in the parent too
        forked.add(self)

    def __del__(self) -> None:
        self._drop()

    def try_exclusive(self) -> bool:
        """Take it alone, from nothing or from shared. False when others hold it: then what was held is still held."""
        return self._try(EXCLUSIVE)

    def try_share(self) -> bool:
        """Take it together with others. False while one process is alone with the store."""
        return self._try(SHARED)

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
        """Release it; nothing held is not an error. A forked child that shares it still holds it."""
        with self._threads:
            self._drop()

    def _drop(self) -> None:
        descriptor, self._descriptor, self.held = self.__dict__.get("_descriptor", -1), -1, ""
        if descriptor >= 0:
            os.close(descriptor)  # never F_UNLCK: a child that was forked just now may not have its own yet

    def locked(self) -> StoreLocked:
        """The error for a process that did not get it."""
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
            kind, pid = ask_lock(descriptor)
            return None if kind == fcntl.F_UNLCK else pid or ofd_holder(os.fstat(descriptor))
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _try(self, kind: str) -> bool:
        if self._process != os.getpid():  # forked without Python's handlers: the lock is its parent's, who is not gone
            return False
        with self._threads:
            return self._try_alone(kind)

    def _try_alone(self, kind: str) -> bool:
        while True:
            if self._descriptor < 0:
                self._descriptor = self._disk.open_lock(self.path)
            try:
                if not set_lock(self._descriptor, kind):
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

    def after_fork_in_parent(self) -> None:
        """In the parent: another lock of its own, so that the one that was shared is the child's alone.

        Else a parent that closes the store before its child has run would take itself for the last to leave.
        """
        with self._threads:  # another thread may close the store now, and its number be that of another file
            shared = self._descriptor
            if self.held != SHARED:
                return
            own = reopened(shared, self.path, self._disk)
            if set_lock(own, SHARED):
                self._descriptor = own
                os.close(shared)
            else:
                os.close(own)

    def after_fork(self) -> None:
        """In the child: a lock of its own before it releases its parent's, which it holds meanwhile."""
        inherited, held = self._descriptor, self.held
        self._threads, self._descriptor, self.held = threading.RLock(), -1, ""
        self._process = os.getpid()
        if inherited < 0:
            return
        try:
            if held == SHARED:
                self._descriptor = reopened(inherited, self.path, self._disk)
                self.held = held if set_lock(self._descriptor, held) else ""
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
        return bool(ask_lock(descriptor)[0] != fcntl.F_UNLCK)
    except OSError as error:
        raise refused(error, path) from error
    finally:
        os.close(descriptor)
