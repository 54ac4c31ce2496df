"""The newest messages of a topic, read as RocketMQ's tools read: without a group's position."""

from __future__ import annotations

from collections import deque

from broker.cluster.membership.group_calls import GroupCalls
from broker.cluster.membership.holdings import READY_BYTES_MAX
from broker.cluster.network.channels import checked
from broker.cluster.network.client import ClusterClient
from broker.consuming.tags import Selection
from broker.errors import ClusterError
from broker.message import ReceivedMessage
from broker.remoting.bodies import MessageQueue, SubscriptionData
from broker.remoting.codes import RequestCode
from broker.remoting.message_headers import QueueOffsetResponseHeader, QueueRequestHeader

_GROUP = "TOOLS_CONSUMER"  # every broker has it. RocketMQ: MixAll.TOOLS_CONSUMER_GROUP


async def read_newest(client: ClusterClient, topic: str, limit: int, *, partial: bool = False) -> list[ReceivedMessage]:
    """The last messages of each queue, at most `limit` of each, oldest first; fewer where they have 16 MiB.

    Raises NotPermitted, and ClusterError for a broker that does not answer; `partial` leaves that one out, and raises
    when none answers.
    """
    route = await client.routes.route(topic)
    calls, found = GroupCalls(client, _GROUP), list[ReceivedMessage]()
    silent: dict[str, ClusterError] = {}  # brokers: asked once, not for each of their queues
    queues = () if route is None else route.readable(topic)
    for queue in queues:
        if queue.broker_name in silent:
            continue
        try:
            found += await _newest_of(client, calls, queue, limit)
        except ClusterError as error:
            silent[queue.broker_name] = error
            if not partial or silent.keys() == {one.broker_name for one in queues}:
                raise
    return found


async def _newest_of(
    client: ClusterClient, calls: GroupCalls, queue: MessageQueue, limit: int
) -> deque[ReceivedMessage]:
    address, code = client.routes.master(queue.broker_name), RequestCode.GET_MAX_OFFSET
    answer = await client.channels.request(address, code, QueueRequestHeader(queue.topic, queue.queue_id))
    end = QueueOffsetResponseHeader.decode(checked(answer, code, address).ext).queue_offset
    return await _between(calls, queue, max(0, end - limit), end)


async def _between(calls: GroupCalls, queue: MessageQueue, at: int, end: int) -> deque[ReceivedMessage]:
    """The messages between two queue offsets. A broker sends few large ones at a time, and the newest are wanted.

    RocketMQ: maxTransferBytesOnMessageInMemory (5.3.3).
    """
    found, body_bytes = deque[ReceivedMessage](), 0
    while at < end:
        pulled = await calls.pull(queue, at, SubscriptionData(queue.topic), Selection(), hold_ms=0)
        for queue_offset, message in pulled.messages:
            if queue_offset < end:
                found.append(message)
                body_bytes += len(message.body)
        while body_bytes > READY_BYTES_MAX and len(found) > 1:
            body_bytes -= len(found.popleft().body)
        if pulled.next_offset <= at:
            break
        at = pulled.next_offset
    return found
