"""From a message to the record that will be appended: the same steps for a plain message and for a half message."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from broker import compiled
from broker.errors import BrokerError, MessageRejected, shown
from broker.format import properties as names
from broker.format.java import Host
from broker.format.sysflag import COMPRESSED, COMPRESSION_MASK, TransactionType
from broker.format.topics import SCHEDULE_TOPIC
from broker.message import Message, plain_text
from broker.store.clock import StoreClock
from broker.store.write.admission import (
    DELAYS,
    LOCAL_TIMER_MAX_MS,
    TIMER_MAX_MS,
    Admission,
    check_batch,
    delay_level,
    deliver_at_ms,
    timer_level,
)
from broker.store.write.engine import TransactionEngine
from broker.store.write.pending_record import LOCAL_HOST, PendingRecord, SenderFields, check_size, draft
from broker.store.write.uniquekey import new_unique_key

_fast_properties: Callable[..., dict[str, str] | None] | None = (
    compiled.fast.stored_properties if compiled.fast else None
)
KEPT_FLAGS = COMPRESSED | COMPRESSION_MASK
"""What a record keeps of its sender's sysFlag."""
_END_ROOM = 1024  # by which the end of a half message, all its records together, may be larger
_OF_ANY_LENGTH = (*DELAYS - {names.DELAY}, names.TIMER_OUT_MS)  # the last is a broker's, and a client may state it
_SLOT_MAX = (1 << 63) - 1
_QUEUES_END = 1 << 31  # a record has 32 bits for it, with a sign
_new_tuple = tuple.__new__


class Origin(NamedTuple):
    """What a message from elsewhere says of itself: who sent it and when, and how its body is compressed.

    `sys_flag` counts for the compression only. Hosts are IPv4.
    """

    born_timestamp_ms: int
    born_host: Host = LOCAL_HOST
    store_host: Host = LOCAL_HOST  # where clients find the record again: it stands in its offset message id
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0


class Statement(NamedTuple):
    """What a record will say of a message, before it is a record."""

    properties: dict[str, str]
    level: int
    """The delay level that it waits in first; 0 for none."""
    now_ms: int


class Composed(NamedTuple):
    """A record that the store has admitted, the properties in it, and its born timestamp in milliseconds."""

    record: PendingRecord
    properties: dict[str, str]
    born_timestamp_ms: int


def statement_of(
    message: Message,
    *,
    queue_id: int,
    clock: StoreClock,
    extra: Mapping[str, str] | None = None,
    group: str | None = None,
    is_local: bool = True,
) -> Statement:
    """What the record of a message says; with a `group`, of a half message of that producer group.

    `extra` are properties that RocketMQ or checkback itself sets; a UNIQ_KEY among them is kept, else one is made.
    A delayed message also states the topic and queue that it is meant for. Raises MessageRejected.
    """
    now_ms, level = time.time_ns() // 1_000_000, 0
    if group is not None and type(group) is not str:
        group = plain_text(group)
    try:
        unique_key = extra.get(names.UNIQ_KEY) if extra else None
        unique_key = new_unique_key(now_ms) if unique_key is None else unique_key
        properties = None
        if _fast_properties is not None and type(message) is Message:
            properties = _fast_properties(message.properties, message.tag, message.keys, unique_key, group, extra)
        if properties is None:
            properties = _stored_properties(message, unique_key, group, extra)
    except (AttributeError, TypeError):
        check_arguments(message, queue_id, extra)
        raise
    if extra and not DELAYS.isdisjoint(properties):
        level = _level(properties, now_ms, clock, prepared=group is not None, is_local=is_local)
        if level:  # a Message has none of its own
            properties |= {names.REAL_TOPIC: message.topic, names.REAL_QID: str(queue_id)}
    return _new_tuple(Statement, (properties, level, now_ms))


