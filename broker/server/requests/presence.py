"""Requests by which clients say that they are there, and ask who else is.

RocketMQ: ClientManageProcessor, ConsumerManageProcessor, QueryAssignmentProcessor, AdminBrokerProcessor.lockBatchMQ
(5.3.3).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from broker.consuming.group.membership import share
from broker.format.config import PERM_READ
from broker.format.topics import retry_topic
from broker.remoting.admin_headers import (
    ConsumerGroupRequestHeader,
    ProducerGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from broker.remoting.bodies import (
    AssignmentQuery,
    HeartbeatData,
    MessageQueue,
    decode_assignment_query,
    decode_heartbeat,
    decode_lock_batch,
    decode_subscription,
)
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.fastjson import dumps, loads_object
from broker.server.clients import CLUSTERING, Channel, Peer
from broker.server.context import Refused, Request, ServerContext
from broker.server.group_positions import check_local
from broker.server.requests.pulls import parse
from broker.server.requests.sends import ensure_topic
from broker.server.requests.shares import check_names, check_share


def heart_beat(context: ServerContext, request: Request) -> RemotingCommand:
    """HEART_BEAT: registers the client in its groups, and makes groups and retry topics that are new.

    A group that consumers with the store open consume is refused other topics than theirs.
    """
    data = decode_heartbeat(request.command.body)
    with context.positions.joining(one.group for one in data.consumers):
        notified = _joined(context, request, data)
    for one in data.consumers:
        group = context.clients.consumers(one.group)
        if group is not None:
            context.notify_members(one.group, [peer for peer in notified if peer in group.channels])
    return request.answer()


def _joined(context: ServerContext, request: Request, data: HeartbeatData) -> list[Peer]:
    """The peers that must divide their queues again, once the client is in its groups."""
    check_share(context, request.connection, data)
    for one in data.consumers:
        context.groups.ensure(one.group)
        topics = {subscription.topic for subscription in one.subscriptions} | {retry_topic(one.group)}
        if one.message_model == CLUSTERING:
            why_not = check_local(context.positions, one.group, topics)
            if why_not is not None:
                raise Refused(ResponseCode.NO_PERMISSION, why_not)
        ensure_topic(context, retry_topic(one.group))
    command = request.command
    return context.clients.heartbeat(request.connection, data, command.language, command.version, request.account)


def unregister_client(context: ServerContext, request: Request) -> RemotingCommand:
    header = UnregisterClientRequestHeader.decode(request.command.ext)
    left = context.clients.unregister(request.connection, header.producer_group, header.consumer_group)
    if header.consumer_group:
        context.notify_members(header.consumer_group, left)
    return request.answer()


def get_consumer_list(context: ServerContext, request: Request) -> RemotingCommand:
    """The clients of a group, the same for all of them: each sorts the list and takes its share of the queues."""
    header = ConsumerGroupRequestHeader.decode(request.command.ext)
    ids = context.client_ids(header.consumer_group)
    if not ids:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
    return request.answer(body=dumps({"consumerIdList": ids}))


def query_assignment(context: ServerContext, request: Request) -> RemotingCommand:
    """The queues of a client that does not divide them itself: to pull from, never for POP (decision 0044).

    Since 5.3.2 such a client consumes nothing where a broker refuses. Without the member it asks again. RocketMQ:
    QueryAssignmentProcessor.doLoadBalance (5.3.3).
    """
    asked = decode_assignment_query(request.command.body)
    if context.settings.name_servers:
        text = "a server with --register knows its own queues only: use the client's rebalance"
        raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
    queues = _assigned(context, asked)
    if queues is None:
        return request.answer(body=dumps({}))
    name = context.settings.broker_name
    pulled = [{"messageQueue": MessageQueue(asked.topic, one).as_json(name), "mode": "PULL"} for one in queues]
    return request.answer(body=dumps({"messageQueueAssignments": pulled}))


def _assigned(context: ServerContext, asked: AssignmentQuery) -> list[int] | None:
    """None where nothing can be said, and the client keeps what it has."""
    topic = context.store.topic(asked.topic)
    if topic is None:
        return None
    queues = list(range(topic.read_queue_count if topic.perm & PERM_READ else 0))
    if asked.message_model != CLUSTERING:
        return queues
    ids = context.client_ids(asked.group)
    if not ids or asked.strategy not in ("AVG", "AVG_BY_CIRCLE"):
        return None
    if asked.client_id not in ids:
        return []
    return (
        share(queues, ids, asked.client_id)
        if asked.strategy == "AVG"
        else queues[ids.index(asked.client_id) :: len(ids)]
    )


def check_client_config(context: ServerContext, request: Request) -> RemotingCommand:
    """Whether a subscription can be filtered here; a client asks when it is not by tags."""
    root = loads_object(request.command.body)
    stated = root.get("subscriptionData")
    if isinstance(stated, dict):
        one = decode_subscription(stated)
        parse(one.expression, one.expression_type, sql92=context.settings.sql92)
    return request.answer()


def lock_batch(context: ServerContext, request: Request) -> RemotingCommand:
    """LOCK_BATCH_MQ: queues of orderly consumers, each for one client at a time; one that is not there for nobody."""
    asked = decode_lock_batch(request.command.body)
    check_names(asked)
    topics = {queue.topic for queue in asked.queues}
    known = {topic: context.positions.table.queues(topic) for topic in topics if context.store.topic(topic) is not None}
    queues = [queue for queue in asked.queues if queue.queue_id in known.get(queue.topic, ())]
    is_leased = partial(context.positions.is_leased, asked.group)
    given = context.locks.lock(asked.group, asked.client_id, queues, is_leased, request.connection)
    name = context.settings.broker_name
    return request.answer(body=dumps({"lockOKMQSet": [queue.as_json(name) for queue in given]}))


def unlock_batch(context: ServerContext, request: Request) -> RemotingCommand:
    asked = decode_lock_batch(request.command.body)
    context.locks.unlock(asked.group, asked.client_id, asked.queues, request.connection)
    return request.answer()


# For administrators


def get_consumer_connections(context: ServerContext, request: Request) -> RemotingCommand:
    header = ConsumerGroupRequestHeader.decode(request.command.ext)
    group = context.clients.consumers(header.consumer_group)
    if group is None:
        text = f"the consumer group[{header.consumer_group}] not online"
        return request.command.answer(ResponseCode.CONSUMER_NOT_ONLINE, text)
    body = {
        "connectionSet": [channel.as_json() for channel in group.channels.values()],
        "consumeFromWhere": group.consume_from_where, "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": {topic: one.as_json() for topic, one in group.subscriptions.items()},
    }  # fmt: skip
    return request.answer(body=dumps(body))


def get_producer_connections(context: ServerContext, request: Request) -> RemotingCommand:
    header = ProducerGroupRequestHeader.decode(request.command.ext)
    channels = context.clients.producers(header.producer_group)
    if not channels:
        text = f"the producer group[{header.producer_group}] not exist"
        raise Refused(ResponseCode.SYSTEM_ERROR, text)
    return request.answer(body=dumps({"connectionSet": [channel.as_json() for channel in channels]}))


def get_all_producers(context: ServerContext, request: Request) -> RemotingCommand:
    data = {
        group: [_channel_as_json(one) for one in channels]
        for group, channels in context.clients.all_producers().items()
    }
    return request.answer(body=dumps({"data": data}))


def _channel_as_json(channel: Channel) -> dict[str, Any]:
    return {
        "clientId": channel.client_id, "language": channel.language, "lastUpdateTimestamp": channel.seen_ms,
        "remoteIP": f"/{channel.peer.address}", "version": channel.version,
    }  # fmt: skip
