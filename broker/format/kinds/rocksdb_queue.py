"""ConsumeQueues in a RocksDB: a key for each message, and a table that states where each queue begins and ends.

    default:  length of the topic, 1, topic, 1, queue id, 1, queue offset  ->  QueueValue
    offset:   length of the topic, 1, topic, 1, "max" or "min", 1, queue id  ->  OffsetValue

Numbers in keys are big-endian, so that the units of a queue follow each other. Under the topic CHECKPOINT_TOPIC the
column family `offset` holds one number: the CommitLog offset of the last record whose units are on disk.
RocketMQ: RocksDBConsumeQueueTable, RocksDBConsumeQueueOffsetTable (5.3.3; 5.5.0 alike).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from broker.errors import CorruptRecord
from broker.format.layout import Layout, i32, i64

UNITS, OFFSETS = "default", "offset"  # the column families
_CTRL = b"\x01"
_I32, _I64 = struct.Struct(">i"), struct.Struct(">q")
_MAX, _MIN = b"max", b"min"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"


@dataclass(frozen=True)
class QueueValue(Layout, size=28):
    """One message of a queue."""

    commitlog_offset: i64  # where the record begins
    size: i32  # of the record, in bytes
    tags_code: i64  # Java's hash of the tags, or when the message is due
    store_timestamp_ms: i64  # of the record


@dataclass(frozen=True)
class OffsetValue(Layout, size=16):
    """The first or the last message of a queue. Quirk: the first is corrected only when somebody asks for it."""

    commitlog_offset: i64  # of its record
    queue_offset: i64  # of it


class QueueEnd(NamedTuple):
    """What a key of the column family `offset` is about."""

    topic: str
    queue_id: int
    is_max: bool


def queue_prefix(topic: str, queue_id: int) -> bytes:
    """How the keys of all units of a queue begin."""
    return _prefix(topic) + _I32.pack(queue_id) + _CTRL


def unit_key(topic: str, queue_id: int, queue_offset: int) -> bytes:
    """The key of one unit."""
    return queue_prefix(topic, queue_id) + _I64.pack(queue_offset)


def queue_offset_of(key: bytes) -> int:
    """The queue offset in the key of a unit."""
    return int(_I64.unpack(key[-_I64.size :])[0])


def decode_unit_key(key: bytes) -> tuple[str, int, int]:
    """(topic, queue id, queue offset) of the key of a unit. Raises CorruptRecord."""
    topic, rest = _topic_of(key)
    if len(rest) != _I32.size + 1 + _I64.size or rest[_I32.size : _I32.size + 1] != _CTRL:
        raise CorruptRecord(f"{key!r:.80} is not the key of a unit")
    return topic, int(_I32.unpack_from(rest)[0]), queue_offset_of(key)


def offset_key(topic: str, queue_id: int, *, is_max: bool) -> bytes:
    """The key under which a queue's first or last message is stated."""
    return _prefix(topic) + (_MAX if is_max else _MIN) + _CTRL + _I32.pack(queue_id)


def decode_offset_key(key: bytes) -> QueueEnd:
    """What a key of the column family `offset` is about. Raises CorruptRecord."""
    topic, rest = _topic_of(key)
    if len(rest) != 3 + 1 + _I32.size or rest[:3] not in (_MAX, _MIN) or rest[3:4] != _CTRL:
        raise CorruptRecord(f"{key!r:.80} is not the key of a queue's end")
    return QueueEnd(topic, int(_I32.unpack_from(rest, 4)[0]), rest[:3] == _MAX)


def decode_dispatched(value: bytes) -> int:
    """The CommitLog offset of the last record whose units are on disk. Raises CorruptRecord."""
    if len(value) != _I64.size:
        raise CorruptRecord(f"{CHECKPOINT_TOPIC} holds {len(value)} bytes, not {_I64.size}")
    return int(_I64.unpack(value)[0])


def _prefix(topic: str) -> bytes:
    name = topic.encode()
    return _I32.pack(len(name)) + _CTRL + name + _CTRL


def _topic_of(key: bytes) -> tuple[str, bytes]:
    """The topic at the beginning of a key, and what follows it."""
    length = int(_I32.unpack_from(key)[0]) if len(key) >= _I32.size else -1
    end = _I32.size + 1 + length
    if length < 0 or len(key) <= end or key[_I32.size : _I32.size + 1] != _CTRL or key[end : end + 1] != _CTRL:
        raise CorruptRecord(f"{key!r:.80} is not the key of a queue")
    return key[_I32.size + 1 : end].decode("utf-8", "replace"), key[end + 1 :]
