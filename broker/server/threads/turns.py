"""Threads that work for connections by turns: who asks for much delays its own requests, and hardly any other's."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

_TURN, _TURN_S = 16, 0.005  # pieces of work that a turn has, and after how long it begins no more of them

Done = Callable[[Any], None]  # of the result, or of the exception
Deliver = Callable[[list[tuple[Done, Any]]], None]
_Piece = tuple[Callable[[], Any], Done]


class TurnThreads:
    """A pool of threads. All of it runs in the event loop but the work itself."""

    def __init__(self, number: int, name: str, deliver: Deliver) -> None:
        """`deliver` takes results into the event loop. Raises RuntimeError where the system has no thread to give."""
        self.pool = _started(number, name)
        self._number, self._deliver = number, deliver
        self._turns: Counter[Any] = Counter()  # by connection, those that are in the pool
        self._waiting: dict[Any, deque[_Piece]] = {}

    def submit(self, connection: Any, work: Callable[[], Any], done: Done) -> None:
        """Do something for a connection, behind what it asked for before; `done` gets what it returned or raised."""
        if self._turns[connection] >= self._number:
            self._waiting.setdefault(connection, deque()).append((work, done))
        else:
            self._turns[connection] += 1
            self.pool.submit(self._run, connection, [(work, done)])

    def _run(self, connection: Any, pieces: list[_Piece]) -> None:
        results, until_s = list[tuple[Done, Any]](), time.monotonic() + _TURN_S
        for work, done in pieces:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it is the answer to this request
                result = error
            results.append((done, result))
            if time.monotonic() > until_s:
                break
        self._deliver([*results, (partial(self._ended, connection), pieces[len(results) :])])

    def _ended(self, connection: Any, left: list[_Piece]) -> None:
        """The next turn of a connection begins with what was left of this one."""
        waiting = self._waiting.pop(connection, deque())
        waiting.extendleft(reversed(left))
        if waiting:
            pieces = [waiting.popleft() for _ in range(min(_TURN, len(waiting)))]
            self.pool.submit(self._run, connection, pieces)
        else:
            self._turns[connection] -= 1
            if not self._turns[connection]:
                del self._turns[connection]
        if waiting:
            self._waiting[connection] = waiting


def _started(number: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads are all there. One that is begun for a request may fail with it, and do it all the same."""
    pool, are_there = ThreadPoolExecutor(number, name), threading.Barrier(number)
    try:
        for _ in range(number):
            pool.submit(are_there.wait)
    except BaseException:
        are_there.abort()
        pool.shutdown()
        raise
    return pool
