"""Which groups consume which topics, where they stand, and when they were last seen: what retention waits for.

A group is known by its cells, or by config/consumerOffset.json alone where a RocketMQ broker wrote that. Of such a
group nobody knows when it was there; it counts as seen when retention first meets it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.consuming.group.consumer_table import UNSET
from broker.consuming.group.membership import monotonic_ms
from broker.consuming.group.offset_export import SCHEDULE_GROUP
from broker.consuming.group.positions import Positions
from broker.errors import StoreError
from broker.format.topics import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from broker.writable_store import WritableStore


@dataclass(frozen=True, slots=True)
class Subscription:
    """One group at one topic. The group SCHEDULE_GROUP delivers what waits for its time, for all."""

    group: str
    topic: str
    positions: Mapping[int, int]  # by queue id: the lowest queue offset not acknowledged. Another queue: from its first
    idle_ms: int  # for how long no consumer of the group was seen at the topic


def has_consumers(store: WritableStore) -> bool:
    """Whether any group ever consumed from the store."""
    disk, paths = store.writer.disk, store.writer.paths
    names = (paths.consumers, paths.config("consumerOffset.json"), paths.config("delayOffset.json"))
    return any(disk.entry(name) is not None for name in names)


def subscriptions(positions: Positions, now_ms: int) -> list[Subscription]:
    """All of them, by group and topic. Raises StoreFull, CorruptRecord."""
    cells, found = positions.cells, dict[tuple[str, str], dict[int, int]]()
    with cells.lock:
        positions.exchange.take_over()
        for (topic, group), queues in positions.exchange.offsets().positions.items():
            found.setdefault((group, topic), {}).update({queue: max(0, at) for queue, at in queues.items()})
        if delays := positions.exchange.delays().positions:
            found[SCHEDULE_GROUP, SCHEDULE_TOPIC] = {level - 1: max(0, at) for level, at in delays.items()}
        for cell, (group, topic, queue_id) in cells.all():
            if topic:  # else it is the group itself
                queues = found.setdefault((group, topic), {})
                if queue_id >= 0:
                    position = cells.position(cell)
                    queues[queue_id] = 0 if position == UNSET else position
        seen = {name: _idle_ms(positions, *name, now_ms) for name in found}
    return [Subscription(*name, found[name], seen[name]) for name in sorted(found)]


def _idle_ms(positions: Positions, group: str, topic: str, now_ms: int) -> int:
    """Under the lock of the cells."""
    cells, monotonic = positions.cells, monotonic_ms()
    with contextlib.suppress(StoreError):  # no room for another: it counts as seen just now
        cell = cells.make(group, topic, -1, 0)
        idle_ms = cells.idle_ms(cell, now_ms, monotonic)
        if idle_ms is not None:
            return idle_ms
        cells.see(cell, now_ms, monotonic)
    return 0
