"""CommitLogs of any size in Spark: a table to read, and jobs that verify it. The only room that imports pyspark.

    from recovery.spark import session, scan, transactions, verify

    spark = session("local[*]")
    scan(spark, "shop.store", columns=["commitlog_offset", "topic", "kind"]).groupBy("topic", "kind").count()
    transactions(spark, "shop.store").where("state = 'in_doubt'").show()

The names are loaded at their first use: a worker of Spark needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_DOORS = {
    "check_installation": "recovery.spark.sessions",
    "findings": "recovery.spark.tables",
    "package": "recovery.spark.shipping",
    "rebuild": "recovery.spark.rebuilding",
    "register": "recovery.spark.tables",
    "scan": "recovery.spark.tables",
    "session": "recovery.spark.sessions",
    "ship": "recovery.spark.shipping",
    "stream": "recovery.spark.tables",
    "transactions": "recovery.spark.jobs",
    "verify": "recovery.spark.verification",
    "write_transactions": "recovery.spark.jobs",
}
__all__ = sorted(_DOORS)  # noqa: PLE0605 - a list of names


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_DOORS[name]), name)
