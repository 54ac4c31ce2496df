"""Requests that store messages: plain, half, delayed, batches, and what a consumer sends back.

RocketMQ: SendMessageProcessor, AbstractSendMessageProcessor.msgCheck (5.3.3).
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

from broker import observing
from broker.consuming.redelivery import sent_back
from broker.errors import CorruptRecord, MessageRejected, ProtocolError
from broker.format import properties as names
from broker.format.commitlog import MESSAGE_SIZE_MAX, Record
from broker.format.config import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig
from broker.format.java import Host, encode_message_id
from broker.format.record.body import begins_as
from broker.format.sysflag import TransactionType, compression, transaction_type
from broker.format.topics import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    RETRY_PREFIX,
    SEND_REFUSED_TOPICS,
    check_topic_name,
    dlq_topic,
    retry_topic,
)
from broker.message import Message
from broker.remoting.bodies import decode_batch
from broker.remoting.codes import VERSION_MAX_RECONSUME, RequestCode, ResponseCode
from broker.remoting.message_headers import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from broker.server.context import Refused, Request, ServerContext
from broker.server.counters import PUT
from broker.server.requests.records import record_at
from broker.server.threads.store_thread import Stored
from broker.store.engines.half_op import HALF_DELAY
from broker.store.write.admission import DELAYS, delay_level
from broker.store.write.compose import KEPT_FLAGS, Origin
from broker.store.write.pending_record import Appended
from broker.store.write.uniquekey import new_unique_key
from broker.transaction.events import BY, WHY
from broker.transaction.service import Half

REGION = "DefaultRegion"
AUTO_CREATE_QUEUES = 8  # RocketMQ: defaultTopicQueueNums of a broker
_SHORT = {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
OWN = (names.CRC32, "POP_CK", HALF_DELAY)
# What a half message of a client does not say: what counts or decides is the broker's word. Java's client drops DELAY;
# a broker of RocketMQ would lose the message.
_NOT_OF_A_HALF = frozenset((names.DELAY, names.TRANSACTION_CHECK_TIMES, names.TRAN_PREPARED_QUEUE_OFFSET, WHY, BY))
_TIMES = DELAYS - {names.DELAY}
_FITTING = names.SIZE_MAX // 4  # so many characters fit, whatever they are
_check_name = lru_cache(maxsize=4096)(check_topic_name)  # what it raises is not remembered
ADDED = {"MSG_REGION": REGION, "TRACE_ON": "true"}


def observed(request: Request, finish: Callable[[Any], None]) -> Callable[[Any], None]:
    """What finishes a request; where there is an observer, it sees a message that was sent, once that is answered."""
    code = request.command.code
    if not observing.is_observed() or code not in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        return finish
    begun_ns = time.time_ns()

    def finish_seen(result: Any) -> None:
        finish(result)
        with contextlib.suppress(ProtocolError):  # a request that says nothing was refused
            header, error = header_of(request), str(result) if isinstance(result, BaseException) else ""
            seen = observing.StoredForClient(
                header.topic, header.queue_id, header.producer_group, names.decode_text(header.properties or ""),
                len(request.command.body), begun_ns, error,
            )  # fmt: skip
            observing.stored(seen)

    return finish_seen


class _Incoming(NamedTuple):
    """A message on its way into the log."""

    header: SendMessageRequestHeader
    topic: str
    queue_id: int
    properties: dict[str, str]
    origin: Origin


def send_message(context: ServerContext, request: Request) -> Stored:
    """SEND_MESSAGE and its V2; a batch where the header says so. RocketMQ: SendMessageProcessor (5.3.3)."""
    store, header = context.store, header_of(request)
    if header.batch:
        return send_batch(context, request)
    append, prepare = partial(store.append, wait=False), partial(store.transactions.prepare, wait=False)
    return cast("Stored", _send(context, request, header, append, prepare))


def send_at_once(context: ServerContext, request: Request) -> Stored | None:
    """The same for the event loop, which waits for no lock; None where the thread of the store is to do it."""
    store, header = context.store, header_of(request)
    if header.batch or header.topic.startswith(RETRY_PREFIX) or not store.topics_are_current():
        return None
    if store.topic(header.topic) is None:  # it may have to be made
        return None
    return _send(context, request, header, store.append_at_once, store.transactions.prepare_at_once)


def _send(
    context: ServerContext,
    request: Request,
    header: SendMessageRequestHeader,
    append: Callable[..., Appended | None],
    prepare: Callable[..., Half | None],
) -> Stored | None:
    """Store a message by one of these two; None when it stored nothing."""
    sent = _received(context, request, header)
    message, properties = Message(sent.topic, request.command.body), sent.properties
    if names.TRAN_MSG in properties and _is_half(sent):
        group = as_half(properties, sent.header.producer_group, sent.topic, sent.queue_id)
        half = prepare(message, group, queue_id=sent.queue_id, extra_properties=properties, origin=sent.origin)
        return None if half is None else _half_stored(context, request, sent, half)
    made = append(message, queue_id=sent.queue_id, extra_properties=properties, origin=sent.origin)
    return None if made is None else _stored(context, request, sent, made)


def _received(context: ServerContext, request: Request, header: SendMessageRequestHeader) -> _Incoming:
    sent = _admitted(context, request, header)
    check_body(request.command.body, header.sys_flag)
    if names.UNIQ_KEY not in sent.properties:
        sent.properties[names.UNIQ_KEY] = new_unique_key(sent.origin.born_timestamp_ms)
    return sent


def _stored(context: ServerContext, request: Request, sent: _Incoming, made: Appended) -> Stored:
    properties, unique_key = sent.properties, sent.properties[names.UNIQ_KEY]
    message_id = encode_message_id(context.host, made.commitlog_offset)
    context.counters.add(PUT, sent.topic)
    answer = SendMessageResponseHeader(message_id, sent.queue_id, made.queue_offset, unique_key)
    return Stored(request.answer({**answer.encode(), **ADDED}), made.end, waits(properties))


def _is_half(sent: _Incoming) -> bool:
    """Whether a message with TRAN_MSG is a half message. What a group sends to itself again is delivered already: its
    copy is none, and no longer says so.

    RocketMQ: SendMessageProcessor.sendMessage (5.3.3), and DefaultMQPushConsumerImpl.sendMessageBack, which clears it.
    """
    if sent.header.reconsume_times > 0 or sent.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        del sent.properties[names.TRAN_MSG]
        return False
    return sent.properties[names.TRAN_MSG].lower() == "true"


def as_half(properties: dict[str, str], producer_group: str, topic: str, queue_id: int) -> str:
    """Give a message the properties of a half message; returns its producer group."""
    if not _NOT_OF_A_HALF.isdisjoint(properties):
        for name in _NOT_OF_A_HALF:
            properties.pop(name, None)
    group = properties.setdefault(names.PGROUP, producer_group)
    properties |= {
        names.TRAN_MSG: "true", names.TRANSACTION_ID: properties[names.UNIQ_KEY], names.REAL_TOPIC: topic,
        names.REAL_QID: str(queue_id),
    }  # fmt: skip
    return group


def _half_stored(context: ServerContext, request: Request, sent: _Incoming, half: Half) -> Stored:
    """The answer to a half message: its queue offset is its slot, by which its end finds it."""
    context.counters.add(PUT, sent.topic)
    answer = SendMessageResponseHeader(half.message_id, sent.queue_id, half.slot, half.unique_key)
    return Stored(request.answer({**answer.encode(), **ADDED}), half.end, waits(sent.properties))


def waits(properties: Mapping[str, str]) -> bool:
    """Whether a message is to be acknowledged by a slave, too, where the server asks for that."""
    return properties.get(names.WAIT) != "false"


def send_batch(context: ServerContext, request: Request) -> Stored:
    """SEND_BATCH_MESSAGE: all of the messages or none, side by side in one queue."""
    sent = _admitted(context, request, header_of(request))
    _check_batch(sent)
    batched = decode_batch(request.command.body)
    for one in batched:
        check_body(one.body, sent.header.sys_flag)
    made = context.store.append_batch(
        [Message(sent.topic, one.body) for one in batched],
        queue_id=sent.queue_id,
        extra_properties=[_kept(context, names.decode(one.properties)) for one in batched],
        origin=sent.origin,
        flags=[one.flag for one in batched],
        wait=False,
    )
    context.counters.add(PUT, sent.topic, len(made))
    ids = ",".join(encode_message_id(context.host, one.commitlog_offset) for one in made)
    unique_key = sent.properties.get(names.UNIQ_KEY)
    answer = SendMessageResponseHeader(ids, sent.queue_id, made[0].queue_offset, unique_key)
    return Stored(request.answer({**answer.encode(), **ADDED}), made[-1].end)


def _check_batch(sent: _Incoming) -> None:
    """Raises Refused for a batch that is to be half or delayed as a whole: it would be delivered at once.

    RocketMQ: CommitLog.asyncPutMessages (5.3.3).
    """
    is_half = sent.properties.get(names.TRAN_MSG, "").lower() == "true"
    if is_half or transaction_type(sent.header.sys_flag) is not TransactionType.NONE:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch is in no transaction: send each half message by itself")
    if not DELAYS.isdisjoint(sent.properties):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be delayed: send each message by itself")


def send_back(context: ServerContext, request: Request) -> Stored:
    """CONSUMER_SEND_MSG_BACK: a message comes again later, or goes to the dead letters of the group."""
    header = ConsumerSendMsgBackRequestHeader.decode(request.command.ext)
    config = context.groups.get(header.group)
    if config is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}")
    record = record_at(context.store, header.commitlog_offset)
    if record is None or not _is_delivered(record):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.commitlog_offset}")
    retries_max = config.retry_max_times
    requested = header.max_reconsume_times
    if request.command.version >= VERSION_MAX_RECONSUME and requested is not None and requested >= 0:
        retries_max = requested
    made = sent_back(record, header.group, delay_level=header.delay_level or None, retries_max=retries_max)
    for topic in (made.topic, retry_topic(header.group)):
        ensure_topic(context, topic)
    (placed,) = context.store.writer.append([made], wait=False)
    return Stored(request.answer(), placed.end)


def _is_delivered(record: Record) -> bool:
    """Whether consumers may have a message: its copy is delivered. RocketMQ copies half messages, too."""
    is_kept = record.topic in SEND_REFUSED_TOPICS  # half, parked, or delayed
    return not is_kept and transaction_type(record.sys_flag) in (TransactionType.NONE, TransactionType.COMMIT)


def ensure_topic(context: ServerContext, topic: str) -> None:
    """Make a retry or dead-letter topic that is missing, with one queue; of the schedule topic one for each level."""
    if context.store.topic(topic) is None:
        is_of_group = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        queues = _with_those_there(context, topic, 1 if is_of_group else len(context.settings.delays_ms))
        context.store.create_topic(topic, queues=queues, message_type="", change=False)


def _with_those_there(context: ServerContext, topic: str, queues: int) -> int:
    """How many queues a topic gets that is made: one that was deleted comes back with all that hold messages."""
    return max(queues, *(queue_id + 1 for queue_id in context.store.queues(topic)), 1)


def header_of(request: Request) -> SendMessageRequestHeader:
    """The fields of any request that sends."""
    return SendMessageRequestHeader.decode(request.command.ext, short=request.command.code in _SHORT)


def _admitted(context: ServerContext, request: Request, header: SendMessageRequestHeader) -> _Incoming:
    """The message of a request, once its topic and queue are there."""
    text = header.properties or ""
    if len(text) > _FITTING and (size := len(text.encode())) > names.SIZE_MAX:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the properties take {size} bytes, more than {names.SIZE_MAX}")
    properties = _kept(context, names.decode_text(text))
    _check_takes_nothing_back(properties)
    topic, queue_id = _retried(context, header, properties)
    config = writable_topic(context, topic, header)
    if queue_id < 0:
        queue_id = random.randrange(config.write_queue_count)
    if queue_id >= max(config.read_queue_count, config.write_queue_count):
        text = f"request queueId[{queue_id}] is illegal, {topic} has {config.write_queue_count} queues"
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{text}, producer: {request.connection.address}")
    origin = Origin(
        header.born_timestamp_ms,
        host(request.connection.address),
        context.host,
        header.flag,
        header.sys_flag & KEPT_FLAGS,
        header.reconsume_times,
    )
    return _Incoming(header, topic, min(queue_id, config.write_queue_count - 1), properties, origin)


def _check_takes_nothing_back(properties: Mapping[str, str]) -> None:
    """Raises Refused for a message whose delivery would take another one back: both would be delivered here.

    With a delay level it would not: so a client sends it to its retry topic.
    RocketMQ: HookUtils.checkIfTimerMessage, transformTimerMessage, TimerMessageStore (5.3.3).
    """
    if names.TIMER_DEL_UNIQKEY in properties and not _TIMES.isdisjoint(properties) and not delay_level(properties):
        text = f"it would take back {properties[names.TIMER_DEL_UNIQKEY]:.80}"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"a delayed message cannot be taken back here, and {text}")


def _kept(context: ServerContext, properties: dict[str, str]) -> dict[str, str]:
    """The properties as they are stored: what the broker adds, and without what is its own. Changes them."""
    for name in OWN:
        properties.pop(name, None)
    properties |= added(context)
    return properties


def added(context: ServerContext) -> dict[str, str]:
    """The properties that a broker adds to each message."""
    return {names.CLUSTER: context.settings.cluster, names.MSG_REGION: REGION, names.TRACE_ON: "true"}


def _retried(context: ServerContext, header: SendMessageRequestHeader, properties: dict[str, str]) -> tuple[str, int]:
    """Where a message goes that a consumer sends to its retry topic itself; else where the request says.

    A consumer that works in order sends one so when it gives it up. Before 5.1.1 it states a number that is not above
    its own limit, and with each retry the same: its dead letter is known by the locks of its group. A dead letter does
    not wait, whatever delay it states. RocketMQ: SendMessageProcessor.handleRetryAndDLQ (5.3.3).
    """
    topic = header.topic
    if not topic.startswith(RETRY_PREFIX):
        return topic, header.queue_id
    group = topic.removeprefix(RETRY_PREFIX)
    config = context.groups.get(group)
    if config is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
    requested = header.max_reconsume_times
    retries_max = config.retry_max_times if requested is None else requested
    if header.reconsume_times > retries_max or context.locks.are_held(group):
        topic = dlq_topic(group)
        for name in DELAYS:
            properties.pop(name, None)
        properties[names.DELAY] = "0"
    ensure_topic(context, topic)
    return topic, 0


def writable_topic(context: ServerContext, topic: str, header: SendMessageRequestHeader) -> TopicConfig:
    """The topic's configuration; made from the default topic when it is missing. Raises Refused."""
    try:
        _check_name(topic)
    except MessageRejected as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if topic in SEND_REFUSED_TOPICS:
        raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
    found = context.store.topic(topic)
    if found is None and context.settings.creates_topics:
        found = _created(context, topic, header)
    if found is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
    if not found.perm & PERM_WRITE or found.write_queue_count < 1:
        raise Refused(
            ResponseCode.NO_PERMISSION, f"the broker[{context.address}] topic[{topic}] sending message is forbidden"
        )
    return found


