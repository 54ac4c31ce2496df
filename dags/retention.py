"""### Retention

Daily: removes segments of the CommitLog whose messages are older than the settings keep, sooner when the store takes
more than `max_bytes`, or its disk has less than `free_bytes` free; then ledger rows and catalog entries of
transactions that ended long ago.

A segment stays that holds a half message in doubt, or a message that a consumer group has yet to acknowledge.
**`retain` names what it is** (`pins`, and `unread` by group and topic): settle it by `resolve_parked` or
`checkback end`, start the group's consumers; until then the store grows, and on a full disk sends are refused.
"""

from datetime import timedelta

from airflow.sdk import DAG

from recovery.airflow.operators import RetentionOperator
from recovery.airflow.settings import stores
from recovery.airflow.wiring import shared

for store in stores():
    wiring = shared(store, "retention", most=timedelta(hours=1), within=timedelta(hours=2))
    with DAG(schedule=store.retention_schedule, doc_md=__doc__, **wiring):
        RetentionOperator(task_id="retain", **store.retention(), **store.target())
