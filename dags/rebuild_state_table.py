"""### Rebuild of the state table

Weekly and on demand: makes the state table again from the CommitLog, beside the real one (`compare`), asks for approval
when they differ (`approve`), and exchanges the two while applications go on (`rebuild`). Without a difference what
follows is skipped, and the run is green.

**`approve` waits**: the differences stand on the page of required actions. A difference means that bytes on the disk
changed, or a defect: keep the report before you approve, and look at the disk.

**`rebuild` is red**: two half messages claim one slot while either is in doubt. The log says which; settle them first.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from recovery.airflow.approval import AskOperator
from recovery.airflow.assets import rebuilt
from recovery.airflow.operators import CompareTableOperator, RebuildOperator
from recovery.airflow.settings import stores
from recovery.airflow.wiring import answering, engine_pool, shared

ASK = Param(True, type="boolean", title="Ask first", description="Wait for approval before the table is exchanged.")

for store in stores():
    wiring = shared(store, "rebuild_state_table", within=timedelta(hours=12))
    with DAG(schedule=store.rebuild_schedule, doc_md=__doc__, params={"ask": ASK}, **wiring):
        target = store.target()
        compare = CompareTableOperator(task_id="compare", ask="{{ params.ask }}", **engine_pool(store), **target)
        approve = AskOperator(
            task_id="approve",
            question="{{ ti.xcom_pull('compare')['question'] }}",
            subject=f"Exchange the state table of {store.name}?",
            body="{{ ti.xcom_pull('compare')['text'] }}",
            defaults="Reject",
            **answering(store),
        )
        rebuild = RebuildOperator(task_id="rebuild", outlets=[rebuilt(store.name)], **engine_pool(store), **target)
        compare >> approve >> rebuild
