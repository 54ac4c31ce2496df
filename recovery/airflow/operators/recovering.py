"""Recovery after a crash: plan it, do it, and say that the store is not in order while it is not done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from recovery.airflow.arguments import check, is_true
from recovery.airflow.operators.approved import (
    ANSWERED,
    ASK,
    PLAN_CHANGED,
    REJECTED,
    check_approved,
    plan_changed,
    question,
    who_answered,
)
from recovery.airflow.operators.store import StoreOperator, now_ms
from recovery.airflow.versions import AirflowFailException, AirflowSkipException
from recovery.humanize import moment, span

_BY_A_WATCHER = "asset_triggered"


class PlanRecoveryOperator(StoreOperator):
    """What a crash left, and what would be done about it. Changes nothing.

    A run that a watcher started is skipped where a person would be asked who rejected this recovery in another run less
    than `again_s` seconds ago: the watcher reports the crash again while a question waits, too.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "ask")

    def __init__(
        self, *, ask: bool | str = False, take_over: bool = False, again_s: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.ask, self.take_over, self.again_s = ask, take_over, again_s
        check(self, "ask", "again_s")

    def execute(self, context: Context) -> dict[str, Any]:
        """The plan; `question` says whether a person is asked: ask, go on, or nothing to do."""
        from recovery.jobs.recovering import plan_recovery

        path = self.store_path()
        plan = plan_recovery(path, name=self.store or path, take_over=self.take_over)
        asks = question(plan["needed"], is_true(self.ask) or plan["must_ask"])
        if asks == ASK:
            self._leave_rejected(context, path)
        return {**plan, "question": asks}

    def _leave_rejected(self, context: Context, path: str) -> None:
        """Raises AirflowSkipException when the question was answered already."""
        from recovery.jobs.recovering import rejection

        run, found = context["dag_run"], rejection(path)
        if self.again_s is None or found is None or getattr(run, "run_type", "") != _BY_A_WATCHER:
            return
        if run.run_id != found["run"] and 0 <= time.time() - found["rejected_ms"] / 1000 < self.again_s:
            text = f"{found['rejected_by']} rejected this recovery at {moment(found['rejected_ms'])} UTC"
            context["ti"].xcom_push(key=ANSWERED, value=True)
            later = f"It is offered again {span(self.again_s)} after that, and at once when a person triggers this DAG"
            raise AirflowSkipException(f"{path}: {text}. {later}")


class RecoverOperator(StoreOperator):
    """Do what the plan says. A second time there is nothing left to do.

    `broker_is_stopped` is a person's word: true only behind an approval, for a store that another program wrote.
    `expected` is the `plan_id` of the plan that was approved: another plan is not carried out. `answer` is the result
    of the approval, which says who gave it; where the `question` of the plan was `ask`, nothing is done without one.
    """

    template_fields: Sequence[str] = (
        *StoreOperator.template_fields, "broker_is_stopped", "expected", "answer", "question",
    )  # fmt: skip

    def __init__(
        self,
        *,
        broker_is_stopped: bool | str = False,
        expected: str | None = None,
        answer: Any = None,
        question: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.broker_is_stopped, self.expected, self.answer = broker_is_stopped, expected, answer
        self.question = question
        check(self, "broker_is_stopped")

    def execute(self, context: Context) -> dict[str, Any]:
        """What was done."""
        from recovery.jobs.approvals import PlanChanged
        from recovery.jobs.recovering import recover

        check_approved(self.question, self.answer)
        try:
            found = recover(
                self.store_path(),
                now_ms=now_ms(context),
                broker_is_stopped=is_true(self.broker_is_stopped),
                expected=self.expected,
                by=who_answered(self.answer),
            )
        except PlanChanged as error:
            raise plan_changed(context, error) from None
        self.publish(context, found)
        return found


class InOrderOperator(StoreOperator):
    """Fails while the store is as a crash left it: a recovery that was rejected, or not answered, is red.

    `asked_by` is the task of the approval. That a person rejected it is kept with the reports of the store, so that
    nobody is asked again at once. `planned_by` is the task of the plan: where it left the question out, since a person
    rejected it in another run, that run had its alert, and this one has none. Nor has one whose plan `applied_by` did
    not carry out, since it was another by then: that task has alerted it, and the DAG is started again.
    """

    is_alerted = False  # whether another run has alerted this: `StoreAlert`

    def __init__(self, *, asked_by: str = "", planned_by: str = "", applied_by: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asked_by, self.planned_by, self.applied_by = asked_by, planned_by, applied_by

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException."""
        from recovery.jobs.recovering import crashed

        if self.asked_by:
            self._keep_rejection(context)
        is_answered = self._noted(context, self.planned_by, ANSWERED)
        is_asked_again = self._noted(context, self.applied_by, PLAN_CHANGED)
        self.is_alerted = is_answered or is_asked_again
        if crashed(path := self.store_path()):
            text, step = "the recovery was rejected, not answered in time, or failed", "trigger this DAG again"
            if is_asked_again:
                text, step = "the plan was another one when it was to be carried out", "this DAG was started again"
            raise AirflowFailException(f"{path} is as the crash left it: {text}. Check-back does not serve it; {step}")

    def _noted(self, context: Context, task_id: str, key: str) -> bool:
        return bool(task_id and context["ti"].xcom_pull(task_ids=task_id, key=key))

    def _keep_rejection(self, context: Context) -> None:
        from recovery.jobs.recovering import keep_rejection

        if found := context["ti"].xcom_pull(task_ids=self.asked_by, key=REJECTED):
            facts = {"rejected_ms": found["at_ms"], "by": found["by"], "run": context["dag_run"].run_id}
            keep_rejection(self.store_path(), now_ms=now_ms(context), **facts)
