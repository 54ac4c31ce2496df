"""Byte ranges of a CommitLog that can be read apart from each other, and the records that begin in each.

    for split in plan(log, split_bytes=128 << 20):
        reading = Reading(log, split)
        for records in reading: ...

A record belongs to the split in which it begins. Where a split begins in the middle of a segment, its first record is
found: known magic, lengths that add up, and the place that it states is the place where it lies. A body can hold bytes
that pass all of this; so whatever begins before and would reach over the place is looked for as well
(`is_doubtful`), and where there is any, the segment is walked from its beginning, as the local engine does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from broker.store.read.segments import Listing, Segment
from broker.store.read.store import check_whole
from recovery.pipeline.store_location import LogManifest
from recovery.scan.native.columns import NOTHING, Wants
from recovery.scan.records import Records
from recovery.scan.scanner import Damage, Scan, is_doubtful
from recovery.scan.windows import WINDOW_BYTES

SPLIT_BYTES = 128 << 20
SPLIT_BYTES_MIN = 1024
_LOOK_AHEAD_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Split:
    """The records that begin at a CommitLog offset in [start, end), all in one segment."""

    number: int
    start: int
    end: int
    base: int  # of the segment


def plan(log: LogManifest, split_bytes: int = SPLIT_BYTES, start: int = 0, end: int | None = None) -> list[Split]:
    """Splits of at most `split_bytes`, in log order, for the records in [start, end).

    A compressed segment is one split: it can only be unpacked as a whole. What lies beyond the bytes that a file has,
    or beyond those that a segment should have, is left out.
    """
    check_whole("split_bytes", split_bytes)
    if split_bytes < SPLIT_BYTES_MIN:
        raise ValueError(f"a split has at least {SPLIT_BYTES_MIN} bytes, not {split_bytes}")
    splits: list[Split] = []
    for file in log.files:
        first = max(file.base, start)
        last = file.base + min(file.size, log.segment_size)
        last = last if end is None else min(last, end)
        step = max(last - first, 1) if log.is_compressed(file) else split_bytes
        for at in range(first, last, step):
            splits.append(Split(len(splits), at, min(at + step, last), file.base))
    return splits


@dataclass
class Reading:
    """The records of one split; the other fields are complete when the iteration is."""

    log: LogManifest
    split: Split
    wants: Wants = NOTHING  # what the pass of the C module makes beside the fields
    first: int | None = None  # the CommitLog offset of the first record
    end_offset: int | None = None  # after the last record
    damages: list[Damage] = field(default_factory=list)  # those that begin behind a record of this split
    is_expired: bool = False  # whether its segment was removed before it was read

    def __iter__(self) -> Iterator[Records]:
        """The records in log order; each batch stands until the next is asked for."""
        self._listing = self.log.listing()
        segment = self._listing.based(self.split.base)
        if segment is None:
            return
        scan = self._scan(segment, self.split.start)
        for records in scan:
            if self.first is None and self._is_doubtful(segment, records):
                break
            yield self._take(records)
        else:
            self._note_damages(scan, segment)
            return
        scan = self._scan(segment, segment.base)
        for records in scan:
            own = records.take(slice(int(np.searchsorted(records.offsets, self.split.start)), None))
            if len(own):
                yield self._take(own)
        self._note_damages(scan, segment)

    def damages_in_front(self) -> list[Damage]:
        """What is wrong where the split begins, though no record of it comes before: the split before has it, if any.

        Where neither a record nor a blank begins there, what leads to it is looked at: the segment is walked from its
        beginning. Call it behind the iteration.
        """
        segment, start = self._listing.based(self.split.base), self.split.start
        if segment is None or start in (segment.base, self.first) or not damages_at(self._listing, segment, start):
            return []
        scan = Scan(Listing((segment,), self._listing.segment_size), segment.base, start + 1, resync=True)
        for _ in scan:
            pass
        if scan.end_offset > start:  # a record reaches over it
            return []
        found = [damage for damage in scan.damages if damage.commitlog_offset + damage.size > start]
        return found or damages_at(self._listing, segment, scan.end_offset)

    def _scan(self, segment: Segment, start: int) -> Scan:
        listing = Listing((segment,), self._listing.segment_size)
        window = min(max(self.split.end - self.split.start, 0) + _LOOK_AHEAD_BYTES, WINDOW_BYTES)
        return Scan(listing, start, self.split.end, resync=True, window_bytes=window, wants=self.wants)

    def _take(self, records: Records) -> Records:
        if self.first is None:
            self.first = int(records.offsets[0])
        self.end_offset = int(records.offsets[-1] + records.sizes[-1])
        return records

    def _is_doubtful(self, segment: Segment, records: Records) -> bool:
        is_first = self.split.start == segment.base
        return not is_first and is_doubtful(segment, int(records.offsets[0]), self._listing.segment_size)

    def _note_damages(self, scan: Scan, segment: Segment) -> None:
        """What begins behind a record of this split, or at the beginning of the segment, is this split's to verify."""
        self.is_expired = bool(scan.expired)
        is_first = self.split.start == segment.base
        low = segment.base if is_first else self.first
        if low is not None and self.end_offset is not None:
            inside = (damage for damage in scan.damages if low <= damage.commitlog_offset < (self.end_offset or 0))
            self.damages.extend(inside)
        tail = self.end_offset if self.end_offset is not None or not is_first else segment.base
        if tail is not None and tail < segment.base + min(segment.size, self._listing.segment_size):
            self.damages.extend(damages_at(self._listing, segment, tail))


def damages_at(listing: Listing, segment: Segment, commitlog_offset: int) -> list[Damage]:
    """What is wrong in a segment from an offset at which records end, up to the next record; nothing where one is.

    Torn or corrupt is decided by what follows, in this segment or in a later one: that far is read.
    """
    rest = Listing((segment, *listing.after(segment)), listing.segment_size)
    scan = Scan(rest, commitlog_offset, window_bytes=_LOOK_AHEAD_BYTES)
    for _ in scan:
        break
    return [damage for damage in scan.damages if damage.file == segment.path]  # the next one may overlap it
