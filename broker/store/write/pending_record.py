"""Records before they have a place: everything but the offsets, the store time and the CRC of the whole.

A draft is made outside the append lock. Under it, three numbers are patched in and the record CRC is computed, so
that the lock is held for microseconds. RocketMQ: MessageExtEncoder, DefaultAppendMessageCallback.doAppend (5.3.3).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import mul
from typing import Any, NamedTuple, Required, TypedDict

from broker import compiled
from broker.errors import MessageRejected
from broker.format import properties as names
from broker.format.commitlog import (
    BODY_AT,
    MAGIC_V1,
    OFFSET_IPV4,
    RECORD_CRC_SIZE,
    TOPIC_SIZE_MAX_V1,
    Record,
    decode,
    encode,
    head_struct,
    record_crc_item,
)
from broker.format.index import key_hash
from broker.format.java import REMEMBERED, Host, short_hash, string_hash
from broker.format.record.recordcrc import record_crc_reserve
from broker.format.sysflag import TransactionType, transaction_type
from broker.format.topics import DELAYS_MS, SCHEDULE_TOPIC

LOCAL_HOST = Host(bytes((127, 0, 0, 1)), 10911)

_OFFSETS = struct.Struct(">qq")  # queueOffset and the CommitLog offset stand side by side
_OFFSETS_AT = OFFSET_IPV4["queue_offset"]
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_STORE_TIME_AT = OFFSET_IPV4["store_timestamp_ms"]
_BODY_AT = BODY_AT[False, False]
_MARK_BYTES = 8  # size and magic
_PREPARED_AT, _BODY_LENGTH_AT = OFFSET_IPV4["prepared_transaction_offset"], OFFSET_IPV4["body_length"]
_LAST_OF_TYPE_AT = OFFSET_IPV4["sys_flag"] + 3  # the byte with the two bits of the transaction type
_CRC_AT = OFFSET_IPV4["body_crc"]

_HEAD = head_struct(born_ipv6=False, store_ipv6=False)
_HEAD_SIZE, _LOCAL_PLACE = _HEAD.size, (LOCAL_HOST.address, LOCAL_HOST.port)
_pack_head = _HEAD.pack
_pack_offsets, _pack_long = _OFFSETS.pack_into, _LONG.pack_into
_NO_CRC = record_crc_item(0)
_DIGITS_AT = _NO_CRC.index(b"0")  # in the property that states a record's CRC
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(256)][::-1]
_MASK, _SIGN, _SHIFT = 0xFFFFFFFF, 0x80000000, 31**4
_ROLLBACK = TransactionType.ROLLBACK
_PREPARED = TransactionType.PREPARED
_UNIQ_KEY, _KEYS, _TAGS, _PGROUP = names.UNIQ_KEY, names.KEYS, names.TAGS, names.PGROUP
_DELAY = names.DELAY

fast_draft: Callable[..., PendingRecord | None] | None = compiled.fast.draft if compiled.fast else None
_fast_codes: Callable[..., tuple[int, ...] | None] | None = compiled.fast.index_codes if compiled.fast else None

tag_hash = group_hash = short_hash


@lru_cache(maxsize=4096)
def _front_code(topic: str, front: str) -> int:
    """The hash of TOPIC#FRONT with four characters to come behind it, but for them. FRONT is ASCII."""
    raw = f"{topic}#{front}".encode()
    if len(raw) > len(_POWERS) or not topic.isascii():
        return string_hash(f"{topic}#{front}") * _SHIFT
    code: int = sum(map(mul, raw, _POWERS[-len(raw) :]))
    return code * _SHIFT


@lru_cache(maxsize=4096)
def _topic_code(topic: str) -> int:
    """The hash of TOPIC#, in 32 bits without a sign."""
    return string_hash(f"{topic}#") & _MASK


@lru_cache(maxsize=4096)
def topic_field(topic: str) -> bytes:
    """The length of a topic, and the topic."""
    raw = topic.encode()
    if len(raw) > TOPIC_SIZE_MAX_V1:
        raise MessageRejected(f"the message is too large for a record: a topic of {len(raw)} bytes")
    return bytes((len(raw),)) + raw


