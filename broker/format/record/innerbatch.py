"""The messages inside a record that holds a batch: such records belong to topics with queue.type=BatchCQ.

RocketMQ: MessageDecoder.encodeMessage, MessageDecoder.decodeMessage (5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from broker.errors import CorruptRecord
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.layout import Layout, i16, i32
from broker.format.sysflag import COMPRESSED, INNER_BATCH


@dataclass(frozen=True)
class InnerHead(Layout, size=20):
    """What comes before the body of one message."""

    size: i32  # of the whole
    magic: i32  # 0
    body_crc: i32  # 0
    flag: i32  # the application's
    body_size: i32  # of the body that follows, in bytes


@dataclass(frozen=True)
class InnerTail(Layout, size=2):
    """What comes between the body and the properties."""

    properties_size: i16  # of the properties that follow, in bytes


def inner_records(record: Record) -> Iterator[Record]:
    """The messages of a batch, each as a record with its own queue offset. Raises CorruptRecord."""
    raw, at = record.plain_body, 0
    number, first = 0, _first_queue_offset(record)
    while at < len(raw):
        head = InnerHead.unpack_from(raw, at)
        end = at + InnerHead.SIZE + head.body_size
        if head.body_size < 0:
            raise CorruptRecord(f"message {number} of the batch states a body of {head.body_size} bytes", at=at)
        tail = InnerTail.unpack_from(raw, end)
        stop = end + InnerTail.SIZE + tail.properties_size
        if stop > len(raw) or stop - at != head.size:
            raise CorruptRecord(f"message {number} of the batch states {head.size} bytes, and has {stop - at}", at=at)
        body = raw[at + InnerHead.SIZE : end]
        text = raw[end + InnerTail.SIZE : stop]
        yield replace(
            record, body=body, properties=text, flag=head.flag, queue_offset=first + number,
            sys_flag=record.sys_flag & ~(COMPRESSED | INNER_BATCH),
        )  # fmt: skip
        at, number = stop, number + 1


def _first_queue_offset(record: Record) -> int:
    """That of a batch's first message: the record's own where its two numbers are not there, or are none."""
    base, count = (names.decimal(record.property_map.get(name, "")) for name in (names.INNER_BASE, names.INNER_NUM))
    return record.queue_offset if base is None or count is None else base
