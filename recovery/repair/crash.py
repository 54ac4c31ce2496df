"""Recover by command: see what a store needs after a crash, and do it.

    found = survey("shop.store")          what is there; nothing is changed
    made = plan(found)                    the case, and the steps that it takes
    report = apply(made)                  do them

`broker.open` does the same by itself, but for what needs a person's word: a store that another program wrote, or wrote
to since checkback closed it. Those are taken over only when their broker is stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths, given_path
from broker.store.read.detect import check_is_store
from broker.store.read.inventory import refusal as not_understood
from broker.store.recover.cases import CaseVerdict
from broker.store.recover.load import RecoveryPlan, misfits_in_the_way, plan, refusal
from broker.store.recover.survey import Owner, Survey
from broker.store.recover.survey import survey as look
from broker.store.writer import open_writer
from recovery.rebuild import replaced
from recovery.rebuild.quiescence import STILL_S, check_still
from recovery.rebuild.rebuilder import Progress
from recovery.repair.taking_over import objection, take_over


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a recovery found and did."""

    plan: RecoveryPlan
    applied: bool
    kept: tuple[str, ...] = ()  # copies of what was cut, and lists of the whole records in it
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        return {
            **self.plan.as_json(), "applied": self.applied, "kept": list(self.kept), "seconds": round(self.seconds, 3),
        }  # fmt: skip


def survey(path: str | os.PathLike[str], *, disk: Disk | None = None) -> Survey:
    """What is there. Changes nothing. Raises NotAStore, StoreError."""
    text, disk = given_path(path), disk or Disk()
    check_is_store(text, disk)
    return look(text, disk)


def apply(
    made: RecoveryPlan,
    *,
    broker_is_stopped: bool = False,
    progress: Progress = lambda _done, _total: None,
    disk: Disk | None = None,
    still_s: float = STILL_S,
    wait: Callable[[float], None] = time.sleep,
    move: bool = False,
    even_short: bool = False,
) -> RecoveryReport:
    """Do what a plan says, and close the store cleanly. Raises StoreError when it needs another plan by now.

    With `move` a store is taken over though two half messages claim one slot: `recovery.repair.slot_conflicts` sees
    to that next. With `even_short` it is taken over though its log ends before what its queues and its index name: a
    segment may be missing, and what is in it is lost.
    Raises CorruptStore when no crash explains the log, or it is not there, StoreLocked and StoreError when another
    program may be at work, NotUnderstood when the store holds what checkback cannot make.
    """
    disk, started, path = disk or Disk(), time.monotonic(), made.survey.path
    if made.case.verdict is CaseVerdict.NOTHING:
        replaced.finish_take_over(disk, Paths(path))  # of a take-over that was killed, and ended by another verb
        return RecoveryReport(made, applied=False)
    misfits = misfits_in_the_way(made, disk)
    if misfits:
        raise not_understood(path, misfits)
    owner, error = made.survey.facts.owner, refusal(made)
    if error is not None and owner not in (Owner.FOREIGN_SINCE, Owner.FOREIGN):
        raise error
    expected: RecoveryPlan | None = made
    before = set(_kept(disk, path))
    if owner in (Owner.FOREIGN_SINCE, Owner.FOREIGN):
        check_still(path, disk, broker_is_stopped=broker_is_stopped, still_s=still_s, wait=wait)
        take_over(path, disk, made.survey, move=move, even_short=even_short)
        expected = None  # the plan was to take it over; what remains is a recovery of our own
    open_writer(path, disk, sync="os", progress=progress, expected=expected).close()
    replaced.finish_take_over(disk, Paths(path))
    kept = tuple(sorted(set(_kept(disk, path)) - before))
    return RecoveryReport(made, applied=True, kept=kept, seconds=time.monotonic() - started)


def _kept(disk: Disk, path: str) -> list[str]:
    """What recoveries kept: what was cut from the log, and what stood in place of the derived files."""
    places = [place for place in (Paths(path).torn, Paths(path).replaced) if disk.entry(place)]
    return [entry.path for place in places for entry in disk.entries(place)]


__all__ = [
    "RecoveryPlan",
    "RecoveryReport",
    "Survey",
    "apply",
    "misfits_in_the_way",
    "objection",
    "plan",
    "survey",
]
