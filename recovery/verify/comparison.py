"""What the comparisons of derived files have in common: records are added in log order, and at the end they report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.units import NumberedUnits
from recovery.verify.later_ends import LaterEnds, no_later_ends


@dataclass(frozen=True)
class FinishContext:
    """What a comparison must know when the whole log was read."""

    begin_offset: int  # what lies below has lost its record to retention
    ignore_from: int | None  # records from here on were appended behind the watermark, or after the scan
    look: Callable[[int], Records | None]  # reads the record at a CommitLog offset again
    queues: tuple[tuple[str, int, NumberedUnits], ...] = ()  # every ConsumeQueue on disk: topic, queue, units
    later_ends: LaterEnds = no_later_ends  # reads the ends behind the watermark, once all slots were read


class Comparison(Protocol):
    """One kind of derived file against the log."""

    def add(self, records: Records, kinds: Kinds) -> None:
        """Compare what these records ask for."""

    def finish(self, context: FinishContext) -> None:
        """Report what stayed missing, and what belongs to no record."""
