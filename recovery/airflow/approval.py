"""Where a person decides, on Airflow's own page of required actions: approve a repair, settle a parked transaction.

While it waits a task takes no worker. Who answered and when is kept by Airflow; a decision about a transaction also
carries it in the store, in the record that ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import BaseOperator, Context, Param

from recovery.airflow.operating.links import HalfMessageLink, StorePageLink
from recovery.airflow.operators.approved import (
    GO_ON,
    NOTHING,
    PLAN_CHANGED,
    check_question,
    note_rejection,
    who_answered,
)
from recovery.airflow.operators.store import StoreOperator, now_ms
from recovery.airflow.versions import HAS_APPROVALS, AirflowFailException, AirflowSkipException

if HAS_APPROVALS:
    from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
else:

    class NoApprovalOperator(BaseOperator):
        """Takes the place of an approval in Airflow 3.0, which has none: red, with what to do instead."""

        template_fields: Sequence[str] = ("subject", "body")

        def __init__(self, *, subject: str = "", body: str = "", defaults: Any = None, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.subject, self.body = subject, body

        def execute(self, context: Context) -> Any:
            """Raises AirflowFailException."""
            text = "this Airflow has no approvals, 3.1 and newer have: do it by `checkback recover STORE --apply`, or"
            raise AirflowFailException(f"{self.subject} {text} `checkback rebuild STORE --apply`.\n{self.body}")

    ApprovalOperator = HITLOperator = NoApprovalOperator

COMMIT, ROLLBACK, ASK_AGAIN, LEAVE = "Commit", "Roll back", "Ask again", "Leave"


class AskOperator(ApprovalOperator):
    """Stands between a plan and its application: asks a person, goes on by itself, or skips what needs not be done.

    `question` is what the plan returned under that name: ask, go on, or nothing to do.
    """

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "question")

    def __init__(self, *, question: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.question = question

    def execute(self, context: Context) -> Any:
        """Raises AirflowSkipException when there is nothing to do: the run is well, and what follows is skipped."""
        check_question(self.question)
        if self.question == NOTHING:
            raise AirflowSkipException("there is nothing to do")
        if self.question == GO_ON:
            return None
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """The answer, for the tasks behind; rejected, they are skipped."""
        note_rejection(context, event)
        return super().execute_complete(context, event)


class AskAgainOperator(TriggerDagRunOperator):
    """Starts its own DAG again when the plan that was approved is not the one that came out: that one is shown then.

    `planned_by` is the task that carries the plan out. The run that it belongs to stays red.
    """

    operator_extra_links = ()

    def __init__(self, *, planned_by: str, task_id: str = "ask_again", **kwargs: Any) -> None:
        super().__init__(
            task_id=task_id,
            trigger_dag_id="{{ dag.dag_id }}",
            conf="{{ dag_run.conf | tojson }}",
            trigger_rule="all_done",
            **kwargs,
        )
        self.planned_by = planned_by

    def execute(self, context: Context) -> None:
        """Raises AirflowSkipException when nothing changed."""
        if not context["ti"].xcom_pull(task_ids=self.planned_by, key=PLAN_CHANGED):
            raise AirflowSkipException("the plan was carried out, or there was none")
        super().execute(context)


class DecideOperator(HITLOperator):
    """Asks a person about one parked transaction; without an answer in time it is left as it is."""

    template_fields: Sequence[str] = (*HITLOperator.template_fields, "parked")

    def __init__(self, *, parked: Any, **kwargs: Any) -> None:
        why = Param("", type=["string", "null"], title="Why", description="Kept in the record that ends it.")
        options = [COMMIT, ROLLBACK, ASK_AGAIN, LEAVE]
        kwargs["params"] = {"why": why}  # instead of the DAG's, which are not part of this form
        super().__init__(subject="A parked transaction", options=options, defaults=LEAVE, **kwargs)
        self.parked = parked

    def execute(self, context: Context) -> Any:
        """Put the transaction on the page, and wait."""
        self.subject, self.body = self.parked["subject"], self.parked["body"]
        return super().execute(context)


class ResolveOperator(StoreOperator):
    """Does what a person decided about a parked transaction. The first decision stands; a second one says so."""

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "parked", "answer")
    operator_extra_links = (StorePageLink(), HalfMessageLink())

    def __init__(self, *, parked: Any, answer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parked, self.answer = parked, answer

    def execute(self, context: Context) -> dict[str, Any]:
        """What became of it."""
        from recovery.jobs import tasks

        if not isinstance(self.answer, Mapping):
            text = (
                "nobody decided: the task that asks was marked as done, and has no answer. Nothing was done; clear it"
            )
            raise AirflowFailException(text)
        (decision,) = self.answer["chosen_options"]
        if decision != LEAVE:
            self.leave_crashed()
        by = f"airflow:{who_answered(self.answer) or 'nobody answered in time'}"
        why = str((self.answer.get("params_input") or {}).get("why") or "")
        settings, offset = self.settings(), int(self.parked["commitlog_offset"])
        when, what = now_ms(context), DECISIONS[decision]
        return tasks.resolve(**settings, commitlog_offset=offset, decision=what, now_ms=when, why=why, by=by)


DECISIONS = {COMMIT: "commit", ROLLBACK: "rollback", ASK_AGAIN: "ask-again", LEAVE: "leave"}
