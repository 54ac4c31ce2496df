"""What a rebuild made, what it found different, and what it replaced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker.store.read.inventory import Misfit, refusal
from recovery.rebuild.diff import Difference
from recovery.rebuild.entries import Claim
from recovery.rebuild.replaced import Replacement


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was made, where it differs from what was there, and whether it took its place."""

    path: str
    generation: str
    records: int
    end_offset: int
    begin_offset: int
    parts: tuple[str, ...]
    left_out: str = ""  # why the state table and the redo log are not among the parts
    differences: tuple[Difference, ...] = ()
    claims: tuple[Claim, ...] = ()  # two halves with one slot
    applied: bool = False
    seconds: float = 0.0
    aside: tuple[str, ...] = field(default=())  # damages of the log that were passed over: a torn tail
    misfits: tuple[Misfit, ...] = ()  # what would be lost: nothing may be replaced
    replacement: Replacement | None = None  # what was exchanged, and is kept aside
    kept: tuple[Replacement, ...] = ()  # what this and earlier rebuilds replaced

    @property
    def ok(self) -> bool:
        """Whether the live files are what the log says, by now."""
        return self.applied or not (self.differences or self.misfits)

    @property
    def refusal(self) -> str:
        """Why the result may not be put in place; empty when it may."""
        return str(refusal(self.path, self.misfits)) if self.misfits else self.claimed_twice

    @property
    def claimed_twice(self) -> str:
        """What is reported about slots that two halves in doubt claim; empty when there are none."""
        doubtful = [one for one in self.claims if one.lost_in_doubt or one.owner_in_doubt]
        if not doubtful:
            return ""
        one = doubtful[0]
        text = f"{len(doubtful)} slots are claimed by two half messages each, of which one is in doubt: slot {one.slot}"
        text = f"{text} by those at {one.lost_offset} and {one.owner_offset}, and nobody could settle both"
        return f"{text}. Give each a slot of its own with --apply --move; checkback writes to the store from then on"

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        counts: dict[str, int] = {}
        for one in self.differences:
            counts[f"{one.part}-{one.kind}"] = counts.get(f"{one.part}-{one.kind}", 0) + one.count
        return {
            "ok": self.ok,
            "path": self.path,
            "generation": self.generation,
            "records": self.records,
            "end_offset": self.end_offset,
            "parts": list(self.parts),
            "left_out": self.left_out,
            "applied": self.applied,
            "counts": dict(sorted(counts.items())),
            "differences": [one.as_json() for one in self.differences],
            "claims": [one.as_json() for one in self.claims],
            "passed_over": list(self.aside),
            "not_understood": [one.as_json() for one in self.misfits],
            "refusal": self.refusal,
            "replacement": self.replacement.as_json() if self.replacement else None,
            "kept": [one.as_json() for one in self.kept],
            "seconds": round(self.seconds, 3),
        }
