"""Consumer: gives an application the messages of its group, each until it is acknowledged.

    with store.consumer("billing", "orders") as consumer:
        for message in consumer:                   # waits for the next; begins where the group stopped
            charge(order_id=int(message.body))
            consumer.ack(message)                  # without it the message comes again: charge() must bear that

A group shares the queues of its topics among all its consumers, in any number of threads and processes. When one
dies, the others have its queues within a second, from its lowest unacknowledged message on. So a message is delivered
at least once; `process` makes it once, in the application's own database transaction.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from broker.consuming.arguments import check_consumer_names, check_consumer_options, check_received, check_retry
from broker.consuming.consumer_worker import ConsumerWorker
from broker.consuming.group.leases import Leases
from broker.consuming.group.membership import Membership
from broker.consuming.group.positions import Positions, Start
from broker.consuming.reading import readable_end
from broker.consuming.redelivery import RETRIES_MAX, record_of, sent_back
from broker.consuming.tags import Selection
from broker.errors import StoreError
from broker.format.topics import DELAYS_MS, SCHEDULE_TOPIC, retry_topic
from broker.message import ReceivedMessage
from broker.receiving import Receiver

if TYPE_CHECKING:
    from broker.database.dedup import Processed
    from broker.writable_store import WritableStore

ACK_TIMEOUT_S = 900.0  # RocketMQ: consumeTimeout, 15 minutes
_SUSPEND_MS = 1000  # RocketMQ: suspendCurrentQueueTimeMillis


class Consumer(Receiver):
    """One member of a consumer group. Threads share it; a forked child opens its own. Close it, or use `with`.

    Until then its queues are its own. One that nobody refers to any more leaves its group, and logs a warning.
    After `close`, in a forked child, and when its background thread failed, each call raises StoreError.
    """

    def __init__(
        self,
        store: WritableStore,
        group: str,
        topic: str | Sequence[str],
        *,
        tags: str = "*",
        ordered: bool = False,
        start: str | int | datetime = "first",
        max_retries: int = RETRIES_MAX,
        retry_delay_level: int | None = None,
        retries_first: bool = False,
        ack_timeout_s: float = ACK_TIMEOUT_S,
        processed: Processed | None = None,
    ) -> None:
        """See `LiveStore.consumer`."""
        super().__init__(group, processed)
        self.ordered: bool = ordered
        """Whether each queue is handed out one message at a time."""
        self.topics: tuple[str, ...] = check_consumer_names(group, topic)
        """The topics that it asked for; the group's retries come besides."""
        check_consumer_options(
            ordered=ordered, retries_first=retries_first, max_retries=max_retries,
            retry_delay_level=retry_delay_level, ack_timeout_s=ack_timeout_s,
        )  # fmt: skip
        self._store, self._max_retries = store, max_retries
        self._retry_delay_level = retry_delay_level
        selection, begin = Selection.parse(tags), Start.parse(start)
        self._pid = os.getpid()
        self._make_topic(retry_topic(group))
        with contextlib.ExitStack() as undone:  # a member that stays behind would have queues that nobody reads
            self._positions = Positions(store)
            undone.callback(self._positions.close)
            for one in self.topics:
                self._positions.begin(group, one, begin)
            self._positions.begin(group, retry_topic(group), Start())
            consumed = (*self.topics, retry_topic(group))
            self._member = Membership(self._positions.cells, group, consumed)
            undone.callback(self._member.leave)
            self._leases = Leases(
                store, self._positions, self._member, group, consumed, selection=selection, ordered=ordered,
                retries_first=retries_first,
            )  # fmt: skip
            undone.callback(self._leases.release)
            self._keeper = ConsumerWorker(
                store, self._positions, self._member, self._leases, ack_timeout_s=ack_timeout_s,
                send_back=weakref.WeakMethod(self.retry),
            )  # fmt: skip
            self._keeper.start()
            undone.pop_all()

    def __repr__(self) -> str:
        return f"<broker.Consumer {self.group!r} of {', '.join(self.topics)}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self._store.__reduce__()  # which says that it goes to no other process

    # Receive

    def receive_now(self) -> ReceivedMessage | None:
        """The next message, without waiting; None when there is none.

        Raises CorruptStore when it cannot be read, StoreError as all calls.
        """
        self._check()
        try:
            return self._leases.take(readable_end(self._store))
        except ValueError as error:  # a map that was closed under us
            raise StoreError(f"{self._store.path} was closed before its consumer: {error}") from error

    # Say what became of a message

    def ack(self, message: ReceivedMessage) -> bool:
        """Acknowledge a message: it is done, and the group never gets it again.

        False when it is not in this consumer's hands any more, because it held it for too long or the position was
        reset: then it comes again, here or elsewhere. Raises BrokerError for what is not a message that was received,
        TransactionError in the block of its `process`, StoreError as all calls.
        """
        self._check()
        check_received("ack", message)
        self._in_process.check_ack(message)
        return self._leases.acknowledge(message.commitlog_offset)

    def retry(
        self,
        message: ReceivedMessage,
        delay_level: int | None = None,
        *,
        delay_s: float | None = None,
        reason: str | BaseException = "",
    ) -> bool:
        """Give a message back that could not be processed: the group gets it again later.

        By default after 10 s, 30 s, 1 min … 2 h, or as the consumer's `retry_delay_level` says; after `max_retries`
        times it goes to the dead letters of the group (`checkback dlq`), with the first 500 characters of `reason`,
        which is text or an exception.
        `delay_level` is one of RocketMQ's 18 levels (1: 1 s, 3: 10 s … 18: 2 h), 0 for at once, -1: dead letters;
        `delay_s`, in seconds, is a delay of any length instead. An ordered consumer keeps the message before all that
        follow it, pauses its queue for `delay_s`, by default a second, and hands it out again; only -1 takes it out of
        the way. False as for `ack`. Raises BrokerError for arguments that are out of range, StoreFull,
        SyncFailed, StoreError as all calls: then it comes again at the latest when `ack_timeout_s` is over.
        RocketMQ: DefaultMQPushConsumerImpl.sendMessageBack (5.3.3).
        """
        self._check()
        text = check_retry(message, delay_level, delay_s, reason)
        delay_ms = None if delay_s is None else int(delay_s * 1000)
        if self.ordered and (delay_level is None or delay_level >= 0):
            return self._leases.again(message.commitlog_offset, _SUSPEND_MS if delay_ms is None else delay_ms)
        with self._leases.sending_back(message.commitlog_offset) as is_ours:
            if not is_ours:
                return False
            if delay_level is None and delay_ms is None:
                delay_level = self._retry_delay_level
            record = self._store.commitlog.read(message.commitlog_offset) or record_of(message)
            made = sent_back(
                record, self.group, delay_level=delay_level, retries_max=self._max_retries, delay_ms=delay_ms,
                now_ms=self._store.writer.clock.now_ms(), reason=text,
            )  # fmt: skip
            self._make_topic(made.topic)
            self._store.writer.append([made])
        return self._leases.acknowledge(message.commitlog_offset, was_sent_back=True)

    # Where it stands

    @property
    def queues(self) -> list[tuple[str, int]]:
        """The queues that are this consumer's now: (topic, queue id from 0)."""
        return self._leases.queues

    def positions(self) -> dict[tuple[str, int], int]:
        """By (topic, queue id), for all queues of the group, the queue offset of the lowest message that is not
        acknowledged, from 0. Raises StoreError as all calls."""
        self._check()
        cells = self._positions.cells
        return {
            (topic, queue_id): cells.position(cell)
            for cell, (group, topic, queue_id) in cells.all()
            if group == self.group and queue_id >= 0
        }

    # The end

    def close(self) -> None:
        """Give the queues back to the group and write the positions. Closing twice is not an error."""
        if not self._closed.is_set():
            self._closed.set()
            if self._pid == os.getpid():
                self._positions.cells.lock.give_back()  # what an interrupt left: the worker may wait for it
                self._keeper.stop()
                self._keeper.leave()

    def _check(self) -> None:
        if self._pid != os.getpid():
            text = f"the consumer of group {self.group} belongs to process {self._pid}, of which this one was forked"
            raise StoreError(f"{text}: open the store and the consumer here", path=self._store.path)
        if self._closed.is_set():
            raise StoreError(f"the consumer of group {self.group} was closed", path=self._store.path)
        if self._keeper.failure is not None:
            raise self._keeper.failure

    def _make_topic(self, topic: str) -> None:
        """RocketMQ makes a group's retry topic when a consumer registers, the others when they are needed."""
        if self._store.topic(topic) is None:
            queues = len(DELAYS_MS) if topic == SCHEDULE_TOPIC else 1
            self._store.create_topic(topic, queues=queues, message_type="", change=False)
