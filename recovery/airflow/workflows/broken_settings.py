"""### Settings that cannot be used

There is one such DAG for each store whose table in the file of stores has a mistake, and one called `settings` while
the whole file cannot be read. It fails on purpose, so that the mistake is seen and the store's alert goes out: **this
store is not looked after**, all others are.

**To repair it**: correct what the log of `check` says; `checkback settings --check FILE` says it, too. Within half a
minute the DAG goes away, and the store's own DAGs come.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from recovery.airflow.operators import BrokenSettingsOperator
from recovery.airflow.settings import BrokenStore
from recovery.airflow.workflows.wiring import shared_of


def make(broken: BrokenStore) -> DAG:
    """The DAG that fails."""
    wiring = shared_of(broken.name, "settings", alerts=broken.alerts, retries=0, most=timedelta(minutes=1))
    with DAG(schedule=timedelta(hours=1), doc_md=__doc__, **wiring) as dag:
        BrokenSettingsOperator(task_id="check", why=broken.why)
    return dag