def _created(context: ServerContext, topic: str, header: SendMessageRequestHeader) -> TopicConfig | None:
    """RocketMQ: TopicConfigManager.createTopicInSendMessageMethod (5.3.3)."""
    if topic == AUTO_CREATE_TOPIC:
        perm = PERM_READ | PERM_WRITE | PERM_INHERIT
        return context.store.create_topic(topic, queues=AUTO_CREATE_QUEUES, message_type="", perm=perm, change=False)
    default = context.store.topic(header.default_topic)
    if header.default_topic == AUTO_CREATE_TOPIC:
        most = AUTO_CREATE_QUEUES
    elif default is not None and default.perm & PERM_INHERIT:
        most = default.write_queue_count
    else:
        return None
    queues = _with_those_there(context, topic, min(header.default_topic_queue_nums, most))
    return context.store.create_topic(topic, queues=queues, message_type="", change=False)


def check_body(body: bytes, sys_flag: int = 0) -> None:
    """Raises Refused for a body that RocketMQ would not take, and for one that no consumer could decompress."""
    if len(body) > MESSAGE_SIZE_MAX:
        text = f"the body has {len(body)} bytes, more than {MESSAGE_SIZE_MAX}"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, text)
    try:
        is_readable = begins_as(body, compression(sys_flag))
    except CorruptRecord as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
    if not is_readable:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the body is not compressed as its sysFlag says")


@lru_cache(maxsize=4096)  # a client sends many messages
def host(address: str) -> Host:
    """The client's address as records hold it."""
    try:
        return Host.parse(address)
    except ValueError:
        return Host(bytes(4), 0)
