"""Retention of each store: one DAG of Airflow for each table of the settings."""

from recovery.airflow.settings import stores_with
from recovery.airflow.workflows import retention

for store in stores_with("retention"):
    retention.make(store)
