"""WritableStore: a store that is open for writing: sends, topics, transactions, and reads of what is durable.

`LiveStore`, which applications open, adds producers, consumers and retention; these take a `WritableStore`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from broker.errors import MessageRejected
from broker.format.commitlog import Record
from broker.format.config import TopicConfig
from broker.message import Message
from broker.store.disk.files import Disk
from broker.store.disk.paths import path_of_store
from broker.store.engines import ENGINES
from broker.store.read.detect import check_place
from broker.store.read.kinds.every_queue import AnyQueue
from broker.store.read.layout import StoreLayout
from broker.store.read.store import Store
from broker.store.shared.control import Word
from broker.store.shared.topicfile import DEFAULT_QUEUES, TopicFile, new_topic
from broker.store.write.admission import Admission
from broker.store.write.compose import Origin, compose, compose_batch
from broker.store.write.pending_record import Appended
from broker.store.writer import open_writer
from broker.transaction.backpressure import InDoubtLimit
from broker.transaction.foreign import check_may_write
from broker.transaction.loading import load_service
from broker.transaction.service import TransactionalMessageBridge, TransactionalMessageService


class WritableStore(Store):
    """A store, open for reading and writing. Threads may share it, other processes may have it open too.

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
        in_doubt_max: int | None = None,
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
            self.writer.parts.also_forget.append(self._directory.files.forget_removed)
            self._admission = Admission(
                topics, self.writer.append_lock, role=role, reject_transactions=reject_transactions
            )
            bridge = TransactionalMessageBridge(self, self.writer, self._admission)
            service = self.writer.dispatcher.engine.name if transactions is None else transactions
            self.transactions: TransactionalMessageService = load_service(service, bridge)
            self.transactions.open()
            if in_doubt_max is not None:
                self._admission.limit = InDoubtLimit(in_doubt_max, self._in_doubt, path)
        except BaseException:
            self.writer.close()
            raise

    def close(self) -> None:
        """Release the store; the last process to do so flushes everything to disk. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            self.transactions.close()
            self.writer.close()
            super().close()

    def _in_doubt(self) -> int:
        """How many transactions wait for check-back; parked ones wait for a person and do not count."""
        return len(self.transactions.in_doubt_slots()) - len(self.transactions.parked())

    # Send

    def append(
        self,
        message: Message,
        *,
        queue_id: int = 0,
        extra_properties: Mapping[str, str] | None = None,
        origin: Origin | None = None,
        wait: bool = True,
    ) -> Appended:
        """Append a message; as durable as the sync mode says when this returns.

        `extra_properties` may have names that are RocketMQ's own: DELAY, the sharding key, a UNIQ_KEY that is kept.
        `origin` says who sent a message that comes from elsewhere. Without `wait` it need not be durable yet: call
        `store.writer.settle` before anything rests on it. Raises MessageRejected, NotPermitted, StoreFull, SyncFailed;
        then nothing was written, except after SyncFailed.
        """
        size_max = self.writer.layout.record_bytes_max
        composed = compose(
            message, self._admission, queue_id=queue_id, size_max=size_max, extra=extra_properties, origin=origin
        )
        return self.writer.append_one(composed.record, wait=wait)

    def append_batch(
        self,
        messages: Sequence[Message],
        *,
        queue_id: int = 0,
        extra_properties: Sequence[Mapping[str, str]] = (),
        origin: Origin | None = None,
        wait: bool = True,
    ) -> list[Appended]:
        """Append messages of one topic to one queue: all of them or none, one behind the other.

        `extra_properties`, if there are any, are those of each message; then none gets a unique key of its own.
        Raises MessageRejected when RocketMQ would not take them together, or when they do not fit in one segment.
        """
        size_max = self.writer.layout.record_bytes_max
        drafts = compose_batch(
            messages, self._admission, queue_id=queue_id, size_max=size_max, extra=extra_properties, origin=origin
        )
        return self.writer.append(drafts, wait=wait)

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

    def delete_topic(self, name: str) -> None:
        """Remove a topic's configuration; its messages stay until retention, its queues go on if it comes back.

        Raises NotPermitted. RocketMQ: TopicConfigManager.deleteTopicConfig (5.3.3).
        """
        self._admission.check_role()
        with self.writer.append_lock:
            self._admission.topics.remove(name, time.time_ns() // 1_000_000)

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
        if words[Word.DISPATCHED] != words[Word.TAIL]:  # the process that published was killed, or is not done
            with self.writer.append_lock:
                self.writer.appender.heal()
        return self.writer.queue_end(topic, queue_id)

    def sync_now(self) -> None:
        """Flush everything that is published. Raises SyncFailed."""
        self.writer.sync_now()

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
    def _is_beyond(queue: AnyQueue, queue_offset: int, visible: int) -> bool:
        unit = queue.get(queue_offset)
        return unit is None or unit.commitlog_offset >= visible

    def _record_of(self, queue: AnyQueue, queue_offset: int) -> Record | None:
        unit = queue.get(queue_offset)
        if unit is None or unit.commitlog_offset >= self.visible_end:
            return None
        return super()._record_of(queue, queue_offset)
