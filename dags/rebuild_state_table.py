"""Rebuild of the state table of each store: one DAG of Airflow for each table of the settings."""

from recovery.airflow.settings import stores_with
from recovery.airflow.workflows import rebuild_state_table

for store in stores_with("rebuild_state_table"):
    rebuild_state_table.make(store)
