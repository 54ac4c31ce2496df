"""Recovery after a crash: plan it, do it, and say that the store is not in order while it is not done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from recovery.airflow.operators.approved import plan_changed, question, who_answered
from recovery.airflow.operators.store import StoreOperator, is_true, now_ms
from recovery.airflow.versions import AirflowFailException


class PlanRecoveryOperator(StoreOperator):
    """What a crash left, and what would be done about it. Changes nothing."""

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "ask")

    def __init__(self, *, ask: bool | str = False, take_over: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ask, self.take_over = ask, take_over

    def execute(self, context: Context) -> dict[str, Any]:
        """The plan; `question` says whether a person is asked: ask, go on, or nothing to do."""
        from recovery.jobs.recovering import plan_recovery

        path = self.store_path()
        plan = plan_recovery(path, name=self.store or path, take_over=self.take_over)
        return {**plan, "question": question(plan["needed"], is_true(self.ask) or plan["must_ask"])}


class RecoverOperator(StoreOperator):
    """Do what the plan says. A second time there is nothing left to do.

    `broker_is_stopped` is a person's word: true only behind an approval, for a store that another program wrote.
    `expected` is the `plan_id` of the plan that was approved: another plan is not carried out. `answer` is the result
    of the approval, which says who gave it.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "broker_is_stopped", "expected", "answer")

    def __init__(
        self, *, broker_is_stopped: bool | str = False, expected: str | None = None, answer: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.broker_is_stopped, self.expected, self.answer = broker_is_stopped, expected, answer

    def execute(self, context: Context) -> dict[str, Any]:
        """What was done."""
        from recovery.jobs.approvals import PlanChanged
        from recovery.jobs.recovering import recover

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
    """Fails while the store is as a crash left it: a recovery that was rejected, or not answered, is red."""

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException."""
        from recovery.jobs.recovering import crashed

        if crashed(self.store_path()):
            text = "is as the crash left it: the recovery was rejected, not answered in time, or failed"
            raise AirflowFailException(
                f"{self.store_path()} {text}. Check-back does not serve it; trigger this DAG again"
            )
