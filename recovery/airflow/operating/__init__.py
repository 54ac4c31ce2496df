"""What operators of Airflow look at: metrics, links beside a task, and `checkback airflow doctor`."""
