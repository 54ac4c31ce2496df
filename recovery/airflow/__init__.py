"""checkback inside Apache Airflow: connection, hook, operators, sensor, triggers, assets, DAG bundle and a page.

Nothing is imported here: Airflow loads the plugin in each of its processes, and a DAG file only what it names.
"""
