"""What nobody read yet, by group and topic: how much, and from which place of the CommitLog on it must stay.

for each group that was there lately        from the lowest message that it did not acknowledge
for a topic without such a group            from the first message that is younger than the limit, since its
                                            group may still come; what all groups that are gone have read goes
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from broker.consuming.group.positions import Positions
from broker.consuming.subscriptions import Subscription, subscriptions
from broker.format.topics import LMQ_PREFIX, SCHEDULE_TOPIC, is_system_topic

if TYPE_CHECKING:
    from broker.writable_store import WritableStore

NOBODY = ""  # in place of a group: nobody consumes the topic
_SALVAGED_TOPIC = "CHECKBACK_SALVAGED"  # says what stood where a message was lost; nobody is to read it


@dataclass(frozen=True, slots=True)
class Unread:
    """What one group has yet to acknowledge of one topic; or, without a group, what nobody consumes."""

    group: str
    """Empty: no group consumes the topic."""
    topic: str
    """The topic."""
    positions: Mapping[int, int]
    """By queue id, from 0: the queue offset from which on it is unread."""
    waiting: int
    """How many messages; those that the group does not select by tag are counted as well."""
    idle_s: float | None
    """Seconds since a consumer of the group was last seen; None without a group."""
    is_gone: bool
    """Whether nobody waits for the group any more."""
    pinned_at: int | None = None
    """CommitLog offset of the first message that must stay; None: none must."""
    going: int = 0
    """How many messages of `waiting` a round removes."""

    @property
    def kind(self) -> str:
        """What it is for a person: delay, group or topic."""
        if self.topic == SCHEDULE_TOPIC:
            return "delay"
        return "group" if self.group else "topic"

    def as_json(self) -> dict[str, Any]:
        """Its facts by name, ready for JSON."""
        names = ("group", "topic", "waiting", "going", "idle_s", "is_gone", "pinned_at")
        return {name: getattr(self, name) for name in names}

    def remedy(self, path: str) -> str:
        """How the messages of the store at a path are released."""
        if self.kind == "delay":
            return "A consumer of any group delivers them when they are due"
        if self.kind == "topic":
            return "Consume them, or wait until they are older than the limit for what nobody reads"
        names = shlex.join([path, self.group, "--topic", self.topic])
        put_forward = f"checkback consumer {names} --reset last"
        return f"Start its consumers, or put the group forward: {put_forward}"

    def sentence(self, messages: int) -> str:
        """So many messages, whose they are, and since when nobody came for them."""
        if self.kind == "delay":
            return f"{messages} delayed message(s) that nobody delivered yet"
        count = f"{messages} message(s) of topic {self.topic}"
        if self.kind == "topic":
            return f"{count}, which no group consumes"
        seen = "" if self.idle_s is None else f", last seen {self.idle_s:.0f} s ago"
        return f"{count} that group {self.group} did not acknowledge{seen}"

    def cut(self, store: WritableStore, begin: int) -> Unread:
        """The same with what of it goes when the log begins at an offset."""
        going = 0
        for queue_id, position in self.positions.items():
            queue = store.consumequeues.queue(self.topic, queue_id)
            if queue is not None:
                going += max(0, min(queue.min_offset(begin), queue.max_offset) - position)
        return replace(self, going=going)


def unread_messages(
    store: WritableStore, positions: Positions | None, begin: int, gone_after_ms: int | None, now_ms: int
) -> list[Unread]:
    """All that is unread, by group and topic, of a log that begins at a CommitLog offset.

    `positions` is None for a store that nobody ever consumed from. Raises CorruptRecord when the
    groups cannot be read, StoreFull.
    """
    consuming = defaultdict[str, list[Subscription]](list)
    for one in [] if positions is None else subscriptions(positions, now_ms):
        consuming[one.topic].append(one)
    found: list[Unread] = []
    for topic in store.topics():
        if topic != SCHEDULE_TOPIC and (is_system_topic(topic) or topic == _SALVAGED_TOPIC):
            continue
        if not topic.startswith(LMQ_PREFIX):
            found += _of_topic(store, topic, consuming[topic], begin, gone_after_ms, now_ms)
    return [one for one in found if one.waiting]


def _of_topic(
    store: WritableStore, topic: str, groups: Sequence[Subscription], begin: int, gone_after_ms: int | None, now_ms: int
) -> Iterator[Unread]:
    queues = {queue_id: _held(store, topic, queue_id, begin) for queue_id in store.queues(topic)}
    gone: list[Subscription] = []
    for group in groups:
        is_gone = gone_after_ms is not None and group.idle_ms > gone_after_ms
        gone += [group] * is_gone
        starts = {queue_id: max(first, group.positions.get(queue_id, 0)) for queue_id, (first, _) in queues.items()}
        waiting = sum(max(0, end - starts[queue_id]) for queue_id, (_, end) in queues.items())
        pinned_at = None if is_gone else _lowest(store, topic, starts)
        yield Unread(group.group, topic, starts, waiting, group.idle_ms / 1000, is_gone, pinned_at)
    if len(gone) == len(groups):
        yield _unclaimed(store, topic, queues, gone, None if gone_after_ms is None else now_ms - gone_after_ms)


def _unclaimed(
    store: WritableStore,
    topic: str,
    queues: Mapping[int, tuple[int, int]],
    gone: Sequence[Subscription],
    since_ms: int | None,
) -> Unread:
    """A topic for which no group is there: its younger messages wait for one.

    What every group that is gone has read is read. What one of them did not read is counted with that group.
    """
    starts, young = {}, {}
    for queue_id, (first, _) in queues.items():
        read = min((group.positions.get(queue_id, 0) for group in gone), default=0)
        starts[queue_id] = max(first, read)
        since = first if since_ms is None else store.offset_at_time(topic, queue_id, since_ms)
        young[queue_id] = max(starts[queue_id], since)
    waiting = sum(max(0, end - starts[queue_id]) for queue_id, (_, end) in queues.items())
    counted = {} if gone else starts
    return Unread(NOBODY, topic, counted, waiting, None, is_gone=False, pinned_at=_lowest(store, topic, young))


def _held(store: WritableStore, topic: str, queue_id: int, begin: int) -> tuple[int, int]:
    """The queue offset of the first message that is kept, and that of the next one to come, durable or not."""
    queue = store.consumequeues.queue(topic, queue_id)
    return (0, 0) if queue is None else (queue.min_offset(begin), queue.max_offset)


def _lowest(store: WritableStore, topic: str, starts: Mapping[int, int]) -> int | None:
    """The CommitLog offset of the first of the messages from these queue offsets on; None when there is none."""
    found = []
    for queue_id, start in starts.items():
        queue = store.consumequeues.queue(topic, queue_id)
        unit = None if queue is None else queue.get(start)
        if unit is not None:
            found.append(unit.commitlog_offset)
    return min(found, default=None)
