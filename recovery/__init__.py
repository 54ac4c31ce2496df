"""Whole-store work, by hand, by DAG or by Spark: scan, verify, rebuild, recover, check back, salvage."""
