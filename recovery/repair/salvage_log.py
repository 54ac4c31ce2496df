"""A CommitLog that is written again: whole records at their own offsets, and bridges over what lies between them.

RocketMQ reads a CommitLog by hopping from record to record. At the first place that is neither a record nor the
blank that ends a segment it stops, cuts the log there and deletes every later segment. So what was lost must be
bridged:

- When no record follows in the segment, by a *blank* where the loss begins: eight bytes, RocketMQ's own way to say
  "the rest of this segment is not used". Nothing is invented. A segment that is missing becomes a blank and a hole.
- When a record follows, by *filler records* that take exactly the bytes between: a blank would skip that record
  too.

A filler is a plain message in a topic of its own, `CHECKBACK_SALVAGED`, whose body says in a sentence what stood
there. It had to be some record, and every other kind tells a lie: PREPARED is one more transaction in doubt (and a
unit of the redo log in 3.x), ROLLBACK and COMMIT end something, a message of the lost record's topic would reach
consumers who never were sent it. A plain message in a topic that nobody subscribes to makes one ConsumeQueue unit
in a queue of its own, no index item, and shows an operator in RocketMQ's own tools how many places were lost. The
fillers of one salvage are numbered from 0 in a queue that no earlier salvage used.

A loss of fewer than 92 bytes between two records cannot be bridged: no record of RocketMQ is so small. It stays
zero; our readers pass over it, RocketMQ would stop there. (A whole record was lost or none, so this takes bytes
that no broker wrote.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from broker.format.commitlog import (
    BLANK_SIZE,
    MESSAGE_SIZE_MAX,
    RECORD_CRC_SIZE,
    RECORD_SIZE_MIN,
    encode,
    encode_blank,
    make_record,
)
from broker.format.java import Host
from broker.store.disk.os_errors import not_written
from broker.store.read.segments import NAME_DIGITS

TOPIC = "CHECKBACK_SALVAGED"
HOST = Host(bytes((127, 0, 0, 1)), 0)
FILLER_SIZE_MIN = RECORD_SIZE_MIN + 1  # a topic needs a name
FILLER_SIZE_MAX = MESSAGE_SIZE_MAX  # so that consumers could fetch one
_SIZE_COMFORTABLE = RECORD_SIZE_MIN + len(TOPIC) + RECORD_CRC_SIZE
SEGMENTS_MADE_MAX = 1024  # missing ones in a row; more means that files of two stores lie together

RECORD, BLANK, NOTHING = "filler record", "blank", "nothing"


@dataclass(frozen=True, slots=True)
class Bridge:
    """What stands in the new log from one offset to another, in one segment, where no record was kept."""

    start: int
    end: int
    how: str  # RECORD, BLANK or NOTHING


class NewLog:
    """The segments of a new CommitLog, all of one size; what is not written is a hole."""

    def __init__(self, directory: str, first: int, segment_size: int) -> None:
        self._directory, self._first, self.segment_size = directory, first % segment_size, segment_size
        self._open: tuple[int, int] | None = None  # base and descriptor
        self.fillers = 0

    def base_of(self, commitlog_offset: int) -> int:
        """Where the segment of an offset begins."""
        return commitlog_offset - (commitlog_offset - self._first) % self.segment_size

    def end_of(self, commitlog_offset: int) -> int:
        """Where the segment of an offset ends."""
        return self.base_of(commitlog_offset) + self.segment_size

    def write(self, commitlog_offset: int, data: Any) -> None:
        """Put bytes, which must lie in one segment, at an offset."""
        base = self.base_of(commitlog_offset)
        descriptor = self._descriptor(base)
        view, at = memoryview(data).cast("B"), commitlog_offset - base
        try:
            while view:
                done = os.pwrite(descriptor, view, at)
                view, at = view[done:], at + done
        except OSError as error:
            raise not_written(error, self._path(base)) from error

    def make(self, commitlog_offset: int) -> None:
        """Make the segment of an offset, when it is not there yet."""
        self._descriptor(self.base_of(commitlog_offset))

    def bridge(self, start: int, end: int, store_timestamp_ms: int, queue_id: int) -> Iterator[Bridge]:
        """Fill what lies between the end of a record and the start of the next one, segment by segment."""
        if end - start > SEGMENTS_MADE_MAX * self.segment_size:
            yield Bridge(start, end, NOTHING)
            return
        while start < end:
            segment_end = self.end_of(start)
            if end >= segment_end:
                yield self._blank(start, segment_end)
            else:
                yield self._fill(start, end, store_timestamp_ms, queue_id)
            start = segment_end

    def close(self) -> None:
        """Flush the files to the disk and release them."""
        if self._open is not None:
            os.fsync(self._open[1])
            os.close(self._open[1])
            self._open = None

    def _blank(self, start: int, end: int) -> Bridge:
        if end - start < BLANK_SIZE:
            return Bridge(start, end, NOTHING)
        self.write(start, encode_blank(end - start))
        return Bridge(start, end, BLANK)

    def _fill(self, start: int, end: int, store_timestamp_ms: int, queue_id: int) -> Bridge:
        if end - start < FILLER_SIZE_MIN:
            return Bridge(start, end, NOTHING)
        at = start
        while at < end:
            size = min(end - at, FILLER_SIZE_MAX)
            if 0 < end - at - size < _SIZE_COMFORTABLE:
                size -= _SIZE_COMFORTABLE
            text = f"checkback salvage: {end - start} bytes at CommitLog offset {start} could not be read"
            self.write(at, filler(at, size, text, self.fillers, queue_id, store_timestamp_ms))
            self.fillers += 1
            at += size
        return Bridge(start, end, RECORD)

    def _descriptor(self, base: int) -> int:
        if self._open is not None and self._open[0] == base:
            return self._open[1]
        self.close()
        path = self._path(base)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(descriptor, self.segment_size)
        except OSError as error:
            raise not_written(error, path) from error
        self._open = (base, descriptor)
        return descriptor

    def _path(self, base: int) -> str:
        return os.path.join(self._directory, f"{base:0{NAME_DIGITS}}")


def filler(
    commitlog_offset: int, size: int, text: str, queue_offset: int, queue_id: int, store_timestamp_ms: int
) -> bytes:
    """A plain record of exactly `size` bytes that says `text`, as far as there is room for it."""
    with_crc = size >= _SIZE_COMFORTABLE
    topic = TOPIC[: size - RECORD_SIZE_MIN]
    body_size = size - RECORD_SIZE_MIN - len(topic) - RECORD_CRC_SIZE * with_crc
    record = make_record(
        topic,
        text.encode()[:body_size].ljust(body_size, b"\0"),
        born_host=HOST,
        store_host=HOST,
        born_timestamp_ms=store_timestamp_ms,
        store_timestamp_ms=store_timestamp_ms,
        queue_id=queue_id,
        queue_offset=queue_offset,
        commitlog_offset=commitlog_offset,
    )
    raw = encode(record, record_crc=with_crc)
    assert len(raw) == size
    return raw
