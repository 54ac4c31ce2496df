"""Where consumer groups stand, and how far behind they are; and how an operator moves them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from broker.consuming.group.positions import Positions, Start
from broker.errors import BrokerError
from broker.format.properties import decimal
from broker.live import LiveStore
from broker.store.disk.files import Disk
from broker.store.read.config import read_subscription_groups
from broker.store.read.directory import StoreDirectory
from broker.store.read.store import Store


@dataclass(frozen=True)
class GroupPosition:
    """One queue of a group."""

    group: str
    topic: str
    queue_id: int
    position: int  # the queue offset of the lowest message that is not acknowledged
    begin: int
    end: int
    paused: bool = False  # the group gets no messages

    @property
    def lag(self) -> int:
        """Messages that the group has yet to acknowledge, those it does not select by tag included."""
        return max(0, self.end - max(self.position, self.begin))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "lag": self.lag}


def positions(store: Store, group: str | None = None, topic: str | None = None) -> Iterator[GroupPosition]:
    """From config/consumerOffset.json, which consumers write every 5 s and when they close.

    A queue that has messages, and in which the group has no position yet, is before it from its first message on: the
    topic got more queues while the group was not there.
    """
    positions, paused = store.consumer_offsets().positions, paused_groups(store)
    for of_topic, of_group in sorted(positions, key=lambda key: (key[1], key[0])):
        if group in (None, of_group) and topic in (None, of_topic):
            held = positions[of_topic, of_group]
            for queue_id in sorted({*held, *store.queues(of_topic)}):
                begin, end = store.queue_range(of_topic, queue_id)
                if queue_id in held or end > begin:
                    position = held.get(queue_id, begin)
                    yield GroupPosition(of_group, of_topic, queue_id, position, begin, end, of_group in paused)


def paused_groups(store: Store) -> set[str]:
    """The groups that are paused, by config/subscriptionGroup.json."""
    groups = read_subscription_groups(StoreDirectory(store.path, Disk())).groups
    return {name for name, group in groups.items() if not group.consume_enable}


def check_group(store: Store, group: str) -> None:
    """Raises BrokerError for a group that the store does not know: a letter is soon wrong, and would make another."""
    configured = read_subscription_groups(StoreDirectory(store.path, Disk())).groups
    known = {of_group for _, of_group in store.consumer_offsets().positions} | set(configured)
    if group not in known:
        there = f"its groups are {', '.join(sorted(known))}" if known else "it has none"
        text = f"{store.path} has no consumer group {group}: {there:.300}"
        raise BrokerError(f"{text}. One that is new is known 5 s after its first consumer began")


def place(text: str) -> Start | int:
    """first, last, a time in ISO 8601 with a zone or Z, or a queue offset. Raises BrokerError."""
    if text in ("first", "last"):
        return Start(text)
    if (queue_offset := decimal(text, 19)) is not None:
        return queue_offset
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        text = f"{text!r:.60} is not first, last, a queue offset or a time such as 2026-11-21T08:00Z"
        raise BrokerError(text) from None
    return Start.parse(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def reset(store: LiveStore, group: str, topic: str, to: Start | int, queue_id: int | None) -> list[GroupPosition]:
    """Move a group, and return where it stands now. Consumers at work notice within a second."""
    held = Positions(store)
    try:
        moved = held.reset(group, topic, to, queue_id)
    finally:
        held.close()
    return [
        GroupPosition(group, topic, one, position, *store.queue_range(topic, one)) for one, position in moved.items()
    ]
