"""Which client of a group holds which queue for orderly consumption.

    STORE/checkback/servers/locks      {"group topic 0": ["client", milliseconds of this boot]}

Servers write it, under the lock of the consumers' table; consumers with the store open read it.
RocketMQ: RebalanceLockManager (5.3.3).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from broker.store.disk.files import Disk, Missing

LOCK_MS = 60_000  # RocketMQ: rocketmq.broker.rebalance.lockMaxLiveTime
HeldLocks = Mapping[str, tuple[str, int]]  # client and time of its last request, by queue


def lock_name(group: str, topic: str, queue_id: int) -> str:
    """The name of a queue's lock."""
    return f"{group} {topic} {queue_id}"


def is_over(held: tuple[str, int], now_ms: int) -> bool:
    """Whether a lock counts no more; also where it is of an earlier boot, whose clock was ahead."""
    return not 0 <= now_ms - held[1] <= LOCK_MS


def holder(locks: HeldLocks, group: str, topic: str, queue_id: int, now_ms: int) -> str | None:
    """The client that holds a queue."""
    held = locks.get(lock_name(group, topic, queue_id))
    return None if held is None or is_over(held, now_ms) else held[0]


def read_locks(disk: Disk, path: str) -> HeldLocks:
    """What the file holds; nothing when it is not there or damaged."""
    with contextlib.suppress(Missing, ValueError, TypeError, AttributeError):
        found = json.loads(disk.read(path))
        return {str(name): (str(client), int(at)) for name, (client, at) in found.items()}
    return {}
