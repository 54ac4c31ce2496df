"""Recovery after a crash of each store: one DAG of Airflow for each table of the settings."""

from recovery.airflow.settings import stores_with
from recovery.airflow.workflows import recover_after_crash

for store in stores_with("recover_after_crash"):
    recover_after_crash.make(store)
