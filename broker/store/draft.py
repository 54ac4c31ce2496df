"""Records before they have a place: everything but the offsets, the store time and the CRC of the whole.

A draft is made outside of the append lock. Under it, three numbers are patched in and the record CRC is computed, so
that the lock is held for microseconds. RocketMQ: MessageExtEncoder, DefaultAppendMessageCallback.doAppend (5.3.3).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Any

from broker.errors import MessageRejected
from broker.format import properties as names
from broker.format.commitlog import (
    BODY_AT,
    MAGIC_V1,
    RECORD_CRC_SIZE,
    TOPIC_SIZE_MAX_V1,
    Record,
    RecordHead,
    RecordMiddle,
    decode,
    head_struct,
    record_crc_item,
)
from broker.format.index import key_hash
from broker.format.java import Host, string_hash
from broker.format.sysflag import TransactionType, transaction_type, with_transaction_type

LOCAL_HOST = Host(bytes((127, 0, 0, 1)), 10911)

_OFFSETS = struct.Struct(">qq")  # queueOffset and the CommitLog offset stand side by side
_OFFSETS_AT = RecordHead.OFFSET["queue_offset"]
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_STORE_TIME_AT = RecordHead.SIZE + 4 + 4  # behind the producer's address and port, in IPv4
_BODY_AT = BODY_AT[False, False]
_MIDDLE_AT = _BODY_AT - RecordMiddle.SIZE
_PREPARED_AT = _MIDDLE_AT + RecordMiddle.OFFSET["prepared_transaction_offset"]
_BODY_LENGTH_AT = _MIDDLE_AT + RecordMiddle.OFFSET["body_length"]
_TYPE_AT = RecordHead.OFFSET["sys_flag"]
_CRC_AT = RecordHead.OFFSET["body_crc"]

_HEAD = head_struct(born_ipv6=False, store_ipv6=False)
_ADDRESS = LOCAL_HOST.address
_NO_CRC = record_crc_item(0)
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(256)][::-1]
_MASK = 0xFFFFFFFF

tag_hash = lru_cache(maxsize=4096)(string_hash)
group_hash = lru_cache(maxsize=4096)(string_hash)


@lru_cache(maxsize=4096)
def _topic_code(topic: str) -> int:
    return string_hash(topic + "#") & _MASK


def index_code(topic: str, key: str) -> int:
    """What the index holds for TOPIC#KEY: `format.index.key_hash`, from the topic's part and the key's.

    The hash is a polynomial in 31, so the two add up; the key's part is summed in C.
    """
    raw = key.encode()
    count = len(raw)
    if count != len(key) or count > len(_POWERS):  # not ASCII, or very long
        return key_hash(topic, key)
    code = (_topic_code(topic) * pow(31, count, 1 << 32) + sum(map(mul, raw, _POWERS[-count:]))) & _MASK
    code = (1 << 32) - code if code & 0x80000000 else code
    return 0 if code == 1 << 31 else code


@dataclass(slots=True)
class Draft:
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

    @property
    def size(self) -> int:
        return len(self.raw)


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
) -> Draft:
    """A new record. Topic and properties must have been checked (`broker.message.Message` does)."""
    raw_topic = topic.encode()
    texts = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()]).encode()
    if len(raw_topic) > TOPIC_SIZE_MAX_V1 or len(texts) + RECORD_CRC_SIZE > names.SIZE_MAX:
        reason = f"topic of {len(raw_topic)} bytes, properties of {len(texts)}"
        raise MessageRejected(f"the message is too large for a record: {reason}")
    tail_size = 1 + len(raw_topic) + 2 + len(texts) + RECORD_CRC_SIZE
    head = _HEAD.pack(
        _HEAD.size + len(body) + tail_size, MAGIC_V1, crc32(body), queue_id, flag, 0, 0, sys_flag & ~0xC | kind,
        born_timestamp_ms, _ADDRESS, LOCAL_HOST.port, 0, _ADDRESS, LOCAL_HOST.port, reconsume_times, 0, len(body),
    )  # fmt: skip
    size = (len(texts) + RECORD_CRC_SIZE).to_bytes(2, "big")
    raw = b"".join((head, body, bytes((len(raw_topic),)), raw_topic, size, texts, _NO_CRC))
    return _with_facts(raw, topic, queue_id, kind, properties)


def _with_facts(raw: bytes, topic: str, queue_id: int, kind: TransactionType, properties: dict[str, str]) -> Draft:
    keys = names.keys(properties)
    if unique_key := properties.get(names.UNIQ_KEY):
        keys.insert(0, unique_key)
    codes = () if kind is TransactionType.ROLLBACK else tuple([index_code(topic, key) for key in keys])
    tags_code = tag_hash(properties.get(names.TAGS, ""))
    return Draft(raw, topic, queue_id, kind, tags_code, group_hash(properties.get(names.PGROUP, "")), codes)


def end_draft(half: Draft, half_offset: int, slot: int, kind: TransactionType) -> Draft:
    """The end of a transaction: a commit repeats the half message, a rollback leaves the body out.

    RocketMQ: EndTransactionProcessor.endMessageTransaction (3.1.4).
    """
    raw = bytearray(half.raw)
    if kind is TransactionType.ROLLBACK:
        (length,) = _INT.unpack_from(raw, _BODY_LENGTH_AT)
        del raw[_BODY_AT : _BODY_AT + length]
        _INT.pack_into(raw, _BODY_LENGTH_AT, 0)
        _INT.pack_into(raw, _CRC_AT, 0)
        _INT.pack_into(raw, 0, len(raw))
    (sys_flag,) = _INT.unpack_from(raw, _TYPE_AT)
    _INT.pack_into(raw, _TYPE_AT, with_transaction_type(sys_flag, kind))
    _LONG.pack_into(raw, _PREPARED_AT, half_offset)
    codes = half.index_codes if kind is TransactionType.COMMIT else ()
    found = Draft(bytes(raw), half.topic, half.queue_id, kind, half.tags_code, half.group_hash, codes)
    found.prepared_offset, found.slot = half_offset, slot
    return found


def draft_of(raw: bytes) -> tuple[Draft, Record]:
    """A record that is in the log already, as the draft it was. Raises CorruptRecord."""
    record = decode(raw)
    kind = transaction_type(record.sys_flag)
    found = _with_facts(raw, record.topic, record.queue_id, kind, record.property_map)
    found.prepared_offset = record.prepared_transaction_offset
    if kind is TransactionType.ROLLBACK:
        found.slot = record.queue_offset
    return found, record


def _fastest_crc32() -> Callable[[Any], int]:
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
    """Write a draft's bytes at their place, with the numbers that it lacked and the CRC of the whole."""
    end = at + len(raw)
    view[at:end] = raw
    _OFFSETS.pack_into(view, at + _OFFSETS_AT, queue_offset, commitlog_offset)
    _LONG.pack_into(view, at + _STORE_TIME_AT, store_timestamp_ms)
    item = end - RECORD_CRC_SIZE
    view[item:end] = record_crc_item(crc32(view[at:item]))


def check_size(size: int, size_max: int) -> None:
    """Raises MessageRejected when a record cannot fit in a segment."""
    if size > size_max:
        raise MessageRejected(f"the record takes {size} bytes; a segment of this store holds at most {size_max}")
