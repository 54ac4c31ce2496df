"""Doors to the data source: the log as a table, its findings, and a live log as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recovery.spark.options import NAME, spark_schema
from recovery.spark.shipping import ship
from recovery.spark.source import CommitLogSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the format `rocketmq-commitlog` known to a session, and send its code to the executors, once."""
    ship(spark)
    spark.dataSource.register(CommitLogSource)


def scan(spark: SparkSession, path: str, *, columns: Sequence[str] | None = None, **options: Any) -> DataFrame:
    """The records of a store as a table with these columns (None: all); options are those of docs/spark.md.

    Filters on offsets, times, topics and kinds are asked where the records are read, if the session's setting
    spark.sql.python.filterPushdown.enabled is true (`session` sets it). Raises BadOption for a column there is not.
    Other options and the path are looked at by Spark, whose exception then names BadOption or NotAStore.
    """
    register(spark)
    pushdown = str(spark.conf.get(_PUSHDOWN, "false")).lower()
    reader = spark.read.format(NAME).schema(spark_schema(columns)).option("pushdown", pushdown)
    return reader.options(**{name: _text(value) for name, value in options.items()}).load(path)


def findings(spark: SparkSession, path: str, *, crc: bool = True, **options: Any) -> DataFrame:
    """What is wrong with the CommitLog alone, a row each; with `crc` the CRCs are compared, too.

    Columns: kind (string), commitlog_offset (bigint), size in bytes (bigint), file (string), text (string). Errors as
    of `scan`.
    """
    register(spark)
    reader = spark.read.format(NAME).option("table", "findings").option("crc", _text(crc))
    return reader.options(**{name: _text(value) for name, value in options.items()}).load(path)


def stream(spark: SparkSession, path: str, *, columns: Sequence[str] | None = None, **options: Any) -> DataFrame:
    """A stream of the records that are appended to a store, from its beginning or from the option `startOffset`.

    That is a CommitLog offset. Columns, options and errors as of `scan`.
    """
    register(spark)
    reader = spark.readStream.format(NAME).schema(spark_schema(columns))
    return reader.options(**{name: _text(value) for name, value in options.items()}).load(path)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
