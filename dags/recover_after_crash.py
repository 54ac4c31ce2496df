"""### Recovery after a crash

Starts by itself when a store has a file `abort` and nobody has it open, and on demand with a form. Looks at what the
crash left and plans (`plan`, changes nothing), asks for approval when the form or the settings say so (`approve`), does
it (`recover`), checks the transactions in doubt (`check_back`), and verifies (`verify`, `no_findings`).

**`approve` waits**: the plan stands on the page of required actions. Reject it, and nothing is changed. A store that a
RocketMQ broker wrote is never recovered without a person's approval: stop that broker first.

**`plan` or `recover` is red**: damage that no crash explains is never cut. The log names the file and the offset, and
the next command, mostly `checkback salvage`.
"""

from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher

from recovery.airflow.approval import AskOperator
from recovery.airflow.assets import recovered, verified
from recovery.airflow.operators import (
    CheckBackOperator,
    NoFindingsOperator,
    PlanRecoveryOperator,
    RecoverOperator,
    VerifyOperator,
)
from recovery.airflow.settings import stores
from recovery.airflow.triggers import CrashTrigger
from recovery.airflow.wiring import ask_param, engine_pool, shared

for store in stores():
    if not store.path:  # a watcher needs the place itself; with a connection this DAG is started manually
        schedule = None
    else:
        watcher = AssetWatcher(name=f"{store.name} crashed", trigger=CrashTrigger(path=store.path))
        schedule = [Asset(f"checkback://{store.name}/crashed", watchers=[watcher])]
    wiring = shared(store, "recover_after_crash", within=timedelta(minutes=30))
    with DAG(schedule=schedule, doc_md=__doc__, params={"ask": ask_param(store)}, **wiring):
        target = store.target()
        plan = PlanRecoveryOperator(task_id="plan", ask="{{ params.ask }}", **target)
        approve = AskOperator(
            task_id="approve",
            question="{{ ti.xcom_pull('plan')['question'] }}",
            subject=f"Recover {store.name} after a crash?",
            body="{{ ti.xcom_pull('plan')['text'] }}",
            defaults="Reject",
            response_timeout=timedelta(seconds=store.answer_within_s),
            execution_timeout=None,
        )
        approved = "{{ ti.xcom_pull('plan')['must_ask'] }}"  # then nothing but an approval leads here
        outlets = [recovered(store.name)]
        recover = RecoverOperator(task_id="recover", broker_is_stopped=approved, outlets=outlets, **target)
        check_back = CheckBackOperator(task_id="check_back", **target)
        verify = VerifyOperator(task_id="verify", outlets=[verified(store.name)], **engine_pool(store), **target)
        plan >> approve >> recover >> check_back >> verify >> NoFindingsOperator(task_id="no_findings")
