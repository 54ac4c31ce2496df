"""LiveStore: a store that is open for writing. Everything that `Store` reads, and sends, topics and transactions.

    with broker.open("shop.store") as store:
        store.append(broker.Message("orders", b"paid"))
        half = store.transactions.prepare(broker.Message("orders", b"created"), "shop")
        store.transactions.commit(half)

Threads share it, other processes open the same store, and each may be killed at any instant.
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.errors import BrokerError, MessageRejected
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.config import TopicConfig
from broker.message import Message
from broker.retainer import Retainer, RetentionReport
from broker.store.disk.files import Disk
from broker.store.disk.paths import path_of_store
from broker.store.engines import ENGINES
from broker.store.engines.half_op import HALF_OP
from broker.store.maintain.removal import keep_reserve
from broker.store.maintain.retention import Retention
from broker.store.maintain.retention_registry import read_history
from broker.store.read.consumequeue import ConsumeQueue
from broker.store.read.detect import check_place
from broker.store.read.layout import StoreLayout
from broker.store.read.store import Store
from broker.store.write.admission import Admission, check_batch
from broker.store.write.compose import compose
from broker.store.write.control import Word
from broker.store.write.pending_record import Appended, PendingRecord, check_size, draft
from broker.store.write.topicfile import DEFAULT_QUEUES, TopicFile, new_topic
from broker.store.write.uniquekey import new_unique_key
from broker.store.writer import open_writer
from broker.transaction.foreign import check_may_write
from broker.transaction.loading import load_service
from broker.transaction.service import Bridge, TransactionalMessageService

if TYPE_CHECKING:
    from datetime import datetime

    from broker.consumer import Consumer
    from broker.dedup import Processed
    from broker.ledger import Ledger
    from broker.producer import Producer


class LiveStore(Store):
    """A store, open for reading and writing. Close it, or use it in a `with` statement; threads may share it.

    Readers see what is durable: in the sync modes `each` and `group` a power cut takes back nothing that was seen.
    """

    def __init__(
        self,
        path: str,
        disk: Disk,
        *,
        sync: str = "group",
        layout: StoreLayout | None = None,
        role: str = "master",
        reject_transactions: bool = False,
        transactions: str | None = None,
        create: bool = True,
        retention: Retention | None = None,
    ) -> None:
        path = path_of_store(path)
        check_place(path, disk, create=create)
        check_may_write(path, disk)
        topics = TopicFile(path, disk)
        is_engine = transactions in ENGINES
        self.writer = open_writer(path, disk, layout, sync, transactions=transactions if is_engine else None)
        self._is_open = True
        try:
            super().__init__(path, disk)
            self.writer.parts.also_forget.append(self._folder.files.forget_removed)
            self._admission = Admission(
                topics, self.writer.append_lock, role=role, reject_transactions=reject_transactions
            )
            bridge = Bridge(self, self.writer, self._admission)
            service = self.writer.dispatcher.engine.name if transactions is None else transactions
            self.transactions: TransactionalMessageService = load_service(service, bridge)
            self.transactions.open()
            self._clamp_positions()
            self._retainer = Retainer(self, retention)
            keep_reserve(disk, self.writer.paths)
            if retention is not None:
                self.writer.upkeep.start()  # a process that only consumes removes what is read, too
        except BaseException:
            self.writer.close()
            raise

    def _clamp_positions(self) -> None:
        """After a machine crash a queue may end before a group's position: what is sent now is new to the group."""
        if self.writer.disk.entry(self.writer.paths.consumers) is not None:
            from broker.consuming.positions import Positions

            Positions(self).close()

    def __repr__(self) -> str:
        return f"<broker.LiveStore {self.path!r}, sync={self.writer.sync!r}>"

    def close(self) -> None:
        """Let go of the store; the last process to do so forces everything to disk. Closing twice is no fault."""
        if self._is_open:
            self._is_open = False
            self.transactions.close()
            with contextlib.suppress(BrokerError):  # it saves a broker some reading, and is written again next time
                self.note_check_progress()
            self.writer.close()
            self._retainer.close()
            super().close()

    # Doors

    def producer(
        self, group: str, *, topics: Sequence[str] = (), ledger: Ledger | None = None, resolver: Any = None
    ) -> Producer:
        """What an application sends with; with a ledger or a resolver, together with its local transactions.

        See `broker.producer.Producer`. Raises TransactionError, MessageRejected.
        """
        from broker.producer import Producer

        return Producer(self, group, topics=topics, ledger=ledger, resolver=resolver)

    def consumer(
        self,
        group: str,
        topic: str | Sequence[str],
        *,
        tags: str = "*",
        ordered: bool = False,
        start: str | int | datetime = "first",
        max_retries: int = 16,
        retry_delay_level: int | None = None,
        ack_timeout_s: float = 900.0,
        processed: Processed | None = None,
    ) -> Consumer:
        """What an application receives with: one member of a consumer group, which shares the topic's queues.

        `tags` selects ("A || B"); `ordered` hands out each queue one message at a time; `start` says where a group
        begins that is new: first, last or a time. What is not acknowledged in `ack_timeout_s` comes again, and goes to
        the dead letters of the group after `max_retries`. `processed` is the table that `Consumer.process` writes to.
        Raises MessageRejected for a bad name, StoreError when the group consumes other topics elsewhere.
        """
        from broker.consumer import Consumer

        return Consumer(
            self, group, topic, tags=tags, ordered=ordered, start=start, max_retries=max_retries,
            retry_delay_level=retry_delay_level, ack_timeout_s=ack_timeout_s, processed=processed,
        )  # fmt: skip

    # Send

    def append(
        self, message: Message, *, queue_id: int = 0, extra_properties: Mapping[str, str] | None = None
    ) -> Appended:
        """Append a message; as durable as the sync mode says when this returns.

        `extra_properties` may have names that are RocketMQ's own: DELAY, the sharding key, a UNIQ_KEY that is kept.
        Raises MessageRejected, NotPermitted, StoreFull, SyncFailed; then nothing was written, except after SyncFailed.
        """
        size_max = self.writer.layout.record_bytes_max
        composed = compose(message, self._admission, queue_id=queue_id, size_max=size_max, extra=extra_properties)
        return self.writer.append_one(composed.record)

    def append_batch(self, messages: Sequence[Message], *, queue_id: int = 0) -> list[Appended]:
        """Append messages of one topic to one queue: all of them or none, one behind the other.

        Raises MessageRejected when RocketMQ would not take them together, or when they do not fit in one segment.
        """
        check_batch(messages)
        now_ms = time.time_ns() // 1_000_000
        drafts: list[PendingRecord] = []
        for message in messages:
            properties = message.stored_properties
            properties[names.UNIQ_KEY] = new_unique_key(now_ms)
            drafts.append(draft(message.topic, message.body, properties, queue_id=queue_id, born_timestamp_ms=now_ms))
        check_size(sum(one.size for one in drafts), self.writer.layout.record_bytes_max)
        for message in messages:
            self._admission.admit(message.topic, message.properties, queue_id, now_ms)
        return self.writer.append(drafts)

    # Topics

    def topic(self, name: str) -> TopicConfig | None:
        """A topic's configuration; None when there is no such topic.

        The first message to a topic makes it, without a type: it takes every message until `create_topic` says more.
        """
        return self._admission.topics.get(name, time.time_ns() // 1_000_000)

    def create_topic(
        self, name: str, *, queues: int = DEFAULT_QUEUES, message_type: str = "NORMAL", perm: int = 6
    ) -> TopicConfig:
        """Create a topic, or change one: how many queues it has, and which messages it takes.

        `message_type` is NORMAL, FIFO, DELAY, TRANSACTION or MIXED (all of them). Raises MessageRejected, NotPermitted.
        RocketMQ: UpdateTopicSubCommand, TopicConfigManager.updateTopicConfig (5.3.3).
        """
        self._admission.check_role()
        made, now_ms = new_topic(name, queues, message_type, perm), time.time_ns() // 1_000_000
        with self.writer.append_lock:
            self._check_fewer_queues(name, queues)
            self._admission.topics.put(made, now_ms)
        return made

    def _check_fewer_queues(self, name: str, queues: int) -> None:
        """A queue that holds messages cannot go: nobody would read them."""
        held = [queue_id for queue_id in self.queues(name) if queue_id >= queues]
        if held:
            reason = f"queue {held[0]} holds messages, so it needs {max(held) + 1} queues at least"
            raise MessageRejected(f"the topic {name} cannot have {queues} queues: {reason}")

    # Where the log stands

    @property
    def store_id(self) -> str:
        """The id that the store was given when it was made: 32 hexadecimal digits. The ledger's rows carry it."""
        return self.writer.store_id

    @property
    def visible_end(self) -> int:
        """Up to where readers see records: what is durable, in the sync mode `os` what is published."""
        return self.writer.visible_end

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message of a queue gets; 0 for a queue that is not there."""
        words = self.writer.control
        if words[Word.DISPATCHED] != words[Word.TAIL]:  # whoever published was killed, or is at it
            with self.writer.append_lock:
                self.writer.appender.heal()
        return self.writer.queue_end(topic, queue_id)

    def sync_now(self) -> None:
        """Force everything that is published. Raises SyncFailed."""
        self.writer.sync_now()

    def note_check_progress(self) -> None:
        """With the engine half-op, write down for a RocketMQ broker up to where nothing is to be checked any more.

        See `broker.check_progress`. Raises StoreFull, SyncFailed.
        """
        writer = self.writer
        if writer.dispatcher.engine is not HALF_OP or self._admission.is_slave or not writer.control[Word.SLOTS]:
            return
        from broker.check_progress import CheckProgress
        from broker.consuming.positions import Positions

        parked, slot_of = self.transactions.parked(), writer.dispatcher.slot
        pending = self.transactions.in_doubt_slots()
        if parked:
            pending = [slot for slot in pending if slot_of(slot).commitlog_offset not in parked]
        positions = Positions(self)
        try:
            CheckProgress(self.consumequeues, self.queue_end, self.sync_now).write(positions, pending)
        finally:
            positions.close()

    # What is old

    def retain(
        self, retention: Retention | None = None, *, dry_run: bool = False, now_ms: int | None = None
    ) -> RetentionReport:
        """Remove the segments that are due and that nothing pins, now; with `dry_run` only say which.

        By default with the retention that the store was opened with, or the most careful of those of all processes
        that have it open. `now_ms` is by the wall clock if it is not given. Waits for a round in the background. Raises
        BrokerError when there is no retention, StoreError.
        """
        return self._retainer.run(retention, now_ms=now_ms, dry_run=dry_run)

    @property
    def retention(self) -> Retention | None:
        """The retention in effect: the most careful of all processes that have the store open with one."""
        return self._retainer.in_effect()

    def retention_history(self) -> dict[str, Any]:
        """What retention removed so far: segments, bytes, last_ms, and unread messages by group@topic."""
        return read_history(self.writer.disk, self.writer.paths)

    # Read no further than what is durable

    @property
    def end_offset(self) -> int:
        """See `visible_end`."""
        return self.visible_end

    def records(self, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        """As `Store.records`, up to what is durable."""
        visible = self.visible_end
        return super().records(start, visible if end is None else min(end, visible))

    def record(self, commitlog_offset: int) -> Record | None:
        """As `Store.record`; None for what is not yet durable."""
        return super().record(commitlog_offset) if commitlog_offset < self.visible_end else None

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """As `Store.queue_range`, up to what is durable."""
        first, end = super().queue_range(topic, queue_id)
        queue, visible = self.consumequeues.queue(topic, queue_id), self.visible_end
        if queue is None or end == first or not self._is_beyond(queue, end - 1, visible):
            return first, end
        return first, first + bisect_left(
            range(end - first), 1, key=lambda n: self._is_beyond(queue, first + n, visible)
        )

    @staticmethod
    def _is_beyond(queue: ConsumeQueue, queue_offset: int, visible: int) -> bool:
        unit = queue.get(queue_offset)
        return unit is None or unit.commitlog_offset >= visible

    def _record_of(self, queue: ConsumeQueue, queue_offset: int) -> Record | None:
        unit = queue.get(queue_offset)
        if unit is None or unit.commitlog_offset >= self.visible_end:
            return None
        return super()._record_of(queue, queue_offset)


def open_live(
    path: str | os.PathLike[str],
    *,
    disk: Disk | None = None,
    sync: str = "group",
    layout: StoreLayout | None = None,
    role: str = "master",
    reject_transactions: bool = False,
    transactions: str | None = None,
    create: bool = True,
    retention: Retention | None = None,
) -> LiveStore:
    """Open a store for writing, on a disk of one's choice. See `broker.open`."""
    return LiveStore(
        path_of_store(path),
        disk or Disk(),
        sync=sync,
        layout=layout,
        role=role,
        reject_transactions=reject_transactions,
        transactions=transactions,
        create=create,
        retention=retention,
    )
