"""What a server counts: messages in and out, by topic and group, and how fast. Threads share it.

RocketMQ: BrokerStatsManager (5.3.3), of which this keeps what mqadmin and the dashboard show.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque

PUT, GET = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"
"""The names of the counters of messages in, by topic, and out, by topic@group. RocketMQ: Stats (5.3.3)."""
_SAMPLE_S, _SAMPLES = 10.0, 60


class Counters:
    """Counters since the server began, and samples of the last ten minutes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._samples: deque[tuple[float, Counter[tuple[str, str]]]] = deque(maxlen=_SAMPLES)
        self._samples.append((time.monotonic(), Counter()))

    def add(self, name: str, key: str, count: int = 1) -> None:
        """Count something, for its key and in all."""
        with self._lock:
            self._counts[name, key] += count
            self._counts[name, ""] += count

    def total(self, name: str, key: str = "") -> int:
        return self._counts[name, key]

    def sample(self) -> None:
        """Take a sample when it is time."""
        now = time.monotonic()
        if now - self._samples[-1][0] >= _SAMPLE_S:
            with self._lock:
                self._samples.append((now, Counter(self._counts)))

    def recent(self, name: str, key: str = "", span_s: float = 60.0) -> tuple[int, float]:
        """(how many, how many a second) over about the last `span_s` seconds."""
        now = time.monotonic()
        with self._lock:  # the event loop adds to them
            samples = tuple(self._samples)
        at, counts = next((one for one in reversed(samples) if now - one[0] >= span_s), samples[0])
        count = self._counts[name, key] - counts[name, key]
        return count, count / max(now - at, 1.0)
