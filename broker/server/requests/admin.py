"""Requests that make, change and delete topics and groups, and that put groups elsewhere.

RocketMQ: AdminBrokerProcessor (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from broker.errors import ProtocolError
from broker.format.config import MESSAGE_TYPE_ATTRIBUTE, TopicConfig, subscription_group_of
from broker.format.config import as_json as config_json
from broker.format.topics import AUTO_CREATE_TOPIC, is_system_topic, retry_topic
from broker.remoting.admin_headers import (
    CloneGroupOffsetRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    GroupRequestHeader,
    ResetOffsetRequestHeader,
    TopicRequestHeader,
)
from broker.remoting.bodies import MessageQueue
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.fastjson import ObjectMap, dumps, loads_object
from broker.server.context import Refused, Request, ServerContext
from broker.server.requests.naming import topic_names, topic_of
from broker.server.requests.queues import queue_range
from broker.server.requests.stats import queues_of

_AS_ALL_TOPICS = {"+queue.type=SimpleCQ", "-queue.type", "+cleanup.policy=DELETE", "-cleanup.policy"}


def create_topic(context: ServerContext, request: Request) -> RemotingCommand:
    """UPDATE_AND_CREATE_TOPIC. There is no queue that takes messages and is not read.

    An attribute that is not stated stays as it is: 4.x tools state none, and mqadmin of 5.x an empty text.
    RocketMQ: TopicConfigManager.updateTopicConfig, AttributeUtil.alterCurrentAttributes (5.3.3).
    """
    header = CreateTopicRequestHeader.decode(request.command.ext)
    if is_system_topic(header.topic):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{header.topic}] is conflict with system topic.")
    held = context.store.topic(header.topic)
    held_type = "" if held is None else held.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "")
    context.store.create_topic(
        header.topic,
        queues=max(header.read_queue_nums, header.write_queue_nums),
        message_type=_message_type(header.attributes or "", held_type),
        perm=header.perm,
        write_queues=header.write_queue_nums,
    )
    return request.answer()


def _message_type(attributes: str, held: str) -> str:
    """The type of a topic that had `held`, after `+message.type=FIFO` or `-message.type`; empty: it takes all messages.

    Raises Refused for an attribute that would have no effect here.
    """
    message_type = held
    for item in filter(None, map(str.strip, attributes.split(","))):
        name, _, value = item.removeprefix("+").partition("=")
        if name.removeprefix("-") == MESSAGE_TYPE_ATTRIBUTE:
            message_type = {"UNSPECIFIED": "", "MIXED": ""}.get(value.upper(), value.upper())
        elif item not in _AS_ALL_TOPICS:
            text = f"a topic here has the attribute {MESSAGE_TYPE_ATTRIBUTE} only, and cannot have {item!r:.80}"
            raise Refused(ResponseCode.INVALID_PARAMETER, text)
    return message_type


def delete_topic(context: ServerContext, request: Request) -> RemotingCommand:
    """DELETE_TOPIC_IN_BROKER: the topic's configuration goes. Its messages stay in the log until retention."""
    header = TopicRequestHeader.decode(request.command.ext)
    if is_system_topic(header.topic) and header.topic != AUTO_CREATE_TOPIC:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{header.topic}] is conflict with system topic.")
    context.store.delete_topic(header.topic)
    return request.answer()


def get_topic_config(context: ServerContext, request: Request) -> RemotingCommand:
    header = TopicRequestHeader.decode(request.command.ext)
    found = topic_of(context, header.topic)
    if found is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}")
    return request.answer(body=dumps(config_json(found)))


def get_all_topics(context: ServerContext, request: Request) -> RemotingCommand:
    return request.answer(body=dumps(topics_json(context)))


def topics_json(context: ServerContext) -> dict[str, Any]:
    """All topics. RocketMQ: TopicConfigSerializeWrapper (5.3.3)."""
    held = context.store.topic_configs()
    named = ((name, topic_of(context, name)) for name in topic_names(context))
    table = {name: config_json(one) for name, one in named if isinstance(one, TopicConfig)}
    return {"topicConfigTable": table, "dataVersion": _version(held.version)}


