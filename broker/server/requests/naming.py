"""The name server's requests: routes, the cluster, topics, and a small table of settings.

RocketMQ: namesrv ClientRequestProcessor, DefaultRequestProcessor, RouteInfoManager (5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.format.config import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig
from broker.format.topics import AUTO_CREATE_TOPIC, SYSTEM_TOPICS
from broker.remoting.admin_headers import (
    BrokerNameRequestHeader,
    ClusterRequestHeader,
    KvConfigRequestHeader,
    NamespaceRequestHeader,
    TopicRequestHeader,
)
from broker.remoting.codes import VERSION_STANDARD_JSON, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.fastjson import dumps
from broker.server.context import Refused, Request, ServerContext
from broker.server.requests.sends import AUTO_CREATE_QUEUES

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_VALUES_MAX, _VALUE_SIZE_MAX = 10_000, 64 << 10  # characters of a value with its names
_TABLE_SIZE_MAX = 16 << 20  # characters of all of them
_FAQ = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def get_route(context: ServerContext, request: Request) -> RemotingCommand:
    """Where a topic is. Clients before 4.9.4 read integer keys without quotes only, later ones only with."""
    header = TopicRequestHeader.decode(request.command.ext)
    topic = topic_of(context, header.topic)
    if topic is None:
        text = f"No topic route info in name server for the topic: {header.topic}\n{_FAQ}"
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, text)
    perm = topic.perm & ~PERM_WRITE if context.is_wiped else topic.perm
    queues = {
        "brokerName": context.settings.broker_name, "perm": perm, "readQueueNums": topic.read_queue_count,
        "topicSysFlag": topic.sys_flag, "writeQueueNums": topic.write_queue_count,
    }  # fmt: skip
    route: dict[str, Any] = {"brokerDatas": [_broker(context)], "filterServerTable": {}, "queueDatas": [queues]}
    order = context.properties.get(ORDER_NAMESPACE, {}).get(header.topic)
    if order is not None:
        route["orderTopicConf"] = order
    quoted = header.accept_standard_json_only or request.command.version >= VERSION_STANDARD_JSON
    return request.answer(body=dumps(route, quote_numbers=quoted))


def topic_of(context: ServerContext, name: str) -> TopicConfig | None:
    """A topic as routes and administrators see it: those that every broker has are there before their first message."""
    found = context.store.topic(name)
    if found is None and name == AUTO_CREATE_TOPIC and context.settings.creates_topics:
        perm = PERM_READ | PERM_WRITE | PERM_INHERIT
        return TopicConfig(name, AUTO_CREATE_QUEUES, AUTO_CREATE_QUEUES, perm)
    if found is None and name == f"{context.settings.cluster}_REPLY_TOPIC":
        return TopicConfig(name, 1, 1, PERM_READ | PERM_WRITE)
    return found


def _broker(context: ServerContext) -> dict[str, Any]:
    return {
        "brokerAddrs": {0: context.address}, "brokerName": context.settings.broker_name,
        "cluster": context.settings.cluster, "enableActingMaster": False,
    }  # fmt: skip


def get_cluster(context: ServerContext, request: Request) -> RemotingCommand:
    """Quirk: the integer keys of this answer have no quotes, whatever the client's version."""
    name, cluster = context.settings.broker_name, context.settings.cluster
    table = {"brokerAddrTable": {name: _broker(context)}, "clusterAddrTable": {cluster: [name]}}
    return request.answer(body=dumps(table))


def topic_names(context: ServerContext) -> list[str]:
    names = set(context.store.topic_configs().topics)
    if context.settings.creates_topics:
        names.add(AUTO_CREATE_TOPIC)
    return sorted(names)


def get_topics(context: ServerContext, request: Request) -> RemotingCommand:
    return request.answer(body=dumps({"topicList": topic_names(context)}))


def get_topics_by_cluster(context: ServerContext, request: Request) -> RemotingCommand:
    header = ClusterRequestHeader.decode(request.command.ext)
    is_ours = header.cluster == context.settings.cluster
    return request.answer(body=dumps({"topicList": topic_names(context) if is_ours else []}))


def get_system_topics(context: ServerContext, request: Request) -> RemotingCommand:
    there = [name for name in topic_names(context) if name in SYSTEM_TOPICS]
    return request.answer(body=dumps({"topicList": there, "brokerAddr": context.address}))


def delete_topic(_context: ServerContext, request: Request) -> RemotingCommand:
    """Nothing to do: the broker beside it has done it."""
    TopicRequestHeader.decode(request.command.ext)
    return request.answer()


def put_value(context: ServerContext, request: Request) -> RemotingCommand:
    header = KvConfigRequestHeader.decode(request.command.ext)
    table = context.properties.get(header.namespace, {})
    others = {**context.properties, header.namespace: {key: table[key] for key in table if key != header.key}}
    size = len(header.namespace) + len(header.key) + len(header.value or "")
    is_full = sum(map(len, others.values())) >= _VALUES_MAX or size + _table_size(others) > _TABLE_SIZE_MAX
    if is_full or size > _VALUE_SIZE_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, "the name server's table is full, or the value too large")
    context.properties.setdefault(header.namespace, {})[header.key] = header.value or ""
    return request.answer()


def _table_size(tables: Mapping[str, Mapping[str, str]]) -> int:
    """Characters of the values with their names."""
    return sum(
        len(namespace) + len(key) + len(value) for namespace, table in tables.items() for key, value in table.items()
    )


def get_value(context: ServerContext, request: Request) -> RemotingCommand:
    header = KvConfigRequestHeader.decode(request.command.ext)
    value = context.properties.get(header.namespace, {}).get(header.key)
    if value is None:
        text = f"No config item, Namespace: {header.namespace} Key: {header.key}"
        return request.command.answer(ResponseCode.QUERY_NOT_FOUND, text)
    return request.answer({"value": value})


def delete_value(context: ServerContext, request: Request) -> RemotingCommand:
    header = KvConfigRequestHeader.decode(request.command.ext)
    table = context.properties.get(header.namespace, {})
    table.pop(header.key, None)
    if not table:  # names are kept as long as values
        context.properties.pop(header.namespace, None)
    return request.answer()


def get_values(context: ServerContext, request: Request) -> RemotingCommand:
    header = NamespaceRequestHeader.decode(request.command.ext)
    table = context.properties.get(header.namespace)
    if table is None:
        text = f"No config item, Namespace: {header.namespace}"
        return request.command.answer(ResponseCode.QUERY_NOT_FOUND, text)
    return request.answer(body=dumps({"table": table}))


def wipe_write_perm(context: ServerContext, request: Request) -> RemotingCommand:
    return request.answer({"wipeTopicCount": _offer_for_writing(context, request, is_wiped=True)})


def add_write_perm(context: ServerContext, request: Request) -> RemotingCommand:
    return request.answer({"addTopicCount": _offer_for_writing(context, request, is_wiped=False)})


def _offer_for_writing(context: ServerContext, request: Request, *, is_wiped: bool) -> str:
    """How many topics that changes: none for the name of another broker. RocketMQ: operateWritePermOfBroker."""
    if BrokerNameRequestHeader.decode(request.command.ext).broker_name != context.settings.broker_name:
        return "0"
    context.is_wiped = is_wiped
    return str(len(topic_names(context)))


def get_name_server_config(context: ServerContext, request: Request) -> RemotingCommand:
    _, port = context.address.rsplit(":", 1)
    return request.answer(body=f"listenPort={port}\nproductEnvName=center\nclusterTest=false\n".encode())
