"""Where a CommitLog ends, and whether a crash explains what follows its last record. Reads only.

Torn: it begins at or above what is known to be durable, and the record that is damaged lacks a whole block of 512
bytes, or nothing that is whole follows it. Corrupt is everything else: bytes that were durable are not there, or a
record with other bytes in it is followed by records that are whole.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from broker.errors import CorruptRecord
from broker.format.commitlog import (
    BLANK_SIZE,
    RECORD_CRC_SIZE,
    RECORD_SIZE_MAX,
    RECORD_SIZE_MIN,
    Record,
    RecordHead,
    decode,
    record_crc_item,
)
from broker.format.framing import FrameKind, claimed_size, frame, record_marks
from broker.store.read.log_reader import WINDOW_BYTES, LogReader
from broker.store.write.pending_record import crc32

_PAGE_BYTES = 4096
BLOCK = 512  # what a disk writes at once
_HEAD = RecordHead.STRUCT


class TailKind(enum.Enum):
    """What follows the last record."""

    WHOLE = "whole"  # nothing
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log, as it was found from `begin` on."""

    begin: int
    end: int
    kind: TailKind = TailKind.WHOLE
    rest_end: int = 0  # behind the last byte that is not zero
    path: str = ""  # the file that holds the end
    reason: str = ""
    records: int = 0  # between begin and end
    foreign_at: int | None = None  # the first record without a record CRC, which checkback did not write


def find_tail(log: LogReader, start: int, durable: int, *, adopted: int = 0, quick: bool = False) -> Tail:
    """Walk from a record's offset to the last whole one; `durable` is a lower bound of what was flushed.

    Records of another program below `adopted` are accepted. `quick` trusts a page of zeros behind the end to be
    followed by zeros: after a clean close nothing else can be there.
    """
    at, records, foreign_at = start, 0, None
    window, base = b"", start
    while True:
        if at - base + BLANK_SIZE > len(window):
            window, base = log.read(at, WINDOW_BYTES), at
        size, found = _step(window, at - base, at, log.segment_bytes)
        if size < 0 and (at != base or len(window) < -size):
            window, base = log.read(at, max(WINDOW_BYTES, -size)), at
            size, found = _step(window, 0, at, log.segment_bytes)
        if size <= 0:
            break
        if found:
            records += 1
            if found == _FOREIGN and foreign_at is None and at >= adopted:
                foreign_at = at
        at += size
    rest_end = at
    closed = quick and not any(log.read(at, _PAGE_BYTES))
    for place, data in () if closed else log.filled(at):
        rest_end = place + len(data.rstrip(b"\0"))
    tail = Tail(start, at, TailKind.WHOLE, rest_end, log.path_of(at), "", records, foreign_at)
    return _judged(log, tail, durable)


_OURS, _FOREIGN = 1, 2


def is_continued(log: LogReader, tail: int, intent: int) -> bool:
    """Whether another program went on where our appends stopped: at `tail`, with `intent` the end of what was begun.

    A process that was killed in an append leaves any part of it in [tail, intent), and no record of another kind. A
    broker that opened the store begins behind the last whole record, so that its records may lie across `intent`.
    """
    at = tail
    while True:
        window = log.read(at, WINDOW_BYTES)
        size, whose = _step(window, 0, at, log.segment_bytes)
        if size < 0:
            size, whose = _step(log.read(at, -size), 0, at, log.segment_bytes)
        if size <= 0:
            return False
        at += size
        if whose == _FOREIGN or (whose and at > intent):
            return True


def _step(window: bytes, at: int, commitlog_offset: int, segment_bytes: int) -> tuple[int, int]:
    """(bytes to the next record, whose record this is); 0 where none is, -n when n bytes of the window are needed."""
    kind, size = frame(window, at, segment_bytes - commitlog_offset % segment_bytes)
    if kind is FrameKind.RECORD:
        return (size, whose) if (whose := _kind_of(window, at, size, commitlog_offset)) else (0, 0)
    if kind is FrameKind.CUT_OFF:
        return (-size, 0) if size >= RECORD_SIZE_MIN else (0, 0)
    return (size, 0) if kind is FrameKind.BLANK else (0, 0)


def _kind_of(window: bytes, at: int, size: int, commitlog_offset: int) -> int:
    """Whose record these bytes are; 0 when they are none. A record CRC that is right proves all of it at once."""
    if _HEAD.unpack_from(window, at)[6] != commitlog_offset:
        return 0
    item = at + size - RECORD_CRC_SIZE
    if window[item : at + size] == record_crc_item(crc32(memoryview(window)[at:item])):
        return _OURS
    try:
        record = decode(memoryview(window)[at : at + size], commitlog_offset=commitlog_offset)
    except CorruptRecord:
        return 0
    return 0 if _is_torn(record) else _FOREIGN


def _is_torn(record: Record) -> bool:
    """Whether it is one of our records whose last block is not there: its lengths and its body are whole, its CRC is
    zeros. Zeros that something follows are an application's."""
    return record.properties.endswith(b"\0")


# Torn or corrupt


def _judged(log: LogReader, tail: Tail, durable: int) -> Tail:
    """The same with its kind and the reason."""
    if tail.end < durable:
        reason = f"the log holds records up to {tail.end}, but was durable up to {durable}"
        return _with(tail, TailKind.CORRUPT, reason)
    if tail.rest_end == tail.end:
        return tail
    follower = next(whole_records(log, tail.end), None)
    if follower is None:
        return _with(tail, TailKind.TORN, "the log ends in half a record")
    if _lacks_a_block(log, tail.end):
        reason = f"a block never reached the disk; whole records behind it begin at {follower.commitlog_offset}"
        return _with(tail, TailKind.TORN, reason)
    reason = f"no record begins at {tail.end}, and a whole one follows at {follower.commitlog_offset}"
    return _with(tail, TailKind.CORRUPT, reason)


def _with(tail: Tail, kind: TailKind, reason: str) -> Tail:
    return Tail(tail.begin, tail.end, kind, tail.rest_end, tail.path, reason, tail.records, tail.foreign_at)


def _lacks_a_block(log: LogReader, commitlog_offset: int) -> bool:
    """Whether the bytes of the damaged record include a block of zeros, as one has that the disk never wrote."""
    size = claimed_size(log.read(commitlog_offset, RECORD_SIZE_MIN))
    raw = log.read(commitlog_offset, size or RECORD_SIZE_MIN)
    at = 0
    while at < len(raw):
        end = at + BLOCK - (commitlog_offset + at) % BLOCK
        if not any(raw[at:end]):
            return True
        at = end
    return False


def whole_records(log: LogReader, start: int) -> Iterator[Record]:
    """The whole records behind a place where none begins, wherever they are; each states its own true offset."""
    behind = start
    for place, data in log.filled(start):
        for at in sorted(record_marks(data)):
            begin = place + at
            if begin <= behind and begin != start:
                continue
            raw = data[at : at + RECORD_SIZE_MAX]
            size = claimed_size(raw)
            if not size:
                continue
            raw = raw[:size] if len(raw) >= size else log.read(begin, size)
            try:
                found = decode(raw, commitlog_offset=begin)
            except CorruptRecord:
                continue
            if _is_torn(found):
                continue
            yield found
            behind = begin + size - 1
