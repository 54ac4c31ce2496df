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

import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Unpack

from broker.errors import CorruptRecord, TransactionError
from broker.format import properties as names
from broker.format.commitlog import BODY_AT, OFFSET_IPV4, Record, decode
from broker.format.record import opmessage
from broker.format.record.recordcrc import stated_record_crc
from broker.format.sysflag import BORN_IPV6, STORE_IPV6, TransactionType, with_transaction_type
from broker.format.topics import DELAYS_MS, HALF_TOPIC, OP_TAG, OP_TOPIC, SCHEDULE_TOPIC
from broker.message import ReceivedMessage
from broker.store.disk.paths import HALF_OP as NAME
from broker.store.write.engine import TransactionEngine
from broker.store.write.pending_record import (
    DeliveryTarget,
    PendingRecord,
    SenderFields,
    crc32,
    draft,
    draft_of,
    index_codes,
    index_codes_of_both,
    topic_field,
    with_texts,
)

QUEUE = 0  # of the half topic and of the op topic. RocketMQ: parseHalfMessageInner
HALF_DELAY = "CHECKBACK_DELAY"  # of a half message: the delay level of its commit

_new_tuple = tuple.__new__
_COMMIT, _NONE = TransactionType.COMMIT, TransactionType.NONE
_BODY_AT = BODY_AT[False, False]
_PREPARED_AT, _BODY_LENGTH_AT = OFFSET_IPV4["prepared_transaction_offset"], OFFSET_IPV4["body_length"]
_QUEUE_ID_AT = OFFSET_IPV4["queue_id"]
_LAST_OF_TYPE_AT = OFFSET_IPV4["sys_flag"] + 3  # the byte with the two bits of the transaction type
_CRC_AT, _BORN_AT = OFFSET_IPV4["body_crc"], OFFSET_IPV4["born_timestamp_ms"]
_OP = draft(OP_TOPIC, b"", {names.WAIT: "true", names.TAGS: OP_TAG}, queue_id=QUEUE, born_timestamp_ms=0)
_OP_SIZE = len(_OP.raw)
# Of an op message: its size, CRC, born time and the length of its body, and what lies between and behind them.
_pack_op = struct.Struct(f">i{_CRC_AT - 4}sI{_BORN_AT - _CRC_AT - 4}sq{_BODY_LENGTH_AT - _BORN_AT - 8}si").pack
_OP_1, _OP_2, _OP_3, _OP_REST = (
    _OP.raw[4:_CRC_AT], _OP.raw[_CRC_AT + 4 : _BORN_AT], _OP.raw[_BORN_AT + 8 : _BODY_LENGTH_AT], _OP.raw[_BODY_AT:],
)  # fmt: skip
_OP_TAGS, _OP_GROUP = _OP.tags_code, _OP.group_hash
_HALF_FIELD = len(topic_field(HALF_TOPIC))
_pack_int, _pack_long = struct.Struct(">i").pack_into, struct.Struct(">q").pack_into


class HalfOpEngine(TransactionEngine):
    """Half topic and op topic, as 4.3.0 to 5.5.0 keep them. A half message's slot is its queue offset.

    RocketMQ has no table of slots: it reads both queues at each check.
    """

    name = NAME
    has_redo_log = False
    half_queue = (HALF_TOPIC, QUEUE)
    op_model = _OP

    def half(
        self, topic: str, body: bytes, properties: dict[str, str], *, queue_id: int, **sender: Unpack[SenderFields]
    ) -> PendingRecord:
        """See TransactionEngine."""
        unique_key = properties.get(names.UNIQ_KEY, "")
        properties[names.TRANSACTION_ID] = unique_key
        properties[names.REAL_TOPIC], properties[names.REAL_QID] = topic, str(queue_id)
        if names.DELAY in properties:
            properties[HALF_DELAY] = properties.pop(names.DELAY)
        codes, target_codes = index_codes_of_both(HALF_TOPIC, topic, unique_key, properties.get(names.KEYS))
        made = draft(HALF_TOPIC, body, properties, queue_id=QUEUE, index_codes=codes, **sender)
        level = _delay_level(properties) if HALF_DELAY in properties else 0
        made.target = _new_tuple(DeliveryTarget, (topic, queue_id, target_codes, level))
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
    raw = _pack_op(_OP_SIZE + length, _OP_1, crc32(body), _OP_2, now_ms, _OP_3, length) + body + _OP_REST
    return PendingRecord(raw, OP_TOPIC, QUEUE, _NONE, _OP_TAGS, _OP_GROUP, (), 0, -1, -1, None, (slot,))


def _ended(body: bytes) -> tuple[int, ...]:
    """The queue offsets in the body of an op; what is none is passed over, as RocketMQ does."""
    found: list[int] = []
    for part in body.split(opmessage.SEPARATOR.encode()):
        with suppress(CorruptRecord):
            found.extend(opmessage.decode(part) if part else ())
    return tuple(found)


def _target(properties: Mapping[str, str]) -> DeliveryTarget | None:
    """Where a half message belongs; None for any other record of the half topic."""
    topic, queue_id = properties.get(names.REAL_TOPIC), names.decimal(properties.get(names.REAL_QID, ""), 9)
    if not topic or queue_id is None:
        return None
    return DeliveryTarget(topic, queue_id, _codes(topic, properties), _delay_level(properties))


def _delay_level(properties: Mapping[str, str]) -> int:
    """Anything but a level means none: a store may hold any text there, and must open."""
    return min(names.decimal(properties.get(HALF_DELAY, ""), 9) or 0, len(DELAYS_MS))


def _codes(topic: str, properties: Mapping[str, str]) -> tuple[int, ...]:
    return index_codes(topic, properties.get(names.UNIQ_KEY), properties.get(names.KEYS))


def _commit(half: PendingRecord, half_offset: int, slot: int) -> PendingRecord:
    """The message as consumers get it. Its properties are all of the half message's, as with RocketMQ.

    Quirk (5.3.3): REAL_TOPIC, REAL_QID and TRAN_MSG are cleared after the properties were written.
    """
    target, raw = half.target, half.raw
    assert target is not None
    topic, queue_id, codes, delay_level = target
    if delay_level:
        topic, queue_id = SCHEDULE_TOPIC, delay_level - 1
    topic_at = _BODY_AT + int.from_bytes(raw[_BODY_LENGTH_AT:_BODY_AT])
    field = topic_field(topic)
    head = bytearray(raw[:_BODY_AT])
    _pack_int(head, 0, len(raw) - _HALF_FIELD + len(field))
    _pack_int(head, _QUEUE_ID_AT, queue_id)
    head[_LAST_OF_TYPE_AT] = head[_LAST_OF_TYPE_AT] & ~0xC | _COMMIT
    _pack_long(head, _PREPARED_AT, half_offset)
    whole = b"".join((head, raw[_BODY_AT:topic_at], field, raw[topic_at + _HALF_FIELD :]))
    if delay_level:
        known = decode(whole, check_crc=False)
        codes = _codes(topic, known.property_map)
        whole = with_texts(known, f"{names.DELAY}\x01{delay_level}\x02".encode())
    return PendingRecord(
        whole, topic, queue_id, _COMMIT, half.tags_code, half.group_hash, codes, half_offset, slot
    )  # fmt: skip


HALF_OP = HalfOpEngine()
