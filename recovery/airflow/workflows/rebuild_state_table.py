"""### Rebuild of the state table

Weekly and on demand: makes the state table again from the CommitLog, beside the real one (`compare`), asks for approval
when they differ (`approve`), and exchanges the two while applications go on (`rebuild`). Without a difference what
follows is skipped, and the run is green. So it is for a store that a RocketMQ broker wrote: nothing is exchanged beside
its broker, and the log of `compare` says what differs, and what to do.

**`approve` waits**: the differences stand on the page of required actions, and the store's alert says so. A difference
means that bytes on the disk changed, or a defect: keep the report before you approve, and look at the disk. The
approval is for the differences that are shown.

**`compare` is red**: something differs, and cannot be exchanged yet, as when two half messages claim one slot while
either is in doubt. Nobody was asked; do first what the log says, then trigger this DAG again.

**`rebuild` is red**: other differences came out than those that were approved; nothing was done, and `ask_again` has
started this DAG again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param

from recovery.airflow.approval import AskAgainOperator, AskOperator
from recovery.airflow.assets import rebuilt
from recovery.airflow.operators import CompareTableOperator, RebuildOperator
from recovery.airflow.settings import StoreSettings
from recovery.airflow.workflows.wiring import answering, asked_first, engine_pool, merged, reminders, result_of, shared

ASK = Param(True, type="boolean", title="Ask first", description="Wait for approval before the table is exchanged.")


def make(store: StoreSettings, **overrides: Any) -> DAG:
    """The DAG of a store; `overrides` are arguments of `DAG`."""
    limits = {"within": timedelta(hours=12), "again": reminders(store)}
    wiring = {"schedule": store.rebuild_schedule, **shared(store, "rebuild_state_table", **limits)}
    with DAG(**merged({"doc_md": __doc__, "params": {"ask": ASK}, **wiring}, overrides)) as dag:
        target = store.target()
        ask = asked_first(bool(store.approvers))
        compare = CompareTableOperator(task_id="compare", ask=ask, **engine_pool(store), **target)
        approve = AskOperator(
            task_id="approve",
            question=result_of("compare", "question"),
            subject=f"Exchange derived files of {store.name}?",
            body=result_of("compare", "text"),
            defaults="Reject",
            **answering(store),
        )
        rebuild = RebuildOperator(
            task_id="rebuild",
            question=result_of("compare", "question"),
            expected=result_of("compare", "plan_id"),
            answer=approve.output,
            outlets=[rebuilt(store.name)],
            **engine_pool(store),
            **target,
        )
        done = EmptyOperator(task_id="done")  # AskAgainOperator alone would leave the run green where a task failed
        compare >> approve >> rebuild >> [AskAgainOperator(planned_by="rebuild"), done]
    return dag
