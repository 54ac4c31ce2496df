"""Doors to the data source: the log as a table, its findings, and a live log as a stream."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.store.disk.paths import given_path
from recovery.spark.options import NAME, settings_of, spark_schema
from recovery.spark.selection import BadOption
from recovery.spark.shipping import ship
from recovery.spark.source import CommitLogSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def register(spark: SparkSession) -> None:
    """Make the format `rocketmq-commitlog` known to a session, and send its code to the executors, once.

    Raises BrokerError for a session of Spark Connect.
    """
    ship(spark)
    # Spark (4.3.0) looks for the name in the active session: where that is another of this process, and knows the
    # format, it refuses to register it a second time.
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public door
    sessions = jvm.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        spark.dataSource.register(CommitLogSource)
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def scan(
    spark: SparkSession, path: str | os.PathLike[str], *, columns: Sequence[str] | None = None, **options: Any
) -> DataFrame:
    """The records of a store as a table with these columns (None: all); options are those of docs/spark.md.

    The options choose records where they are read; a filter of the DataFrame is Spark's, which gets all of them first.
    Raises BadOption for a column or an option there is not, NotAStore for a wrong path.
    """
    schema, texts = spark_schema(columns), _checked(path, options)
    register(spark)
    return spark.read.format(NAME).schema(schema).options(**texts).load()


def findings(spark: SparkSession, path: str | os.PathLike[str], *, crc: bool = True, **options: Any) -> DataFrame:
    """What is wrong with the CommitLog alone, a row each; with `crc` the CRCs are compared, too.

    Columns: kind (string), commitlog_offset (bigint), size in bytes (bigint), file (string), text (string). Errors as
    of `scan`.
    """
    texts = _checked(path, {**options, "table": "findings", "crc": crc})
    register(spark)
    return spark.read.format(NAME).options(**texts).load()


def stream(
    spark: SparkSession, path: str | os.PathLike[str], *, columns: Sequence[str] | None = None, **options: Any
) -> DataFrame:
    """A stream of the records that are appended to a store, from its beginning or from the option `startOffset`.

    That is a CommitLog offset. Columns, options and errors as of `scan`.
    """
    schema, texts = spark_schema(columns), _checked(path, options)
    register(spark)
    return spark.readStream.format(NAME).schema(schema).options(**texts).load()


def _checked(path: str | os.PathLike[str], options: Mapping[str, Any]) -> dict[str, str]:
    """The options as Spark takes them, with the path. Raises BadOption and NotAStore.

    Spark would raise them, too, in the traceback of a Python process of its own, which has another current directory.
    """
    texts = {name: _text_of(name, value) for name, value in options.items() if value is not None}
    place = settings_of({**texts, "path": given_path(path)}).place
    place.files()
    return {**texts, "path": place.for_all().path}


def _text_of(name: str, value: object) -> str:
    """An option's value as Spark takes it. A list became a text that no topic has: the table was empty."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        raise BadOption(f"the option {name} is one text, several words with commas between them, not {value!r:.60}")
    return str(value).lower() if isinstance(value, bool) else str(value)
