"""What is sent to a cluster for a record of a store, and when it comes back whether it is the same. Pure.

RocketMQ: SendMessageProcessor.sendMessage, TransactionalMessageBridge.parseHalfMessageInner (5.3.3).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.consuming.redelivery import delayed_for
from broker.database.ledger_binding import LEDGER_BINDING
from broker.errors import CorruptRecord, StoreError
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.sysflag import COMPRESSED, COMPRESSION_MASK, INNER_BATCH, TransactionType
from broker.format.topics import HALF_TOPIC, SCHEDULE_TOPIC, deliver_time_ms
from broker.message import ReceivedMessage
from broker.remoting.codes import VERSION_TIMER
from broker.transaction.service import Half

ORIGIN = "CHECKBACK_ORIGIN"
"""The property of a carried message that names the store and the CommitLog offset that it comes from."""

# What a broker sets itself, or what would make it do something again that has been done.
_LEFT_BEHIND = frozenset((
    names.CRC32, names.TRAN_MSG, names.REAL_TOPIC, names.REAL_QID, names.DELAY, names.WAIT, names.CLUSTER,
    names.MSG_REGION, names.TRACE_ON, names.TRAN_PREPARED_QUEUE_OFFSET, names.TRANSACTION_CHECK_TIMES,
    names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS, names.TIMER_ENQUEUE_MS,
    names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES, names.TIMER_OUT_MS, names.TIMER_DELAY_LEVEL, names.MIN_OFFSET,
    names.MAX_OFFSET, names.TRANSFER_FLAG, names.CORRECTION_FLAG, names.INNER_MULTI_QUEUE_OFFSET, "POP_CK",
    "CHECKBACK_DELAY", ORIGIN,
))  # fmt: skip
PROPERTIES_MAX = names.SIZE_MAX - 512
"""Bytes of a message's properties on its way: a broker adds some of its own."""
_BODY_FLAGS = COMPRESSED | COMPRESSION_MASK
TIMER_MAX_MS = 3 * 24 * 3_600_000  # RocketMQ: timerMaxDelaySec


@dataclass(frozen=True)
class CarriedMessage:
    """One message on its way. `properties` are those that must come back; a broker adds its own."""

    topic: str
    queue_id: int  # of the store
    body: bytes  # as stored, perhaps compressed
    plain_body: bytes
    properties: Mapping[str, str]
    born_timestamp_ms: int
    flag: int
    sys_flag: int
    reconsume_times: int
    commitlog_offset: int  # in the store
    due_ms: int = 0  # of a delayed message: when it is delivered
    is_half: bool = False

    @property
    def unique_key(self) -> str:
        return self.properties[names.UNIQ_KEY]

    @property
    def producer_group(self) -> str:
        return self.properties.get(names.PGROUP) or "CHECKBACK_MOVE"


@dataclass(frozen=True)
class BrokerAbility:
    """What one broker can do with delays: its version's ordinal, and its delay levels in milliseconds."""

    version: int
    delays_ms: Sequence[int]

    def delay_of(self, due_ms: int, now_ms: int) -> dict[str, str]:
        """The property that has a message delivered at a time, never before; empty for at once.

        By levels it is late by up to a step of the table. Raises StoreError when the broker has no such delay.
        """
        left_ms = due_ms - now_ms
        if left_ms <= 0:
            return {}
        if self.version >= VERSION_TIMER and left_ms < TIMER_MAX_MS:
            return {names.TIMER_DELIVER_MS: str(due_ms)}
        for level, delay_ms in enumerate(self.delays_ms, 1):
            if delay_ms >= left_ms:
                return {names.DELAY: str(level)}
        longest_ms = max([TIMER_MAX_MS if self.version >= VERSION_TIMER else 0, *self.delays_ms])
        text = f"it is due in {left_ms // 1000:,} s, and the broker delays by {longest_ms // 1000:,} s at most"
        raise StoreError(f"{text}: move the store later, or let its consumers deliver it first")


def due_of(record: Record, delays_ms: Sequence[int]) -> int:
    """When a record of the schedule topic is delivered, in milliseconds."""
    due_ms = names.decimal(record.property_map.get(names.TIMER_OUT_MS, ""))
    if due_ms is not None:
        return due_ms
    return deliver_time_ms(record.queue_id + 1, record.store_timestamp_ms, list(delays_ms))


