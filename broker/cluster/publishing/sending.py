"""A message to a broker: which queue, which broker next after a failure, and what its answer means.

A plain message that may have been stored is sent again, so it may be there twice, with one unique key. A half message
is sent again only if it certainly was not stored: two of one transaction would both be delivered by its commit.
RocketMQ: DefaultMQProducerImpl.sendDefaultImpl, MQClientAPIImpl.processSendResponse (5.3.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.cluster.network.channels import checked
from broker.cluster.network.client import ClusterClient
from broker.cluster.publishing.queue_choice import FAILED_MS, FaultTable, choose
from broker.errors import BrokerError, ClusterError, MessageRejected, NotInCluster, NotPermitted
from broker.format import properties as names
from broker.format.commitlog import MESSAGE_SIZE_MAX
from broker.format.config import PERM_WRITE
from broker.format.sysflag import TransactionType
from broker.format.topics import AUTO_CREATE_TOPIC
from broker.message import Message, ReceivedMessage
from broker.producing.destination import STORED, place_of
from broker.remoting.bodies import MessageQueue
from broker.remoting.codes import VERSION_TIMER, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.message_headers import SendMessageRequestHeader, SendMessageResponseHeader
from broker.remoting.routes import TopicRoute

_TIMED = f"\x02{names.TIMER_DELIVER_MS}\x01"
_LEAST_S = 0.1  # with less, another try would only hide why the one before failed
_CONNECT_S = 1.0  # a machine that is off leaves time for another broker
DEFAULT_QUEUES = 4  # RocketMQ: defaultTopicQueueNums of a producer
_STATUSES = {
    ResponseCode.SUCCESS: STORED,
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
}
# RocketMQ: DefaultMQProducer.retryResponseCodes (5.3.3), where 16 is one of them: NotPermitted here.
_RETRIED = {1, 2, 14, 17, 204, 205, 1500}
_NOT_STORED = {2, 14, 17, 1500}


@dataclass(frozen=True)
class Placed:
    """Where a broker put a message."""

    queue: MessageQueue
    header: SendMessageResponseHeader
    status: str


class Sender:
    """Sends for one producer group. Runs in the event loop."""

    def __init__(self, client: ClusterClient, group: str, now_ms: Callable[[], int]) -> None:
        self._client, self._group, self._now_ms = client, group, now_ms
        self._faults = FaultTable()
        self._turns: dict[str, itertools.count[int]] = {}

    async def send(
        self, message: Message, extra: Mapping[str, str], sharding_key: str | None, *, is_half: bool = False
    ) -> Placed:
        """Send one message. Raises ClusterError, MessageRejected, NotPermitted."""
        stored = message.stored_properties | dict(extra) | {names.WAIT: "true"}
        kind = TransactionType.PREPARED if is_half else TransactionType.NONE
        if is_half:
            stored |= {names.TRAN_MSG: "true", names.PGROUP: self._group}
        header = self._header(message.topic, names.encode(stored, java_order_capacity=16).decode(), int(kind))
        return await self._with_retries(header, sharding_key, RequestCode.SEND_MESSAGE, message.body, is_half=is_half)

    async def send_batch(self, topic: str, body: bytes, properties: str) -> Placed:
        """Send a batch that was encoded."""
        header = dataclasses.replace(self._header(topic, properties), batch=True)
        return await self._with_retries(header, None, RequestCode.SEND_BATCH_MESSAGE, body)

    async def send_back(
        self, message: ReceivedMessage, topic: str, properties: Mapping[str, str], times: int, times_max: int
    ) -> Placed:
        """Send a consumer's copy of a message to the topic of its group's retries.

        Raises MessageRejected for one that no broker takes, ClusterError, NotPermitted.
        """
        if len(message.body) > MESSAGE_SIZE_MAX:  # it came compressed; a frame that is too large ends the connection
            raise MessageRejected(f"its body has {len(message.body)} bytes; at most {MESSAGE_SIZE_MAX} are allowed")
        header = dataclasses.replace(
            self._header(topic, names.encode(properties, java_order_capacity=16).decode()),
            born_timestamp_ms=message.born_timestamp_ms, flag=message.flag, reconsume_times=times,
            max_reconsume_times=times_max,
        )  # fmt: skip
        return await self._with_retries(header, None, RequestCode.SEND_MESSAGE, message.body)

    def _header(self, topic: str, properties: str, sys_flag: int = 0) -> SendMessageRequestHeader:
        """The fields of a request that sends, without its queue."""
        return SendMessageRequestHeader(
            self._group, topic, AUTO_CREATE_TOPIC, DEFAULT_QUEUES, -1, sys_flag, self._now_ms(), 0, properties
        )

    async def _with_retries(
        self, header: SendMessageRequestHeader, sharding_key: str | None, code: RequestCode, body: bytes,
        *, is_half: bool = False,
    ) -> Placed:  # fmt: skip
        queues = await self._queues(header.topic)
        try:
            return await self._to_one(queues, header, sharding_key, code, body, is_half=is_half)
        except MessageRejected:  # where the topic has fewer queues than its known route says, it is not the message's
            left = await self._queues(header.topic, max_age_s=0.0)
            if set(queues) <= set(left):
                raise
            return await self._to_one(left, header, sharding_key, code, body, is_half=is_half)

    async def _to_one(
        self, queues: tuple[MessageQueue, ...], header: SendMessageRequestHeader, sharding_key: str | None,
        code: RequestCode, body: bytes, *, is_half: bool,
    ) -> Placed:  # fmt: skip
        """Send to the broker of one of these queues, and to another's where that fails."""
        settings, loop, topic = self._client.settings, asyncio.get_running_loop(), header.topic
        tries = 1 if sharding_key is not None else 1 + settings.send_retries  # another queue would be another order
        failed: frozenset[str] = frozenset()
        brokers = {queue.broker_name for queue in queues}
        deadline_s = loop.time() + settings.send_timeout_s  # from here on: a name server that hangs took its own time
        failure: BrokerError | None = None
        for tries_left in reversed(range(tries)):
            if isinstance(failure, ClusterError) and failure.code is None and failed >= brokers:
                queues = await self._looked_up_again(topic, queues)
                brokers = {queue.broker_name for queue in queues}
            left_s = deadline_s - loop.time()
            if failure is not None and left_s < _LEAST_S:
                break
            queue = self._queue(queues, topic, sharding_key, failed)
            has_others = bool(tries_left and brokers - failed - {queue.broker_name})
            placed_header = dataclasses.replace(header, queue_id=queue.queue_id, broker_name=queue.broker_name)
            started_s = loop.time()
            try:
                address = self._client.routes.master(queue.broker_name)
                if _TIMED in f"\x02{header.properties}":
                    await self._check_keeps_times(queue.broker_name, address)
                connect_s = _CONNECT_S if has_others else None
                answer = await self._client.channels.request(
                    address, code, placed_header, body, timeout_s=left_s, connect_s=connect_s
                )
                placed = placed_by(answer, code, address, queue)
            except (ClusterError, NotPermitted) as error:
                self._faults.note(queue.broker_name, FAILED_MS, loop.time() * 1000)
                self._client.routes.expire(topic)
                failure, failed = error, failed | {queue.broker_name}
                if not _may_try_again(error, is_half=is_half, is_last=failed >= brokers):
                    raise
                continue
            self._faults.note(queue.broker_name, (loop.time() - started_s) * 1000, loop.time() * 1000)
            return placed
        raise failure or ClusterError(f"{topic}: no broker took the message within {settings.send_timeout_s:g} s")

    async def _check_keeps_times(self, broker_name: str, address: str) -> None:
        """Raises NotInCluster for a broker that would deliver a message at once that has its time to come."""
        version = await self._client.version(address)
        if version is None:
            raise ClusterError(f"{address} does not say its version, and so not whether it can deliver later")
        if version < VERSION_TIMER:
            text = f"the broker {broker_name} is older than RocketMQ 5.0, and would deliver the message at once"
            raise NotInCluster(f"{text}: use delay_level, not deliver_at or delay")

    async def _looked_up_again(self, topic: str, queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        """The queues to send to, when none of their brokers could be reached: one may be at another address now, as
        another server of its store is. Java's client tries the address that it knows until it asks again, after 30 s.
        """
        with contextlib.suppress(BrokerError):
            return await self._queues(topic)
        return queues

    def _queue(
        self, queues: tuple[MessageQueue, ...], topic: str, sharding_key: str | None, failed: frozenset[str]
    ) -> MessageQueue:
        if sharding_key is not None:
            return queues[place_of(sharding_key, len(queues))]
        turn = self._turns.setdefault(topic, itertools.count(random.randrange(len(queues))))
        return choose(queues, next(turn), failed, self._faults, asyncio.get_running_loop().time() * 1000)

    async def _queues(self, topic: str, *, max_age_s: float | None = None) -> tuple[MessageQueue, ...]:
        """The queues to send to; those of the default topic where brokers make topics by a first message.

        Raises ClusterError when the topic is nowhere, or no broker is registered, NotPermitted when it is read-only
        everywhere.
        """
        routes = self._client.routes
        route = await routes.route(topic, max_age_s=max_age_s)
        queues = () if route is None else route.writable(topic)
        if route is not None and not queues:  # the default topic would make it again at a broker that does not have it
            raise _not_writable(topic, route)
        if not queues:
            default = await routes.route(AUTO_CREATE_TOPIC)
            known = () if default is None else default.writable(topic)
            queues = tuple(one for one in known if one.queue_id < DEFAULT_QUEUES)
        if not queues:
            await routes.cluster()  # a topic is nowhere while its brokers are: then that is what is wrong
            raise ClusterError(no_route(topic, self._client.settings.url), code=ResponseCode.TOPIC_NOT_EXIST)
        return queues


def no_route(topic: str, url: str) -> str:
    """The sentence for a topic that is nowhere."""
    return f"no broker of {url} has the topic {topic}: make it, cluster.create_topic({topic!r}), or mqadmin updateTopic"


def _not_writable(topic: str, route: TopicRoute) -> BrokerError:
    """The error for a topic that has no queue to send to."""
    names = ", ".join(sorted({one.broker_name for one in route.queues})) or "none"
    if any(one.perm & PERM_WRITE and one.write_count for one in route.queues):
        return ClusterError(f"no broker that has the topic {topic} has a master now: {names}")
    return NotPermitted(f"the topic {topic} can only be read now: its brokers ({names}) take no messages for it")


def placed_by(answer: RemotingCommand, code: RequestCode, address: str, queue: MessageQueue) -> Placed:
    """Where an answer says that a message is. Raises ClusterError, MessageRejected, NotPermitted."""
    is_stored = answer.code in _STATUSES and "msgId" in answer.ext  # a slave answers SLAVE_NOT_AVAILABLE alone
    if not is_stored:
        checked(answer, code, address)
    return Placed(queue, SendMessageResponseHeader.decode(answer.ext), _STATUSES[ResponseCode(answer.code)])


def _may_try_again(error: ClusterError | NotPermitted, *, is_half: bool, is_last: bool) -> bool:
    if isinstance(error, NotPermitted):  # it stored nothing: another broker may take it
        return not is_last
    if error.code is None:
        return not (is_half and error.was_sent)
    return error.code in (_NOT_STORED if is_half else _RETRIED)


def checked_batch_topic(messages: list[Message]) -> str:
    """The topic of a batch. Raises MessageRejected for an empty one, and for several topics."""
    topics = {one.topic for one in messages}
    if len(topics) != 1:
        raise MessageRejected(f"a batch has messages of one topic, not of {len(topics)}")
    return topics.pop()


def check_batch_size(messages: list[Message], body: bytes) -> None:
    """Raises MessageRejected for a batch that no broker takes, before it is sent.

    A broker counts what stands around the bodies, too: the whole batch is the body of one message. And it closes the
    connection on a frame that is too large: all that this process does there has failed.
    RocketMQ: Validators.checkMessage, MessageExtEncoder.encode (5.3.3).
    """
    size, what = sum(len(one.body) for one in messages), ""
    if size <= MESSAGE_SIZE_MAX:
        size, what = len(body), " with its properties"
    if size > MESSAGE_SIZE_MAX:
        text = f"the batch has {size} bytes{what}; at most {MESSAGE_SIZE_MAX} are allowed: divide it"
        raise MessageRejected(text)
