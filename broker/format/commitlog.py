"""The CommitLog: one record after another, without header, padding or footer, in segments of one size.

    segment := record* (blank | zeros)
    record  := head address born address store middle body topic-length topic properties-length properties

A record is V1, or V2 when its topic is too long for the signed byte that holds the length in V1. A `blank` fills a
segment whose rest is too small. CRC always means CRC-32 (zlib) with the sign bit cleared. The last property may be
RocketMQ's `__CRC32#`, a CRC of all bytes of the record before that item; our own records always carry it.

RocketMQ: MessageExtEncoder.encode, CommitLog.checkMessageAndReturnSize, MessageDecoder.decode (5.3.3).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

from broker.errors import CorruptRecord, MessageRejected
from broker.format import properties as names
from broker.format.java import Host
from broker.format.layout import Layout, i32, i64
from broker.format.record import body as bodies
from broker.format.record.recordcrc import RECORD_CRC_SIZE as RECORD_CRC_SIZE
from broker.format.record.recordcrc import record_crc_fault as record_crc_fault
from broker.format.record.recordcrc import record_crc_item as record_crc_item
from broker.format.record.recordcrc import record_crc_reserve as record_crc_reserve
from broker.format.record.recordcrc import sound_record_crc
from broker.format.record.recordcrc import stated_record_crc as stated_record_crc
from broker.format.sysflag import BORN_IPV6, STORE_IPV6, TransactionType, compression, transaction_type

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)  # since 5.1.0
MAGIC_BLANK = 0xCBD43194 - (1 << 32)

SEGMENT_SIZE = 1 << 30
BLANK_SIZE = 8  # a record never takes the last 8 bytes of a segment
RECORD_SIZE_MIN = 91  # V1, IPv4, and nothing in it
RECORD_SIZE_MAX = 64 << 20
"""No record is larger: a remoting frame, which brings every message, holds at most 16 MiB unless both sides are set
otherwise, and the store itself refuses bodies above MESSAGE_SIZE_MAX by default. A larger TOTALSIZE is damage."""
MESSAGE_SIZE_MAX = 4 << 20  # of a body, by default, since 4.x (3.0: 512 KiB, of the whole record)
TOPIC_SIZE_MAX_V1 = 127  # the length is a signed byte
TOPIC_SIZE_MAX_V2 = 32767


@dataclass(frozen=True)
class RecordHead(Layout, size=48):
    """The first 48 bytes of every record."""

    total_size: i32  # of the record, this field included
    magic: i32  # V1 0xDAA320A7, V2 0xDAA320AB
    body_crc: i32  # of the body as stored; 0 when there is none
    queue_id: i32
    flag: i32  # the application's, opaque
    queue_offset: i64  # index in the ConsumeQueue; of a prepared or rollback record: 0, in 3.0 its slot
    commitlog_offset: i64  # where this record begins
    sys_flag: i32  # transaction type, compression, address families
    born_timestamp_ms: i64  # the producer's clock


@dataclass(frozen=True)
class RecordBorn(Layout, size=12):
    """After the producer's address (4 or 16 bytes)."""

    born_port: i32
    store_timestamp_ms: i64  # the broker's clock, taken under the append lock


@dataclass(frozen=True)
class RecordStore(Layout, size=4):
    """After the broker's address (4 or 16 bytes)."""

    store_port: i32


@dataclass(frozen=True)
class RecordMiddle(Layout, size=16):
    """Between the broker's port and the body."""

    reconsume_times: i32
    prepared_transaction_offset: i64  # CommitLog offset of the half message, on its commit (and 3.0 rollback) record
    body_length: i32


def head_dtype(born_ipv6: bool, store_ipv6: bool) -> list[tuple[str, str]]:
    """Everything before the body, as a NumPy dtype specification."""
    born, store = (16 if ipv6 else 4 for ipv6 in (born_ipv6, store_ipv6))
    before = [*RecordHead.DTYPE, ("born_address", f"V{born}"), *RecordBorn.DTYPE]
    return [*before, ("store_address", f"V{store}"), *RecordStore.DTYPE, *RecordMiddle.DTYPE]


def head_struct(born_ipv6: bool, store_ipv6: bool) -> struct.Struct:
    """The same as a struct, addresses as bytes."""
    head, born, store, middle = (
        layout.STRUCT.format[1:] for layout in (RecordHead, RecordBorn, RecordStore, RecordMiddle)
    )
    born_address, store_address = ("16s" if ipv6 else "4s" for ipv6 in (born_ipv6, store_ipv6))
    return struct.Struct(f">{head}{born_address}{born}{store_address}{store}{middle}")


