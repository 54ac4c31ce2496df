"""Settings that cannot be used: one failing DAG of Airflow for each table with a mistake."""

from recovery.airflow.settings import broken_stores
from recovery.airflow.workflows import broken_settings

for broken in broken_stores():
    broken_settings.make(broken)
