"""### Recovery after a crash

Starts by itself when a store has a file `abort` and nobody has it open, if its settings have its path, and on demand
with a form. Looks at what the crash left and plans (`plan`, changes nothing), asks for approval when the form or the
settings say so (`approve`), does it (`recover`), checks the transactions in doubt (`check_back`), and verifies
(`verify`, `no_findings`), whether or not somebody could be asked.

**`approve` waits**: the plan stands on the page of required actions, and the store's alert says so. Reject it, and
nothing is changed: `in_order` is red, and the recovery is offered again after `ask_again_after_s`, or when you trigger
this DAG. The approval is for the plan that is shown; when the store changed meanwhile, `recover` is red, nothing is
done, and `ask_again` starts this DAG again. A store that a RocketMQ broker wrote is offered with `take_over = true` in
its settings alone: stop that broker first.

**`plan` is skipped**: this run was started while a question was open that a person rejected then. `in_order` is red,
as there, and has no alert of its own.

**`plan` or `recover` is red**: damage that no crash explains is never cut. The log names the file and the offset, and
the next command, mostly `checkback salvage`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher

from recovery.airflow.approval import AskAgainOperator, AskOperator
from recovery.airflow.assets import recovered, verified
from recovery.airflow.operators import (
    CheckBackOperator,
    InOrderOperator,
    NoFindingsOperator,
    PlanRecoveryOperator,
    RecoverOperator,
    VerifyOperator,
)
from recovery.airflow.settings import StoreSettings
from recovery.airflow.triggers import CrashTrigger
from recovery.airflow.workflows.wiring import (
    alerted_once,
    answering,
    ask_param,
    asked_first,
    engine_pool,
    merged,
    reminders,
    result_of,
    shared,
)


def make(store: StoreSettings, **overrides: Any) -> DAG:
    """The DAG of a store; `overrides` are arguments of `DAG`."""
    limits = {"within": timedelta(minutes=30), "again": reminders(store)}
    wiring = {"schedule": schedule(store), **shared(store, "recover_after_crash", **limits)}
    with DAG(**merged({"doc_md": __doc__, "params": {"ask": ask_param(store)}, **wiring}, overrides)) as dag:
        target = store.target()
        ask = asked_first(store.ask and bool(store.approvers))
        again_s = store.ask_again_after_s
        plan = PlanRecoveryOperator(task_id="plan", ask=ask, take_over=store.take_over, again_s=again_s, **target)
        approve = AskOperator(
            task_id="approve",
            question=result_of("plan", "question"),
            subject=result_of("plan", "subject"),
            body=result_of("plan", "text"),
            defaults="Reject",
            **answering(store),
        )
        recover = RecoverOperator(
            task_id="recover",
            broker_is_stopped=result_of("plan", "must_ask"),  # then nothing but an approval leads here
            question=result_of("plan", "question"),
            expected=result_of("plan", "plan_id"),
            answer=approve.output,
            outlets=[recovered(store.name)],
            **target,
        )
        once = alerted_once(store, recovered(store.name))  # one that is killed leaves another crash, and so on
        check_back = CheckBackOperator(task_id="check_back", **once, **target)
        verify = VerifyOperator(task_id="verify", outlets=[verified(store.name)], **engine_pool(store), **target)
        asked = {"asked_by": "approve", "planned_by": "plan", "applied_by": "recover"}
        in_order = InOrderOperator(task_id="in_order", trigger_rule="all_done", **asked, **target)
        plan >> approve >> recover >> verify >> NoFindingsOperator(task_id="no_findings")
        recover >> [check_back, in_order, AskAgainOperator(planned_by="recover")]
    return dag


def schedule(store: StoreSettings) -> list[Asset] | None:
    """When a crash is seen. A watcher needs the path itself; with a connection this DAG is started manually."""
    if not store.path:
        return None
    crash = CrashTrigger(path=store.path, take_over=store.take_over, again_s=store.ask_again_after_s)
    watcher = AssetWatcher(name=f"{store.name} crashed", trigger=crash)
    return [Asset(f"checkback://{store.name}/crashed", watchers=[watcher])]
