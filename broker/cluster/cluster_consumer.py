"""ClusterConsumer: one member of a consumer group of a cluster, with the interface of `broker.Consumer`.

A message is delivered at least once: after a kill, the group has it again from the position that its broker knows,
which is written every second and when the consumer is closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from broker.cluster.membership.group_member import GroupMember
from broker.cluster.membership.holdings import Holdings
from broker.cluster.network.client import ClusterClient
from broker.cluster.network.event_loop import LoopThread
from broker.cluster.network.settings import ClientSettings
from broker.consuming.arguments import check_consumer_names, check_consumer_options, check_received, check_retry
from broker.consuming.group.positions import Start
from broker.consuming.tags import Selection
from broker.errors import BrokerError, ClusterError, MessageRejected, NotInCluster, NotPermitted
from broker.format.topics import retry_topic
from broker.log_fields import event
from broker.message import ReceivedMessage
from broker.receiving import Receiver
from broker.remoting.bodies import ConsumerData, MessageQueue, SubscriptionData

if TYPE_CHECKING:
    from broker.database.dedup import Processed

_log = logging.getLogger("broker")
_SUSPEND_S = 1.0  # RocketMQ: suspendCurrentQueueTimeMillis
_BACK_FAILED_S = 5.0  # RocketMQ: ConsumeMessageConcurrentlyService.submitConsumeRequestLater
_WAIT_S = 0.02
_NOT_AT_ONCE = "a cluster has no retry at once: {} is 1 (1 s) at least, or None, or -1"
_FROM = {
    "first": "CONSUME_FROM_FIRST_OFFSET",
    "last": "CONSUME_FROM_LAST_OFFSET",
    "time": "CONSUME_FROM_TIMESTAMP",
}


class ClusterConsumer(Receiver):
    """One member of a consumer group of a cluster. Threads share it; a forked child connects again.

    Close it, or use `with`. After `close`, and in a forked child, each call raises ClusterError.
    RocketMQ: DefaultMQPushConsumerImpl (5.3.3).
    """

    def __init__(
        self,
        settings: ClientSettings,
        loop: LoopThread,
        group: str,
        topic: str | Sequence[str],
        *,
        tags: str = "*",
        ordered: bool = False,
        start: str | int | datetime = "first",
        max_retries: int = 16,
        retry_delay_level: int | None = None,
        retries_first: bool = False,
        ack_timeout_s: float = 900.0,
        processed: Processed | None = None,
        on_close: Callable[[ClusterConsumer], None] = lambda _: None,
    ) -> None:
        """See `LiveCluster.consumer`. Raises NotInCluster for a retry at once."""
        super().__init__(group, processed)
        self.ordered, self.topics = ordered, check_consumer_names(group, topic)
        check_consumer_options(
            ordered=ordered, retries_first=retries_first, max_retries=max_retries,
            retry_delay_level=retry_delay_level, ack_timeout_s=ack_timeout_s,
        )  # fmt: skip
        if retry_delay_level == 0 and not ordered:
            raise NotInCluster(_NOT_AT_ONCE.format("retry_delay_level"))
        selection, begin = Selection.parse(tags), Start.parse(start)
        self._loop, self._on_close, self._pid = loop, on_close, os.getpid()
        self._max_retries, self._retry_delay_level = max_retries, retry_delay_level
        self._holdings = Holdings(ordered=ordered, retries_first=retries_first)
        self._client = ClusterClient(settings, loop)
        wanted = [_subscription(one, tags, selection) for one in self.topics]
        wanted.append(_subscription(retry_topic(group), "*", Selection()))
        data = ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", _FROM[begin.word], tuple(wanted))
        self._member = GroupMember(
            self._client, self._holdings, data, selection=selection, start=begin, ordered=ordered,
            ack_timeout_s=ack_timeout_s, send_back=self.retry,
        )  # fmt: skip
        try:
            loop.run(self._member.join())
        except BaseException:
            self._on_close = lambda _: None
            with contextlib.suppress(BrokerError):
                self.close()
            raise

    def __repr__(self) -> str:
        return f"<broker.ClusterConsumer {self.group!r} of {', '.join(self.topics)}>"

    def receive_now(self) -> ReceivedMessage | None:
        """The next message that was pulled, without waiting; None when there is none."""
        self._check()
        return self._holdings.take()

    def _pause(self, seconds: float) -> None:
        self._holdings.wait(max(seconds, _WAIT_S))

    def ack(self, message: ReceivedMessage) -> bool:
        """Acknowledge a message: it is done, and the group does not get it again, unless this process is killed within
        a second.

        False when it is not in this consumer's hands any more: its queue is another member's, or it held it too long.
        Raises BrokerError for what is not a message that was received, TransactionError in the block of its `process`.
        """
        self._check()
        check_received("ack", message)
        self._in_process.check_ack(message)
        return self._holdings.acknowledge(message)

    def retry(
        self,
        message: ReceivedMessage,
        delay_level: int | None = None,
        *,
        delay_s: float | None = None,
        reason: str | BaseException = "",
    ) -> bool:
        """Give a message back that could not be processed: the group gets it again later.

        By default after 10 s, 30 s, 1 min … 2 h, by the broker's table, or as `retry_delay_level` says; after
        `max_retries` times it goes to the dead letters of the group. `delay_level` is one of the broker's levels from 1
        on, -1 for the dead letters; a cluster has no 0 for at once. An ordered consumer keeps it before all that follow
        it and hands it out again after `delay_s`, by default a second. False as for `ack`. Where its broker does not
        take it back (removed by retention, of a batch in one record, read-only) or cannot be reached, a copy goes to
        the group's retry topic; where no broker takes that, too, it comes again here, after 5 s. Raises BrokerError for
        arguments that are out of range, NotInCluster for level 0, and for a `delay_s` or a `reason` that would have to
        be kept by a broker.
        RocketMQ: DefaultMQPushConsumerImpl.sendMessageBack (5.3.3).
        """
        self._check()
        text = check_retry(message, delay_level, delay_s, reason)
        level = self._retry_delay_level if delay_level is None else delay_level
        if self.ordered and (level is None or level >= 0):
            return self._holdings.again(message, _SUSPEND_S if delay_s is None else delay_s)
        if level == 0:
            raise NotInCluster(_NOT_AT_ONCE.format("delay_level"))
        if delay_s is not None:
            raise NotInCluster("a broker delays by its levels: retry(message, delay_level), not delay_s")
        if text:
            raise NotInCluster("a broker keeps no reason with a dead letter: leave it out, and log it")
        queue = self._holdings.queue_of(message)
        if queue is None:
            return False
        try:
            self._loop.run(self._sent_back(message, queue, level or 0))
        except (ClusterError, NotPermitted, MessageRejected) as error:
            _log.warning(
                "group %s: %s could not be sent back, and comes again here: %s",
                self.group,
                message.message_id,
                error,
                extra=event("delayed-waits", group=self.group, topic=message.topic),
            )
            return self._holdings.again(message, _BACK_FAILED_S)
        return self._holdings.acknowledge(message)

    async def _sent_back(self, message: ReceivedMessage, queue: MessageQueue, level: int) -> None:
        """Have its broker copy a message to the retries; else send the copy. Raises the first failure where both fail.

        What may be there already, for only the answer was lost, is not sent a second time.
        """
        calls = self._member.calls
        try:
            await calls.send_back(message, queue, level, self._max_retries)
        except (ClusterError, NotPermitted, MessageRejected) as error:
            if isinstance(error, ClusterError) and error.code is None and error.was_sent:
                raise
            try:
                await calls.send_copy_back(message, level, self._max_retries)
            except (ClusterError, NotPermitted, MessageRejected):
                raise error from None

    # Where it stands

    @property
    def queues(self) -> list[tuple[str, int, str]]:
        """The queues that are this consumer's now: (topic, queue id from 0, broker name), sorted."""
        return sorted((one.queue.topic, one.queue.queue_id, one.queue.broker_name) for one in self._holdings.held)

    def positions(self) -> dict[tuple[str, int, str], int]:
        """By (topic, queue id, broker name), for the queues of this consumer, the queue offset of the lowest message
        that is not acknowledged, from 0."""
        return {
            (one.queue.topic, one.queue.queue_id, one.queue.broker_name): one.window.position
            for one in self._holdings.held
        }

    # The end

    def close(self) -> None:
        """Give the queues back to the group and write the positions. Closing twice is not an error."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._holdings.wake()
        if self._pid == os.getpid():
            self._on_close(self)
            if not self._loop.is_closed:
                self._loop.run(self._member.leave())

    def _check(self) -> None:
        if self._closed.is_set():
            raise ClusterError(f"the consumer of group {self.group} was closed")
        self._loop.check()


def _subscription(topic: str, tags: str, selection: Selection) -> SubscriptionData:
    return SubscriptionData(
        topic, tags.strip() or "*", "TAG", time.time_ns() // 1_000_000, tuple(sorted(selection.tags)),
        tuple(sorted(selection.codes)),
    )  # fmt: skip
