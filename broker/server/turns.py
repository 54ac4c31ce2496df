"""Threads that work for connections by turns: who asks for much delays its own requests, and hardly any other's."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

Done = Callable[[Any], None]  # of the result, or of the exception
Deliver = Callable[[list[tuple[Done, Any]]], None]


class TurnThreads:
    """A pool of threads. All of it runs in the event loop but the work itself."""

    def __init__(self, number: int, name: str, each: int, deliver: Deliver) -> None:
        """A connection has at most `each` pieces of work in the pool. `deliver` takes results into the event loop."""
        self.pool = ThreadPoolExecutor(number, name)
        self._each, self._deliver = each, deliver
        self._inside: Counter[Any] = Counter()
        self._outside: dict[Any, deque[Callable[[], None]]] = {}

    def submit(self, connection: Any, work: Callable[[], Any], done: Done) -> None:
        """Do something for a connection, behind what it asked for before; `done` gets what it returned or raised."""
        run = partial(self._run, connection, work, done)
        if self._inside[connection] >= self._each:
            self._outside.setdefault(connection, deque()).append(run)
        else:
            self._inside[connection] += 1
            self.pool.submit(run)

    def _run(self, connection: Any, work: Callable[[], Any], done: Done) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it is the answer to this request
            result = error
        self._deliver([(partial(self._ended, connection, done), result)])

    def _ended(self, connection: Any, done: Done, result: Any) -> None:
        waiting = self._outside.get(connection)
        if waiting:
            self.pool.submit(waiting.popleft())
            if not waiting:
                del self._outside[connection]
        else:
            self._inside[connection] -= 1
            if not self._inside[connection]:
                del self._inside[connection]
        done(result)
