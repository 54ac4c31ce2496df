"""How a message comes back to its group: retry topic, delay, dead letters; pure but for the drafts it makes.

    not consumed ──► SCHEDULE_TOPIC_XXXX, queue level - 1 ──due──► %RETRY%group ──► the group again
    16 times     ──► %DLQ%group ──checkback dlq──► %RETRY%group

All of these records have transaction type 0, also those of a committed transaction: a copy of a commit is not an end
(decision 0001). RocketMQ: SendMessageProcessor.consumerSendMsgBack, ScheduleMessageService.messageTimeUp (5.3.3), which
keep the type of what they copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

from broker.errors import CorruptRecord, MessageRejected
from broker.format import properties as names
from broker.format.commitlog import Record, make_record
from broker.format.java import decode_message_id, encode_message_id
from broker.format.sysflag import COMPRESSED, COMPRESSION_MASK
from broker.format.topics import DELAYS_MS, DLQ_PREFIX, SCHEDULE_TOPIC, dlq_topic, retry_topic
from broker.message import ReceivedMessage
from broker.store.write.admission import timer_level
from broker.store.write.pending_record import LOCAL_HOST, PendingRecord, draft
from broker.transaction.events import WHY

RETRIES_MAX = 16
_FIRST_LEVEL = 3  # 10 s: a first failure waits as long as RocketMQ's
_REASON_SIZE = 500
_NOT_IN_A_PROPERTY = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]+")
_OF_A_RECORD = frozenset((names.CRC32, names.TRAN_MSG, names.DELAY, names.INNER_BASE, names.INNER_NUM, WHY))
_RETRIES_NO_END = 0x7FFFFFFF
_BODY_FLAGS = COMPRESSED | COMPRESSION_MASK


def sent_back(
    record: Record,
    group: str,
    *,
    delay_level: int | None = None,
    retries_max: int = RETRIES_MAX,
    delay_ms: int | None = None,
    now_ms: int = 0,
    reason: str = "",
) -> PendingRecord:
    """The record that brings a message back to a group later, or to its dead letters after `retries_max` times.

    Without a level the delay grows: 10 s, 30 s, 1 min … 2 h. A level below 0 means: give up now. `delay_ms` is a delay
    of any length from `now_ms` on, instead of a level. A dead letter states the `reason`. Where the message's own
    properties leave no room for all of that, it comes with less: at the worst at once, and under its retry topic.
    """
    if delay_level is None:
        delay_level = _FIRST_LEVEL + record.reconsume_times
    bare, retry = _bare(record), retry_topic(group)
    # A dead letter of another group states the topic that it had there, under which this group never received it.
    is_letter = record.topic.startswith(DLQ_PREFIX)
    topic = record.topic if is_letter else bare.get(names.RETRY_TOPIC, record.topic)
    named = {**bare, names.RETRY_TOPIC: topic}
    full = {**bare, names.WAIT: "false", names.RETRY_TOPIC: topic}
    full.setdefault(names.ORIGIN_MESSAGE_ID, encode_message_id(record.store_host, record.commitlog_offset))
    times = record.reconsume_times + 1
    if delay_level < 0 or record.reconsume_times >= retries_max:
        dead = {**full, names.DELAY: "0"}
        kept = [{**dead, **_why(reason)}, dead, {**named, names.DELAY: "0"}, bare]
        return _first_that_fits(record, [_Way(dlq_topic(group), 0, properties) for properties in kept], times)
    timer = {names.TIMER_OUT_MS: str(now_ms + delay_ms)} if delay_ms else {}
    if delay_ms:
        delay_level = timer_level(delay_ms)
    at_once = [_Way(retry, 0, full), _Way(retry, 0, named), _Way(retry, 0, bare)]
    if delay_level == 0 or delay_ms == 0:
        return _first_that_fits(record, at_once, times)
    level = min(delay_level, len(DELAYS_MS))
    timer |= {names.DELAY: str(level), names.REAL_TOPIC: retry, names.REAL_QID: "0"}
    delayed = [_Way(SCHEDULE_TOPIC, level - 1, {**kept, **timer}) for kept in (full, named)]
    return _first_that_fits(record, delayed + at_once, times)


def record_of(message: ReceivedMessage) -> Record:
    """A message in hand as a record, where retention removed its own meanwhile: the copy is made from what is left."""
    host, commitlog_offset = decode_message_id(message.message_id)
    properties = {name: value for name, value in message.properties.items() if name and value}
    return make_record(
        message.topic, message.body, names.encode(properties), born_host=host, store_host=host,
        born_timestamp_ms=message.born_timestamp_ms, store_timestamp_ms=message.store_timestamp_ms,
        queue_id=message.queue_id, queue_offset=message.queue_offset, commitlog_offset=commitlog_offset,
        flag=message.flag, reconsume_times=message.reconsume_times,
    )  # fmt: skip


def copied_back(message: ReceivedMessage, delay_level: int, retries_max: int) -> tuple[dict[str, str], int, int]:
    """The properties of the copy that a consumer sends to its retry topic itself, and its two numbers of retries.

    A broker compares the numbers, by > or before 5.1.1 by >=: so they say whether it is dead, not how many are left.
    RocketMQ: DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage, SendMessageProcessor.handleRetryAndDLQ (5.3.3).
    """
    is_dead = delay_level < 0 or message.reconsume_times >= retries_max
    properties = {
        name: value for name, value in message.properties.items()
        if name and value and name not in _OF_A_RECORD and not name.startswith("TIMER_")
    }  # fmt: skip
    properties.setdefault(names.RETRY_TOPIC, message.topic)
    properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
    level = 0 if is_dead else delay_level or _FIRST_LEVEL + message.reconsume_times
    properties |= {names.DELAY: str(min(level, len(DELAYS_MS))), names.WAIT: "true"}
    return properties, message.reconsume_times + 1, 0 if is_dead else _RETRIES_NO_END


class _Way(NamedTuple):
    """Where a copy may go, and with which properties."""

    topic: str
    queue_id: int
    properties: dict[str, str]


def _why(reason: str) -> dict[str, str]:
    """The property that states a reason; none for an empty one."""
    text = " ".join(_NOT_IN_A_PROPERTY.sub(" ", reason).split())[:_REASON_SIZE]
    return {WHY: text} if text else {}


def _first_that_fits(record: Record, ways: Sequence[_Way], reconsume_times: int) -> PendingRecord:
    """The copy by the first way for whose properties a record has room; the last way adds none."""
    *before, last = ways
    for way in before:
        with contextlib.suppress(MessageRejected):
            return _copy(record, *way, reconsume_times)
    return _copy(record, *last, reconsume_times)


def delayed_for(record: Record) -> tuple[str, int]:
    """The topic and queue of a record in the schedule topic. Raises CorruptRecord where it does not say them."""
    properties = record.property_map
    topic, stated = properties.get(names.REAL_TOPIC), properties.get(names.REAL_QID, "0")
    queue_id = names.decimal(stated, 9)
    if not topic or queue_id is None:
        reason = f"a delayed message without a place to go: {names.REAL_TOPIC} {topic!r}, {names.REAL_QID} "
        raise CorruptRecord(f"{reason}{stated!r:.40}", commitlog_offset=record.commitlog_offset)
    return topic, queue_id


def due(record: Record, now_ms: int, delays_ms: Sequence[int] = DELAYS_MS) -> PendingRecord:
    """What a record in the schedule topic becomes when its time has come. Raises CorruptRecord as `delayed_for`.

    Delivered, it keeps its delay level, as with RocketMQ. One with a delay of any length waits in a shorter level for
    what is left of it.
    """
    properties, added = dict(record.property_map), dict[str, str]()
    for name in (names.CRC32, names.TRAN_MSG):
        properties.pop(name, None)
    place, due_ms = delayed_for(record), names.decimal(properties.get(names.TIMER_OUT_MS, ""))
    if due_ms is not None:
        if due_ms > now_ms:
            level = timer_level(due_ms - now_ms, delays_ms)
            place, added = (SCHEDULE_TOPIC, level - 1), {names.DELAY: str(level)}
        else:
            properties.pop(names.DELAY, None)
            added = {names.TIMER_DEQUEUE_MS: str(now_ms)}
    try:
        return _copy(record, *place, {**properties, **added}, record.reconsume_times)
    except MessageRejected:  # there is no room for what is added, which tells no reader where or when
        return _copy(record, *place, properties, record.reconsume_times)


def resent(record: Record, group: str) -> PendingRecord:
    """A dead letter that goes to its group again, with all its retries before it."""
    bare, retry = _bare(record), retry_topic(group)
    named = {**bare, names.RETRY_TOPIC: bare.get(names.RETRY_TOPIC) or bare.get(names.DLQ_ORIGIN_TOPIC, record.topic)}
    return _first_that_fits(record, [_Way(retry, 0, named), _Way(retry, 0, bare)], 0)


def _bare(record: Record) -> dict[str, str]:
    """The properties that go with a copy: those that speak of this one record stay behind."""
    properties = dict(record.property_map)
    for name in (names.CRC32, names.TRAN_MSG, names.DELAY, names.TIMER_OUT_MS, WHY):
        properties.pop(name, None)
    return properties


def _copy(record: Record, topic: str, queue_id: int, properties: dict[str, str], reconsume_times: int) -> PendingRecord:
    return draft(
        topic,
        record.body,
        properties,
        queue_id=queue_id,
        born_timestamp_ms=record.born_timestamp_ms,
        flag=record.flag,
        sys_flag=record.sys_flag & _BODY_FLAGS,
        reconsume_times=reconsume_times,
        born_host=LOCAL_HOST if record.born_host.is_ipv6 else record.born_host,
        store_host=LOCAL_HOST if record.store_host.is_ipv6 else record.store_host,
    )


def as_sent(message: ReceivedMessage) -> ReceivedMessage:
    """A message of the retry topic, under the topic it was sent to. RocketMQ: resetRetryAndNamespace (5.3.3)."""
    topic = message.properties.get(names.RETRY_TOPIC)
    return dataclasses.replace(message, topic=topic) if topic else message
