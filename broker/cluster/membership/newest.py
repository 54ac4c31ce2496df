"""The newest messages of a topic, read as RocketMQ's tools read: without a group's position."""

from __future__ import annotations

from broker.cluster.membership.group_calls import PULL_MESSAGES, GroupCalls
from broker.cluster.network.channels import checked
from broker.cluster.network.client import ClusterClient
from broker.consuming.tags import Selection
from broker.message import ReceivedMessage
from broker.remoting.bodies import SubscriptionData
from broker.remoting.codes import RequestCode
from broker.remoting.message_headers import QueueOffsetResponseHeader, QueueRequestHeader

_GROUP = "TOOLS_CONSUMER"  # every broker has it. RocketMQ: MixAll.TOOLS_CONSUMER_GROUP


async def read_newest(client: ClusterClient, topic: str, limit: int) -> list[ReceivedMessage]:
    """The last messages of each queue, at most `limit` of each, oldest first. Raises ClusterError, NotPermitted."""
    route = await client.routes.route(topic)
    calls, found = GroupCalls(client, _GROUP), list[ReceivedMessage]()
    for queue in () if route is None else route.readable(topic):
        address, code = client.routes.master(queue.broker_name), RequestCode.GET_MAX_OFFSET
        answer = await client.channels.request(address, code, QueueRequestHeader(queue.topic, queue.queue_id))
        end = QueueOffsetResponseHeader.decode(checked(answer, code, address).ext).queue_offset
        at = max(0, end - limit)
        for _ in range(2 + limit // PULL_MESSAGES):
            if at >= end:
                break
            pulled = await calls.pull(queue, at, SubscriptionData(topic), Selection(), hold_ms=0)
            found += [message for _, message in pulled.messages]
            at = pulled.next_offset
    return found
