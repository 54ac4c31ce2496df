"""The DAGs of a store, a module for each, whose docstring is the runbook that Airflow shows.

check_back.make(store)          a DAG, from the settings of a store
StoreDags("shop", path=...)     all of them, in a DAG file of your own: store_dags.py
"""
