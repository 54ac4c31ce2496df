"""Who leads: of all processes that would ask the same about the transactions in doubt, one does.

    lease = LeaderLock("shop.store")                                # asks for all producer groups
    lease = LeaderLock("shop.store", asks={"shop": "ledger ..."})   # asks for this one only
    if lease.try_take(): ...                 # True again and again while this process leads

    STORE/checkback/leader.lock            flock, held by the leader that asks for all; its text says who that is
    STORE/checkback/leader-HASH.lock       the same for those that ask for some groups: the hash is of `asks`; the
                                           lines after the first name the groups

A leader excludes only those that ask the same as it does, and of those that ask for all each other: a group that the
leader does not ask for would stay in doubt as long as the leader lives.

The system releases the lock when its process dies, however it dies, so that another may take it at its next round.
Two leaders do no harm: every decision is made once, whichever process makes it, and the catalog says to both what is
due. They only ask twice what is due at the same moment. A store is on a local file system (others are refused for
writing), so a lock of that system reaches everyone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import time
import weakref
from collections.abc import Mapping
from typing import NamedTuple

from broker.store.disk.files import Disk, Missing
from broker.store.disk.os_errors import refused
from broker.store.disk.paths import Paths

_SAYS_BYTES = 200  # for the name of a process
_NAME, _END = "leader", ".lock"
_MOST_BYTES = 1 << 20  # of a lock file: some thousand groups
_TRIES, _PAUSE_S = 400, 0.005  # while those that look share it


class Leader(NamedTuple):
    """A process that leads, and for which producer groups it asks."""

    who: str
    """As it wrote itself: host and process."""
    groups: tuple[str, ...] | None
    """In order; None: for all."""

    def __str__(self) -> str:
        """The beginning of a sentence about it."""
        if self.groups is None:
            return f"{self.who} leads and asks for all producer groups"
        groups = f"the producer group{'s' * (len(self.groups) > 1)} {', '.join(self.groups)}"
        return f"{self.who} leads and asks for {groups if self.groups else 'no producer group'}"


class LeaderLock:
    """The lock of the leader. One for each CheckService; a forked child does not lead.

    `asks` says who is asked for each producer group; None: this process asks for all groups.
    """

    def __init__(self, store_path: str, *, asks: Mapping[str, str] | None = None) -> None:
        self.path = os.path.join(Paths(store_path).own, _file_name(asks))
        self._groups = None if asks is None else tuple(sorted(asks))
        self._descriptor = -1
        _forked.add(self)

    def __del__(self) -> None:
        self.release()

    @property
    def is_held(self) -> bool:
        """Whether this process leads, through this lease."""
        return self._descriptor >= 0

    def try_take(self) -> bool:
        """Lead, if nobody else does. Raises StoreFull, and StoreError when the file cannot be opened or written."""
        if self.is_held:
            return True
        descriptor = Disk().open_lock(self.path)
        if not _is_locked_alone(descriptor):
            os.close(descriptor)
            return False
        said = "\n".join((myself()[:_SAYS_BYTES], *(self._groups or ()))).encode()[:_MOST_BYTES]
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, said, 0)
        except OSError as error:  # a full disk: nobody leads, and the next attempt may do
            os.close(descriptor)
            raise refused(error, self.path, len(said)) from error
        self._descriptor = descriptor
        return True

    def leader(self) -> Leader | None:
        """Who leads of those that ask the same; None when nobody does."""
        if self.is_held:
            return Leader(myself(), self._groups)
        return _leader(self.path)

    def release(self) -> None:
        """Let another lead; without leading nothing happens. A forked child releases what its parent still holds."""
        descriptor, self._descriptor = self.__dict__.get("_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)


def leaders(store_path: str) -> list[Leader]:
    """Who leads the check-back of a store, each for some producer groups or for all."""
    disk, own = Disk(), Paths(store_path).own
    if disk.entry(own) is None:
        return []
    names = sorted(entry.name for entry in disk.entries(own))
    paths = [os.path.join(own, name) for name in names if name.startswith(_NAME) and name.endswith(_END)]
    return [found for path in paths if (found := _leader(path)) is not None]


def _file_name(asks: Mapping[str, str] | None) -> str:
    if asks is None:
        return f"{_NAME}{_END}"
    text = json.dumps(dict(asks), sort_keys=True)
    return f"{_NAME}-{hashlib.sha256(text.encode()).hexdigest()[:16]}{_END}"


def _is_locked_alone(descriptor: int) -> bool:
    """Take the lock of a leader; False where another leads. Who looks for one shares the lock for a moment."""
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(_PAUSE_S)
    return False


def _leader(path: str) -> Leader | None:
    """Who holds a lock file."""
    try:
        descriptor = Disk().open_lock(path, write=False)
    except Missing:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        who, *groups = os.pread(descriptor, _MOST_BYTES, 0).decode("utf-8", "replace").split("\n")
        asks_for_all = os.path.basename(path) == _file_name(None)
        return Leader(who, None if asks_for_all else tuple(groups))
    finally:
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
