"""### Verification

Compares three ways: the CommitLog, the redo log and the state table, and every other derived file. Reads everything,
changes nothing; applications go on. The report stands in `STORE/checkback/reports`, its summary on the asset
`checkback://STORE/verified`.

**`no_findings` is red**: its log names the findings, by kind; `checkback verify STORE` prints them all, and
docs/operations.md says what each means. A wrong slot or a missing one: trigger `rebuild_state_table`. A corrupt region
in the log: see `checkback salvage`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from recovery.airflow.assets import verified
from recovery.airflow.operators import NoFindingsOperator, VerifyOperator
from recovery.airflow.settings import StoreSettings
from recovery.airflow.workflows.wiring import engine_pool, merged, shared


def make(store: StoreSettings, **overrides: Any) -> DAG:
    """The DAG of a store; `overrides` are arguments of `DAG`."""
    wiring = {"schedule": store.verify_schedule, **shared(store, "verify_store", within=timedelta(hours=6))}
    with DAG(**merged({"doc_md": __doc__, **wiring}, overrides)) as dag:
        outlets = [verified(store.name)]
        verify = VerifyOperator(task_id="verify", outlets=outlets, **engine_pool(store), **store.target())
        verify >> NoFindingsOperator(task_id="no_findings")
    return dag
