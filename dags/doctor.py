"""Who sees the stores: one DAG of Airflow for all of them, started by `checkback airflow doctor`."""

from recovery.airflow.settings import stores
from recovery.airflow.workflows import doctor

if listed := stores():
    doctor.make(listed)
