"""Read a CommitLog from any offset, past any damage, in bounded memory: byte ranges in, records side by side out.

    for chunk in Scan(segments_of("shop.store")):
        chunk.offsets, chunk.sizes, chunk.topics ...

A scan reads a window at a time with pread (never a map: a segment may shrink under us) and yields the records in it as
a `Chunk`. What is no record becomes a `Damage`. The end of the log is found, not stored: RocketMQ keeps no write
position on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from broker.format.commitlog import BLANK_SIZE, RECORD_SIZE_MAX
from recovery.chunk import Bytes, Chunk
from recovery.walk import Start, Stop, next_start, walk

WINDOW_BYTES = 16 << 20
PAGE_BYTES = 4096


class Segment(Protocol):
    """One file of a CommitLog, wherever it lies."""

    name: str
    base: int  # the CommitLog offset of its first byte
    size: int  # of the file, in bytes

    def read_into(self, at: int, buffer: Bytes) -> int:
        """Fill the buffer from position `at` of the file; return how many bytes were there."""

    def next_data(self, at: int) -> int:
        """The first position at or after `at` that may hold a byte other than zero; `size` when none does."""


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

    segments: Sequence[Segment]
    start: int = 0
    end: int | None = None
    resync: bool = False
    window_bytes: int = WINDOW_BYTES
    progress: Callable[[int], None] = lambda _: None
    damages: list[Damage] = field(default_factory=list)
    end_offset: int = 0

    def __post_init__(self) -> None:
        self.segment_size = segment_size(self.segments)
        self._buffer = np.zeros(0, np.uint8)
        self._unexplained: list[Damage] = []
        self.end_offset = max(self.start, self.segments[0].base) if self.segments else self.start

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks in log order."""
        previous_end: int | None = None
        for segment in self.segments:
            if previous_end is not None and segment.base != previous_end:
                self._gap(segment, previous_end)
            previous_end = segment.base + self.segment_size
            if segment is not self.segments[-1] or segment.size > 0:
                self._check_size(segment)
            if previous_end > self.start and (self.end is None or segment.base < self.end):
                yield from self._segment(segment)
            self.progress(segment.base + segment.size)
        self._finish()

    def _gap(self, segment: Segment, expected: int) -> None:
        if segment.base > expected:
            reason = f"the segments between {expected} and {segment.base} are missing"
            self.damages.append(Damage("segment-missing", expected, segment.base - expected, reason, segment.name))
        else:
            reason = f"it begins at {segment.base}, inside the segment before it, which ends at {expected}"
            self.damages.append(Damage("segment-overlap", segment.base, expected - segment.base, reason, segment.name))

    def _check_size(self, segment: Segment) -> None:
        if segment.size != self.segment_size:
            reason = f"the file has {segment.size} bytes, the segments of this log have {self.segment_size}"
            self._add("segment-size", segment, min(segment.size, self.segment_size), 0, reason)
        elif segment.size % PAGE_BYTES:
            reason = f"the file has {segment.size} bytes, which is no whole number of pages: it was cut"
            self._add("segment-size", segment, segment.size, 0, reason)

    def _segment(self, segment: Segment) -> Iterator[Chunk]:
        """Walk one segment; what follows its last record is judged when it is known whether records follow it."""
        segment_end = segment.base + self.segment_size
        at, searching = max(self.start - segment.base, 0), self.resync and self.start > segment.base
        need = self.window_bytes
        while at < segment.size:
            if self.end is not None and segment.base + at >= self.end:
                return
            window = self._read(segment, at, need)
            if searching:
                begin = next_start(window, segment.base + at, segment_end)
                at, need, searching = self._after_search(segment, at, window, begin)
                continue
            step = walk(window, segment.base + at, segment_end)
            chunk = self._within(step.chunk)
            if len(chunk):
                self._explain()
                self.end_offset = int(chunk.offsets[-1] + chunk.sizes[-1])
                yield chunk
                self.progress(self.end_offset)
            at += step.at
            need = max(self.window_bytes, step.claims)
            if step.stop is Stop.MORE and at + step.claims <= segment.size:
                continue
            if step.stop is Stop.BLANK or step.stop is Stop.FULL:
                return
            resume = self._past_damage(segment, at, step.stop)
            if resume is None:
                return
            at, need = resume, self.window_bytes

    def _within(self, chunk: Chunk) -> Chunk:
        if self.end is None or not len(chunk):
            return chunk
        return chunk.take(slice(0, int(np.searchsorted(chunk.offsets, self.end))))

    def _after_search(self, segment: Segment, at: int, window: Bytes, begin: Start | None) -> tuple[int, int, bool]:
        if begin is None:
            step = max(len(window) - BLANK_SIZE, 1)
            return (at + step if at + len(window) < segment.size else segment.size), self.window_bytes, True
        cut_off = begin.claims > 0 and begin.claims > len(window) - begin.at
        if cut_off and begin.at == 0:  # the claim is longer than what the file holds
            return at + 1, self.window_bytes, True
        return at + begin.at, max(self.window_bytes, begin.claims), cut_off

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
            self._unfinished(segment, at)
            return None
        resume = self._search(segment, max(at, data - PAGE_BYTES) if stop is Stop.EMPTY else at, at)
        if resume is not None:
            self._add("corrupt-region", segment, at, resume - at, "no record begins here")
            return resume
        last = self._last_byte(segment, at)
        self._unexplained.append(self._damage("torn-tail", segment, at, last - at, "the log ends in half a record"))
        return None

    def _search(self, segment: Segment, at: int, damage: int) -> int | None:
        """The next true record or blank strictly after the damage."""
        at, need = max(at, damage + 1), self.window_bytes
        while at < segment.size:
            window = self._read(segment, at, need)
            begin = next_start(window, segment.base + at, segment.base + self.segment_size)
            at_next, need, searching = self._after_search(segment, at, window, begin)
            if begin is not None and not searching:
                return at_next
            at = at_next
        return None

    def _last_byte(self, segment: Segment, at: int) -> int:
        """The end of the last byte that is not zero."""
        last = at
        while at < segment.size:
            window = self._read(segment, at, self.window_bytes)
            filled = np.flatnonzero(window)
            last = at + int(filled[-1]) + 1 if len(filled) else last
            at = segment.next_data(at + len(window))
        return last

    def _unfinished(self, segment: Segment, at: int) -> None:
        """The segment holds zeros from `at` on: the end of the log, unless a later segment holds records."""
        reason = "the segment ends in zeros, not in a blank, and the log goes on after it: RocketMQ would cut it here"
        self._unexplained.append(self._damage("corrupt-region", segment, at, self.segment_size - at, reason))

    def _explain(self) -> None:
        """Records follow: what was left open behind us is damage in the middle of the log."""
        for damage in self._unexplained:
            reason = "no record begins here" if damage.kind == "torn-tail" else damage.reason
            self.damages.append(
                Damage("corrupt-region", damage.commitlog_offset, damage.size, reason, damage.file)
            )
        self._unexplained.clear()

    def _finish(self) -> None:
        """No record follows: zeros are the end of the log, and bytes that are no record are its torn tail."""
        self.damages.extend(damage for damage in self._unexplained if damage.kind == "torn-tail" and self.end is None)
        self._unexplained.clear()

    def _read(self, segment: Segment, at: int, want: int) -> Bytes:
        """The bytes from `at` on, at most `want`, in a buffer that belongs to whoever keeps it."""
        want = min(max(want, BLANK_SIZE), RECORD_SIZE_MAX + self.window_bytes, segment.size - at)
        buffer = np.empty(want, np.uint8)
        return buffer[: segment.read_into(at, buffer)]

    def _damage(self, kind: str, segment: Segment, at: int, size: int, reason: str) -> Damage:
        return Damage(kind, segment.base + at, size, reason, segment.name)

    def _add(self, kind: str, segment: Segment, at: int, size: int, reason: str) -> None:
        self.damages.append(self._damage(kind, segment, at, size, reason))


def segment_size(segments: Sequence[Segment]) -> int:
    """The size that the segments of a log have: what most files have, else what the names say; 0 without segments."""
    sizes = Counter(segment.size for segment in segments if segment.size)
    steps = Counter(b.base - a.base for a, b in zip(segments, segments[1:], strict=False))
    if not sizes:
        return 0
    best, count = sizes.most_common(1)[0]
    agreed = [size for size, _ in steps.most_common() if size in sizes]
    if agreed and (count == 1 or agreed[0] == best):
        return agreed[0]
    return best if count > 1 or not steps else max(best, min(steps))
