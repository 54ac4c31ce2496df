"""Parked transactions of each store: one DAG of Airflow for each table of the settings."""

from recovery.airflow.settings import stores_with
from recovery.airflow.versions import HAS_APPROVALS
from recovery.airflow.workflows import resolve_parked

for store in stores_with("resolve_parked") if HAS_APPROVALS else ():
    resolve_parked.make(store)
