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


NOTHING, ASK, GO_ON = _QUESTIONS = ("nothing to do", "ask", "go on")
PLAN_CHANGED = "plan_changed"
REJECTED = "rejected"
ANSWERED = "answered"  # a plan left its question out: a person rejected it in another run, which said so


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


def check_question(asks: str | None) -> None:
    """Raises AirflowFailException where there is no plan: the task that plans was marked as done, and did not run.

    Without a question (None) the operator stands in a DAG of somebody else.
    """
    if asks not in (None, *_QUESTIONS):
        text = "there is no plan: the task that makes it was marked as done, and did not run"
        raise AirflowFailException(f"{text}. Nothing was done; clear that task, or trigger this DAG again")


def check_approved(asks: str | None, answer: Any) -> None:
    """Raises AirflowFailException where a person was to approve, and nobody did.

    Who may mark a task as done need not be one of those who may approve.
    """
    check_question(asks)
    options = answer.get("chosen_options") if isinstance(answer, Mapping) else None
    if asks == ASK and options != ["Approve"]:
        text = "nobody approved this: the task that asks was marked as done, and has no answer"
        raise AirflowFailException(f"{text}. Nothing was done; clear that task, and answer the question")


def question(needed: bool, ask: bool) -> str:
    """What stands before an apply: nothing to do, ask a person, or go on."""
    if not needed:
        return NOTHING
    return ASK if ask else GO_ON
