"""A lock for the threads of a process that a fork leaves free in the child.

A child has only the thread that forked: a lock that another one held at that moment would never be released there.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import _RLock as _Lock
else:
    _Lock = type(threading.RLock())  # as threading makes it: gevent puts another in its place


class ThreadLock(_Lock):  # type: ignore[misc]  # final for a checker alone
    """Keeps out the other threads: `with lock: ...`. A thread may take it twice.

    Python's own lock, and not an object around it: an interrupt (Ctrl-C, a time limit) after the call that takes that,
    and before the block begins, would leave it taken, and the other threads waiting forever.
    """

    def __init__(self) -> None:
        super().__init__()
        _locks.add(self)

    def after_fork(self) -> None:
        """In a child it is free, unless the thread that forked has it."""
        if not self._is_owned():  # type: ignore[attr-defined]  # as threading.Condition asks it
            self._at_fork_reinit()  # type: ignore[attr-defined]  # as logging frees its locks


_locks: weakref.WeakSet[ThreadLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.after_fork()


os.register_at_fork(after_in_child=_after_fork)
