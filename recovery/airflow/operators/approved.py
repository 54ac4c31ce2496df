"""What stands between a plan and its application: the question, who answered it, and whether the plan is still that."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context

from recovery.airflow.versions import AirflowFailException


def who_answered(answer: Any) -> str | None:
    """Who gave the answer that an approval returned; None when nobody was asked."""
    if not isinstance(answer, Mapping):
        return None
    who = answer.get("responded_by_user") or {}
    return str(who.get("name") or who.get("id") or "") or None


PLAN_CHANGED = "plan_changed"
REJECTED = "rejected"


def note_rejection(context: Context, answer: Mapping[str, Any]) -> None:
    """Push who rejected, and when: `REJECTED`. A question that had no answer in time was rejected by nobody.

    Airflow pushes no result of a task that skips those behind it.
    """
    by = who_answered(answer)
    if by is not None and answer.get("chosen_options") == ["Reject"]:
        at = answer.get("responded_at")  # which the first Airflows with approvals do not say
        at_ms = int(at.timestamp() * 1000) if at else time.time_ns() // 1_000_000
        context["ti"].xcom_push(key=REJECTED, value={"by": by, "at_ms": at_ms})


def plan_changed(context: Context, error: Exception) -> AirflowFailException:
    """The error of a task whose plan is not the one that was shown; `AskAgainOperator` finds the note that it makes."""
    context["ti"].xcom_push(key=PLAN_CHANGED, value=True)
    return AirflowFailException(f"{error}. The DAG is started again for the plan as it is now")


def question(needed: bool, ask: bool) -> str:
    """What stands before an apply: nothing to do, ask a person, or go on."""
    if not needed:
        return "nothing to do"
    return "ask" if ask else "go on"
