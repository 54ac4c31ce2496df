"""Which case a store is, by the facts about it: a table in which every combination of facts fits exactly one row.

A row names the steps that bring the store in order, in their sequence, or the reason why nothing may be done.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from broker.store.recover.steps import (
    BELIEVE,
    CHECKPOINT,
    CUT_DERIVED,
    CUT_LOG,
    EMPTY_DERIVED,
    FINISH_SWAP,
    FLUSH,
    KEEP_ASIDE,
    REMOVE_UNMADE,
    REPLAY,
    TRUST,
    WRITE_AGAIN,
    Step,
)
from broker.store.recover.survey import Ending, Owner, Point, SurveyFacts
from broker.store.recover.tail import TailKind


class CaseVerdict(enum.Enum):
    """What a case comes to."""

    NOTHING = "nothing to do"
    RECOVER = "recover"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Case:
    """A row: the facts that it is about (a missing fact may be anything), and what follows from them."""

    label: str
    sentence: str
    verdict: CaseVerdict
    when: dict[str, frozenset[Any]] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()

    def fits(self, facts: SurveyFacts) -> bool:
        """Whether the row is about these facts."""
        return all(getattr(facts, name) in allowed for name, allowed in self.when.items())

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        return {"case": self.label, "verdict": self.verdict.value, "text": self.sentence}


def _when(**facts: Any) -> dict[str, frozenset[Any]]:
    """Each fact with the values that it may have; one value needs no set."""
    return {name: value if isinstance(value, frozenset) else frozenset([value]) for name, value in facts.items()}


_SOUND = frozenset([TailKind.WHOLE, TailKind.TORN])
_OURS: dict[str, Any] = {"owner": Owner.US, "in_use": False}
_CRASHED: dict[str, Any] = {**_OURS, "page_trusted": False, "poisoned": False}
_TAIL = (FINISH_SWAP, KEEP_ASIDE, CUT_LOG, REMOVE_UNMADE)
_END = (FLUSH, REPLAY, CHECKPOINT, TRUST)
_AFTER_CUT = (*_TAIL, CUT_DERIVED, *_END)
_FROM_NOTHING = (*_TAIL, EMPTY_DERIVED, *_END)

CASES: tuple[Case, ...] = (
    Case(
        "in use",
        "another process has the store open: whatever a killed process left, the next append puts in order",
        CaseVerdict.NOTHING,
        _when(in_use=True),
    ),
    Case(
        "empty",
        "the store has no log yet: it is made when it is opened",
        CaseVerdict.RECOVER,
        _when(in_use=False, owner=Owner.NOBODY),
        (FINISH_SWAP, EMPTY_DERIVED, *_END),
    ),
    Case(
        "log lost",
        "the store has no log, but other files of it name records: they are all that is left, and stay as they are",
        CaseVerdict.REFUSE,
        _when(in_use=False, owner=Owner.LOST),
    ),
    Case(
        "foreign",
        "another program wrote this store, and it is only read",
        CaseVerdict.REFUSE,
        _when(in_use=False, owner=Owner.FOREIGN),
    ),
    Case(
        "appended by another program",
        "another program wrote to this store after checkback did: it must have stopped",
        CaseVerdict.REFUSE,
        _when(in_use=False, owner=Owner.FOREIGN_SINCE),
    ),
    Case(
        "same boot",
        "the machine has not stopped since the store was open: the next append finishes what a killed process left",
        CaseVerdict.NOTHING,
        _when(**_OURS, page_trusted=True, poisoned=False),
    ),
    Case(
        "corrupt",
        "the log is damaged in a way that no crash explains: nothing is cut",
        CaseVerdict.REFUSE,
        _when(**_OURS, page_trusted=False, tail=TailKind.CORRUPT),
    ),
    Case(
        "corrupt",
        "the log is damaged in a way that no crash explains: nothing is cut",
        CaseVerdict.REFUSE,
        _when(**_OURS, page_trusted=True, poisoned=True, tail=TailKind.CORRUPT),
    ),
    Case(
        "poisoned",
        "an fsync failed: what the system holds may not be on the disk, so it is written again",
        CaseVerdict.RECOVER,
        _when(**_OURS, poisoned=True, tail=_SOUND),
        (*_TAIL, WRITE_AGAIN, EMPTY_DERIVED, *_END),
    ),
    Case(
        "clean shutdown",
        "the store was shut down cleanly",
        CaseVerdict.RECOVER,
        _when(**_CRASHED, ending=Ending.CLOSED, point=Point.END, tail=TailKind.WHOLE),
        (FINISH_SWAP, BELIEVE, TRUST),
    ),
    Case(
        "clean shutdown, torn tail",
        "the store was shut down cleanly, but bytes that are not a record follow its end",
        CaseVerdict.RECOVER,
        _when(**_CRASHED, ending=Ending.CLOSED, point=Point.END, tail=TailKind.TORN),
        _AFTER_CUT,
    ),
    Case(
        "appended after the shutdown",
        "another program wrote to the store after it was closed, and has stopped",
        CaseVerdict.RECOVER,
        _when(**_CRASHED, ending=Ending.CLOSED, point=Point.BEHIND, tail=_SOUND),
        _AFTER_CUT,
    ),
    Case(
        "crashed",
        "the machine stopped while the store was open: what follows the checkpoint is made again from the log",
        CaseVerdict.RECOVER,
        _when(**_CRASHED, ending=Ending.OPEN, point=frozenset([Point.END, Point.BEHIND]), tail=_SOUND),
        _AFTER_CUT,
    ),
    Case(
        "no checkpoint",
        "no checkpoint speaks of the derived files as they are: all of them are made again from the log",
        CaseVerdict.RECOVER,
        _when(**_CRASHED, point=Point.NONE, tail=_SOUND),
        _FROM_NOTHING,
    ),
)


def case_of(facts: SurveyFacts) -> Case:
    """The row of CASES that is about these facts."""
    (row,) = (case for case in CASES if case.fits(facts))
    return row
