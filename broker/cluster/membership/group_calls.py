"""What a member of a consumer group asks of brokers: positions, pulls, locks, members, and messages sent back.

RocketMQ: MQClientAPIImpl, RemoteBrokerOffsetStore, PullAPIWrapper, RebalanceImpl (5.3.3).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterable, Iterator

from broker.cluster.membership.holdings import READY_BYTES_MAX
from broker.cluster.network.channels import checked
from broker.cluster.network.client import ClusterClient
from broker.cluster.publishing.sending import Sender
from broker.consuming.group.positions import Start
from broker.consuming.redelivery import as_sent, copied_back
from broker.consuming.tags import Selection
from broker.errors import BrokerError, ClusterError, CorruptRecord
from broker.format.commitlog import Record, decode
from broker.format.record.innerbatch import inner_records
from broker.format.sysflag import INNER_BATCH
from broker.format.topics import RETRY_PREFIX, retry_topic
from broker.message import ReceivedMessage
from broker.remoting.admin_headers import ConsumerGroupRequestHeader
from broker.remoting.bodies import LockBatch, MessageQueue, SubscriptionData, decode_consumer_list, decode_locked
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.message_headers import (
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    ConsumerSendMsgBackRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueOffsetResponseHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from broker.remoting.routes import MASTER

HOLD_MS, PULL_TIMEOUT_S = 15_000, 30.0  # RocketMQ: brokerSuspendMaxTimeMillis, consumerTimeoutMillisWhenSuspend
PULL_MESSAGES = 32
_INNER_PRODUCER = "CLIENT_INNER_PRODUCER"  # RocketMQ: MixAll.CLIENT_INNER_PRODUCER_GROUP
_PULLED = {
    ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}  # fmt: skip


class Pulled:
    """What one pull brought: messages with their queue offsets, where the next pull begins, and the queue's end."""

    def __init__(
        self, messages: list[tuple[int, ReceivedMessage]], next_offset: int, end: int, *, is_moved: bool,
        is_of_master: bool,
    ) -> None:  # fmt: skip
        self.messages, self.next_offset, self.end, self.is_moved = messages, next_offset, end, is_moved
        self.is_of_master = is_of_master


