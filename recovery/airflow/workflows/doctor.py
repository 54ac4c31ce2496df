"""### Doctor

Started by `checkback airflow doctor`, or manually: has workers and the triggerer look at the directories of the stores.
It changes nothing. The result of each task says on which host and as which user it looked, and what it saw. There is
one task for the workers of each queue and executor that the settings name, and one for the triggerer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from recovery.airflow.operating.sight import SightOperator
from recovery.airflow.settings import StoreSettings
from recovery.airflow.workflows.wiring import BEGIN

DAG_ID = "checkback.doctor"
WORKER, TRIGGERER = "worker", "triggerer"
_PLACES = ("queue", "executor")
_MOST = timedelta(minutes=10)
_RUNS = 8  # at once: one whose task waits for a worker keeps no later one from looking


def make(stores: Sequence[StoreSettings]) -> DAG:
    """One DAG for all stores."""
    again = {"retries": 2, "retry_delay": timedelta(seconds=5)}  # a worker that was killed has not seen anything wrong
    options: dict[str, Any] = {"start_date": BEGIN, "catchup": False, "max_active_runs": _RUNS, "tags": ["checkback"]}
    options["default_args"] = {**again, "execution_timeout": _MOST}
    groups: dict[tuple[str, ...], list[StoreSettings]] = {}
    for store in stores:
        groups.setdefault(tuple(getattr(store, name) or "" for name in _PLACES), []).append(store)
    with DAG(DAG_ID, schedule=None, doc_md=__doc__, is_paused_upon_creation=False, **options) as dag:
        for place, found in groups.items():
            task_id = ".".join([WORKER, *(re.sub(r"[^A-Za-z0-9_-]", "_", part) for part in place if part)])
            where: dict[str, Any] = {name: part for name, part in zip(_PLACES, place, strict=True) if part}
            SightOperator(task_id=task_id, stores=_places(found), **where)
        SightOperator(task_id=TRIGGERER, stores=_places(stores), deferrable=True)
    return dag


def _places(stores: Sequence[StoreSettings]) -> dict[str, dict[str, str | None]]:
    return {store.name: {"path": store.path, "connection": store.connection} for store in stores}
