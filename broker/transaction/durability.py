"""Wait for the disk on behalf of others: a future is done when the half message it stands for is durable.

RocketMQ: TransactionalMessageService.asyncPrepareMessage, whose future the group commit thread completes (5.3.3).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")
_IDLE_S = 1.0


class Waiting:
    """One thread that calls `settle(end)` for all who came by then.

    It starts when it is needed and ends soon after: it holds the store, which nobody else may hold any more.
    """

    def __init__(self, settle: Callable[[int], None]) -> None:
        self._settle = settle
        self._begin()
        _forked.add(self)

    def _begin(self) -> None:
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._waiting: list[tuple[int, Future[Any], object]] = []
        self._closed = False

    def future(self, end: int, result: _T) -> Future[_T]:
        """Done when the log is durable up to an offset, with this result or what went wrong; it cannot be cancelled."""
        made: Future[_T] = Future()
        made.set_running_or_notify_cancel()
        with self._wake:
            has_thread = not self._closed and self._has_thread()
            if has_thread:
                self._waiting.append((end, made, result))
                self._wake.notify()
        if not has_thread:
            self._settle_all([(end, made, result)])
        return made

    def _has_thread(self) -> bool:
        """Start the thread, once; False where the system has none to give, as at exit: then the caller waits itself."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="checkback-waiting", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _work(self) -> None:
        while True:
            with self._wake:
                if not self._wake.wait_for(lambda: self._waiting or self._closed, _IDLE_S):
                    self._thread = None
                waiting, self._waiting = self._waiting, []
            if not waiting:
                return
            self._settle_all(waiting)

    def _settle_all(self, waiting: Sequence[tuple[int, Future[Any], object]]) -> None:
        fault: Exception | None = None
        try:
            self._settle(max(end for end, _, _ in waiting))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait get it, and the thread goes on
            fault = error
        for _, made, result in waiting:
            made.set_result(result) if fault is None else made.set_exception(fault)

    def close(self) -> None:
        """End the thread, after all waiting callers were notified."""
        with self._wake:
            self._closed = True
            thread = self._thread
            self._wake.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()


_forked: weakref.WeakSet[Waiting] = weakref.WeakSet()


def _after_fork() -> None:
    """No thread lives in a child, and who waited there waits in the parent."""
    for one in list(_forked):
        one._begin()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_after_fork)
