"""Retention of each store: one DAG of Airflow for each table of the settings."""

from recovery.airflow.settings import stores
from recovery.airflow.workflows import retention

for store in stores():
    retention.make(store)