def compose(
    message: Message,
    admission: Admission,
    *,
    queue_id: int,
    size_max: int,
    extra: Mapping[str, str] | None = None,
    origin: Origin | None = None,
    is_copy: bool = False,
) -> Composed:
    """The record of a plain message; `extra` as in `statement_of`, `size_max` in bytes, `is_copy` as in `admit`.

    A delayed message goes to the schedule topic at once. Raises MessageRejected, NotPermitted.
    RocketMQ: CommitLog.asyncPutMessage, HookUtils.transformDelayLevelMessage (5.3.3).
    """
    try:
        is_local = origin is None
        statement = statement_of(message, queue_id=queue_id, clock=admission.clock, extra=extra, is_local=is_local)
        return compose_stated(
            message.topic, message.body, statement, admission, queue_id=queue_id, size_max=size_max, origin=origin,
            is_copy=is_copy,
        )  # fmt: skip
    except BrokerError:
        raise
    except Exception:
        check_arguments(message, queue_id, extra, origin)
        raise


def check_arguments(message: object, queue_id: object = 0, extra: object = None, origin: object = None) -> None:
    """After an error from within: what was given, if it is of a wrong type, is the cause. Raises MessageRejected."""
    if not isinstance(message, Message):
        raise MessageRejected(f"a store takes a message, broker.Message(topic, body), not {shown(message)}")
    if not isinstance(queue_id, int) or not 0 <= queue_id < _QUEUES_END:
        raise MessageRejected(f"queue_id is the number of a queue, from 0 on, not {shown(queue_id)}")
    if extra is not None and not (
        isinstance(extra, Mapping) and all(isinstance(text, str) for item in extra.items() for text in item)
    ):
        raise MessageRejected(f"extra_properties is a dict of text to text, not {shown(extra)}")
    if origin is not None and not isinstance(origin, Origin):
        raise MessageRejected(f"origin is an Origin, which says who sent the message, not {shown(origin)}")


def compose_stated(
    topic: str,
    body: bytes,
    statement: Statement,
    admission: Admission,
    *,
    queue_id: int,
    size_max: int,
    origin: Origin | None = None,
    is_copy: bool = False,
) -> Composed:
    """The same of a message of which it is known what its record will say; it must have been checked."""
    properties, level, now_ms = statement
    record = draft(
        SCHEDULE_TOPIC if level else topic,
        body,
        properties,
        queue_id=level - 1 if level else queue_id,
        **_sender(origin, now_ms),
    )
    check_size(len(record.raw), size_max)
    admission.admit(topic, properties, queue_id, now_ms, is_copy=is_copy)
    if level:
        admission.admit(SCHEDULE_TOPIC, {}, level - 1, now_ms, system=True)
    return _new_tuple(Composed, (record, properties, now_ms if origin is None else origin.born_timestamp_ms))


def compose_half(
    message: Message,
    admission: Admission,
    statement: Statement,
    engine: TransactionEngine,
    *,
    queue_id: int,
    size_max: int,
    origin: Origin | None = None,
) -> Composed:
    """The half message of a message, in the form of a store's engine; what its end takes counts as well.

    A delayed one goes to the schedule topic when it is committed. Raises MessageRejected, NotPermitted.
    """
    properties, level, now_ms = statement
    asked = dict(properties)  # an engine keeps the delay under another name
    try:
        record = engine.half(message.topic, message.body, properties, queue_id=queue_id, **_sender(origin, now_ms))
    except BrokerError:
        raise
    except Exception:
        check_arguments(message, queue_id, origin=origin)
        raise
    if level or len(record.raw) > size_max - _END_ROOM:  # the commit of a delayed one states more than its half
        check_size(len(record.raw), size_max)
        ends = engine.ends(record, 0, _SLOT_MAX, TransactionType.COMMIT, now_ms)
        check_size(sum([len(one.raw) for one in ends]), size_max)
    admission.admit(message.topic, asked, queue_id, now_ms, prepared=True)
    if level:
        admission.admit(SCHEDULE_TOPIC, {}, level - 1, now_ms, system=True)
    return _new_tuple(Composed, (record, properties, now_ms if origin is None else origin.born_timestamp_ms))


def _stored_properties(
    message: Message, unique_key: str, group: str | None, extra: Mapping[str, str] | None
) -> dict[str, str]:
    """What a record says: the message's own properties and keys, its unique key, of a half message its group, and more.

    Raises MessageRejected.
    """
    properties = message.stored_properties
    properties[names.UNIQ_KEY] = unique_key
    if group is not None:
        properties[names.TRAN_MSG] = "true"
        properties[names.PGROUP] = group
    for name, value in extra.items() if extra else ():
        names.check(name, value)
        properties[plain_text(name)] = plain_text(value)
    return properties


