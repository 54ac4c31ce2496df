"""A lock for the threads of a process that a fork leaves free in the child.

A child has only the thread that forked: a lock that another one held at that moment would never be released there.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ThreadLock:
    """Keeps out the other threads: `with lock: ...`. A thread may take it twice."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take it; False, without `blocking`, while another thread has it."""
        return self._lock.acquire(blocking=blocking)

    def release(self) -> None:
        """Let another thread take it."""
        self._lock.release()

    def after_fork(self) -> None:
        """In a child it is free, unless the thread that forked has it."""
        if not self._lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as threading.Condition asks it
            self._lock = threading.RLock()


_locks: weakref.WeakSet[ThreadLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.after_fork()


os.register_at_fork(after_in_child=_after_fork)
