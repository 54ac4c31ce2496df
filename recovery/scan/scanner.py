"""Read a CommitLog from any offset, past any damage, in bounded memory: byte ranges in, records side by side out.

    for records in Scan(listing):
        records.offsets, records.sizes, records.topics ...

A scan reads a window at a time with pread (never a map: a segment may shrink under us) and yields the records in it as
a `Records`. What is not a record becomes a `Damage`. The end of the log is found, not stored: RocketMQ keeps no write
position on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from broker.format.commitlog import BLANK_SIZE, RECORD_SIZE_MAX
from broker.store.disk.files import Missing
from broker.store.read.segments import Listing, Segment
from recovery.scan.framing import Stop, next_blank, next_start, overlaps, walk
from recovery.scan.native.columns import NOTHING, Wants
from recovery.scan.records import Bytes, Records
from recovery.scan.windows import WINDOW_BYTES, Prepare, Windows

PAGE_BYTES = 4096
LOOK_BACK_BYTES = 4_456_448  # the largest message that a broker takes by default (4 MiB), and what else is in a record
_LOOK_AHEAD_BYTES = 1 << 18
_PAUSES_S = (0.0, 0.002, 0.01)  # a record is copied in less


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of the log that is not records: `kind` is the finding's."""

    kind: str
    commitlog_offset: int
    size: int
    reason: str
    file: str


