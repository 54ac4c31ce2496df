"""Whole-store work, by command, by DAG or by Spark. The rooms, each may import only those below it:

cli airflow jobs spark repair rebuild views verify transactions demo checkback scan
"""
