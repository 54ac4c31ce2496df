"""`checkback up`: Airflow with our DAGs on this machine, for one who wants to see it, in a directory of its own."""
