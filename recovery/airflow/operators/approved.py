"""What stands between a plan and its application: the question, who answered it, and whether the plan is still that."""

from __future__ import annotations

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


def plan_changed(context: Context, error: Exception) -> AirflowFailException:
    """The error of a task whose plan is not the one that was shown; `AskAgainOperator` finds the note that it makes."""
    context["ti"].xcom_push(key=PLAN_CHANGED, value=True)
    return AirflowFailException(f"{error}. The DAG is started again for the plan as it is now")


def question(needed: bool, ask: bool) -> str:
    """What stands before an apply: nothing to do, ask a person, or go on."""
    if not needed:
        return "nothing to do"
    return "ask" if ask else "go on"
