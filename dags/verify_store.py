"""Verification of each store: one DAG of Airflow for each table of the settings."""

from recovery.airflow.settings import stores_with
from recovery.airflow.workflows import verify_store

for store in stores_with("verify_store"):
    verify_store.make(store)