_IPV6_MASK = BORN_IPV6 | STORE_IPV6
_HEADS = {born | store: head_struct(bool(born), bool(store)) for born in (0, BORN_IPV6) for store in (0, STORE_IPV6)}
BODY_AT = {(bool(bits & BORN_IPV6), bool(bits & STORE_IPV6)): head.size for bits, head in _HEADS.items()}
"""Where the body begins, by (born_ipv6, store_ipv6)."""
_IPV4_PARTS = (
    (RecordHead, 0), (RecordBorn, RecordHead.SIZE + 4), (RecordMiddle, BODY_AT[False, False] - RecordMiddle.SIZE),
)  # fmt: skip
OFFSET_IPV4 = {name: begin + offset for layout, begin in _IPV4_PARTS for name, offset in layout.OFFSET.items()}
"""Where a field before the body begins in a record with IPv4 addresses, as all of ours are."""

_SIZE_AND_MAGIC = struct.Struct(">ii")
_SYS_FLAG = struct.Struct(">i")
_SYS_FLAG_AT = RecordHead.OFFSET["sys_flag"]
_I16 = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the CommitLog, whole; `body` and `properties` are the stored bytes."""

    magic: int
    queue_id: int
    flag: int
    queue_offset: int
    commitlog_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes
    body_crc: int  # as read; encode() computes its own

    @property
    def version(self) -> int:
        return 2 if self.magic == MAGIC_V2 else 1

    @property
    def total_size(self) -> int:
        """Bytes on disk, of this record as it stands (without a record CRC that encode() may still add)."""
        wide = 2 if self.magic == MAGIC_V2 else 1
        fixed = _HEADS[self.sys_flag & _IPV6_MASK].size
        return fixed + len(self.body) + wide + len(self.topic.encode()) + 2 + len(self.properties)

    @property
    def transaction_type(self) -> TransactionType:
        return transaction_type(self.sys_flag)

    @property
    def property_map(self) -> dict[str, str]:
        return names.decode(self.properties)

    @property
    def plain_body(self) -> bytes:
        """The body as the producer sent it. Raises CorruptRecord when it does not decompress."""
        try:
            return bodies.decompress(self.body, compression(self.sys_flag))
        except CorruptRecord as error:
            raise CorruptRecord(error.reason, commitlog_offset=self.commitlog_offset) from None

    @property
    def delivered_body(self) -> bytes:
        """The body as consumers get it: the plain one, or where that does not decompress, what is stored.

        Its CRC fits, so it is what the producer sent. Go's client does the same.
        """
        try:
            return self.plain_body
        except CorruptRecord:
            return self.body


def make_record(
    topic: str,
    body: bytes,
    properties: bytes = b"",
    *,
    born_host: Host,
    store_host: Host,
    born_timestamp_ms: int,
    store_timestamp_ms: int,
    queue_id: int = 0,
    queue_offset: int = 0,
    commitlog_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> Record:
    """A record to be written: version, address flags and body CRC follow from the rest.

    V2 is chosen when the topic has more than 127 bytes. Quirk (5.x): RocketMQ counts characters here, so that a
    topic of fewer characters but more bytes would get a negative length; such a topic gets V2 from us.
    """
    sys_flag &= ~_IPV6_MASK
    sys_flag |= (BORN_IPV6 if born_host.is_ipv6 else 0) | (STORE_IPV6 if store_host.is_ipv6 else 0)
    return Record(
        magic=MAGIC_V1 if len(topic.encode(errors="replace")) <= TOPIC_SIZE_MAX_V1 else MAGIC_V2,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        commitlog_offset=commitlog_offset,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=born_host,
        store_timestamp_ms=store_timestamp_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body=body,
        topic=topic,
        properties=properties,
        body_crc=crc32(body),
    )


def crc32(data: Any) -> int:
    """RocketMQ: UtilAll.crc32 (5.3.3)."""
    return zlib.crc32(data) & 0x7FFFFFFF


def decode(buffer: Any, at: int = 0, *, commitlog_offset: int | None = None, check_crc: bool = True) -> Record:
    """The record at position `at` of any bytes-like object. Raises CorruptRecord when there is no whole, sound one.

    Give `commitlog_offset`, the true place, to have it compared with the one that the record states: RocketMQ does
    not, and so takes stale bytes for records. `check_crc` covers the body's CRC and, where the record carries one, the
    record's; without it the caller can ask `crc_fault` later.
    RocketMQ: CommitLog.checkMessageAndReturnSize (5.3.3).
    """
    try:
        raw = _whole(buffer, at)
        record = _parse(raw)
        if commitlog_offset is not None and record.commitlog_offset != commitlog_offset:
            raise _BadRecord(f"the record says that it begins at CommitLog offset {record.commitlog_offset}")
        if check_crc and (fault := crc_fault(record, raw)):
            raise _BadRecord(fault)
    except _BadRecord as damage:
        raise CorruptRecord(str(damage), at=at, commitlog_offset=commitlog_offset) from None
    return record


class _BadRecord(Exception):
    """A reason; decode() adds the place."""


def _whole(buffer: Any, at: int) -> bytes:
    """The bytes of the record that begins at `at`, once its size and magic make sense."""
    room = len(buffer) - at
    if at < 0 or room < _SIZE_AND_MAGIC.size:
        raise _BadRecord(f"{max(room, 0)} bytes are too few for a record")
    total_size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        if magic == MAGIC_BLANK:
            raise _BadRecord("the segment ends here: this is a blank, not a record")
        raise _BadRecord(f"no record begins here: the magic is 0x{magic & 0xFFFFFFFF:08X}")
    if not RECORD_SIZE_MIN <= total_size <= RECORD_SIZE_MAX:
        raise _BadRecord(f"a record has {RECORD_SIZE_MIN} to {RECORD_SIZE_MAX} bytes, this one says {total_size}")
    if total_size > room:
        raise _BadRecord(f"the record takes {total_size} bytes, {room} are there")
    return bytes(buffer[at : at + total_size])


def _parse(raw: bytes) -> Record:
    """The fields of a record that fills `raw`; the lengths must add up to it."""
    (sys_flag,) = _SYS_FLAG.unpack_from(raw, _SYS_FLAG_AT)
    head = _HEADS[sys_flag & _IPV6_MASK]
    size = len(raw)
    if size < head.size + 3:
        raise _BadRecord(f"{size} bytes are too few for a record with these addresses")
    # fmt: off
    (_, magic, body_crc, queue_id, flag, queue_offset, commitlog_offset, _, born_timestamp_ms,
     born_address, born_port, store_timestamp_ms, store_address, store_port,
     reconsume_times, prepared_offset, body_length) = head.unpack_from(raw)
    # fmt: on
    wide = 2 if magic == MAGIC_V2 else 1
    topic_at = head.size + body_length + wide
    if body_length < 0 or topic_at + 2 > size:
        raise _BadRecord(f"a body of {body_length} bytes does not fit in a record of {size}")
    topic_length = int.from_bytes(raw[topic_at - wide : topic_at], "big", signed=True)
    properties_at = topic_at + topic_length + 2
    if topic_length < 0 or properties_at > size:
        raise _BadRecord(f"a topic of {topic_length} bytes does not fit in a record of {size}")
    (properties_length,) = _I16.unpack_from(raw, properties_at - 2)
    if properties_length < 0 or properties_at + properties_length != size:
        raise _BadRecord(f"the lengths add up to {properties_at + properties_length}, the record says {size}")
    try:
        topic = raw[topic_at : topic_at + topic_length].decode()
    except UnicodeDecodeError:
        raise _BadRecord("the topic is not UTF-8") from None
    return Record(
        magic, queue_id, flag, queue_offset, commitlog_offset, sys_flag, born_timestamp_ms,
        Host(born_address, born_port), store_timestamp_ms, Host(store_address, store_port), reconsume_times,
        prepared_offset, raw[head.size : head.size + body_length], topic, raw[properties_at:], body_crc,
    )  # fmt: skip


def crc_fault(record: Record, raw: bytes) -> str | None:
    """What the CRCs say against the record that was decoded from `raw`, in a sentence; None when they agree.

    Stricter than RocketMQ, which skips an empty body: its CRC must be 0, as every version writes it.
    """
    if crc32(record.body) != record.body_crc:
        return f"the body's CRC is {crc32(record.body)}, the record says {record.body_crc}"
    stated = sound_record_crc(record.properties)
    if stated is None:
        return record_crc_fault(record.properties)
    if stated != (computed := crc32(memoryview(raw)[:-RECORD_CRC_SIZE])):
        return f"the record's CRC is {computed}, the record says {stated}"
    return None


def encode(record: Record, *, record_crc: bool = False) -> bytes:
    """The bytes of a record, with its CRCs computed. Raises MessageRejected when it could not be read back.

    A record that carries a record CRC gets a fresh one; `record_crc` adds one where there is none. Then the record is
    longer than `record.total_size` says. Whatever decode() returned gives the same bytes again.
    RocketMQ: MessageExtEncoder.encode, MessageDecoder.createCrc32 (5.3.3).
    """
    topic = _checked_topic(record)
    properties = record_crc_reserve(record.properties) if record_crc else record.properties
    if record_crc_fault(properties):
        raise MessageRejected(f"the last property looks like a damaged {names.CRC32}, which is RocketMQ's own")
    if len(properties) > names.SIZE_MAX:
        raise MessageRejected(f"the properties take {len(properties)} bytes; at most {names.SIZE_MAX} fit in a record")
    head = _HEADS[record.sys_flag & _IPV6_MASK]
    total_size = head.size + len(record.body) + len(topic) + 2 + len(properties)
    if total_size > RECORD_SIZE_MAX:
        raise MessageRejected(f"the record takes {total_size} bytes; the largest has {RECORD_SIZE_MAX}")
    try:
        start = head.pack(
            total_size, record.magic, crc32(record.body), record.queue_id, record.flag, record.queue_offset,
            record.commitlog_offset, record.sys_flag, record.born_timestamp_ms, record.born_host.address,
            record.born_host.port, record.store_timestamp_ms, record.store_host.address, record.store_host.port,
            record.reconsume_times, record.prepared_transaction_offset, len(record.body),
        )  # fmt: skip
    except struct.error as error:
        raise MessageRejected(f"a field of the record does not fit in its place: {error}") from None
    raw = b"".join((start, record.body, topic, _I16.pack(len(properties)), properties))
    if stated_record_crc(properties) is None:
        return raw
    covered = raw[:-RECORD_CRC_SIZE]
    return covered + record_crc_item(crc32(covered))


def _checked_topic(record: Record) -> bytes:
    """The topic's length and bytes, once what struct would let pass has been checked."""
    for host, ipv6 in ((record.born_host, BORN_IPV6), (record.store_host, STORE_IPV6)):
        if len(host.address) != (16 if record.sys_flag & ipv6 else 4):
            raise MessageRejected(f"the address {host} does not have the length that sys_flag {record.sys_flag} says")
    if record.magic not in (MAGIC_V1, MAGIC_V2):
        raise MessageRejected(f"0x{record.magic & 0xFFFFFFFF:08X} is not the magic of a record")
    try:
        topic = record.topic.encode()
    except UnicodeEncodeError:
        raise MessageRejected(f"the topic {record.topic!r} cannot be written in UTF-8") from None
    wide, size_max = (2, TOPIC_SIZE_MAX_V2) if record.magic == MAGIC_V2 else (1, TOPIC_SIZE_MAX_V1)
    if len(topic) > size_max:
        raise MessageRejected(f"the topic takes {len(topic)} bytes; this kind of record holds {size_max}")
    return len(topic).to_bytes(wide, "big") + topic


def read_blank(buffer: Any, at: int, remaining: int) -> bool:
    """Whether the segment ends at `at` with a blank; `remaining` is what the segment has from there on.

    Raises CorruptRecord when a blank states another size: RocketMQ does not read it, but always writes it right.
    RocketMQ: CommitLog.DefaultAppendMessageCallback.doAppend (5.3.3).
    """
    if at < 0 or len(buffer) - at < BLANK_SIZE:
        return False
    stored_crc, magic = _SIZE_AND_MAGIC.unpack_from(buffer, at)
    if magic != MAGIC_BLANK:
        return False
    if stored_crc != remaining:
        raise CorruptRecord(f"the blank says {stored_crc} bytes, {remaining} remain in the segment", at=at)
    return True


def encode_blank(remaining: int) -> bytes:
    """The eight bytes that end a segment of which `remaining` bytes are left.

    Quirk (before 4.9.1): the rest of the segment after them holds scraps of earlier messages.
    """
    if remaining < BLANK_SIZE:
        raise ValueError(f"a blank takes {BLANK_SIZE} bytes, {remaining} are left")
    return _SIZE_AND_MAGIC.pack(remaining, MAGIC_BLANK)
