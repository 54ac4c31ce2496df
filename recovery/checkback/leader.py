"""Who leads: of all processes that could check transactions in doubt, one does.

    lease = LeaderLock("shop.store")
    if lease.try_take(): ...                 # True again and again while this process leads

    STORE/checkback/leader.lock    flock, held by the leader; its text says who that is

The system releases the lock when its process dies, however it dies, so that another may take it at its next round.
Two leaders would do no harm: every decision is made once, whichever process makes it. They would only ask twice. A
store is on a local file system (others are refused for writing), so a lock of that system reaches everyone.
"""

from __future__ import annotations

import fcntl
import os
import socket
import weakref

from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths

_SAYS_BYTES = 200


class LeaderLock:
    """The lock of the leader. One for each CheckService; a forked child does not lead."""

    def __init__(self, store_path: str, disk: Disk | None = None) -> None:
        self.path = os.path.join(Paths(store_path).own, "leader.lock")
        self._disk = disk or Disk()
        self._descriptor = -1
        _forked.add(self)

    def __del__(self) -> None:
        self.release()

    @property
    def is_held(self) -> bool:
        """Whether this process leads, through this lease."""
        return self._descriptor >= 0

    def try_take(self) -> bool:
        """Lead, if nobody else does. Raises StoreError when the file cannot be opened."""
        if self.is_held:
            return True
        descriptor = self._disk.open_lock(self.path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, myself().encode()[:_SAYS_BYTES], 0)
        self._descriptor = descriptor
        return True

    def leader(self) -> str:
        """Who leads, as it wrote itself; empty when nobody does."""
        if self.is_held:
            return myself()
        try:
            descriptor = self._disk.open_lock(self.path, write=False)
        except Missing:
            return ""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return ""
        except OSError:
            return os.pread(descriptor, _SAYS_BYTES, 0).decode("utf-8", "replace")
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Let another lead; without leading nothing happens. A forked child releases what its parent still holds."""
        descriptor, self._descriptor = self.__dict__.get("_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)


_forked: weakref.WeakSet[LeaderLock] = weakref.WeakSet()


def _after_fork() -> None:
    """A child shares its parent's open file, and with it the lock: it must not keep it when the parent dies."""
    for lease in list(_forked):
        lease.release()


os.register_at_fork(after_in_child=_after_fork)


def myself() -> str:
    """This process, for those who read a report elsewhere."""
    return f"{socket.gethostname()}:{os.getpid()}"