def _version(version: Any) -> dict[str, int]:
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp_ms}


# Groups


def put_group(context: ServerContext, request: Request) -> RemotingCommand:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    root = loads_object(request.command.body)
    name = root.get("groupName")
    if not isinstance(name, str):
        raise ProtocolError("the group has no groupName")
    group = subscription_group_of(name, root)
    context.groups.put(group)
    return request.answer()


def delete_group(context: ServerContext, request: Request) -> RemotingCommand:
    header = DeleteSubscriptionGroupRequestHeader.decode(request.command.ext)
    context.groups.remove(header.group_name)
    if header.clean_offset:
        context.positions.forget(header.group_name)
    return request.answer()


def get_all_groups(context: ServerContext, request: Request) -> RemotingCommand:
    held = context.groups.all()
    table = {name: config_json(group) for name, group in held.groups.items()}
    body = {"subscriptionGroupTable": table, "forbiddenTable": {}, "dataVersion": _version(held.version)}
    return request.answer(body=dumps(body))


def get_group(context: ServerContext, request: Request) -> RemotingCommand:
    header = GroupRequestHeader.decode(request.command.ext)
    found = context.groups.get(header.group)
    if found is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {header.group}")
    return request.answer(body=dumps(config_json(found)))


# Positions


def reset_offsets(context: ServerContext, request: Request) -> RemotingCommand:
    """INVOKE_BROKER_TO_RESET_OFFSET: the group goes on from a time, or from an offset of one queue.

    Connected clients hear of it with their next pull, as with RocketMQ's useServerSideResetOffset.
    """
    header = ResetOffsetRequestHeader.decode(request.command.ext)
    store = context.store
    if store.topic(header.topic) is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"the topic[{header.topic}] does not exist")
    if context.groups.get(header.group) is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the group[{header.group}] does not exist")
    online = context.clients.consumers(header.group) is not None
    queues = queues_of(context, header.topic)
    if header.queue_id >= 0:
        if header.queue_id not in queues:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"queueId {header.queue_id} of {header.topic} does not exist")
        queues = [header.queue_id]
    placed: list[tuple[dict[str, Any], int]] = []
    for queue_id in queues:
        first, end = queue_range(store, header.topic, queue_id)
        position = reset_position(header, first, end, partial(store.offset_at_time, header.topic, queue_id))
        held = context.positions.get(header.group, header.topic, queue_id)
        if header.is_force or held is None or position <= held:
            context.positions.reset(header.group, header.topic, queue_id, position, is_online=online)
        queue = MessageQueue(header.topic, queue_id).as_json(context.settings.broker_name)
        placed.append((queue, position))
    return request.answer(body=dumps({"offsetTable": ObjectMap(placed)}))


def reset_position(
    header: ResetOffsetRequestHeader, first: int, end: int, offset_at_time: Callable[[int], int]
) -> int:  # fmt: skip
    """Where a group goes on in a queue of the offsets [first, end), which `offset_at_time` finds by a time.

    An offset counts for one queue that is named; else the time does, and one below 0 means the end. Raises Refused for
    an offset that the queue does not have.
    """
    if header.queue_id >= 0 and header.queue_offset >= 0:
        if not first <= header.queue_offset <= end:
            text = f"Target offset {header.queue_offset} not in consume queue range [{first}-{end}]"
            raise Refused(ResponseCode.SYSTEM_ERROR, text)
        return header.queue_offset
    position = end if header.timestamp_ms < 0 else offset_at_time(header.timestamp_ms)
    return min(max(position, first), end)


def clone_positions(context: ServerContext, request: Request) -> RemotingCommand:
    header = CloneGroupOffsetRequestHeader.decode(request.command.ext)
    context.groups.ensure(header.dest_group)
    for (topic, queue_id), position in context.positions.of_group(header.src_group).items():
        if header.topic in (None, "", topic) and topic != retry_topic(header.src_group):
            context.positions.commit(header.dest_group, topic, queue_id, position)
    return request.answer()
