"""Whole-store work, by command, by DAG or by Spark. The rooms of a line may import only those of the lines below:

cli
airflow
page
jobs
spark
pipeline
repair, metrics
rebuild, views, following, moving, torture
verify
demo
transactions, answering, work
checkback
scan
"""