def index_code(topic: str, key: str) -> int:
    """What the index holds for TOPIC#KEY: `format.index.key_hash`, from the front and the last four characters of the
    key.

    The hash is a polynomial in 31, so the two add up. Keys that come one after another share their front: it is
    remembered.
    """
    raw = key.encode()
    if len(raw) != len(key) or len(raw) > REMEMBERED:  # not ASCII, or too long
        return key_hash(topic, key)
    if len(raw) < 4:
        code = _topic_code(topic)
        for unit in raw:
            code = (31 * code + unit) & _MASK
    else:
        code = (_front_code(topic, key[:-4]) + ((raw[-4] * 31 + raw[-3]) * 31 + raw[-2]) * 31 + raw[-1]) & _MASK
    return _absolute(code) if code & _SIGN else code


def index_codes(topic: str, unique_key: str | None, keys: str | None) -> tuple[int, ...]:
    """What the index holds for a message: for its unique key, and for each of the keys that one property states."""
    if _fast_codes is not None and (fast := _fast_codes(topic, unique_key, keys)) is not None:
        return fast
    codes = (index_code(topic, unique_key),) if unique_key else ()
    if keys and names.KEY_SEPARATOR in keys:
        return codes + tuple([index_code(topic, key) for key in keys.split(names.KEY_SEPARATOR) if key])
    return (*codes, index_code(topic, keys)) if keys else codes