class GroupCalls:
    """The requests of one member of one group. Runs in the event loop; all raise ClusterError."""

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client, self._group = client, group
        self._sender = Sender(client, _INNER_PRODUCER, lambda: time.time_ns() // 1_000_000)
        self._suggested: dict[MessageQueue, int] = {}  # the broker id to pull from

    # Positions

    async def start_offset(self, queue: MessageQueue, start: Start) -> int:
        """Where the group stands in a queue; where it begins there, if it never consumed it.

        That is written down at once: else a consumer that is killed within a second begins later the next time.
        """
        if (known := await self.position(queue)) is not None:
            return known
        address = self._client.routes.master(queue.broker_name)
        if start.word == "time" and not queue.topic.startswith(RETRY_PREFIX):
            search = SearchOffsetRequestHeader(queue.topic, queue.queue_id, start.time_ms)
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            answer = await self._client.channels.request(address, code, search)
        else:
            is_last = start.word == "last" and not queue.topic.startswith(RETRY_PREFIX)
            code = RequestCode.GET_MAX_OFFSET if is_last else RequestCode.GET_MIN_OFFSET
            answer = await self._client.channels.request(address, code, QueueRequestHeader(queue.topic, queue.queue_id))
            if answer.code == ResponseCode.NO_PERMISSION and not is_last:
                return 0  # ACL 2.0: it needs GET, and a pull SUB; that says where the queue begins. Java begins at 0
        begin = max(0, QueueOffsetResponseHeader.decode(checked(answer, code, address).ext).queue_offset)
        if start.word != "first":
            await self.commit(queue, begin)
        return begin

    async def position(self, queue: MessageQueue) -> int | None:
        """Where its broker knows the group in a queue; None where it never was."""
        header = QueryConsumerOffsetRequestHeader(self._group, queue.topic, queue.queue_id, set_zero_if_not_found=False)
        address, code = self._client.routes.master(queue.broker_name), RequestCode.QUERY_CONSUMER_OFFSET
        answer = await self._client.channels.request(address, code, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return QueueOffsetResponseHeader.decode(checked(answer, code, address).ext).queue_offset

    async def commit(self, queue: MessageQueue, position: int) -> None:
        """Write down where the group stands in a queue.

        Java does it one-way, and all of its positions every 5 s: what is lost is written again. Ours are written when
        they change, so each needs its answer.
        """
        header = UpdateConsumerOffsetRequestHeader(self._group, queue.topic, queue.queue_id, position)
        address, code = self._client.routes.master(queue.broker_name), RequestCode.UPDATE_CONSUMER_OFFSET
        checked(await self._client.channels.request(address, code, header), code, address)

    # Pulls

    async def pull(
        self, queue: MessageQueue, queue_offset: int, subscription: SubscriptionData, selection: Selection,
        *, hold_ms: int = HOLD_MS,
    ) -> Pulled:  # fmt: skip
        """The next messages of a queue; waits at the broker until there are some. Raises ClusterError."""
        flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0)
        header = PullMessageRequestHeader(
            self._group, queue.topic, queue.queue_id, queue_offset, PULL_MESSAGES, flags, 0, hold_ms,
            subscription.expression, subscription.sub_version, subscription.expression_type,
        )  # fmt: skip
        address, code = self._pulled_from(queue), RequestCode.PULL_MESSAGE
        limit_s, is_of_master = PULL_TIMEOUT_S if hold_ms else None, self.is_of_master(queue)
        answer = await self._client.channels.request(address, code, header, timeout_s=limit_s)
        if answer.code not in _PULLED:
            checked(answer, code, address)
        ext = PullMessageResponseHeader.decode(answer.ext)
        self._suggested[queue] = ext.suggest_which_broker_id
        messages, next_offset = list[tuple[int, ReceivedMessage]](), ext.next_begin_offset
        if answer.code == ResponseCode.SUCCESS:
            messages, next_offset = _first(decode_messages(answer.body, address), next_offset)
        if queue.topic.startswith(RETRY_PREFIX):
            messages = [(at, as_sent(message)) for at, message in messages]
        else:  # two tags may share a hash
            messages = [(at, message) for at, message in messages if selection.matches(message.tag)]
        wanted = [(at, message) for at, message in messages if at >= queue_offset]
        is_moved = answer.code == ResponseCode.PULL_OFFSET_MOVED
        return Pulled(wanted, next_offset, ext.max_offset, is_moved=is_moved, is_of_master=is_of_master)

    def is_of_master(self, queue: MessageQueue) -> bool:
        """Whether the next pull of a queue is one of the master. Raises ClusterError."""
        return self._pulled_from(queue) == self._client.routes.broker(queue.broker_name).master

    def _pulled_from(self, queue: MessageQueue) -> str:
        """The master; a slave where the broker suggests one, or while there is no master."""
        held = self._client.routes.broker(queue.broker_name)
        address = held.addresses.get(self._suggested.get(queue, MASTER)) or held.master or held.readable
        if address is None:
            raise ClusterError(f"the broker {queue.broker_name!r} has no address now")
        return address

    async def send_back(
        self, message: ReceivedMessage, queue: MessageQueue, delay_level: int, retries_max: int
    ) -> None:
        """Have a message come again later, or go to the dead letters of the group (a level below 0)."""
        header = ConsumerSendMsgBackRequestHeader(
            message.commitlog_offset, self._group, delay_level, message.unique_key or message.message_id,
            message.topic, False, retries_max,
        )  # fmt: skip
        address, code = self._client.routes.master(queue.broker_name), RequestCode.CONSUMER_SEND_MSG_BACK
        checked(await self._client.channels.request(address, code, header), code, address)

    async def send_copy_back(self, message: ReceivedMessage, delay_level: int, retries_max: int) -> None:
        """Send a message to the group again that its broker does not take back: as a copy, which any broker takes."""
        copied = copied_back(message, delay_level, retries_max)
        await self._sender.send_back(message, retry_topic(self._group), *copied)

    # Members and locks

    async def members(self, broker_name: str) -> tuple[str, ...]:
        """The client ids of the group's members, by one broker."""
        address, code = self._client.routes.master(broker_name), RequestCode.GET_CONSUMER_LIST_BY_GROUP
        answer = await self._client.channels.request(address, code, ConsumerGroupRequestHeader(self._group))
        return decode_consumer_list(checked(answer, code, address).body)

    async def lock(self, queues: Iterable[MessageQueue]) -> tuple[set[MessageQueue], dict[str, BrokerError]]:
        """Lock queues at their brokers for a minute: those that are ours now, and by broker why it locked none.

        At all brokers at the same time: one that hangs keeps no queue of another from being locked in time.
        """
        places = _by_broker(queues)
        answers = await asyncio.gather(*(self._lock(name, those) for name, those in places.items()))
        failures = {name: one for name, one in zip(places, answers, strict=True) if isinstance(one, BrokerError)}
        return {queue for one in answers if isinstance(one, set) for queue in one}, failures

    async def _lock(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue] | BrokerError:
        """Those of one broker's queues that are locked, or why none is."""
        body = LockBatch(self._group, self._client.client_id, tuple(queues)).encode()
        try:
            address, code = self._client.routes.master(broker_name), RequestCode.LOCK_BATCH_MQ
            answer = checked(await self._client.channels.request(address, code, body=body), code, address)
            locked = {(one.topic, one.queue_id) for one in decode_locked(answer.body)}
        except BrokerError as error:
            return error
        return {one for one in queues if (one.topic, one.queue_id) in locked}

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        for broker_name, those in _by_broker(queues).items():
            body = LockBatch(self._group, self._client.client_id, tuple(those)).encode()
            address = self._client.routes.master(broker_name)
            await self._client.channels.request(address, RequestCode.UNLOCK_BATCH_MQ, body=body)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found


def _first(
    messages: Iterator[tuple[int, ReceivedMessage]], next_offset: int
) -> tuple[list[tuple[int, ReceivedMessage]], int]:
    """Messages until their bodies have READY_BYTES_MAX, and where the next pull begins.

    A compressed body of 2 KiB may have 64 MiB when it is read: an answer of 256 KiB would fill the memory.
    """
    found, body_bytes = list[tuple[int, ReceivedMessage]](), 0
    for queue_offset, message in messages:
        found.append((queue_offset, message))
        body_bytes += len(message.body)
        if body_bytes >= READY_BYTES_MAX:
            return found, queue_offset + 1
    return found, next_offset


def decode_messages(body: bytes, address: str) -> Iterator[tuple[int, ReceivedMessage]]:
    """The messages in the records of a body, with their queue offsets. Raises ClusterError for one that is damaged.

    A record of a topic with queue.type=BatchCQ may hold several. RocketMQ: PullAPIWrapper.processPullResult (5.3.3).
    """
    at = 0
    try:
        while at < len(body):
            record = decode(body, at)
            if record.sys_flag & INNER_BATCH:
                yield from ((one.queue_offset, _of_batch(one)) for one in inner_records(record))
            else:
                yield record.queue_offset, ReceivedMessage.of(record)
            at += record.total_size
    except CorruptRecord as error:
        raise ClusterError(f"{address} sent a damaged message: {error}. Run checkback verify on its store") from None


def _of_batch(record: Record) -> ReceivedMessage:
    """A message of a batch. One without a key of its own, as from a Go producer, has the message id of all of them:
    by that it would be taken for another one that was processed before.
    """
    message = ReceivedMessage.of(record)
    if message.unique_key:
        return message
    return dataclasses.replace(message, unique_key=f"{message.message_id}-{message.queue_offset}")
