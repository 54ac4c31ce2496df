"""The cluster that a store is carried to: topics, groups, sends to one queue, reads, positions.

Runs in an event loop of its own (`run`). RocketMQ: MQClientAPIImpl (5.3.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from broker.cluster.membership.group_calls import GroupCalls, decode_messages
from broker.cluster.network.channels import checked
from broker.cluster.network.client import ClusterClient
from broker.cluster.network.event_loop import LoopThread
from broker.cluster.network.settings import ClientSettings
from broker.cluster.publishing.cluster_destination import cluster_id
from broker.cluster.publishing.sending import Placed, placed_by
from broker.consuming.tags import Selection
from broker.errors import BrokerError, ClusterError, NotPermitted
from broker.format import properties as names
from broker.format.config import MESSAGE_TYPE_ATTRIBUTE, PERM_READ, PERM_WRITE, SubscriptionGroup, TopicConfig
from broker.format.config import as_json as config_json
from broker.format.sysflag import TransactionType
from broker.format.topics import AUTO_CREATE_TOPIC, parse_delay_levels
from broker.message import ReceivedMessage
from broker.remoting.admin_headers import CreateTopicRequestHeader
from broker.remoting.bodies import MessageQueue, SubscriptionData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.fastjson import dumps
from broker.remoting.message_headers import (
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    QueueOffsetResponseHeader,
    QueueRequestHeader,
    SendMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from recovery.moving.conversion import BrokerAbility, CarriedMessage

_GROUP = "TOOLS_CONSUMER"  # every broker has it. RocketMQ: MixAll.TOOLS_CONSUMER_GROUP
_RETRIES_MAX = 1 << 20  # a message of a retry topic stays there, however often it was retried
_TIME_MAX_MS = (1 << 62) - 1
_FOUND_MAX = 64
_AWAIT_S, _AWAIT_EVERY_S = 30.0, 0.05  # a broker builds its queues a moment after it answers
_TAKES_ALL = (MESSAGE_TYPE_ATTRIBUTE, "MIXED")  # as a topic without a type does; brokers of 5.3 know no such type
_T = TypeVar("_T")


@dataclass(frozen=True)
class TopicAtBroker:
    """How many queues a topic has at one broker: the lower of the numbers to read and to write."""

    broker_name: str
    queues: int


class MoveTarget:
    """A client of the cluster. Use it in a `with` statement."""

    def __init__(self, settings: ClientSettings) -> None:
        """Raises ClusterError when no name server answers, or no broker is there."""
        self.url = settings.url
        self._loop = LoopThread("checkback-move")
        self._client = ClusterClient(settings, self._loop)
        self._calls = GroupCalls(self._client, _GROUP)
        try:
            name, brokers = self._loop.run(self._client.routes.cluster())
            self.brokers = sorted(one.name for one in brokers if one.master is not None)
            if not self.brokers:
                raise ClusterError(f"the cluster {name} has no master now: nothing can be sent to it")
            self.cluster, self.cluster_id = name, cluster_id(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        if not self._loop.is_closed:
            self._loop.run(self._client.close())
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The value of a coroutine of this target."""
        return self._loop.run(work)

    # What is there

    async def ability(self, broker_name: str) -> BrokerAbility:
        """What a broker can do. One that does not show its settings to this account has the usual delay levels."""
        address, code = self._client.routes.master(broker_name), RequestCode.GET_BROKER_CONFIG
        answer = await self._client.channels.request(address, code)
        table: dict[str, str] = {}
        try:
            lines = checked(answer, code, address).body.decode("utf-8", "replace").splitlines()
            table = dict(line.partition("=")[::2] for line in lines if "=" in line)
        except NotPermitted:
            pass
        levels = table.get("messageDelayLevel", "")
        return BrokerAbility(answer.version, tuple(parse_delay_levels(levels) if levels else parse_delay_levels()))

    async def topic(self, name: str) -> list[TopicAtBroker]:
        """How many queues a topic has at each master; empty where no broker has it."""
        route = await self._client.routes.route(name, max_age_s=0.0)
        found = () if route is None else route.queues
        return [
            TopicAtBroker(one.broker_name, min(one.read_count, one.write_count))
            for one in found
            if one.broker_name in self.brokers and one.perm & PERM_READ and one.perm & PERM_WRITE
        ]

    async def range(self, queue: MessageQueue) -> tuple[int, int]:
        """(first, end) of a queue: queue offsets."""
        address, header = self._client.routes.master(queue.broker_name), QueueRequestHeader(queue.topic, queue.queue_id)
        found = []
        for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
            answer = await self._client.channels.request(address, code, header)
            found.append(max(0, QueueOffsetResponseHeader.decode(checked(answer, code, address).ext).queue_offset))
        return min(found), found[1]

    async def members(self, group: str) -> int:
        """How many consumers of a group are connected, at the broker that knows most of them."""
        found = 0
        for name in self.brokers:
            try:
                found = max(found, len(await self._calls_of(group).members(name)))
            except ClusterError as error:
                if error.code != ResponseCode.SYSTEM_ERROR and error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise  # with these two a broker says that there is none
        return found

    def _calls_of(self, group: str) -> GroupCalls:
        return GroupCalls(self._client, group)

    async def look_again(self) -> None:
        """Ask the name servers where the brokers are now."""
        with contextlib.suppress(BrokerError):
            await self._client.routes.cluster()

    # What is made

    async def make_topic(self, config: TopicConfig, queues: int, *, is_final: bool = False) -> None:
        """Make a topic at each master; when all is sent (`is_final`) with the rights and the type that it has here.

        Before that it takes every message: a delayed one that was delivered is a plain one now; also in queues that
        are only read here.
        """
        known = {name: value for name, value in config.attributes.items() if (name, value) != _TAKES_ALL}
        attributes = ",".join(f"+{name}={value}" for name, value in known.items()) if is_final else ""
        perm = config.perm if is_final else config.perm | PERM_READ | PERM_WRITE
        is_smaller = is_final and config.write_queue_count < config.read_queue_count
        written = config.write_queue_count if is_smaller else queues
        header = CreateTopicRequestHeader(
            config.name, queues, written, perm, AUTO_CREATE_TOPIC, config.filter_type, config.sys_flag, config.order,
            attributes or None,
        )  # fmt: skip
        for name in self.brokers:
            await self._admin(name, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def make_group(self, group: SubscriptionGroup) -> None:
        """Make a consumer group at each master, with its settings."""
        body = dumps(config_json(group))
        for name in self.brokers:
            address, code = self._client.routes.master(name), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            checked(await self._client.channels.request(address, code, body=body), code, address)

    async def _admin(self, broker_name: str, code: RequestCode, header: CreateTopicRequestHeader) -> None:
        address = self._client.routes.master(broker_name)
        checked(await self._client.channels.request(address, code, header), code, address)

    # Messages

    async def send(self, queue: MessageQueue, message: CarriedMessage, extra: Mapping[str, str]) -> Placed:
        """Send a message to one queue, once. Raises ClusterError, MessageRejected, NotPermitted."""
        stored = {**message.properties, **extra, names.WAIT: "true"}
        sys_flag = message.sys_flag
        if message.is_half:
            stored[names.TRAN_MSG], sys_flag = "true", sys_flag | int(TransactionType.PREPARED)
        header = SendMessageRequestHeader(
            message.producer_group, queue.topic, AUTO_CREATE_TOPIC, 4, queue.queue_id, sys_flag,
            message.born_timestamp_ms, message.flag, names.encode(stored, java_order_capacity=16).decode(),
            message.reconsume_times, max_reconsume_times=_RETRIES_MAX, broker_name=queue.broker_name,
        )  # fmt: skip
        address, code = self._client.routes.master(queue.broker_name), RequestCode.SEND_MESSAGE
        limit_s = self._client.settings.send_timeout_s
        answer = await self._client.channels.request(address, code, header, message.body, timeout_s=limit_s)
        return placed_by(answer, code, address, queue)

    async def read(self, queue: MessageQueue, start: int, end: int) -> AsyncIterator[tuple[int, ReceivedMessage]]:
        """(queue offset, message) of a queue in start <= queue offset < end. Raises ClusterError.

        Waits a moment for what the broker has stored and not yet put into the queue.
        """
        at, deadline_s = start, time.monotonic() + _AWAIT_S
        while at < end:
            pulled = await self._calls.pull(queue, at, SubscriptionData(queue.topic), Selection(), hold_ms=0)
            for queue_offset, message in pulled.messages:
                if queue_offset < end:
                    yield queue_offset, message
            if pulled.next_offset > at:
                at, deadline_s = pulled.next_offset, time.monotonic() + _AWAIT_S
            elif time.monotonic() > deadline_s:
                place = f"queue {queue.queue_id} of {queue.topic}"
                raise ClusterError(f"{queue.broker_name} shows no message of {place} from queue offset {at} on")
            else:
                await asyncio.sleep(_AWAIT_EVERY_S)

    async def by_unique_key(self, broker_name: str, topics: Sequence[str], unique_key: str) -> list[ReceivedMessage]:
        """What the index of a broker has for a unique key in some topics."""
        address, code = self._client.routes.master(broker_name), RequestCode.QUERY_MESSAGE
        found: list[ReceivedMessage] = []
        for topic in topics:
            header = QueryMessageRequestHeader(topic, unique_key, _FOUND_MAX, 0, _TIME_MAX_MS, is_unique_key=True)
            answer = await self._client.channels.request(address, code, header)
            if answer.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            records = decode_messages(checked(answer, code, address).body, address)
            found += [one for _, one in records if one.unique_key == unique_key]
        return found

    # Positions

    async def position(self, group: str, queue: MessageQueue) -> int | None:
        """Where a group stands in a queue; None when it was never there."""
        header = QueryConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, set_zero_if_not_found=False)
        address, code = self._client.routes.master(queue.broker_name), RequestCode.QUERY_CONSUMER_OFFSET
        answer = await self._client.channels.request(address, code, header)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return QueueOffsetResponseHeader.decode(checked(answer, code, address).ext).queue_offset

    async def put_position(self, group: str, queue: MessageQueue, position: int) -> None:
        """Put a group to a queue offset. Raises ClusterError when the broker does not say so afterwards."""
        header = UpdateConsumerOffsetRequestHeader(group, queue.topic, queue.queue_id, position)
        address, code = self._client.routes.master(queue.broker_name), RequestCode.UPDATE_CONSUMER_OFFSET
        checked(await self._client.channels.request(address, code, header), code, address)
        if (found := await self.position(group, queue)) != position:
            text = f"{queue.broker_name} has the group {group} at {found} in {queue.topic}, queue {queue.queue_id}"
            raise ClusterError(f"{text}, and not at {position}, where it was put")


def may_be_there(error: BrokerError) -> bool:
    """Whether a message may have been stored although its send failed."""
    return isinstance(error, ClusterError) and (error.was_sent or error.code is not None)
