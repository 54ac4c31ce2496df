"""### Retention

Daily: removes segments of the CommitLog whose messages are older than the settings keep, sooner when the disk is
fuller than they allow; then ledger rows and catalog entries of transactions that ended long ago.

A segment that holds a half message in doubt stays. **`retain` names such a transaction**: settle it, by
`resolve_parked` or with `checkback end`; until then the disk fills up, and past its hard limit sends are refused.
"""

from datetime import timedelta

from airflow.sdk import DAG

from recovery.airflow.operators import RetentionOperator
from recovery.airflow.settings import stores
from recovery.airflow.wiring import shared

for store in stores():
    wiring = shared(store, "retention", most=timedelta(hours=1), within=timedelta(hours=2))
    with DAG(schedule=store.retention_schedule, doc_md=__doc__, **wiring):
        RetentionOperator(task_id="retain", keep=store.keep, disk_share=store.disk_share, **store.target())
