"""### Settings that cannot be used

There is one such DAG for each store whose table in the file of stores has a mistake, and one called `settings` while
the whole file cannot be read. It fails on purpose, so that the mistake is seen and the store's alert goes out: **this
store is not looked after**, all others are.

**To repair it**: correct what the log of `check` says; `checkback settings --check FILE` says it, too. Within half a
minute the DAG goes away, and the store's own DAGs come.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator, Context

from recovery.airflow.settings import BrokenStore
from recovery.airflow.versions import AirflowFailException
from recovery.airflow.workflows.wiring import shared_of


class BrokenSettingsOperator(BaseOperator):
    """Fails with the reason why a store's settings cannot be used, so that its run is red and the alert goes out."""

    ui_color = "#fde8e8"

    def __init__(self, *, why: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.why = why

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException, always."""
        raise AirflowFailException(f"{self.why}. This store is not looked after until its settings are corrected")


def make(broken: BrokenStore) -> DAG:
    """The DAG that fails."""
    wiring = shared_of(broken.name, "settings", alerts=broken.alerts, retries=0, most=timedelta(minutes=1))
    with DAG(schedule=timedelta(hours=1), doc_md=__doc__, **wiring) as dag:
        BrokenSettingsOperator(task_id="check", why=broken.why)
    return dag
