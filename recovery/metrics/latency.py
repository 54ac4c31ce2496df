"""How long the appends and fsyncs of one process take. Without an observer nothing is timed."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from broker.store.write.appender import COMPILED, Appender
from broker.store.write.sync import Syncer

BOUNDS_S = tuple(number * 10.0**power for power in range(-6, 1) for number in (1, 2.5, 5))
"""Upper bounds of the buckets: 1 µs, 2.5 µs, 5 µs, 10 µs … 5 s."""
# Methods of Appender, which call each other, and of Syncer; the compiled ones return None when they did nothing.
_APPENDS = (*COMPILED, "append_one_locked", "append_as_one_locked", "append_locked")
_SYNCS = ("_force",)


class LatencyHistogram:
    """Counts of times by bucket, as Prometheus has them. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        bucket = bisect_left(BOUNDS_S, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self._sum_s += seconds

    def read(self) -> tuple[list[int], float]:
        """How many took at most as long as each of BOUNDS_S, and how many in all; and their sum in seconds."""
        with self._lock:
            counts, total_s = list(self._counts), self._sum_s
        reached = 0
        return [reached := reached + count for count in counts], total_s


class Latencies:
    """Two histograms that count until `stop`; one pair at a time for an open store."""

    def __init__(self, appender: Appender, syncer: Syncer) -> None:
        self.append, self.sync = LatencyHistogram(), LatencyHistogram()
        self._untimed: list[tuple[Any, str, Any]] = []  # what the objects had themselves, by name
        self._timed = ((appender, _APPENDS, self.append), (syncer, _SYNCS, self.sync))

    def start(self) -> None:
        """Time what the two do from now on: attributes of the objects hide the methods of their classes."""
        for target, names, histogram in self._timed:
            inside = threading.local()
            for name in names:
                if name in vars(target):
                    self._untimed.append((target, name, vars(target)[name]))
                setattr(target, name, _timed(getattr(target, name), histogram, inside, name in COMPILED))

    def stop(self) -> None:
        """Time nothing any more."""
        for target, names, _ in self._timed:
            for name in names:
                target.__dict__.pop(name, None)
        while self._untimed:
            setattr(*self._untimed.pop())


def _timed(
    call: Callable[..., Any], into: LatencyHistogram, inside: threading.local, may_decline: bool
) -> Callable[..., Any]:
    """The same call, timed; a call of another timed one within it counts as one, and one that declined as none."""

    def timed(*arguments: Any) -> Any:
        if getattr(inside, "on", False):
            return call(*arguments)
        inside.on, started = True, time.perf_counter()
        done: Any = True  # an error counts
        try:
            done = call(*arguments)
        finally:
            if done is not None or not may_decline:
                into.add(time.perf_counter() - started)
            inside.on = False
        return done

    return timed
