"""### Doctor

Started by `checkback airflow doctor`, or manually: has a worker and the triggerer look at the directory of each store.
It changes nothing. The result of each task says on which host and as which user it looked, and what it saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import DAG

from recovery.airflow.operating.sight import SightOperator
from recovery.airflow.settings import StoreSettings
from recovery.airflow.wiring import BEGIN

DAG_ID = "checkback.doctor"


def make(stores: Sequence[StoreSettings]) -> DAG:
    """One DAG for all stores."""
    options: dict[str, Any] = {"start_date": BEGIN, "catchup": False, "max_active_runs": 1, "tags": ["checkback"]}
    with DAG(DAG_ID, schedule=None, doc_md=__doc__, is_paused_upon_creation=False, **options) as dag:
        for store in stores:
            place: dict[str, Any] = {"path": store.path, "connection": store.connection}
            where: dict[str, Any] = {name: value for name in ("queue", "executor") if (value := getattr(store, name))}
            SightOperator(task_id=f"{store.name}.worker", **place, **where)
            SightOperator(task_id=f"{store.name}.triggerer", deferrable=True, **place, **where)
    return dag
