"""Which queue a message is sent to: by turns over all brokers, around those that failed or are slow. Pure.

RocketMQ: TopicPublishInfo.selectOneMessageQueue, MQFaultStrategy, LatencyFaultToleranceImpl (5.3.3).
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.remoting.bodies import MessageQueue

LATENCY_MS = (50, 100, 550, 1800, 3000, 5000, 15000)
AVOIDED_MS = (0, 0, 2000, 5000, 6000, 10000, 30000)
FAILED_MS = 10_000
"""The latency that a failure counts as. RocketMQ: MQFaultStrategy.updateFaultItem with isolation (5.3.3)."""


def avoided_ms(latency_ms: float) -> int:
    """For how long a broker is avoided that took so long to answer."""
    return next((for_ms for least, for_ms in reversed(list(zip(LATENCY_MS, AVOIDED_MS, strict=True)))
                 if latency_ms >= least), 0)  # fmt: skip


class FaultTable:
    """Until when each broker is avoided."""

    def __init__(self) -> None:
        self._until_ms: dict[str, float] = {}

    def note(self, broker_name: str, latency_ms: float, now_ms: float) -> None:
        """A broker answered, or failed (FAILED_MS), after so long."""
        self._until_ms[broker_name] = now_ms + avoided_ms(latency_ms)

    def until_ms(self, broker_name: str) -> float:
        return self._until_ms.get(broker_name, 0.0)

    def is_available(self, broker_name: str, now_ms: float) -> bool:
        return self.until_ms(broker_name) <= now_ms


def choose(
    queues: Sequence[MessageQueue], turn: int, failed: frozenset[str], faults: FaultTable, now_ms: float
) -> MessageQueue:
    """The next queue of a broker that is available and did not fail for this message.

    Where there is none: the next of a broker that did not fail for this message, else of the one that is avoided least.
    """
    turned = [queues[(turn + step) % len(queues)] for step in range(len(queues))]
    for one in turned:
        if one.broker_name not in failed and faults.is_available(one.broker_name, now_ms):
            return one
    for one in turned:
        if one.broker_name not in failed:
            return one
    return min(turned, key=lambda one: faults.until_ms(one.broker_name))
