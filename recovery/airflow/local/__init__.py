"""`checkback up`: Airflow with our DAGs on this machine, for one who wants to see it, in a folder of its own."""