def index_codes_of_both(
    topic: str, other: str, unique_key: str, keys: str | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`index_codes` in two topics, by little more work than in one."""
    if _fast_codes is not None or not unique_key or (keys and names.KEY_SEPARATOR in keys):
        return index_codes(topic, unique_key, keys), index_codes(other, unique_key, keys)
    first, other_first = _index_code_of_both(topic, other, unique_key)
    if not keys:
        return (first,), (other_first,)
    second, other_second = _index_code_of_both(topic, other, keys)
    return (first, second), (other_first, other_second)


def _index_code_of_both(topic: str, other: str, key: str) -> tuple[int, int]:
    raw = key.encode()
    if not 4 <= len(raw) <= REMEMBERED or len(raw) != len(key):
        return index_code(topic, key), index_code(other, key)
    code, other_code = _front_codes(topic, other, key[:-4])
    last = ((raw[-4] * 31 + raw[-3]) * 31 + raw[-2]) * 31 + raw[-1]
    code, other_code = (code + last) & _MASK, (other_code + last) & _MASK
    return _absolute(code) if code & _SIGN else code, _absolute(other_code) if other_code & _SIGN else other_code


@lru_cache(maxsize=4096)
def _front_codes(topic: str, other: str, front: str) -> tuple[int, int]:
    return _front_code(topic, front), _front_code(other, front)


def _absolute(code: int) -> int:
    """A negative hash of 32 bits as the index holds it: Java's Math.abs, and 0 for the one that it leaves negative."""
    return 0 if code == _SIGN else (1 << 32) - code


class DeliveryTarget(NamedTuple):
    """Where consumers will find the message in a half message of the half topic, and what the index will hold for it
    there, its unique key first.
    """

    topic: str
    queue_id: int
    index_codes: tuple[int, ...]
    delay_level: int = 0  # by which its commit is delayed; 0 for none


@dataclass(slots=True)
class PendingRecord:
    """One record to be appended, and what its derived files need to know of it."""

    raw: bytes
    topic: str
    queue_id: int
    kind: TransactionType
    tags_code: int
    group_hash: int
    index_codes: tuple[int, ...]  # of its unique key and keys; none for a rollback
    prepared_offset: int = 0  # of an end: the half it names
    slot: int = -1  # of an end: the slot it settles
    delay_queue: int = -1  # of a half whose message is to wait: its queue in the schedule topic
    target: DeliveryTarget | None = None  # of a half message of the half topic, else None
    ended: tuple[int, ...] = ()  # of an op message: the half messages it names, by their queue offset

    @property
    def size(self) -> int:
        return len(self.raw)


class SenderFields(TypedDict, total=False):
    """What a record says of its sender, and of how the body is compressed: arguments of `draft`."""

    born_timestamp_ms: Required[int]
    born_host: Host
    store_host: Host
    flag: int
    sys_flag: int
    reconsume_times: int


class Appended(NamedTuple):
    """Where a record went."""

    commitlog_offset: int
    queue_offset: int  # in its ConsumeQueue; of a prepared record its slot
    size: int
    store_timestamp_ms: int

    @property
    def end(self) -> int:
        return self.commitlog_offset + self.size


def draft(
    topic: str,
    body: bytes,
    properties: dict[str, str],
    *,
    queue_id: int,
    born_timestamp_ms: int,
    kind: TransactionType = TransactionType.NONE,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    born_host: Host = LOCAL_HOST,
    store_host: Host = LOCAL_HOST,
    index_codes: tuple[int, ...] | None = None,
) -> PendingRecord:
    """A new record. Topic and properties must have been checked (`broker.message.Message` does); hosts are IPv4.

    `index_codes` are those of its keys, where the caller has computed them already.
    """
    if fast_draft is not None:
        is_local = not (flag or sys_flag or reconsume_times) and born_host is store_host is LOCAL_HOST
        origin = None if is_local else (born_timestamp_ms, born_host, store_host, flag, sys_flag, reconsume_times)
        made = fast_draft(
            PendingRecord, topic, body, properties, queue_id, born_timestamp_ms, kind, index_codes, origin
        )
        if made is not None:
            return made
    named = topic_field(topic)
    texts = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode()
    size = len(texts) + RECORD_CRC_SIZE
    if size > names.SIZE_MAX:
        raise MessageRejected(f"the message is too large for a record: properties of {len(texts)} bytes")
    born_at = _LOCAL_PLACE if born_host is LOCAL_HOST else _place(born_host)
    stored_at = _LOCAL_PLACE if store_host is LOCAL_HOST else _place(store_host)
    head = _pack_head(
        _HEAD_SIZE + len(body) + len(named) + 2 + size, MAGIC_V1, _crc32(body) & 0x7FFFFFFF, queue_id, flag, 0, 0,
        sys_flag & ~0xC | kind, born_timestamp_ms, *born_at, 0, *stored_at, reconsume_times, 0, len(body),
    )  # fmt: skip
    raw = b"".join((head, body, named, size.to_bytes(2, "big"), texts, _NO_CRC))
    return _with_facts(raw, topic, queue_id, kind, properties, index_codes)


def _place(host: Host) -> tuple[bytes, int]:
    """An address and a port as they stand in a record."""
    if host.is_ipv6:
        raise MessageRejected(f"a record of this store holds IPv4 addresses, not {host}")
    return host.address, host.port


def _with_facts(
    raw: bytes,
    topic: str,
    queue_id: int,
    kind: TransactionType,
    properties: dict[str, str],
    codes: tuple[int, ...] | None = None,
) -> PendingRecord:
    value_of = properties.get
    if codes is None:
        codes = () if kind is _ROLLBACK else index_codes(topic, value_of(_UNIQ_KEY), value_of(_KEYS))
    made = PendingRecord(
        raw, topic, queue_id, kind, tag_hash(value_of(_TAGS, "")), group_hash(value_of(_PGROUP, "")), codes
    )
    if kind is _PREPARED and _DELAY in properties:
        made.delay_queue = _delay_queue(properties)
    return made


def _delay_queue(half_properties: dict[str, str]) -> int:
    """Where in the schedule topic the commit of a half message waits; -1 when it is not to be delayed.

    RocketMQ delays no transaction, whatever DELAY says. One that is to be delayed names the topic it is meant for
    besides, as only ours do.
    """
    level = names.decimal(half_properties[_DELAY], 9)
    if level is None or names.REAL_TOPIC not in half_properties:
        return -1
    return min(level, len(DELAYS_MS)) - 1


def end_draft(half: PendingRecord, half_offset: int, slot: int, kind: TransactionType) -> PendingRecord:
    """The end of a transaction: a commit repeats the half message, a rollback leaves the body out.

    RocketMQ: EndTransactionProcessor.endMessageTransaction (3.1.4).
    """
    if half.delay_queue >= 0 and kind is not _ROLLBACK:
        return _delayed_commit(half, half_offset, slot)
    raw = bytearray(half.raw)
    codes = half.index_codes
    if kind is _ROLLBACK:
        (length,) = _INT.unpack_from(raw, _BODY_LENGTH_AT)
        del raw[_BODY_AT : _BODY_AT + length]
        _INT.pack_into(raw, _BODY_LENGTH_AT, 0)
        _INT.pack_into(raw, _CRC_AT, 0)
        _INT.pack_into(raw, 0, len(raw))
        codes = ()
    raw[_LAST_OF_TYPE_AT] = raw[_LAST_OF_TYPE_AT] & ~0xC | kind
    _LONG.pack_into(raw, _PREPARED_AT, half_offset)
    return PendingRecord(
        bytes(raw), half.topic, half.queue_id, kind, half.tags_code, half.group_hash, codes, half_offset, slot
    )


def _delayed_commit(half: PendingRecord, half_offset: int, slot: int) -> PendingRecord:
    """The same into the schedule topic: the delay counts from here. Its delivery, of type 0, is not an end (decision
    0017).

    REAL_TOPIC and REAL_QID stand in the half message already, so that properties are a copy here, too.
    """
    known = decode(half.raw, check_crc=False)
    kind = TransactionType.COMMIT
    end = replace(
        known, topic=SCHEDULE_TOPIC, queue_id=half.delay_queue, sys_flag=known.sys_flag & ~0xC | kind,
        prepared_transaction_offset=half_offset,
    )  # fmt: skip
    made = _with_facts(encode(end), end.topic, end.queue_id, kind, known.property_map)
    made.prepared_offset, made.slot = half_offset, slot
    return made


def target_topic(draft: PendingRecord) -> str:
    """Where consumers will find a record: of a delayed commit, the topic that its half names."""
    if draft.topic != SCHEDULE_TOPIC:
        return draft.topic
    return decode(draft.raw, check_crc=False).property_map.get(names.REAL_TOPIC, draft.topic)


def draft_of(raw: bytes) -> tuple[PendingRecord, Record]:
    """A record that is in the log already, as the draft it was. Raises CorruptRecord."""
    record = decode(raw)
    kind = transaction_type(record.sys_flag)
    found = _with_facts(raw, record.topic, record.queue_id, kind, record.property_map)
    found.prepared_offset = record.prepared_transaction_offset
    if kind is _ROLLBACK:
        found.slot = record.queue_offset
    return found, record


def with_texts(record: Record, texts: bytes) -> bytes:
    """The bytes of a record with more properties, and room for its CRC behind them."""
    properties = record.properties
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return encode(replace(record, properties=record_crc_reserve(properties + texts)))


def _fastest_crc32() -> Callable[..., int]:
    try:
        from isal.isal_zlib import crc32 as fast  # the extra `fast`
    except ImportError:
        from zlib import crc32 as fast
    return fast


_crc32 = _fastest_crc32()


def crc32(data: Any) -> int:
    """RocketMQ's CRC, by the fastest library at hand."""
    return _crc32(data) & 0x7FFFFFFF


def place(view: Any, at: int, raw: bytes, queue_offset: int, commitlog_offset: int, store_timestamp_ms: int) -> None:
    """Write a draft's bytes at their place, with the numbers that it lacked and the CRC of the whole.

    Size and magic come last: a broker that opens the store of a process killed here finds no record, and not half of
    one.
    """
    end = at + len(raw)
    mark = raw[:_MARK_BYTES]
    view[at + _MARK_BYTES : end] = raw[_MARK_BYTES:]
    _pack_offsets(view, at + _OFFSETS_AT, queue_offset, commitlog_offset)
    _pack_long(view, at + _STORE_TIME_AT, store_timestamp_ms)
    item = end - RECORD_CRC_SIZE
    digits = b"%010d" % (_crc32(view[at + _MARK_BYTES : item], _crc32(mark)) & 0x7FFFFFFF)
    view[item + _DIGITS_AT : end - 1] = digits[::-1]  # as `record_crc_item` has it
    view[at : at + _MARK_BYTES] = mark


def check_size(size: int, size_max: int) -> None:
    """Raises MessageRejected when a record cannot fit in a segment."""
    if size > size_max:
        raise MessageRejected(f"the record takes {size} bytes; a segment of this store holds at most {size_max}")
