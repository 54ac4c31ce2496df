"""Verification of each store: one DAG of Airflow for each table of the settings."""

from recovery.airflow.settings import stores
from recovery.airflow.workflows import verify_store

for store in stores():
    verify_store.make(store)
