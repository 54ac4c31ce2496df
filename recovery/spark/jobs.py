"""The transactions of a store on Spark, a row each: as a DataFrame, and as Parquet files.

    transactions(spark, "shop.store").where("state = 'in_doubt'").show()
    write_transactions(spark, "shop.store", "out/")

The program for spark-submit is `recovery.cli.spark_job`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from broker.store.disk.paths import given_path
from broker.store.read.store import check_whole
from recovery.pipeline.blocks import ROWS, values_of
from recovery.pipeline.splits import SPLIT_BYTES
from recovery.pipeline.stages import inspect_log
from recovery.pipeline.store_location import StoreLocation
from recovery.pipeline.transaction_files import TransactionFiles, write_transaction_files
from recovery.pipeline.transaction_rows import TRANSACTIONS
from recovery.spark.executor import SparkExecutor
from recovery.spark.mapping import mapped
from recovery.spark.progress import Progress, watched
from recovery.spark.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DDL_NAMES = {pa.string(): "string", pa.int64(): "bigint", pa.int32(): "int"}
DDL = ", ".join(f"{field.name} {_DDL_NAMES[field.type]}" for field in TRANSACTIONS)
_ROWS_AT_ONCE = 1 << 14


def transactions(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    split_bytes: int = SPLIT_BYTES,
    crc: bool = False,
    now_ms: int | None = None,
) -> DataFrame:
    """A row for each transaction of a store (columns: docs/spark.md). The log is read when this is called, once.

    `split_bytes` (1 KiB at least) of the CommitLog are one task; with `crc` CRCs are compared; ages are counted from
    `now_ms`, milliseconds since 1970, None: the clock. What is read stays cached in the session until
    `spark.catalog.clearCache()`. Raises NotAStore, ValueError for smaller splits, CorruptStore for a segment whose
    records cannot be distinguished.
    """
    path, now_ms = given_path(path), _now_ms(now_ms)
    ship(spark)
    executor = SparkExecutor(spark)
    inspected = inspect_log(executor, StoreLocation(path).log(), split_bytes=split_bytes, crc=crc, strings=True)
    blocks = executor.blocks(inspected.context(with_rows=True, now_ms=now_ms), inspected)

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for rows in values_of(pa.Table.from_batches([batch]), ROWS):
                yield from rows.to_batches(max_chunksize=_ROWS_AT_ONCE)

    return mapped(blocks.where(f"tag = '{ROWS}'"), unpack, DDL)


def _now_ms(given: int | None) -> int:
    if given is not None:
        check_whole("now_ms", given)
    return time.time_ns() // 1_000_000 if given is None else given


def write_transactions(
    spark: SparkSession,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    split_bytes: int = SPLIT_BYTES,
    crc: bool = True,
    now_ms: int | None = None,
    progress: Progress | None = None,
) -> TransactionFiles:
    """Write a row for each transaction of a store as Parquet files into the directory `out`, a manifest with the digest
    last: a directory without it is not complete.

    `progress(done, total)` hears of bytes of the log; None: nobody does. The other arguments are as of `transactions`.
    `as_json` of the result is the manifest. Raises as `transactions`, and StoreError when `out` is there already
    or lies in a store.
    """
    path, out, now_ms = given_path(path), os.fspath(out), _now_ms(now_ms)
    ship(spark)
    log = StoreLocation(path).log()
    with watched(spark, progress, log.bytes):
        return write_transaction_files(SparkExecutor(spark), log, path, out, now_ms, split_bytes=split_bytes, crc=crc)
