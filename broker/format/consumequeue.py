"""The ConsumeQueue: for each queue of a topic, one 20-byte unit for each message, in order.

    STORE/consumequeue/TOPIC/QUEUE_ID/00000000000000000000    unit n lies at byte 20 * n of the files taken together

Files have one size and are named by the position of their first byte. Unused units are zero. Only records of type NONE
and COMMIT have one. RocketMQ: ConsumeQueue (5.3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.format.java import string_hash
from broker.format.layout import Layout, i16, i32, i64

UNIT_SIZE = 20
FILE_SIZE = 300_000 * UNIT_SIZE  # by default
BATCH_FILE_SIZE = 300_000 * 46  # by default
FILLER_SIZE = 0x7FFFFFFF
EXT_ADDRESS_MAX = -(1 << 31) - 1
_LONG_MIN = -(1 << 63)


@dataclass(frozen=True)
class Unit(Layout, size=UNIT_SIZE):
    """One message of a queue. The redo log of 3.0 is made of the same units."""

    commitlog_offset: i64  # where the record begins
    size: i32  # of the record, in bytes
    tags_code: i64  # Java's hash of the tags, or when the message is due, or an address (see below)

    @property
    def is_end(self) -> bool:
        return is_end(self)

    @property
    def is_filler(self) -> bool:
        return is_filler(self)


@dataclass(frozen=True)
class BatchUnit(Layout, size=46):
    """One record of a queue of the type BatchCQ: a batch, or a single message. RocketMQ: BatchConsumeQueue (5.3.3).

    Files lie in STORE/batchconsumequeue; units follow each other in log order, whatever the queue offsets are.
    """

    commitlog_offset: i64  # where the record begins
    size: i32  # of the record, in bytes
    tags_code: i64  # Java's hash of the tags
    store_timestamp_ms: i64  # of the record
    queue_offset: i64  # of the first message of the batch
    count: i16  # how many messages the record holds
    compacted_offset: i32  # -1: of no topic whose log is compacted
    reserved: i32  # 0


@dataclass(frozen=True)
class ExtUnit(Layout, size=20):
    """The fixed part of a unit in STORE/consumequeue_ext, before its bitmap. RocketMQ: ConsumeQueueExt (5.3.3)."""

    size: i16  # with the bitmap
    tags_code: i64  # what the unit would say without an address
    store_timestamp_ms: i64  # of the record
    bitmap_size: i16  # of the bytes that follow


FILLER = Unit(0, FILLER_SIZE, 0)
END = Unit(0, 0, 0)


def is_filler(unit: Unit) -> bool:
    """Whether the unit stands for messages before the first one of a queue that does not begin at 0.

    Quirk: it looks like a unit with a huge record at CommitLog offset 0. RocketMQ: ConsumeQueue.fillPreBlank (5.3.3).
    """
    return unit.size == FILLER_SIZE and unit.commitlog_offset == 0


def is_end(unit: Unit) -> bool:
    """Whether the units of a file end before this one. RocketMQ: ConsumeQueue.recover (5.3.3)."""
    return not (unit.commitlog_offset >= 0 and unit.size > 0)


def tags_code(tags: str | None) -> int:
    """What a unit holds for a record with these TAGS: the hash of the whole text, or 0 without any.

    RocketMQ: MessageExtBrokerInner.tagsString2tagsCode (5.3.3). Quirk: for topics with several tags, too.
    """
    return string_hash(tags) if tags else 0


def is_ext_address(code: int) -> bool:
    """Whether a `tags_code` is an address in consumequeue_ext. RocketMQ: ConsumeQueueExt.isExtAddr (5.3.3)."""
    return code <= EXT_ADDRESS_MAX


def ext_position(code: int) -> int:
    """The byte in the files of consumequeue_ext that such an address means. RocketMQ: ConsumeQueueExt.unDecorate."""
    return code - _LONG_MIN


def file_size(wanted: int) -> int:
    """The size of the files when `wanted` is configured: whole units. RocketMQ: MessageStoreConfig (5.3.3)."""
    return -(-wanted // UNIT_SIZE) * UNIT_SIZE
