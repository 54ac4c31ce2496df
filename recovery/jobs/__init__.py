"""What an orchestrator calls: JSON in, JSON out. Airflow's operators and the command line use the same functions."""
