"""Load and recover: bring a store in order that no running process keeps in order.

    survey (what is there) → case (a row of CASES) → plan (what to do) → apply

Our checkpoint says up to where the derived files were on disk, and which slots were in doubt then. What follows it
is cut off and rebuilt from the log, which is the truth: a slot that reached the disk as committed while its end record
did not must not survive. Without a checkpoint everything derived is rebuilt.

RocketMQ: DefaultMessageStore.load, recover (3.1.4), whose table rebuild renumbers slots; ours keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import Any

from broker.errors import CorruptStore, StoreError
from broker.store.disk.files import Disk
from broker.store.maintain.checkpointing import checkpoint_as_is
from broker.store.read.inventory import Misfit, inventory
from broker.store.read.inventory import refusal as not_understood
from broker.store.read.kinds.log_directories import other_log_directories, with_log_directories
from broker.store.recover.cases import Case, CaseVerdict, case_of
from broker.store.recover.lost_log import lost
from broker.store.recover.steps import BELIEVE, CUT_DERIVED, EMPTY_DERIVED, TRUST, Progress, Step
from broker.store.recover.survey import Owner, Survey
from broker.store.shared.control import Word
from broker.store.write.parts import StoreParts


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a recovery will do. Nothing was changed for it."""

    survey: Survey
    case: Case
    steps: tuple[Step, ...]

    @property
    def is_needed(self) -> bool:
        """Whether there is work that opening the store would do: more than to believe a checkpoint."""
        return self.case.verdict is CaseVerdict.REFUSE or any(step not in (BELIEVE, TRUST) for step in self.steps)

    @property
    def lines(self) -> list[str]:
        """What each step will do to this store, a sentence each."""
        return [step.describe(self.survey) for step in self.steps]

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        steps = [{"step": step.name, "text": text} for step, text in zip(self.steps, self.lines, strict=True)]
        return {**self.case.as_json(), "needed": self.is_needed, "steps": steps, "survey": self.survey.as_json()}


def plan(survey: Survey) -> RecoveryPlan:
    """The steps for a store as it was surveyed; those that would have no effect are left out."""
    case = case_of(survey.facts)
    return RecoveryPlan(survey, case, tuple(step for step in case.steps if step.describe(survey)))


def refusal(plan: RecoveryPlan) -> StoreError | None:
    """The error for opening a store that may not be brought in order; None when it may."""
    survey, case = plan.survey, plan.case
    if case.verdict is not CaseVerdict.REFUSE:
        return None
    if survey.facts.owner is Owner.LOST:
        return lost(survey.path, survey.tail.reason)
    if survey.facts.owner is Owner.US:
        place = f"{survey.tail.path}: damaged at CommitLog offset {survey.tail.end}: {survey.tail.reason}"
        text = f"{place}. No crash explains that, so nothing is cut. Run: checkback salvage {quote(survey.path)} OUT"
        return CorruptStore(text, path=survey.tail.path)
    text = f"{survey.path}: {case.sentence}. Run: checkback recover {quote(survey.path)} --apply --broker-is-stopped"
    return StoreError(text, path=survey.path)


def misfits_in_the_way(plan: RecoveryPlan, disk: Disk) -> list[Misfit]:
    """What the steps of a plan would remove though checkback did not make it, and cannot: another program put it there.

    For a store of another program, which is taken over as a whole: all that it holds of that kind.
    """
    if plan.survey.facts.owner in (Owner.FOREIGN_SINCE, Owner.FOREIGN):
        path = plan.survey.path
        return with_log_directories(inventory(path, disk).misfits(), set(other_log_directories(disk, path)))
    if CUT_DERIVED not in plan.steps and EMPTY_DERIVED not in plan.steps:
        return []
    return inventory(plan.survey.path, disk).misfits_inside()


def apply(plan: RecoveryPlan, parts: StoreParts, progress: Progress) -> None:
    """Do what a plan says; call alone, with the store locked exclusively.

    Raises CorruptStore when no crash explains the state of the log, StoreError when another program may be writing,
    NotUnderstood when derived directories hold what checkback cannot make.
    """
    error = refusal(plan)
    if error is not None:
        raise error
    misfits = misfits_in_the_way(plan, parts.disk)
    if misfits:
        raise not_understood(parts.path, misfits)
    parts.control[Word.MAGIC] = 0  # no process trusts the page before the last step
    for step in plan.steps:
        step.apply(parts, plan.survey, progress)


def leave(parts: StoreParts) -> None:
    """The last process to leave: everything on disk, and no `abort`. A poisoned store is left for a recovery."""
    with parts.append_lock:
        if parts.control[Word.POISON]:
            return
        parts.appender.heal()
        current = parts.control[Word.CHECKPOINTED] == parts.control[Word.TAIL]
        if not current or parts.disk.entry(parts.paths.own_checkpoint) is None:
            parts.syncer.force_now()
            checkpoint_as_is(parts)
    if parts.disk.entry(parts.paths.abort) is not None:
        parts.disk.remove(parts.paths.abort)
