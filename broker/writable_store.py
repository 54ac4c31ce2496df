"""WritableStore: a store that is open for writing: sends, topics, transactions, and reads of what is durable.

`LiveStore`, which applications open, adds producers, consumers and retention; these take a `WritableStore`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from broker.errors import BrokerError, MessageRejected, shown
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.config import DEFAULT_QUEUES, TopicConfig, new_topic
from broker.format.topics import check_topic_name
from broker.message import Message
from broker.store.disk.files import Disk
from broker.store.engines import ENGINES
from broker.store.read.detect import check_place
from broker.store.read.kinds.every_queue import AnyQueue
from broker.store.read.layout import StoreLayout
from broker.store.read.store import Store, check_queue, check_whole
from broker.store.shared.control import Word
from broker.store.shared.topicfile import TopicFile
from broker.store.write.admission import DELAYS, NOT_PLAIN, Admission
from broker.store.write.compose import (
    KEPT_FLAGS,
    Origin,
    Statement,
    check_arguments,
    compose,
    compose_batch,
    compose_stated,
)
from broker.store.write.pending_record import Appended
from broker.store.write.uniquekey import new_unique_key
from broker.store.writer import StoreWriter, open_writer
from broker.transaction.backpressure import InDoubtLimit
from broker.transaction.foreign import check_may_write
from broker.transaction.loading import load_service
from broker.transaction.service import TransactionalMessageBridge, TransactionalMessageService


class StoreOptions(TypedDict, total=False):
    """The options of a WritableStore by name; the defaults are its own."""

    sync: str
    layout: StoreLayout | None
    role: str
    reject_transactions: bool
    transactions: str | None
    create: bool
    in_doubt_max: int | None


class WritableStore(Store):
    """A store, open for reading and writing. Threads may share it, other processes may have it open too.

    Readers see what is durable: in the sync modes `each` and `group` a power cut takes back nothing that was seen.
    The arguments and the errors are those of `broker.open`.
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
        check_place(path, disk, create=create)
        check_may_write(path, disk)
        topics = TopicFile(path, disk)
        is_engine = transactions in ENGINES
        self.writer: StoreWriter = open_writer(
            path, disk, layout, sync, transactions=transactions if is_engine else None
        )
        """This process's hold on the store: appends, fsync, background tasks."""
        self._is_open = True
        try:
            super().__init__(path, disk)
            self.writer.parts.also_forget.append(self._directory.files.forget_removed)
            self._admission = Admission(
                topics,
                self.writer.append_lock,
                self.writer.clock,
                role=role,
                reject_transactions=reject_transactions,
            )
            bridge = TransactionalMessageBridge(self, self.writer, self._admission)
            service = self.writer.dispatcher.engine.name if transactions is None else transactions
            self.transactions: TransactionalMessageService = load_service(service, bridge)
            """The transactions of the store: prepare, commit, rollback, what is in doubt."""
            self.transactions.open()
            if in_doubt_max is not None:
                self._admission.limit = InDoubtLimit(in_doubt_max, self._in_doubt, path)
        except BaseException:
            self.writer.close()
            raise

    def close(self) -> None:
        """Release the store; the last process to do so flushes everything to disk. A second call does nothing.

        Raises SyncFailed, StoreFull when that fails: the next open recovers.
        """
        if self._is_open:
            self._is_open = False
            self.transactions.close()
            try:
                self.writer.close()
            finally:
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
        is_copy: bool = False,
    ) -> Appended:
        """Append a message to a queue (from 0) of its topic, which is made if it is new.

        The message is as durable as the sync mode says when this returns. `extra_properties` may have names that are
        RocketMQ's own: DELAY, the sharding key, a UNIQ_KEY that is kept. `origin` says who sent a message that comes
        from elsewhere; None: this process, now. Without `wait` it need not be durable yet: call `store.writer.settle`
        before anything rests on it. `is_copy`: it repeats a message that consumers got, so it is stored as a plain one,
        whatever type of message its topic takes from producers.

        Returns the `commitlog_offset`, `queue_offset`, `size` in bytes and `store_timestamp_ms` of the record. Raises
        MessageRejected for what the topic, the queue or a segment does not take; NotPermitted in a slave and for a
        topic that may not be written; StoreFull without room; StoreError for a store that was closed, lost files or
        failed an fsync before: then nothing was written. Raises SyncFailed when its fsync failed: it may be there.
        RocketMQ: CommitLog.asyncPutMessage (5.3.3).
        """
        try:
            placed = self._send_at_once(message, queue_id, extra_properties, origin)
        except BrokerError:
            raise
        except Exception:
            check_arguments(message, queue_id, extra_properties, origin)
            raise
        if placed is None:
            composed = compose(
                message, self._admission, queue_id=queue_id, size_max=self.writer.layout.record_bytes_max,
                extra=extra_properties, origin=origin, is_copy=is_copy,
            )  # fmt: skip
            return self.writer.append_one(composed.record, wait=wait)
        if wait:
            self.writer.settle_one(placed)
        return placed

    def _send_at_once(
        self, message: Message, queue_id: int, extra: Mapping[str, str] | None, origin: Origin | None
    ) -> Appended | None:
        """A message in the log by the C module, which waits for no lock; None where it stored nothing.

        It takes what its topic lets in without a closer look, and what has no order and no delay.
        """
        now_ms = time.time_ns() // 1_000_000
        if type(message) is not Message or not self._admission.takes_plain(message.topic, queue_id, now_ms):
            return None
        if names.SHARDING_KEY in message.properties or (extra and not NOT_PLAIN.isdisjoint(extra)):
            return None
        if origin is not None and origin.sys_flag & ~KEPT_FLAGS:
            return None
        key = (extra and extra.get(names.UNIQ_KEY)) or new_unique_key(now_ms)
        born_ms = now_ms if origin is None else origin.born_timestamp_ms
        if not self.writer.upkeep.runs[0]:
            self.writer.upkeep.start()
        return self.writer.appender.compiled_send(message.__dict__, extra, key, queue_id, born_ms, origin)

    def append_at_once(
        self, message: Message, *, queue_id: int, extra_properties: Mapping[str, str], origin: Origin
    ) -> Appended | None:
        """`append` to a topic that is there, for an event loop, without `wait`: it waits for no lock of the store.

        None, and nothing stored, where it would have to, and for a delayed message. Raises what `append` raises.
        """
        if not DELAYS.isdisjoint(extra_properties):  # the schedule topic may have to be made
            return None
        size_max = self.writer.layout.record_bytes_max
        composed = compose(
            message, self._admission, queue_id=queue_id, size_max=size_max, extra=extra_properties, origin=origin
        )
        return self.writer.append_at_once(composed.record)

    def append_stated_at_once(
        self, topic: str, body: bytes, properties: dict[str, str], *, queue_id: int, origin: Origin
    ) -> Appended | None:
        """`append_at_once` of a checked message whose record will have exactly these properties, none of which delays.

        None, and nothing stored, where it would have to wait. Raises what `append` raises.
        """
        statement = Statement(properties, 0, time.time_ns() // 1_000_000)
        size_max, admission = self.writer.layout.record_bytes_max, self._admission
        composed = compose_stated(
            topic, body, statement, admission, queue_id=queue_id, size_max=size_max, origin=origin
        )
        return self.writer.append_at_once(composed.record)

    def append_batch(
        self,
        messages: Sequence[Message],
        *,
        queue_id: int = 0,
        extra_properties: Sequence[Mapping[str, str]] = (),
        origin: Origin | None = None,
        flags: Sequence[int] = (),
        wait: bool = True,
    ) -> list[Appended]:
        """Append messages of one topic to one queue (from 0): all of them or none, one behind the other.

        `extra_properties`, if there are any, are those of each message; then none gets a unique key of its own.
        `origin` and `wait` are those of `append`; `flags`, if there are any, are those of each message, in place of the
        origin's. Returns a place for each, in their order. Raises MessageRejected when RocketMQ would not take them
        together (none, several topics, a delay, more than 4 MiB of bodies), or when they do not fit in one segment;
        else what `append` raises. RocketMQ: MessageExtEncoder.encode of a batch (5.3.3).
        """
        size_max = self.writer.layout.record_bytes_max
        drafts = compose_batch(
            messages, self._admission, queue_id=queue_id, size_max=size_max, extra=extra_properties, origin=origin,
            flags=flags,
        )  # fmt: skip
        return self.writer.append(drafts, wait=wait)

    # Topics

    def topic(self, name: str) -> TopicConfig | None:
        """A topic's configuration (config/topics.json); None when there is no such topic.

        The first message to a topic makes it, with 4 queues and no type: it takes every message until `create_topic`
        says more. What another process changed is seen within a second. Raises CorruptRecord when the file does not
        parse.
        """
        try:
            return self._admission.topics.get(name, time.time_ns() // 1_000_000)
        except TypeError:
            check_topic_name(name)  # a list, for one
            raise

    def topics_are_current(self) -> bool:
        """Whether `topic` now answers without reading a file again, which an event loop does not wait for."""
        return self._admission.topics.is_current(time.time_ns() // 1_000_000)

    def create_topic(
        self,
        name: str,
        *,
        queues: int = DEFAULT_QUEUES,
        message_type: str = "NORMAL",
        perm: int = 6,
        write_queues: int | None = None,
        change: bool = True,
    ) -> TopicConfig:
        """Create a topic, or change one: how many queues it has, and which messages it takes. Returns what it is then.

        `message_type` is NORMAL, FIFO, DELAY, TRANSACTION or MIXED (all of them); empty: none, it takes all. `perm` is
        the sum of 4 (read) and 2 (write). The first `write_queues` queues take messages, the others are only read, as
        before they go; None: all of them do. Without `change` a topic that is there, perhaps since another process
        made it a moment ago, stays as it is. Raises MessageRejected for a name, a number or a type that is not one, and
        where a queue that would go holds messages; NotPermitted in a slave; CorruptRecord when config/topics.json does
        not parse; StoreFull. RocketMQ: UpdateTopicSubCommand, TopicConfigManager.updateTopicConfig (5.3.3).
        """
        self._admission.check_role()
        made, now_ms = new_topic(name, queues, message_type, perm, write_queues), time.time_ns() // 1_000_000
        with self.writer.append_lock:
            if not change:
                self._admission.topics.look(now_ms)
                if (found := self._admission.topics.get(name, now_ms)) is not None:
                    return found
            self._check_fewer_queues(name, queues)
            self._admission.topics.put(made, now_ms)
        return made

    def delete_topic(self, name: str) -> None:
        """Remove a topic's configuration; its messages stay until retention, its queues go on if it comes back.

        A name that is not there changes nothing. Raises MessageRejected for what is not text, NotPermitted in a slave,
        CorruptRecord when config/topics.json does not parse, StoreFull. RocketMQ:
        TopicConfigManager.deleteTopicConfig (5.3.3).
        """
        self._admission.check_role()
        if not isinstance(name, str):
            raise MessageRejected(f"the name of a topic is text, not {shown(name)}")
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
        """The CommitLog offset below which readers see records: what is durable, in mode `os` what is published."""
        return self.writer.visible_end

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message of a queue gets; 0 for a queue that is not there.

        Finishes what a killed process published: raises StoreError when it cannot, since an fsync failed before.
        """
        words = self.writer.control
        if words[Word.DISPATCHED] != words[Word.TAIL]:  # the process that published was killed, or is not done
            with self.writer.append_lock:
                self.writer.appender.heal()
        try:
            return self.writer.queue_end(topic, queue_id)
        except TypeError:
            check_queue(topic, queue_id)  # a list, for one
            raise

    def sync_now(self) -> None:
        """Flush everything that is published, in every sync mode.

        Raises SyncFailed, from then on always; StoreError when files of the store were deleted or cut.
        """
        self.writer.sync_now()

    # Read no further than what is durable

    @property
    def end_offset(self) -> int:
        """The CommitLog offset where the log ends for readers: `visible_end`."""
        return self.visible_end

    def records(self, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        """The records in start <= CommitLog offset < end, up to what is durable. Raises as `Store.records`."""
        if end is not None:
            check_whole("end", end)
        visible = self.visible_end
        return super().records(start, visible if end is None else min(end, visible))

    def record(self, commitlog_offset: int) -> Record | None:
        """The record that begins at an offset; None also for what is not yet durable. Raises as `Store.record`."""
        check_whole("commitlog_offset", commitlog_offset)
        return super().record(commitlog_offset) if commitlog_offset < self.visible_end else None

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min, max) of queue offsets, up to what is durable. See `Store.queue_range`."""
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
