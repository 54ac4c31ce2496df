"""What a store has that is carried to a cluster: topics, messages by queue, what is delayed or in doubt, positions.

Read only; of a store that nobody writes to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from shlex import quote
from typing import NamedTuple, Self

import broker
from broker.database.ledger_binding import LEDGER_BINDING
from broker.errors import StoreError
from broker.format import config
from broker.format.commitlog import Record
from broker.format.config import SubscriptionGroup, TopicConfig
from broker.format.topics import CHECK_GROUP, DELAYS_MS, DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, is_system_topic
from broker.store.clock import StoreClock
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths, path_of_store
from broker.store.read.config import read_subscription_groups
from broker.store.read.directory import StoreDirectory
from broker.store.read.layout import read_store_file
from recovery.moving.conversion import due_of
from recovery.transactions.in_doubt import Pending

_OWN_GROUPS = (CHECK_GROUP, "CID_RMQ_SYS_", "TOOLS_CONSUMER", "CID_CHECKBACK_")


class QueueContent(NamedTuple):
    """The messages of one queue that are kept: queue offsets."""

    topic: str
    queue_id: int
    first: int
    end: int


@dataclass(frozen=True)
class DoubtfulTransaction:
    """A transaction that nobody ended."""

    commitlog_offset: int
    producer_group: str
    topic: str
    is_parked: bool
    binding_id: str  # of the ledger; empty for one that names none
    is_delayed: bool


class StoreContents:
    """One store, open for reading. Close it, or use `with`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises NotAStore, StoreError for a store that another program wrote."""
        self.path = path_of_store(path)
        self._disk, self._paths = Disk(), Paths(self.path)
        self._store = broker.open(self.path, read_only=True)
        file = read_store_file(self._disk, self._paths)
        if file is None:
            self._store.close()
            text = f"{self.path} was not written by checkback, so it belongs to a broker of its own: nothing to move"
            step = f"To take it over first: checkback recover {quote(self.path)} --apply --broker-is-stopped"
            raise StoreError(f"{text}. {step}", path=self.path)
        self.store_id = file.store_id

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Topics and their queues

    def topics(self) -> list[tuple[TopicConfig, int]]:
        """Each topic of applications, of retries and of dead letters, with its number of queues."""
        known = self._store.topic_configs().topics
        names = {name for name in {*known, *self._store.topics()} if not is_system_topic(name)}
        found = []
        for name in sorted(names):
            held = known.get(name) or TopicConfig(name, 1, 1)
            counts = [one + 1 for one in self._store.queues(name)]
            found.append((held, max(held.read_queue_count, held.write_queue_count, *counts, 1)))
        return found

    def queues(self) -> list[QueueContent]:
        """The queues of these topics; one without messages has first == end."""
        return [
            QueueContent(topic.name, queue_id, *self._store.queue_range(topic.name, queue_id))
            for topic, count in self.topics()
            for queue_id in range(count)
        ]

    def records(self, queue: QueueContent, start: int) -> Iterator[tuple[int, Record]]:
        """(queue offset, record) of a queue from an offset on. Raises CorruptStore, CorruptRecord."""
        held = self._store.every_queue.queue(queue.topic, queue.queue_id)
        for queue_offset in range(start, queue.end):
            unit = None if held is None else held.get(queue_offset)
            if unit is not None and unit.is_filler:  # a queue that was cut at its front begins with these
                continue
            record = None if unit is None else self._store.record(unit.commitlog_offset)
            if record is None:
                where = f"{self.path}: {queue.topic}, queue {queue.queue_id}"
                text = f"{where}, has no message at queue offset {queue_offset}"
                raise StoreError(f"{text}. Run: checkback verify {quote(self.path)}", path=self.path)
            yield queue_offset, record

    def large(self, size: int) -> Iterator[Record]:
        """The records of queues that have so many bytes at least; the others are not read."""
        for queue in self.queues():
            held = self._store.every_queue.queue(queue.topic, queue.queue_id)
            for queue_offset in range(queue.first, queue.end):
                unit = None if held is None else held.get(queue_offset)
                if unit is None or unit.is_filler or unit.size < size:
                    continue
                if record := self._store.record(unit.commitlog_offset):
                    yield record

    # What waits

    def delayed(self) -> Iterator[Record]:
        """The messages that were not delivered yet, level by level."""
        delivered = self._delivered()
        for queue_id in self._store.queues(SCHEDULE_TOPIC):
            first, end = self._store.queue_range(SCHEDULE_TOPIC, queue_id)
            content = QueueContent(SCHEDULE_TOPIC, queue_id, first, end)
            for _, record in self.records(content, max(first, delivered.get(queue_id + 1, 0))):
                yield record

    def due_ms(self, record: Record) -> int:
        """When a delayed message is due, by the wall clock: the cluster knows no clock of the store that is ahead."""
        return due_of(record, DELAYS_MS) - self._ahead_ms

    @cached_property
    def _ahead_ms(self) -> int:
        """By how much the store's clock is ahead of a wall clock that was set back: it goes on from the last record."""
        waiting = ((SCHEDULE_TOPIC, queue_id) for queue_id in self._store.queues(SCHEDULE_TOPIC))
        queues = [*self.queues(), *(QueueContent(*name, *self._store.queue_range(*name)) for name in waiting)]
        last = (record for one in queues for _, record in self.records(one, max(one.first, one.end - 1)))
        newest_ms = max((record.store_timestamp_ms for record in last), default=0)
        return StoreClock(lambda: newest_ms).ahead_ms()

    def _delivered(self) -> dict[int, int]:
        """By delay level, up to where it was delivered: config/delayOffset.json."""
        try:
            return dict(config.decode_delay_offsets(self._disk.read(self._paths.config("delayOffset.json"))).positions)
        except Missing:
            return {}

    def in_doubt(self, now_ms: int) -> list[DoubtfulTransaction]:
        """The transactions in doubt, parked ones among them, in log order. Raises StoreError for a damaged log."""
        pending = Pending(self.path, now_ms, parked=True)
        found = []
        for one in pending:
            properties = self.record(one.commitlog_offset).property_map
            delayed = any(name in properties for name in ("DELAY", "CHECKBACK_DELAY", "TIMER_OUT_MS"))
            binding_id = properties.get(LEDGER_BINDING, "")
            found.append(
                DoubtfulTransaction(
                    one.commitlog_offset, one.producer_group, one.topic, one.state == "parked", binding_id, delayed
                )
            )
        if pending.damages:
            text = f"{self.path}: the log is damaged, so what is in doubt is not known"
            raise StoreError(f"{text}. Run: checkback verify {quote(self.path)}", path=self.path)
        return found

    def record(self, commitlog_offset: int) -> Record:
        """The record at an offset. Raises StoreError when there is none."""
        record = self._store.record(commitlog_offset)
        if record is None:
            raise StoreError(f"{self.path} has no record at CommitLog offset {commitlog_offset}", path=self.path)
        return record

    # Groups

    def positions(self) -> dict[tuple[str, str], dict[int, int]]:
        """By topic and group, the next queue offset of each queue."""
        found = self._store.consumer_offsets().positions
        return {
            (topic, group): dict(queues)
            for (topic, group), queues in found.items()
            if not group.startswith(_OWN_GROUPS) and not is_system_topic(topic)
        }

    def groups(self) -> list[SubscriptionGroup]:
        """The consumer groups: those with settings, a position, or a topic of retries."""
        known = read_subscription_groups(StoreDirectory(self.path, self._disk)).groups
        names = {group for _, group in self.positions()} | set(known)
        for topic, _ in self.topics():
            for prefix in (RETRY_PREFIX, DLQ_PREFIX):
                if topic.name.startswith(prefix):
                    names.add(topic.name.removeprefix(prefix))
        mine = sorted(name for name in names if not name.startswith(_OWN_GROUPS))
        return [known.get(name) or SubscriptionGroup(name) for name in mine]