@dataclass
class Scan:
    """The records of some segments between two CommitLog offsets.

    `damages` and `end_offset` are complete when the iteration is. `start` must be the offset of a record or of a
    segment, or lie anywhere when `resync` is set: then the scan begins at the first true record at or after it.
    """

    listing: Listing
    start: int = 0
    end: int | None = None
    resync: bool = False
    window_bytes: int = WINDOW_BYTES
    progress: Callable[[int], None] = lambda _: None
    wants: Wants = NOTHING  # what the pass of the C module makes beside the fields
    prepare: Prepare = lambda _: (
        None
    )  # sees each window in order, mostly in another thread, while the batch before is used
    damages: list[Damage] = field(default_factory=list)
    ended: set[str] = field(
        default_factory=set
    )  # segments that were read up to their end: what is behind holds nothing
    expired: list[str] = field(default_factory=list)  # segments that were removed before they were read
    end_offset: int = 0

    def __post_init__(self) -> None:
        self.segment_size = self.listing.segment_size
        self._unexplained: list[Damage] = []
        self._windows = Windows(self.segment_size, self.prepare, self.wants)
        self.end_offset = max(self.start, self.listing.begin)

    def __iter__(self) -> Iterator[Records]:
        """The records in log order, a window at a time; each batch stands until the next is asked for."""
        self._note_file_damages()
        try:
            for segment in self.listing.segments:
                if self._is_inside(segment):
                    try:
                        yield from self._segment(segment)
                    except Missing:
                        self.expired.append(segment.path)
                    self.progress(segment.base + segment.size - self.listing.begin)
            self._finish()
        finally:
            self._windows.close()

    def _is_inside(self, segment: Segment) -> bool:
        return segment.base + self.segment_size > self.start and (self.end is None or segment.base < self.end)

    def _note_file_damages(self) -> None:
        """What is wrong with the segments as files."""
        for damage in self.listing.damages:
            span = damage.end - damage.start
            self.damages.append(Damage(damage.kind, damage.start, span, damage.reason, damage.path))

    def _segment(self, segment: Segment) -> Iterator[Records]:
        """Walk one segment; what follows its last record is verified when it is known whether records follow it."""
        at: int | None = max(self.start - segment.base, 0)
        if self.resync and at:
            at = self._search(segment, at, segment.size if self.end is None else self.end - segment.base)
        need = self.window_bytes
        while at is not None and at < segment.size and (self.end is None or segment.base + at < self.end):
            step = self._windows.walk(segment, at, self._wanted(segment, at, need))
            records = self._within(step.records)
            at += step.at
            need = max(self.window_bytes, step.claims)
            more = step.stop is Stop.MORE and at + step.claims <= segment.size
            if more:
                self._windows.ahead(segment, at, self._wanted(segment, at, need))
            if len(records):
                self._explain()
                self.end_offset = int(records.offsets[-1] + records.sizes[-1])
                yield records
                self.progress(self.end_offset - self.listing.begin)
            if more:
                continue
            if step.stop is Stop.BLANK or step.stop is Stop.FULL:
                if segment.size <= self.segment_size:
                    self.ended.add(segment.path)
                return
            at, need = self._past_damage(segment, at, step.stop), self.window_bytes

    def _within(self, records: Records) -> Records:
        if self.end is None or not len(records):
            return records
        return records.take(slice(0, int(np.searchsorted(records.offsets, self.end))))

    def _past_damage(self, segment: Segment, at: int, stop: Stop) -> int | None:
        """Where records go on in this segment after the place `at`, which holds none; None when they do not."""
        data = segment.next_data(at)
        while data < segment.size:
            window = self._read(segment, data, self.window_bytes)
            filled = np.flatnonzero(window)
            if len(filled):
                data += int(filled[0])
                break
            data += len(window)
        if data >= segment.size:
            if at < segment.size:  # else the file was cut behind a record, which is damage of the file
                self._unfinished(segment, at)
            return None
        first = max(at + 1, data - PAGE_BYTES if stop is Stop.EMPTY else 0)
        resume = self._search(segment, first, segment.size)
        if resume is None:
            resume = self._search_blank(segment, first)
        if resume is not None and self._is_whole(segment, at):  # a live broker has written it meanwhile
            return at
        if resume is not None:
            self._add("corrupt-region", segment, at, resume - at, "no record begins here")
            return resume
        self._explain()  # bytes follow what was left open before
        last = self._last_byte(segment, at)
        self._unexplained.append(self._damage("torn-tail", segment, at, last - at, "the log ends in half a record"))
        return None

    def _is_whole(self, segment: Segment, at: int) -> bool:
        """Look again: a broker writes one record after another, so whatever lies before a whole one is written."""
        window = self._read(segment, at, self.window_bytes)
        step = walk(window, segment.base + at, segment.base + self.segment_size)
        if step.stop is Stop.MORE and not len(step.records):
            window = self._read(segment, at, step.claims)
            step = walk(window, segment.base + at, segment.base + self.segment_size)
        return len(step.records) > 0 or (step.stop is Stop.BLANK and step.at == 0)

    def _search(self, segment: Segment, at: int, end: int) -> int | None:
        """Where the first true record at or after `at` begins; one that begins at or after `end` may be left out."""
        need = self.window_bytes
        while at < min(end, segment.size):
            window = self._read(segment, at, need)
            begin = next_start(window, segment.base + at, segment.base + self.segment_size)
            if begin is None:
                at, need = self._next_window(segment, at, window), self.window_bytes
            elif at + begin.at + begin.claims > segment.size:  # more than the file holds
                at, need = at + begin.at + 1, self.window_bytes
            elif begin.claims:
                at, need = at + begin.at, max(self.window_bytes, begin.claims)
            else:
                return at + begin.at
        return None

    def _search_blank(self, segment: Segment, at: int) -> int | None:
        """Where the segment's blank lies, at or after `at`."""
        while at < segment.size:
            window = self._read(segment, at, self.window_bytes)
            found = next_blank(window, segment.base + at, segment.base + self.segment_size)
            if found is not None:
                return at + found
            at = self._next_window(segment, at, window)
        return None

    def _next_window(self, segment: Segment, at: int, window: Bytes) -> int:
        """Where to search on: a size and a magic may lie across the edge, and holes hold neither."""
        end = at + len(window)
        if end >= segment.size:
            return segment.size
        return max(end - BLANK_SIZE + 1, at + 1, segment.next_data(end) - BLANK_SIZE)

    def _last_byte(self, segment: Segment, at: int) -> int:
        """The end of the last byte that is not zero."""
        last = at
        while at < segment.size:
            window = self._read(segment, at, self.window_bytes)
            filled = np.flatnonzero(window)
            last = at + int(filled[-1]) + 1 if len(filled) else last
            at = max(at + len(window), segment.next_data(at + len(window)))
        return last

    def _unfinished(self, segment: Segment, at: int) -> None:
        """The segment holds zeros from `at` on: the end of the log, unless a later segment holds records."""
        reason = "the segment ends in zeros, not in a blank, and the log goes on after it: RocketMQ would cut it here"
        self._unexplained.append(self._damage("corrupt-region", segment, at, self.segment_size - at, reason))

    def _explain(self) -> None:
        """The log goes on: what was left open behind us is damage in the middle of it."""
        for damage in self._unexplained:
            reason, start = damage.reason, damage.commitlog_offset
            size, segment = damage.size, self.listing.at(start)
            if damage.kind == "torn-tail" and segment is not None:  # all that the segment should hold from there on
                reason, size = "no record begins here", max(size, segment.base + segment.size - start)
            self.damages.append(Damage("corrupt-region", start, size, reason, damage.file))
        self._unexplained.clear()

    def _finish(self) -> None:
        """No record follows: zeros are the end of the log, and bytes that are not a record are its torn tail."""
        torn = [damage for damage in self._unexplained if damage.kind == "torn-tail" and self.end is None]
        self.damages.extend(damage for damage in torn if not self._settles(damage))
        self._unexplained.clear()

    def _settles(self, damage: Damage) -> bool:
        """Whether half a record at the end becomes a whole one: then a live broker was just writing it."""
        segment = self.listing.at(damage.commitlog_offset)
        if segment is None:
            return False
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            if self._is_whole(segment, damage.commitlog_offset - segment.base):
                return True
        return False

    def _read(self, segment: Segment, at: int, want: int) -> Bytes:
        """The bytes from `at` on, at most `want`."""
        return self._windows.read(segment, at, self._wanted(segment, at, want))

    def _wanted(self, segment: Segment, at: int, want: int) -> int:
        return min(max(want, BLANK_SIZE), RECORD_SIZE_MAX + self.window_bytes, segment.size - at)

    def _damage(self, kind: str, segment: Segment, at: int, size: int, reason: str) -> Damage:
        return Damage(kind, segment.base + at, size, reason, segment.path)

    def _add(self, kind: str, segment: Segment, at: int, size: int, reason: str) -> None:
        self.damages.append(self._damage(kind, segment, at, size, reason))


def is_doubtful(segment: Segment, commitlog_offset: int, segment_size: int) -> bool:
    """Whether what a scan found somewhere in a segment may be no record: something before it would reach over it.

    A body can hold bytes that pass for a record in its true place. And where RocketMQ cut its log after a crash, what
    lay there stands behind the blank that ends the segment now. Only a walk from the segment's beginning tells.
    """
    at = commitlog_offset - segment.base
    begin = max(at - LOOK_BACK_BYTES, 0)
    if at == begin:
        return False
    window = np.zeros(min(at + _LOOK_AHEAD_BYTES, segment.size) - begin, np.uint8)
    segment.read_into(begin, window.data)
    return overlaps(window, segment.base + begin, commitlog_offset, segment.base + segment_size)
