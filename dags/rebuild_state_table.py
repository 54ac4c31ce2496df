"""Rebuild of the state table of each store: one DAG of Airflow for each table of the settings."""

from recovery.airflow.settings import stores
from recovery.airflow.workflows import rebuild_state_table

for store in stores():
    rebuild_state_table.make(store)
