"""The DAGs of a store in a DAG file of your own, with changes: instead of Airflow's bundle of ours."""

from recovery.airflow.workflows.store_dags import StoreDags

shop = StoreDags(
    "example",
    path="/srv/shop.store",
    ledger_connection="shop_db",
    alerts="oncall",
    dags={"verify_store": {"schedule": "0 3 * * *"}},
    only=["check_back", "recover_after_crash", "verify_store"],
)
