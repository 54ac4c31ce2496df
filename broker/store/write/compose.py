"""From a message to the record that will be appended: the same steps for a plain message and for a half message."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from broker.format import properties as names
from broker.format.sysflag import TransactionType
from broker.format.topics import SCHEDULE_TOPIC
from broker.message import Message
from broker.store.write.admission import Admission, delay_level
from broker.store.write.engine import TransactionEngine
from broker.store.write.pending_record import PendingRecord, check_size, draft
from broker.store.write.uniquekey import new_unique_key

_END_ROOM = 1024  # by which the end of a half message, all its records together, may be larger
_SLOT_MAX = (1 << 63) - 1


class Composed(NamedTuple):
    """A record that the store has admitted, the properties in it, and its born timestamp in milliseconds."""

    record: PendingRecord
    properties: dict[str, str]
    born_timestamp_ms: int


def compose(
    message: Message,
    admission: Admission,
    *,
    queue_id: int,
    size_max: int,
    extra: Mapping[str, str] | None = None,
    group: str | None = None,
    engine: TransactionEngine | None = None,
) -> Composed:
    """The record of a message; with a `group` and the store's `engine`, of a half message of that producer group.

    `extra` are properties that RocketMQ or checkback itself sets; a UNIQ_KEY among them is kept, else one is made.
    `size_max` is in bytes. A plain delayed message goes to the schedule topic at once, a half message when it is
    committed: both state the topic and queue that they are meant for. Raises MessageRejected, NotPermitted.
    RocketMQ: CommitLog.asyncPutMessage, HookUtils.transformDelayLevelMessage (5.3.3).
    """
    now_ms = time.time_ns() // 1_000_000
    properties = message.stored_properties
    properties[names.UNIQ_KEY] = new_unique_key(now_ms)
    prepared = group is not None
    if group is not None:
        properties[names.TRAN_MSG] = "true"
        properties[names.PGROUP] = group
    topic, level = message.topic, 0
    if extra:
        for name, value in extra.items():
            names.check(name, value)
        properties.update(extra)
        if level := delay_level(properties):  # a Message has none of its own
            properties |= {names.REAL_TOPIC: topic, names.REAL_QID: str(queue_id)}
    waits = level and not prepared
    asked = dict(properties) if level else properties  # an engine keeps the delay under another name
    if engine is not None:
        record = engine.half(topic, message.body, properties, queue_id=queue_id, born_timestamp_ms=now_ms)
    else:
        record = draft(
            SCHEDULE_TOPIC if waits else topic,
            message.body,
            properties,
            queue_id=level - 1 if waits else queue_id,
            born_timestamp_ms=now_ms,
        )
    if len(record.raw) > size_max - _END_ROOM:
        check_size(len(record.raw), size_max)
        if engine is not None:
            ends = engine.ends(record, 0, _SLOT_MAX, TransactionType.COMMIT, now_ms)
            check_size(sum([len(one.raw) for one in ends]), size_max)
    admission.admit(topic, asked, queue_id, now_ms, prepared=prepared)
    if level:
        admission.admit(SCHEDULE_TOPIC, {}, level - 1, now_ms, system=True)
    return Composed(record, properties, now_ms)
