"""Requests about queues and records: where they begin and end, by time, by key, by place; positions of groups.

RocketMQ: AdminBrokerProcessor, ConsumerManageProcessor, QueryMessageProcessor (5.3.3).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from broker.consuming.reading import readable_end
from broker.errors import CorruptRecord
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.fastjson import dumps
from broker.remoting.message_headers import (
    GetEarliestMsgStoretimeResponseHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    QueueOffsetResponseHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from broker.server.context import Refused, Request, ServerContext
from broker.server.requests.records import as_sent, record_at
from broker.server.requests.shares import check_place

if TYPE_CHECKING:
    from broker.live import LiveStore
    from broker.store.read.consumequeue import ConsumeQueue

_FOUND_MAX = 64  # RocketMQ: defaultQueryMaxNum is 32, and a client asks for more
_FOUND_BYTES_MAX = 4 << 20  # of one answer, or a single record
_LOOKED_AT_MAX = 1024  # records that the index names for a key, also where another key has its hash
_TIME_MAX_MS = 1 << 62
_NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def queue_range(store: LiveStore, topic: str, queue_id: int, *, cached_only: bool = False) -> tuple[int, int]:
    """(first, end): as `LiveStore.queue_range`, from the table of next offsets, mostly without a search in files.

    With `cached_only` raises NotCached instead of waiting for the disk.
    """
    queue = store.consumequeues.queue(topic, queue_id)
    if queue is None:
        return 0, 0
    first, end = queue.units.first, store.writer.queue_end(topic, queue_id)
    if begin_offset := store.begin_offset:
        first = queue.min_offset(begin_offset, cached_only=cached_only)
    readable = readable_end(store)
    if cached_only and end > first:
        queue.units.raw(end - 1, 1, cached_only=True)
    if end > first and _is_beyond(queue, end - 1, readable):
        end = first + bisect_left(range(end - first), 1, key=lambda n: _is_beyond(queue, first + n, readable))
    return first, max(first, end)


def _is_beyond(queue: ConsumeQueue, queue_offset: int, readable: int) -> bool:
    unit = queue.get(queue_offset)
    return unit is None or unit.commitlog_offset + unit.size > readable


def _offset_answer(request: Request, queue_offset: int) -> RemotingCommand:
    return request.answer(QueueOffsetResponseHeader(queue_offset).encode())


def get_max_offset(context: ServerContext, request: Request) -> RemotingCommand:
    header = QueueRequestHeader.decode(request.command.ext)
    return _offset_answer(request, queue_range(context.store, header.topic, header.queue_id)[1])


def get_min_offset(context: ServerContext, request: Request) -> RemotingCommand:
    header = QueueRequestHeader.decode(request.command.ext)
    return _offset_answer(request, queue_range(context.store, header.topic, header.queue_id)[0])


def search_offset(context: ServerContext, request: Request) -> RemotingCommand:
    """The first message at or after a time; after all of them the end of the queue."""
    header = SearchOffsetRequestHeader.decode(request.command.ext)
    found = context.store.offset_at_time(header.topic, header.queue_id, header.timestamp_ms)
    if header.boundary_type == "UPPER":
        first, end = queue_range(context.store, header.topic, header.queue_id)
        found = context.store.offset_at_time(header.topic, header.queue_id, header.timestamp_ms + 1)
        found = max(first, min(found, end) - 1)
    return _offset_answer(request, found)


def get_earliest_store_time(context: ServerContext, request: Request) -> RemotingCommand:
    """When the first message of a queue was stored; -1 where it has none."""
    header = QueueRequestHeader.decode(request.command.ext)
    found = stored_ms(context.store, header.topic, header.queue_id, 0) or -1
    return request.answer(GetEarliestMsgStoretimeResponseHeader(found).encode())


def stored_ms(store: LiveStore, topic: str, queue_id: int, queue_offset: int) -> int:
    """When a message was stored, the first that is kept if it is older; 0 when there is none."""
    queue = store.consumequeues.queue(topic, queue_id)
    if queue is None:
        return 0
    first, end = queue_range(store, topic, queue_id)
    unit = queue.get(max(first, queue_offset)) if end > first else None
    found = None if unit is None else store.commitlog.store_timestamp_ms(unit.commitlog_offset)
    return found or 0


# Positions


def query_consumer_offset(context: ServerContext, request: Request) -> RemotingCommand:
    """Where a group goes on. One that is new to a young queue begins at 0, whatever it would like."""
    header = QueryConsumerOffsetRequestHeader.decode(request.command.ext)
    place = header.consumer_group, header.topic, header.queue_id
    held = context.positions.get(*place)
    context.positions.asked(*place, request.connection)
    if held is not None:
        return _offset_answer(request, held)
    topic = context.store.topic(header.topic)
    is_there = topic is not None and 0 <= header.queue_id < max(topic.read_queue_count, topic.write_queue_count)
    first, _ = queue_range(context.store, header.topic, header.queue_id)
    if is_there and first == 0 and header.set_zero_if_not_found:
        return _offset_answer(request, 0)
    return request.command.answer(ResponseCode.QUERY_NOT_FOUND, _NOT_FOUND)


def update_consumer_offset(context: ServerContext, request: Request) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader.decode(request.command.ext)
    if context.groups.get(header.consumer_group) is None:
        text = f"Group {header.consumer_group} not exist!"
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
    topic = context.store.topic(header.topic)
    if topic is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
    if not 0 <= header.queue_id < max(topic.read_queue_count, topic.write_queue_count):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"queueId {header.queue_id} of {header.topic} does not exist")
    place = header.consumer_group, header.topic, header.queue_id
    if header.commit_offset >= 0:
        check_place(context, request.connection, *place)
    context.positions.commit(*place, header.commit_offset, request.connection)
    return request.answer()


# Records


def view_message(context: ServerContext, request: Request) -> RemotingCommand:
    """One record by its place, which stands in its offset message id."""
    header = ViewMessageRequestHeader.decode(request.command.ext)
    raw = _raw(context, header.commitlog_offset)
    if raw is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.commitlog_offset}")
    return request.answer(body=raw)


def query_message(context: ServerContext, request: Request) -> RemotingCommand:
    """The records that the index has for a key, newest first; their bodies are not decompressed."""
    header = QueryMessageRequestHeader.decode(request.command.ext)
    limit, size = max(1, min(header.max_num, _FOUND_MAX)), 0
    newest_ms, last, raws = 0, 0, list[bytes]()
    for record in islice(_keyed(context.store, header), limit):
        size += record.total_size
        if raws and size > _FOUND_BYTES_MAX:
            break
        if (raw := _raw(context, record.commitlog_offset)) is not None:
            raws.append(raw)
            newest_ms, last = max(newest_ms, record.store_timestamp_ms), max(last, record.commitlog_offset)
    if not raws:
        ext = QueryMessageResponseHeader(0, 0).encode()
        text = "can not find message, maybe time range not correct"
        return request.command.answer(ResponseCode.QUERY_NOT_FOUND, text, ext)
    return request.answer(QueryMessageResponseHeader(newest_ms, last).encode(), b"".join(raws))


def _keyed(store: LiveStore, header: QueryMessageRequestHeader) -> Iterator[Record]:
    """The readable records of a topic that carry a key, newest first, each once."""
    begin_ms = 0 if header.is_unique_key else max(header.begin_timestamp_ms, 0)
    end_ms = _TIME_MAX_MS if header.is_unique_key else min(header.end_timestamp_ms, _TIME_MAX_MS - 1) + 1
    visible = readable_end(store)
    named = islice(store.index.find(header.topic, header.key, begin_ms, end_ms), _LOOKED_AT_MAX)
    for commitlog_offset in dict.fromkeys(named):
        record = store.commitlog.read(commitlog_offset) if commitlog_offset < visible else None
        if record is None or record.topic != header.topic or not begin_ms <= record.store_timestamp_ms < end_ms:
            continue
        properties = record.property_map
        keys = (properties.get(names.UNIQ_KEY),) if header.is_unique_key else names.keys(properties)
        if header.key in keys:
            yield record


def _raw(context: ServerContext, commitlog_offset: int) -> bytes | None:
    try:
        record = record_at(context.store, commitlog_offset)
        return (
            None if record is None else as_sent(context.store.commitlog.raw(commitlog_offset, record.total_size) or b"")
        )
    except CorruptRecord as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None


def query_consume_queue(context: ServerContext, request: Request) -> RemotingCommand:
    """Units of a queue."""
    header = QueryConsumeQueueRequestHeader.decode(request.command.ext)
    first, end = queue_range(context.store, header.topic, header.queue_id)
    queue = context.store.consumequeues.queue(header.topic, header.queue_id)
    if queue is None and context.store.topic(header.topic) is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic} is not exist!")
    start = max(header.index, first)
    units = [] if queue is None else list(queue.walk(start, min(end, start + max(0, min(header.count, 1024)))))
    data = [
        {"eval": False, "physicOffset": u.commitlog_offset, "physicSize": u.size, "tagsCode": u.tags_code}
        for u in units
    ]
    return request.answer(body=dumps({"maxQueueIndex": end, "minQueueIndex": first, "queueData": data}))
