"""Causes before consequences: what one lost part of a store makes wrong in all its other files.

A part of the log that is gone leaves units, items and ends that name nothing. `Roots` knows those parts before the
derived files are reported on, and says of each finding which of them explains it. Nothing is dropped: a consequence is
counted with its cause, and stays in the list of all findings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from recovery.findings import Cause, Finding
from recovery.scan.records import Records
from recovery.scan.scanner import Damage
from recovery.scan.store_files import StoreFiles
from recovery.verify.causes.log_short import DerivedEnds, derived_ends, short_by
from recovery.verify.live_writes import LAG_MS

_HOLES = ("segment-missing", "segment-size", "segment-overlap", "corrupt-region", "torn-tail")
_NAME_RECORDS = ("queue-orphan", "index-orphan", "redo-orphan", "slot-orphan")
_LATE = ("queue-missing", "index-missing", "redo-missing")
_PACKED = (".gz", ".zst", ".lz4")


@dataclass(frozen=True, slots=True)
class _Hole:
    cause: Cause
    start: int
    end: int


class Roots:
    """The causes of a store. Those that explain nothing are left out of `causes`, unless they are findings."""

    def __init__(
        self,
        holes: Iterable[_Hole],
        look: Callable[[int], Records | None],
        *,
        short: Cause | None = None,
        recent_ms: int = 0,
        late: Cause | None = None,
        ends: DerivedEnds | None = None,
        checkpoint: str = "",
        is_open: bool = False,
    ) -> None:
        self._holes, self._look = list(holes), look
        self._short, self._recent_ms = short, recent_ms
        self._checkpoint, self._is_open = checkpoint, is_open or short is not None
        self._late, self._ends = late, ends or DerivedEnds()
        self._diverted: Cause | None = None

    def cause_of(self, finding: Finding) -> Cause | None:
        """What explains a finding; None when nothing that is known does."""
        if finding.kind == "half-diverted" and self._diverted is None:
            self._diverted = Cause(finding.kind, finding.commitlog_offset, finding.file, finding.text)
        if finding.kind in _HOLES:
            return None
        place = int(finding.facts.get("half_offset", finding.commitlog_offset))
        if finding.kind in _NAME_RECORDS or (finding.kind == "end-without-half" and "half_offset" in finding.facts):
            return self._at(place)
        if finding.kind == "committed-without-op":
            return self._lost_op(int(finding.facts["delivered_offset"]))
        if finding.kind == "end-without-half":
            return next((hole.cause for hole in self._holes if hole.start < place), self._diverted)
        if finding.kind == "double-end" and "ends" in finding.facts:
            return self._diverted  # an op message that names the place in the timer's topic
        if finding.kind in _LATE and self._late is not None:
            last = self._ends.index if finding.kind == "index-missing" else self._ends.queues
            return self._late if place > last and "found_commitlog_offset" not in finding.facts else None
        if finding.file == self._checkpoint and finding.kind == "file-damaged":
            return self._short or self._late if self._is_open else None
        return None

    def _at(self, commitlog_offset: int) -> Cause | None:
        for hole in self._holes:
            if hole.start <= commitlog_offset < hole.end:
                return hole.cause
        if self._short is not None and commitlog_offset >= self._short.commitlog_offset:
            return self._short
        return None

    def _lost_op(self, delivered_offset: int) -> Cause | None:
        """An op message comes seconds after the delivery: it may lie in a hole behind it, or behind the log's end."""
        for hole in self._holes:
            if hole.start > delivered_offset:
                return hole.cause
        if self._short is None:
            return None
        record = self._look(delivered_offset)
        recent = record is None or int(record.field("store_timestamp_ms")[0]) > self._recent_ms
        return self._short if recent else None

    def causes(self) -> tuple[Cause, ...]:
        """All of them in the order of the log."""
        others = (self._short, self._late, self._diverted)
        more = [one for one in others if one is not None and one.consequences.total()]
        found = [*(hole.cause for hole in self._holes), *more]
        return tuple(sorted(found, key=lambda cause: cause.commitlog_offset))


def roots_of(
    files: StoreFiles,
    damages: Iterable[Damage],
    end_offset: int,
    last_store_ms: int,
    look: Callable[[int], Records | None],
    *,
    is_live: bool,
) -> Roots:
    """What may explain findings of a store whose log was read to `end_offset`."""
    holes = [
        _Hole(Cause(one.kind, one.commitlog_offset, one.file, _of_hole(one, files)), *_span(one))
        for one in damages
        if one.kind in _HOLES
    ]
    if is_live or files.watermark is not None:
        return Roots(holes, look)
    ends, is_closed = derived_ends(files, end_offset), files.closed_at_ms() is not None
    late = Cause("derived-late", min(ends.queues, ends.index), files.path, _late_text(is_closed))
    return Roots(
        holes, look,
        short=short_by(files, end_offset, ends),
        recent_ms=last_store_ms - LAG_MS,
        late=late,
        ends=ends,
        checkpoint=files.checkpoint,
        is_open=not is_closed,
    )  # fmt: skip


def _span(damage: Damage) -> tuple[int, int]:
    return damage.commitlog_offset, damage.commitlog_offset + damage.size


def _of_hole(damage: Damage, files: StoreFiles) -> str:
    """What the damage is, and a packed segment in the place of one that is missing."""
    text = f"{damage.reason} ({damage.size} bytes)" if damage.size else damage.reason
    packed = [
        os.path.basename(path)
        for path in files.commitlog.others
        if path.endswith(_PACKED) and _lies_in(os.path.basename(path), damage)
    ]
    if not packed:
        return text
    return f"{text}; {', '.join(packed)} lies in its place: unpack it there, or verify with --spark, which reads it"


def _lies_in(name: str, damage: Damage) -> bool:
    start, end = _span(damage)
    stem = name.split(".", maxsplit=1)[0]
    return stem.isdecimal() and start <= int(stem) < end


def _late_text(is_closed: bool) -> str:
    text = "the queues or the index end before the log does"
    if is_closed:
        return f"{text}, though the store was closed: they were lost, or are older than it"
    return f"{text}: the broker was killed, or the store was copied while it ran. A broker that starts writes the rest"
