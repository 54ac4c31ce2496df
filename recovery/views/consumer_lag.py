"""Where consumer groups stand, and how far behind they are; and how an operator moves them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from broker.consuming.positions import Positions, Start
from broker.errors import BrokerError
from broker.live import LiveStore
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

    @property
    def lag(self) -> int:
        """Messages that the group has yet to acknowledge, those it does not select by tag included."""
        return max(0, self.end - max(self.position, self.begin))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "lag": self.lag}


def positions(store: Store, group: str | None = None, topic: str | None = None) -> Iterator[GroupPosition]:
    """From config/consumerOffset.json, which consumers write every 5 s and when they close."""
    positions = store.consumer_offsets().positions
    for of_topic, of_group in sorted(positions, key=lambda key: (key[1], key[0])):
        if group in (None, of_group) and topic in (None, of_topic):
            for queue_id, position in sorted(positions[of_topic, of_group].items()):
                begin, end = store.queue_range(of_topic, queue_id)
                yield GroupPosition(of_group, of_topic, queue_id, position, begin, end)


def place(text: str) -> Start | int:
    """first, last, a time in ISO 8601 with a zone or Z, or a queue offset. Raises BrokerError."""
    if text in ("first", "last"):
        return Start(text)
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BrokerError(f"{text!r} is not first, last, a queue offset or a time such as 2026-11-21T08:00Z") from None
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
