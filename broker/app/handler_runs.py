"""What the handlers of one process did: messages by outcome, and how long each took. By default nothing is counted."""

from __future__ import annotations

import enum
import threading
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets, in seconds; a last one has what took longer."""


class RunOutcome(enum.Enum):
    """What became of a message; one that stays in hand at the end of a process has none."""

    HANDLED = "handled"
    RETRIED = "retried"
    DEAD_LETTERED = "dead_lettered"


@dataclass(frozen=True, slots=True)
class HandlerTotals:
    """What one handler of one group did since the process began."""

    group: str
    handler: str
    handled: int = 0
    retried: int = 0
    dead_lettered: int = 0
    seconds: float = 0.0
    buckets: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)  # of each bucket alone

    @property
    def failed(self) -> int:
        """How often it raised, or its body did not decode."""
        return self.retried + self.dead_lettered

    def plus(self, other: HandlerTotals) -> HandlerTotals:
        """Both together."""
        buckets = tuple(a + b for a, b in zip(self.buckets, other.buckets, strict=True))
        return HandlerTotals(
            self.group, self.handler, self.handled + other.handled, self.retried + other.retried,
            self.dead_lettered + other.dead_lettered, self.seconds + other.seconds, buckets,
        )  # fmt: skip

    def with_run(self, outcome: RunOutcome, seconds: float) -> HandlerTotals:
        """After one message more."""
        place = bisect_left(BOUNDS_S, seconds)
        one = tuple(int(number == place) for number in range(len(self.buckets)))
        return self.plus(HandlerTotals(self.group, self.handler, seconds=seconds, buckets=one, **{outcome.value: 1}))

    def as_json(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """What `as_json` gave, also through JSON."""
        return cls(**{**value, "buckets": tuple(value["buckets"])})


def summed(found: Iterable[HandlerTotals]) -> list[HandlerTotals]:
    """One for each handler of each group, in their order."""
    sums: dict[tuple[str, str], HandlerTotals] = {}
    for one in found:
        key = one.group, one.handler
        sums[key] = sums[key].plus(one) if key in sums else one
    return [sums[key] for key in sorted(sums)]


class HandlerRuns:
    """Counts for the threads of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[tuple[str, str], HandlerTotals] = {}

    def expect(self, group: str, handler: str) -> None:
        """Count a handler from 0 on, before its first message."""
        with self._lock:
            self._totals.setdefault((group, handler), HandlerTotals(group, handler))

    def add(self, group: str, handler: str, outcome: RunOutcome, seconds: float) -> None:
        """Count one message."""
        with self._lock:
            known = self._totals.get((group, handler)) or HandlerTotals(group, handler)
            self._totals[group, handler] = known.with_run(outcome, seconds)

    def read(self) -> list[HandlerTotals]:
        """All handlers, as of now."""
        with self._lock:
            return list(self._totals.values())
