"""Rebuild of the state table: compare it with the CommitLog, and exchange what was compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from recovery.airflow.arguments import check, is_true
from recovery.airflow.operators.approved import check_approved, plan_changed, question, who_answered
from recovery.airflow.operators.store import StoreOperator, now_ms


class CompareTableOperator(StoreOperator):
    """Rebuild the state table beside the real one and say where they differ. The real one is not touched."""

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "ask")

    def __init__(self, *, ask: bool | str = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ask = ask
        check(self, "ask")

    def execute(self, context: Context) -> dict[str, Any]:
        """The differences; `question` as for PlanRecoveryOperator."""
        from recovery.jobs import tasks

        self.leave_crashed()
        found = tasks.compare_table(self.store_path(), now_ms=now_ms(context), **self.engine_settings())
        if not (found["ok"] or found["needed"]):
            self.log.warning("%s: %s", self.store_path(), found["text"])
        return {**found, "question": question(found["needed"], is_true(self.ask))}


class RebuildOperator(StoreOperator):
    """Rebuild the state table and swap it in, while applications go on.

    `expected` is the `plan_id` of the comparison that was approved: other differences are not exchanged. `answer` is
    the result of the approval, which says who gave it; where the `question` of the comparison was `ask`, nothing is
    done without one.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "expected", "answer", "question")

    def __init__(
        self, *, expected: str | None = None, answer: Any = None, question: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.expected, self.answer, self.question = expected, answer, question

    def execute(self, context: Context) -> dict[str, Any]:
        """What was swapped."""
        from recovery.jobs.approvals import PlanChanged
        from recovery.jobs.rebuilding import rebuild_table

        check_approved(self.question, self.answer)
        self.leave_crashed()
        asked = {"expected": self.expected, "by": who_answered(self.answer), **self.engine_settings()}
        try:
            found = rebuild_table(self.store_path(), now_ms=now_ms(context), **asked)
        except PlanChanged as error:
            raise plan_changed(context, error) from None
        self.publish(context, found)
        return found
