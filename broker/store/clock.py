"""The time by which a store's work falls due: the wall clock, kept from going back.

What waits is stored with a wall-clock time in milliseconds, since other programs and later boots read it: the store
time of a record, from which delays, redelivery and the age of a half message are counted. Somebody may set the clock
back. What was due in a second would then wait until the clock is where it was.

The rule: a process keeps the largest time that it has seen, and goes on from there by the monotonic clock, which
nobody can set. It has seen its own wall clock, and the newest record's store time: so a process that begins after the
clock was set back goes on where the log ends. A clock that is set forward is followed at once, and stays so until the
process ends; times in the log are then ahead of the wall clock, and wait for nobody. A machine that sleeps counts the
time that it slept.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_MS = 1_000_000  # in nanoseconds


def _wall_ns() -> int:
    return time.time_ns()  # looked up at each call: `broker.testing` sets it


class StoreClock:
    """The clock of one store in one process. Threads may share it."""

    def __init__(
        self,
        newest_ms: Callable[[], int] = lambda: 0,
        *,
        wall_ns: Callable[[], int] | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`newest_ms` returns the store time of the newest record."""
        self._newest_ms, self._monotonic_ns = newest_ms, monotonic_ns
        self._wall_ns = wall_ns or _wall_ns
        self._ahead_ns = 0  # by how much the largest time that was seen is ahead of the monotonic clock
        self.seen_ms = 0  # the last answer: a wall clock below it was set back

    def now_ms(self, at_least_ms: int = 0) -> int:
        """Milliseconds since 1970, never less than before; `at_least_ms` is a time that is known to have been."""
        seen_ns = max(self._wall_ns(), self._newest_ms() * _MS, at_least_ms * _MS)
        monotonic_ns = self._monotonic_ns()  # last: a pause before it would pass for a clock that was set forward
        self._ahead_ns = max(self._ahead_ns, seen_ns - monotonic_ns)
        self.seen_ms = (monotonic_ns + self._ahead_ns) // _MS
        return self.seen_ms

    def ahead_ms(self) -> int:
        """By how much it is ahead of a wall clock that was set back, in milliseconds; else 0."""
        now_ms = self.now_ms()
        return max(0, now_ms - self._wall_ns() // _MS)
