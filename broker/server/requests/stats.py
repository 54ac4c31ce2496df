"""What administrators look at: how far queues and groups are, who consumes what, how the broker does.

RocketMQ: AdminBrokerProcessor, BrokerStatsManager (5.3.3).
"""

from __future__ import annotations

import os
import time
from typing import Any

from broker.consuming.group.consumer_table import UNSET
from broker.consuming.group.offset_export import SCHEDULE_GROUP
from broker.format.commitlog import MESSAGE_SIZE_MAX
from broker.format.topics import DELAYS_MS, SCHEDULE_TOPIC
from broker.remoting.admin_headers import (
    GetConsumeStatsRequestHeader,
    GroupRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    TopicRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from broker.remoting.bodies import MessageQueue
from broker.remoting.codes import VERSION, VERSION_NAME, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.fastjson import ObjectMap, dumps
from broker.server.context import Refused, Request, ServerContext
from broker.server.counters import GET, PUT
from broker.server.requests.naming import topic_of
from broker.server.requests.queues import queue_range, stored_ms
from broker.store.shared.control import Word


def queues_of(context: ServerContext, topic: str) -> list[int]:
    """The queues of a topic: those of its configuration, and those that are there."""
    return context.positions.table.queues(topic)


def get_topic_stats(context: ServerContext, request: Request) -> RemotingCommand:
    topic = TopicRequestHeader.decode(request.command.ext).topic
    config = topic_of(context, topic)
    if config is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    table = []
    for queue_id in queues_of(context, topic) or range(config.read_queue_count):
        first, end = queue_range(context.store, topic, queue_id)
        updated = stored_ms(context.store, topic, queue_id, end - 1) if end > first else 0
        stats = {"lastUpdateTimestamp": updated, "maxOffset": end, "minOffset": first}
        table.append((_queue(context, topic, queue_id), stats))
    rate = context.counters.recent(PUT, topic)[1]
    return request.answer(body=dumps({"offsetTable": ObjectMap(table), "topicPutTps": round(rate, 2)}))


def _queue(context: ServerContext, topic: str, queue_id: int) -> dict[str, Any]:
    return MessageQueue(topic, queue_id).as_json(context.settings.broker_name)


def get_consume_stats(context: ServerContext, request: Request) -> RemotingCommand:
    header = GetConsumeStatsRequestHeader.decode(request.command.ext)
    topics = {header.topic} if header.topic else _topics_of(context, header.consumer_group)
    table: list[tuple[dict[str, Any], dict[str, int]]] = []
    rate = 0.0
    for topic in sorted(topics):
        table += _lags(context, header.consumer_group, topic)
        rate += context.counters.recent(GET, f"{topic}@{header.consumer_group}")[1]
    return request.answer(body=dumps({"consumeTps": round(rate, 2), "offsetTable": ObjectMap(table)}))


def _topics_of(context: ServerContext, group: str) -> set[str]:
    """The topics that a group consumes, or once consumed."""
    found = context.clients.consumers(group)
    subscribed = set() if found is None else set(found.subscriptions)
    return {topic for topic, _ in context.positions.of_group(group)} | subscribed


def _lags(context: ServerContext, group: str, topic: str) -> list[tuple[dict[str, Any], dict[str, int]]]:
    if context.store.topic(topic) is None:
        return []
    found = []
    for queue_id in queues_of(context, topic):
        _, end = queue_range(context.store, topic, queue_id)
        position = context.positions.get(group, topic, queue_id) or 0
        consumed_ms = stored_ms(context.store, topic, queue_id, position - 1) if position > 0 else 0
        lag = {"brokerOffset": end, "consumerOffset": position, "lastTimestamp": consumed_ms, "pullOffset": position}
        found.append((_queue(context, topic, queue_id), lag))
    return found


def get_broker_consume_stats(context: ServerContext, request: Request) -> RemotingCommand:
    """Every group, and how far it is in each of its topics."""
    groups = []
    unread = 0
    for group in sorted(context.groups.all().groups):
        tables = [table for topic in sorted(_topics_of(context, group)) if (table := _lags(context, group, topic))]
        groups.append({group: [{"consumeTps": 0.0, "offsetTable": ObjectMap(table)} for table in tables]})
        unread += sum(lag["brokerOffset"] - lag["consumerOffset"] for table in tables for _, lag in table)
    sums = {"totalDiff": unread, "totalInflightDiff": 0}
    return request.answer(body=dumps({"brokerAddr": context.address, "consumeStatsList": groups, **sums}))


def query_groups_of_topic(context: ServerContext, request: Request) -> RemotingCommand:
    topic = TopicRequestHeader.decode(request.command.ext).topic
    online = {group for group, topics in context.clients.clustered().items() if topic in topics}
    groups = {name for name in online | context.positions.groups_at(topic) if name != SCHEDULE_GROUP}
    return request.answer(body=dumps({"groupList": sorted(groups)}))


def query_topics_of_group(context: ServerContext, request: Request) -> RemotingCommand:
    group = GroupRequestHeader.decode(request.command.ext).group
    return request.answer(body=dumps({"topicList": sorted(_topics_of(context, group)), "brokerAddr": context.address}))


def query_subscription(context: ServerContext, request: Request) -> RemotingCommand:
    header = GetConsumeStatsRequestHeader.decode(request.command.ext)
    group = header.group or header.consumer_group
    found = context.clients.subscription(group, header.topic or "")
    body = {"group": group, "topic": header.topic, "subscriptionData": None if found is None else found.as_json()}
    return request.answer(body=dumps(body))


def query_time_spans(context: ServerContext, request: Request) -> RemotingCommand:
    """Of each queue: when its first and last message were stored, and the one that the group comes to next."""
    header = QueryConsumeTimeSpanRequestHeader.decode(request.command.ext)
    if context.store.topic(header.topic) is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    spans = []
    for queue_id in queues_of(context, header.topic):
        first, end = queue_range(context.store, header.topic, queue_id)
        position = context.positions.get(header.group, header.topic, queue_id) or 0
        first_ms = stored_ms(context.store, header.topic, queue_id, first)
        last_ms = stored_ms(context.store, header.topic, queue_id, end - 1) if end > first else -1
        now_ms = time.time_ns() // 1_000_000
        next_ms = stored_ms(context.store, header.topic, queue_id, position) if position < end else now_ms
        span = {
            "messageQueue": _queue(context, header.topic, queue_id), "minTimeStamp": first_ms,
            "maxTimeStamp": last_ms, "consumeTimeStamp": next_ms, "delayTime": max(0, now_ms - next_ms),
        }  # fmt: skip
        spans.append(span)
    return request.answer(body=dumps({"consumeTimeSpanSet": spans}))


def view_stats(context: ServerContext, request: Request) -> RemotingCommand:
    """One counter. Those of RocketMQ that count nothing here do not exist, which mqadmin shows as zero."""
    header = ViewBrokerStatsDataRequestHeader.decode(request.command.ext)
    if not context.counters.total(header.stats_name, header.stats_key):
        text = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
        raise Refused(ResponseCode.SYSTEM_ERROR, text)
    spans = {}
    for name, span_s in (("statsMinute", 60.0), ("statsHour", 3600.0), ("statsDay", 86_400.0)):
        count, rate = context.counters.recent(header.stats_name, header.stats_key, span_s)
        spans[name] = {"avgpt": 1.0 if count else 0.0, "sum": count, "tps": round(rate, 2)}
    return request.answer(body=dumps(spans))


def get_runtime_info(context: ServerContext, request: Request) -> RemotingCommand:
    """What `mqadmin brokerStatus`, the dashboard and RocketMQ's exporter show, which needs each name: texts only."""
    counters, store = context.counters, context.store
    puts, gets = counters.total(PUT), counters.total(GET)
    rates = [" ".join(f"{counters.recent(name, '', span)[1]:.4f}" for span in (10, 60, 600)) for name in (PUT, GET)]
    usage = os.statvfs(store.path)
    ratio = _used(usage)
    producers, consumers = context.clients.counts()
    table = {
        "brokerVersionDesc": VERSION_NAME, "brokerVersion": VERSION, "brokerActive": "true",
        "bootTimestamp": context.started_ms, "runtime": _runtime(context.started_ms),
        "putTps": rates[0], "getTransferredTps": rates[1], "getTransferedTps": rates[1], "getFoundTps": rates[1],
        "getMissTps": "0.0 0.0 0.0", "getTotalTps": rates[1],
        "msgPutTotalTodayNow": puts, "msgGetTotalTodayNow": gets, "putMessageTimesTotal": puts,
        "commitLogMinOffset": store.begin_offset, "commitLogMaxOffset": store.visible_end,
        "commitLogDiskRatio": f"{ratio:.4f}", "commitLogDirCapacity": _capacity(usage),
        "earliestMessageTimeStamp": _earliest_ms(context), "dispatchBehindBytes": 0,
        "producerGroups": producers, "consumerGroups": consumers, "startAcceptSendRequestTimeStamp": 0,
        "consumeQueueDiskRatio": f"{ratio:.4f}", "putMessageDistributeTime": "null",
        "remainHowManyDataToFlush": f"{max(0, store.writer.control[Word.TAIL] - store.visible_end)} B",
        "remainTransientStoreBufferNumbs": _NO_POOL,
        **dict.fromkeys(_ZEROS, 0), **_delays(context),
    }  # fmt: skip
    return request.answer(body=dumps({"table": {name: str(value) for name, value in table.items()}}))


_ZEROS = (
    "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "queryThreadPoolQueueSize", "EndTransactionQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills", "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning", "msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning", "timerReadBehind",
    "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps", "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueCapacity", "queryThreadPoolQueueCapacity", "dispatchMaxBuffer", "getMessageEntireTimeMax",
    "putMessageEntireTimeMax", "putMessageAverageSize", "putMessageSizeTotal",
)  # fmt: skip
_NO_POOL = (1 << 31) - 1  # RocketMQ: TransientStorePool, where there is none: none of its buffers is ever missing


def _runtime(started_ms: int) -> str:
    seconds = (time.time_ns() // 1_000_000 - started_ms) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def _used(usage: os.statvfs_result) -> float:
    """The part that is used of what users may use. RocketMQ: UtilAll.getDiskPartitionSpaceUsedPercent (5.3.3)."""
    used = usage.f_blocks - usage.f_bfree
    return used / max(used + usage.f_bavail, 1)


def _capacity(usage: os.statvfs_result) -> str:
    total, free = (count * usage.f_frsize / (1 << 30) for count in (usage.f_blocks, usage.f_bavail))
    return f"Total : {total:.1f} GiB, Free : {free:.1f} GiB."


def _earliest_ms(context: ServerContext) -> int:
    return context.store.commitlog.store_timestamp_ms(context.store.begin_offset) or 0


def _delays(context: ServerContext) -> dict[str, str]:
    """How far each delay level is delivered, and how far it goes."""
    cells, found = context.positions.table.cells, {}
    for level in range(1, len(DELAYS_MS) + 1):
        cell = cells.find(SCHEDULE_GROUP, SCHEDULE_TOPIC, level - 1)
        position = UNSET if cell is None else cells.position(cell)
        end = context.store.writer.queue_end(SCHEDULE_TOPIC, level - 1)
        if end:
            found[f"scheduleMessageOffset_{level}"] = f"{0 if position == UNSET else position},{end}"
    return found


def broker_config(context: ServerContext) -> dict[str, str]:
    """The settings that have RocketMQ's names. No path and no secret is among them."""
    settings, store = context.settings, context.store
    host, port = context.address.rsplit(":", 1)
    found = {
        "brokerName": settings.broker_name, "brokerClusterName": settings.cluster, "brokerId": 0, "brokerIP1": host,
        "listenPort": port, "brokerRole": "ASYNC_MASTER",
        "flushDiskType": "ASYNC_FLUSH" if store.writer.sync == "os" else "SYNC_FLUSH",
        "autoCreateTopicEnable": settings.creates_topics, "autoCreateSubscriptionGroup": True,
        "enablePropertyFilter": settings.sql92, "messageDelayLevel": settings.delay_levels,
        "transactionCheckInterval": int(settings.check_interval_s * 1000),
        "transactionTimeOut": int(settings.transaction_timeout_s * 1000), "transactionCheckMax": settings.check_max,
        "aclEnable": settings.acl is not None, "maxMessageSize": MESSAGE_SIZE_MAX,
        "mappedFileSizeCommitLog": store.writer.layout.segment_bytes,
    }  # fmt: skip
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}


def get_broker_config(context: ServerContext, request: Request) -> RemotingCommand:
    text = "".join(f"{name}={value}\n" for name, value in broker_config(context).items())
    version = dumps({"counter": 0, "stateVersion": 0, "timestamp": context.started_ms}).decode()
    return request.answer({"version": version}, text.encode())


def get_all_positions(context: ServerContext, request: Request) -> RemotingCommand:
    """Every group's positions, as consumerOffset.json has them."""
    context.positions.table.exchange.export(at_once=True)
    table = {
        f"{topic}@{group}": dict(queues)
        for (topic, group), queues in context.positions.table.exchange.offsets().positions.items()
    }
    return request.answer(body=dumps({"offsetTable": table}))


def nothing_to_do(_context: ServerContext, request: Request) -> RemotingCommand:
    """CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC: retention does it, or nothing is unused."""
    return request.answer()
