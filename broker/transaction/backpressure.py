"""Back-pressure: half messages are refused while too many transactions are in doubt.

What is in doubt is not counted for each message: each one since the last count is taken to be in doubt, and at the
limit all are counted again, at most each 20 ms. So nothing is refused below the limit, and what is stored beyond it is
what this process sends in 20 ms, and other processes between two counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from shlex import quote

from broker.errors import BrokerError, NotPermitted
from broker.store.disk.thread_lock import ThreadLock

_RECOUNT_S = 0.02  # between two counts, at the least


class InDoubtLimit:
    """The limit of one open store. Threads share it. Raises BrokerError for what is not a limit."""

    def __init__(self, most: int, count: Callable[[], int], path: str) -> None:
        check_most(most)
        self._most, self._count, self._path = most, count, path
        self._lock = ThreadLock()
        self._counted, self._since = most, 0  # so that the first one is counted
        self._counted_s = float("-inf")

    def check(self, *, at_once: bool = False) -> bool:
        """Let one more half message in. Raises NotPermitted at the limit.

        With `at_once`, for an event loop, False and nothing changed where that takes a count, which reads and may wait
        for another process.
        """
        if not self._lock.acquire(blocking=not at_once):
            return False
        try:
            if self._counted + self._since >= self._most and time.monotonic() - self._counted_s >= _RECOUNT_S:
                if at_once:
                    return False
                self._counted, self._since = self._count(), 0
                self._counted_s = time.monotonic()
            if self._counted >= self._most:
                text = f"{self._counted} transactions are in doubt in {self._path}, which takes at most {self._most}"
                step = f"run `checkback check-back {quote(self._path)}`, and look at its ledger"
                step = f"check-back does not keep up: {step}"
                raise NotPermitted(f"{text} (in_doubt_max): the message was not stored; {step}", code="SYSTEM_BUSY")
            self._since += 1
            return True
        finally:
            self._lock.release()


def check_most(most: object) -> None:
    """Raises BrokerError for what is not a limit."""
    if type(most) is not int or most < 1:
        raise BrokerError(f"in_doubt_max is a whole number from 1 on, not {most!r:.60}")