def _level(properties: dict[str, str], now_ms: int, clock: StoreClock, *, prepared: bool, is_local: bool) -> int:
    """The delay level that a message waits in first; 0 for none. A delay of any length goes from level to level, and is
    none beside a stated level.

    A half message with such a delay waits in the shortest level after its commit, whenever that is, and is late by no
    more than that. It does not keep the timer property, for which a broker would move it out of the half topic.

    `now_ms` is the wall clock's, by which a sender says when; the store's, by which it is delivered, may be ahead.
    """
    level = delay_level(properties)
    if level:  # RocketMQ: HookUtils.checkIfTimerMessage (5.3.3)
        for name in _OF_ANY_LENGTH:
            properties.pop(name, None)
        return level
    due_ms = deliver_at_ms(properties, now_ms, LOCAL_TIMER_MAX_MS if is_local else TIMER_MAX_MS)
    if due_ms is None:
        return 0
    if prepared and not is_local:
        raise MessageRejected(f"a transactional message is delayed by a level, in {names.DELAY}")
    if prepared:
        properties.pop(names.TIMER_DELIVER_MS, None)
    if due_ms <= now_ms:
        return 0
    properties |= {names.TIMER_OUT_MS: str(due_ms + clock.ahead_ms()), names.TIMER_ENQUEUE_MS: str(now_ms)}
    properties[names.DELAY] = str(timer_level(0 if prepared else due_ms - now_ms))
    return int(properties[names.DELAY])


def compose_batch(
    messages: Sequence[Message],
    admission: Admission,
    *,
    queue_id: int,
    size_max: int,
    extra: Sequence[Mapping[str, str]] = (),
    origin: Origin | None = None,
    flags: Sequence[int] = (),
) -> list[PendingRecord]:
    """The records of messages that are sent together; with `extra`, each has these properties and no others are made.

    `flags`, if there are any, are those of each message, in place of the origin's. Raises MessageRejected,
    NotPermitted. RocketMQ: MessageExtEncoder.encode of a batch (5.3.3).
    """
    check_batch(messages)
    try:
        records = _records_of(messages, admission, queue_id, extra, origin, flags)
    except BrokerError:
        raise
    except Exception:
        if not isinstance(extra, list | tuple) or len(extra) not in (0, len(messages)):
            text = "extra_properties is a list with a dict for each message"
            raise MessageRejected(f"{text}, not {shown(extra)}") from None
        if not isinstance(flags, list | tuple) or len(flags) not in (0, len(messages)):
            raise MessageRejected(f"flags is a list with a number for each message, not {shown(flags)}") from None
        for number, message in enumerate(messages):
            check_arguments(message, queue_id, extra[number] if extra else None, origin)
        raise
    check_size(sum(one.size for one in records), size_max)
    return records


def _records_of(
    messages: Sequence[Message],
    admission: Admission,
    queue_id: int,
    extra: Sequence[Mapping[str, str]],
    origin: Origin | None,
    flags: Sequence[int],
) -> list[PendingRecord]:
    """A record for each message of a batch."""
    now_ms = time.time_ns() // 1_000_000
    records: list[PendingRecord] = []
    for number, message in enumerate(messages):
        properties = message.stored_properties
        if extra:
            properties.update(extra[number])
            if not DELAYS.isdisjoint(properties):
                raise MessageRejected("messages of a batch cannot be delayed: send each by itself")
        else:
            properties[names.UNIQ_KEY] = new_unique_key(now_ms)
        sender = _sender(origin, now_ms)
        if flags:
            sender["flag"] = flags[number]
        records.append(draft(message.topic, message.body, properties, queue_id=queue_id, **sender))
        admission.admit(message.topic, properties, queue_id, now_ms)
    return records


def _sender(origin: Origin | None, now_ms: int) -> SenderFields:
    if origin is None:
        return {"born_timestamp_ms": now_ms}
    return {
        "born_timestamp_ms": origin.born_timestamp_ms,
        "born_host": origin.born_host,
        "store_host": origin.store_host,
        "flag": origin.flag,
        "sys_flag": origin.sys_flag & KEPT_FLAGS,
        "reconsume_times": origin.reconsume_times,
    }
