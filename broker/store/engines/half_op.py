"""The engine of RocketMQ 4.3 and later: a half message is moved aside into the half topic, an op message says it ended.

    prepare     RMQ_SYS_TRANS_HALF_TOPIC, queue 0, type NOT; REAL_TOPIC and REAL_QID say where it belongs
    commit      the message in its topic, type COMMIT, which names the half message; and the op message
    rollback    the op message: RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, tag d, the half's queue offset as its body

A commit and its op message are appended as one: no kill leaves a delivery that RocketMQ would check again. One op
message names one half message, without a comma: brokers before 5.1 read no other form, and later ones read both.
A half message keeps its delay under a name of our own: RocketMQ would take it away from the half topic for DELAY.

RocketMQ: TransactionalMessageBridge.parseHalfMessageInner, EndTransactionProcessor.endMessageTransaction (5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Unpack

from broker.errors import CorruptRecord, TransactionError
from broker.format import properties as names
from broker.format.commitlog import BODY_AT, Record, RecordHead, RecordMiddle, decode
from broker.format.record import opmessage
from broker.format.record.recordcrc import stated_record_crc
from broker.format.sysflag import BORN_IPV6, STORE_IPV6, TransactionType, with_transaction_type
from broker.format.topics import HALF_TOPIC, OP_TAG, OP_TOPIC, SCHEDULE_TOPIC, parse_delay_levels
from broker.message import ReceivedMessage
from broker.store.disk.paths import HALF_OP as NAME
from broker.store.disk.paths import Paths
from broker.store.write.engine import TransactionEngine
from broker.store.write.pending_record import (
    DeliveryTarget,
    PendingRecord,
    SenderFields,
    crc32,
    draft,
    draft_of,
    index_code,
    topic_field,
    with_texts,
)

QUEUE = 0  # of the half topic and of the op topic. RocketMQ: parseHalfMessageInner
HALF_DELAY = "CHECKBACK_DELAY"  # of a half message: the delay level of its commit

_new_tuple = tuple.__new__
_COMMIT, _NONE = TransactionType.COMMIT, TransactionType.NONE
_BODY_AT = BODY_AT[False, False]
_BODY_LENGTH_AT = _BODY_AT - 4
_PREPARED_AT = _BODY_AT - RecordMiddle.SIZE + RecordMiddle.OFFSET["prepared_transaction_offset"]
_QUEUE_ID_AT = RecordHead.OFFSET["queue_id"]
_LAST_OF_TYPE_AT = RecordHead.OFFSET["sys_flag"] + 3  # the byte with the two bits of the transaction type
_LEVELS = len(parse_delay_levels())
_CRC_AT, _BORN_AT = RecordHead.OFFSET["body_crc"], RecordHead.OFFSET["born_timestamp_ms"]
_OP = draft(OP_TOPIC, b"", {names.WAIT: "true", names.TAGS: OP_TAG}, queue_id=QUEUE, born_timestamp_ms=0)
_OP_SIZE = len(_OP.raw)
_OP_PARTS = (  # of an op message, what lies between its size, CRC, born time, the length of its body and the body
    _OP.raw[4:_CRC_AT], _OP.raw[_CRC_AT + 4 : _BORN_AT], _OP.raw[_BORN_AT + 8 : _BODY_LENGTH_AT], _OP.raw[_BODY_AT:],
)  # fmt: skip


class HalfOpEngine(TransactionEngine):
    """Half topic and op topic, as 4.3.0 to 5.5.0 keep them. A half message's slot is its queue offset."""

    name = NAME
    has_redo_log = False

    def table(self, paths: Paths) -> str:
        """See TransactionEngine. RocketMQ has no such file: it reads both queues at each check."""
        return paths.table_of(self.name)

    def directories(self, paths: Paths) -> tuple[str, ...]:
        """See TransactionEngine."""
        return (self.table(paths),)

    def half(
        self, topic: str, body: bytes, properties: dict[str, str], *, queue_id: int, **sender: Unpack[SenderFields]
    ) -> PendingRecord:
        """See TransactionEngine."""
        unique_key = properties.get(names.UNIQ_KEY, "")
        properties[names.TRANSACTION_ID] = unique_key
        properties[names.REAL_TOPIC], properties[names.REAL_QID] = topic, str(queue_id)
        if names.DELAY in properties:
            properties[HALF_DELAY] = properties.pop(names.DELAY)
        made = draft(HALF_TOPIC, body, properties, queue_id=QUEUE, **sender)
        made.target = _target(properties) if HALF_DELAY in properties else _new_tuple(
            DeliveryTarget, (topic, queue_id, _keys(unique_key, properties.get(names.KEYS)), 0)
        )  # fmt: skip
        return made

    def ends(
        self, half: PendingRecord, half_offset: int, slot: int, kind: TransactionType, now_ms: int
    ) -> tuple[PendingRecord, ...]:
        """See TransactionEngine."""
        op = op_record(slot, now_ms)
        return (_commit(half, half_offset, slot), op) if kind is _COMMIT else (op,)

    def read_half(self, raw: bytes) -> tuple[PendingRecord, Record]:
        """See TransactionEngine."""
        found, record = draft_of(raw)
        self.recognise(found, record.property_map)
        if found.target is None:
            raise TransactionError(f"the record at CommitLog offset {record.commitlog_offset} is not a half message")
        if record.version != 1 or record.sys_flag & (BORN_IPV6 | STORE_IPV6):
            reason = "has addresses of IPv6, or a long topic: only its own broker can end it"
            raise TransactionError(f"the half message at CommitLog offset {record.commitlog_offset} {reason}")
        if stated_record_crc(record.properties) is None:
            found.raw = with_texts(record, b"")
        return found, record

    def is_half(self, record: Record) -> bool:
        """See TransactionEngine."""
        return record.topic == HALF_TOPIC and record.queue_id == QUEUE and names.REAL_TOPIC in record.property_map

    def recognise(self, record: PendingRecord, properties: Mapping[str, str]) -> None:
        """See TransactionEngine. Any other record in the half topic has no target, and so no slot."""
        if record.queue_id != QUEUE:
            return
        if record.topic == HALF_TOPIC:
            record.target = _target(properties)
        elif record.topic == OP_TOPIC and properties.get(names.TAGS) == OP_TAG:
            record.ended = _ended(decode(record.raw, check_crc=False).body)

    def opens_slot(self, record: PendingRecord) -> bool:
        """See TransactionEngine."""
        return record.target is not None

    def target(self, half: PendingRecord) -> str:
        """See TransactionEngine."""
        return half.topic if half.target is None else half.target.topic

    def received(self, record: Record) -> ReceivedMessage:
        """See TransactionEngine. RocketMQ: AbstractTransactionalMessageCheckListener.sendCheckMessage (5.3.3)."""
        target = _target(record.property_map)
        if target is None:
            return ReceivedMessage.of(record)
        prepared = with_transaction_type(record.sys_flag, TransactionType.PREPARED)  # as the producer sent it
        return ReceivedMessage.of(replace(record, topic=target.topic, queue_id=target.queue_id, sys_flag=prepared))


