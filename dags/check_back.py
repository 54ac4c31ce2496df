"""Check-back of each store: one DAG of Airflow for each table of the settings."""

from recovery.airflow.settings import stores_with
from recovery.airflow.workflows import check_back

for store in stores_with("check_back"):
    check_back.make(store)
