"""Does a record begin here, and how long is it: the one rule by which a segment of the CommitLog is walked.

A segment is a run of records, then a blank that says how much of the segment is left, then whatever was there before.
Eight bytes decide: the size and the magic. Whether the record is whole is for `broker.format.commitlog.decode`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from broker.format.commitlog import BLANK_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MAX, RECORD_SIZE_MIN

RECORD_MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT = 4
_SIZE_AND_MAGIC = struct.Struct(">ii").unpack_from  # the first two fields of RecordHead and of the blank


class FrameKind(enum.Enum):
    """What begins at a place of a segment."""

    RECORD = "a record, as far as its size and magic say"
    CUT_OFF = "the same, and the bytes end before it does; `size` says how many it needs"
    BLANK = "the blank that ends a segment"
    EMPTY = "eight zero bytes: nothing was written here yet"
    FULL = "the end of the segment"
    BAD = "neither a record nor a blank"


class Frame(NamedTuple):
    """What begins somewhere, and its size in bytes (0 where none is known)."""

    kind: FrameKind
    size: int = 0


def is_record_size(size: int, remaining: int) -> bool:
    """Whether a record of so many bytes fits where `remaining` bytes of its segment are left: a blank must fit, too.

    One that ends where the file does was the last in a segment that a copy cut: an object store may drop zeros.
    RocketMQ: CommitLog.DefaultAppendMessageCallback.doAppend (5.3.3).
    """
    return RECORD_SIZE_MIN <= size <= RECORD_SIZE_MAX and (size <= remaining - BLANK_SIZE or size == remaining)


def claimed_size(buffer: bytes) -> int:
    """How many bytes the record at the beginning of a buffer says it takes; 0 when none begins there."""
    if len(buffer) < BLANK_SIZE or buffer[_MAGIC_AT : _MAGIC_AT + 4] not in RECORD_MAGICS:
        return 0
    size, _ = _SIZE_AND_MAGIC(buffer, 0)
    return size if RECORD_SIZE_MIN <= size <= RECORD_SIZE_MAX else 0


def record_marks(buffer: bytes, at: int = 0) -> Iterator[int]:
    """Where records may begin from byte `at` on, by their magics alone: first all of v1, then all of v2.

    One whose magic lies across the end of the buffer is not found.
    """
    for magic in RECORD_MAGICS:
        found = buffer.find(magic, at + _MAGIC_AT)
        while found >= 0:
            yield found - _MAGIC_AT
            found = buffer.find(magic, found + 1)


def frame(buffer: Any, at: int, remaining: int) -> Frame:
    """What begins at byte `at` of the buffer; `remaining` is what the segment has from there on, in bytes.

    RocketMQ: CommitLog.checkMessageAndReturnSize (5.3.3), which takes a size that does not fit for a record.
    """
    if remaining == 0:
        return Frame(FrameKind.FULL)
    if remaining < BLANK_SIZE:
        return Frame(FrameKind.BAD)
    if at + BLANK_SIZE > len(buffer):
        return Frame(FrameKind.CUT_OFF, BLANK_SIZE)
    size, magic = _SIZE_AND_MAGIC(buffer, at)
    if magic == MAGIC_BLANK:
        return Frame(FrameKind.BLANK, size) if size == remaining else Frame(FrameKind.BAD)
    if magic in (MAGIC_V1, MAGIC_V2) and is_record_size(size, remaining):
        return Frame(FrameKind.CUT_OFF if at + size > len(buffer) else FrameKind.RECORD, size)
    return Frame(FrameKind.EMPTY if size == 0 and magic == 0 else FrameKind.BAD)