def carried(
    record: Record, store_id: str, *, due_ms: int = 0, bindings: Mapping[str, str] | None = None
) -> CarriedMessage:
    """The message of a record: of an application's queue, of the schedule topic (`due_ms`), or a half message.

    `bindings` says for the ledger binding that a half message names which one it names in the cluster. Raises
    StoreError for a batch in one record, for a delayed message that goes nowhere, and for properties that get too long.
    """
    if record.sys_flag & INNER_BATCH:
        where = f"the record at CommitLog offset {record.commitlog_offset} is a batch"
        raise StoreError(f"{where}, which checkback cannot carry: let its consumers read it, then move the store")
    stored = record.property_map
    is_half = record.topic == HALF_TOPIC or record.transaction_type is TransactionType.PREPARED
    properties = {name: value for name, value in stored.items() if name not in _LEFT_BEHIND}
    properties[ORIGIN] = f"{store_id}:{record.commitlog_offset}"
    if is_half or due_ms:
        properties.setdefault(names.UNIQ_KEY, made_unique_key(store_id, record.commitlog_offset))
    topic, queue_id = record.topic, record.queue_id
    if is_half:
        half = Half.of(record)
        topic, queue_id = half.topic, half.queue_id
        properties = {**properties, **_rebound(properties, bindings or {})}
    elif record.topic == SCHEDULE_TOPIC:
        try:
            topic, queue_id = delayed_for(record)
        except CorruptRecord as error:
            raise StoreError(f"{error}: let retention remove it (checkback retain), then move the store") from None
    if (size := len(names.encode(properties))) > PROPERTIES_MAX:
        text = (
            f"the message at CommitLog offset {record.commitlog_offset} has properties of {size:,} bytes with {ORIGIN}"
        )
        text = f"{text}, and a cluster takes {PROPERTIES_MAX:,} besides its own"
        raise StoreError(f"{text}: let retention remove it (checkback retain), then move the store")
    return CarriedMessage(
        topic, queue_id, record.body, record.delivered_body, properties, record.born_timestamp_ms, record.flag,
        record.sys_flag & _BODY_FLAGS, record.reconsume_times, record.commitlog_offset, due_ms, is_half,
    )  # fmt: skip


def _rebound(properties: Mapping[str, str], bindings: Mapping[str, str]) -> dict[str, str]:
    named = properties.get(LEDGER_BINDING, "")
    return {LEDGER_BINDING: bindings[named]} if named in bindings else {}


def made_unique_key(store_id: str, commitlog_offset: int) -> str:
    """The unique key of a message that has none: 32 hexadecimal digits, the same at each run."""
    return hashlib.sha256(f"{store_id}:{commitlog_offset}".encode()).hexdigest()[:32].upper()


def origin_of(message: ReceivedMessage, store_id: str) -> int | None:
    """The CommitLog offset in the store of which a message of the cluster was carried; None for any other."""
    of, _, at = message.properties.get(ORIGIN, "").partition(":")
    return names.decimal(at) if of == store_id else None


def difference(sent: CarriedMessage, found: ReceivedMessage) -> str:
    """In what a message that was read back is another one; empty when it is the same."""
    if found.body != sent.plain_body:
        return "its body"
    for name, value in sent.properties.items():
        if found.properties.get(name) != value:
            return f"its property {name}"
    pairs = (
        ("flag", sent.flag, found.flag), ("reconsume times", sent.reconsume_times, found.reconsume_times),
        ("born timestamp", sent.born_timestamp_ms, found.born_timestamp_ms),
    )  # fmt: skip
    return next((f"its {what}" for what, ours, theirs in pairs if ours != theirs), "")


def fingerprint(topic: str, queue_id: int, properties: Mapping[str, str], body: bytes) -> bytes:
    """What of one message goes into the digest of its topic: its place, ids, keys, tag and body."""
    kept = (properties.get(name, "") for name in (ORIGIN, names.UNIQ_KEY, names.KEYS, names.TAGS))
    head = "\x00".join((topic, str(queue_id), *kept)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(head + b"\x00" + body).digest()
