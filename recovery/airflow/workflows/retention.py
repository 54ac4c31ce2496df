"""### Retention

Daily: removes segments of the CommitLog whose messages are older than the settings keep, sooner when the store takes
more than `max_bytes`, or its disk has less than `free_bytes` free; then ledger rows and catalog entries of
transactions that ended long ago.

A segment stays that holds a half message in doubt, or a message that a consumer group has yet to acknowledge.
**`retain` names what it is** (`pins`, and `unread` by group and topic): settle it by `resolve_parked` or
`checkback end`, start the group's consumers; until then the store grows, and on a full disk sends are refused.

**`retain` is red**: mostly a ledger's database does not answer, or is not the store's; its old rows stay until a later
run, and all else was done. Its log says so.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from recovery.airflow.operators import RetentionOperator
from recovery.airflow.settings import StoreSettings
from recovery.airflow.workflows.wiring import merged, shared


def make(store: StoreSettings, **overrides: Any) -> DAG:
    """The DAG of a store; `overrides` are arguments of `DAG`."""
    limits = {"most": timedelta(hours=1), "within": timedelta(hours=2)}
    wiring = {"schedule": store.retention_schedule, **shared(store, "retention", **limits)}
    with DAG(**merged({"doc_md": __doc__, **wiring}, overrides)) as dag:
        RetentionOperator(task_id="retain", **store.retention(), **store.target())
    return dag
