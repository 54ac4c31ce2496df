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
    """The store's directory."""
    generation: str
    """How it records transactions: none, state-table, gap, half-op or mixed."""
    records: int
    """How many records of the CommitLog were read."""
    end_offset: int
    """CommitLog offset up to which it was read."""
    begin_offset: int
    """CommitLog offset where the log begins."""
    parts: tuple[str, ...]
    """Names of the directories that were built, such as consumequeue."""
    left_out: str = ""
    """Why the state table and the redo log are not among the parts; empty when they are, or belong to no such store."""
    differences: tuple[Difference, ...] = ()
    """Where the live files say something else: `part`, `kind`, `count`, `directory`, and the index of the `first`."""
    claims: tuple[Claim, ...] = ()
    """Pairs of half messages that claim one slot."""
    applied: bool = False
    """Whether the result took the place of the live files."""
    seconds: float = 0.0
    """How long it took."""
    aside: tuple[str, ...] = field(default=())
    """Damages of the log that were passed over: a torn tail."""
    misfits: tuple[Misfit, ...] = ()
    """What would be lost, so that nothing may be replaced: `path`, `what` it is, and `why`."""
    guessed_sizes: tuple[str, ...] = ()
    """Which files have RocketMQ's size, for no live file shows the one that their broker is set to; a sentence each."""
    replacement: Replacement | None = None
    """What was exchanged, and is kept aside; None when nothing was."""
    kept: tuple[Replacement, ...] = ()
    """What this and earlier rebuilds replaced."""

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
        """Its public form, ready for JSON.

        The fields by name with `ok`, `refusal` and `counts` (by part and kind), without `begin_offset`; `aside` is
        named `passed_over`, `misfits` `not_understood`. Differences, claims, misfits, replacements: JSON objects.
        """
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
            "guessed_sizes": list(self.guessed_sizes),
            "replacement": self.replacement.as_json() if self.replacement else None,
            "kept": [one.as_json() for one in self.kept],
            "seconds": round(self.seconds, 3),
        }