def op_record(slot: int, now_ms: int) -> PendingRecord:
    """The op message that says of a half message, by its queue offset, that it ended.

    RocketMQ: TransactionalMessageServiceImpl.getOpMessage (5.3.3).
    """
    body = b"%d" % slot
    length = len(body)
    raw = b"".join((
        (_OP_SIZE + length).to_bytes(4, "big"), _OP_PARTS[0], crc32(body).to_bytes(4, "big"), _OP_PARTS[1],
        now_ms.to_bytes(8, "big"), _OP_PARTS[2], length.to_bytes(4, "big"), body, _OP_PARTS[3],
    ))  # fmt: skip
    return PendingRecord(raw, OP_TOPIC, QUEUE, _NONE, _OP.tags_code, _OP.group_hash, (), ended=(slot,))


def _ended(body: bytes) -> tuple[int, ...]:
    """The queue offsets in the body of an op; what is none is passed over, as RocketMQ does."""
    found: list[int] = []
    for part in body.split(opmessage.SEPARATOR.encode()):
        with suppress(CorruptRecord):
            found.extend(opmessage.decode(part) if part else ())
    return tuple(found)


def _target(properties: Mapping[str, str]) -> DeliveryTarget | None:
    """Where a half message belongs; None for any other record of the half topic."""
    topic, queue_id = properties.get(names.REAL_TOPIC), properties.get(names.REAL_QID, "")
    if not topic or not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
        return None
    level = properties.get(HALF_DELAY)
    found = _keys(properties.get(names.UNIQ_KEY, ""), properties.get(names.KEYS))
    return DeliveryTarget(topic, int(queue_id), found, min(int(level), _LEVELS) if level and level.isdigit() else 0)


def _keys(unique_key: str, keys: str | None) -> tuple[str, ...]:
    """What a message is indexed by."""
    found = (unique_key,) if unique_key else ()
    return found + tuple([key for key in keys.split(names.KEY_SEPARATOR) if key]) if keys else found


def _commit(half: PendingRecord, half_offset: int, slot: int) -> PendingRecord:
    """The message as consumers get it. Its properties are all of the half message's, as with RocketMQ.

    Quirk (5.3.3): REAL_TOPIC, REAL_QID and TRAN_MSG are cleared after the properties were written.
    """
    target, raw = half.target, half.raw
    assert target is not None
    topic, queue_id = (SCHEDULE_TOPIC, target.delay_level - 1) if target.delay_level else target[:2]
    topic_at = _BODY_AT + int.from_bytes(raw[_BODY_LENGTH_AT:_BODY_AT], "big")
    rest_at, field = topic_at + 1 + raw[topic_at], topic_field(topic)
    whole = b"".join((
        (len(raw) - rest_at + topic_at + len(field)).to_bytes(4, "big"), raw[4:_QUEUE_ID_AT],
        queue_id.to_bytes(4, "big"), raw[_QUEUE_ID_AT + 4 : _LAST_OF_TYPE_AT],
        (raw[_LAST_OF_TYPE_AT] & ~0xC | _COMMIT).to_bytes(), raw[_LAST_OF_TYPE_AT + 1 : _PREPARED_AT],
        half_offset.to_bytes(8, "big"), raw[_PREPARED_AT + 8 : topic_at], field, raw[rest_at:],
    ))  # fmt: skip
    codes = tuple([index_code(topic, key) for key in target.keys])
    if target.delay_level:
        level = f"{names.DELAY}\x01{target.delay_level}\x02".encode()
        whole = with_texts(decode(whole, check_crc=False), level)
    return PendingRecord(
        whole, topic, queue_id, _COMMIT, half.tags_code, half.group_hash, codes, half_offset, slot
    )  # fmt: skip


HALF_OP = HalfOpEngine()
