"""How fast the Spark jobs are, beside the local engine with two processes and beside what one would write without us.

    python -m tests.bench.spark                a 2 GB store in a temporary directory
    python -m tests.bench.spark STORE          a store that is there

Starting the session and the first query are shown apart. Subjects and yardsticks run by turns, and of each the best of
several runs counts.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from recovery.pipeline.in_memory import InMemoryExecutor
from recovery.pipeline.splits import Reading, Split, plan
from recovery.pipeline.store_location import LogManifest, StoreLocation
from recovery.pipeline.transaction_files import write_transaction_files
from recovery.scan.arrow import record_batch
from recovery.spark import scan, session, write_transactions
from recovery.spark.mapping import mapped
from tests.bench.stores import make_store

COLUMNS = ["commitlog_offset", "queue_id", "queue_offset", "store_timestamp_ms", "topic", "body"]
ENDS = ["half", "latest", "topic", "producer_group", "keys", "unique_key"]
ENDS_SCHEMA = pa.schema(zip(ENDS, [pa.int64(), pa.int64(), *[pa.string()] * 4], strict=True))
TYPES = (pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.string(), pa.binary())
ROWS_SCHEMA = pa.schema(zip(COLUMNS, TYPES, strict=True))
HEAD = ">iiiiiqqiqiiqiiiqi"  # of a record, without the strings
HEAD_SIZE = struct.calcsize(HEAD)
ROUNDS = 3
PIECE_BYTES = 128 << 20


# The local engine with two processes


def local_transactions(pool: ProcessPoolExecutor, log: LogManifest, path: str, out: Path) -> str:
    """The same list of transactions with CRC, by two processes; returns the digest."""
    return write_transaction_files(InMemoryExecutor(pool.map), log, path, str(out), 0).digest


def _decoded(log: LogManifest, split: Split) -> int:
    rows = 0
    for records in Reading(log, split):
        for first in range(0, len(records), 4096):
            rows += record_batch(records.take(slice(first, first + 4096)), COLUMNS).num_rows
    return rows


def local_rows(pool: ProcessPoolExecutor, log: LogManifest) -> int:
    """Every record decoded, by two processes."""
    splits = plan(log)
    return sum(pool.map(_decoded, [log] * len(splits), splits))


# What one would write without us


def cut_into_files(log: LogManifest, directory: Path) -> None:
    """Files of whole records that Spark's binaryFile can hold: it refuses 2 GiB, and a file is one value."""
    directory.mkdir()
    listing = log.listing()
    for split in plan(log, PIECE_BYTES):
        reading = Reading(log, split)
        for _ in reading:
            pass
        segment = listing.based(split.base)
        if reading.first is not None and reading.end_offset is not None and segment is not None:
            raw = segment.read(reading.first - segment.base, reading.end_offset - reading.first)
            (directory / f"{reading.first:020}").write_bytes(raw)


def _parsed(
    batches: Iterable[pa.RecordBatch], row: Callable[[bytes, int, tuple[Any, ...]], tuple[Any, ...]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """A parser with struct in a loop: the records of files, without a check."""
    head = struct.Struct(HEAD)
    for batch in batches:
        for value in batch.column("content"):
            raw, at, rows = value.as_buffer().to_pybytes(), 0, []
            while at < len(raw):
                found = head.unpack_from(raw, at)
                rows.append(row(raw, at + HEAD_SIZE, found))
                at += found[0]
                if len(rows) == 4096 or at >= len(raw):
                    columns = zip(zip(*rows, strict=True), schema.types, strict=True)
                    yield pa.RecordBatch.from_arrays([pa.array(*column) for column in columns], schema=schema)
                    rows = []


def by_hand(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that `scan` is asked for."""

    def row(raw: bytes, body_at: int, found: tuple[Any, ...]) -> tuple[Any, ...]:
        topic_at = body_at + found[16]
        topic = raw[topic_at + 1 : topic_at + 1 + raw[topic_at]].decode()
        return found[6], found[3], found[5], found[11], topic, raw[body_at:topic_at]

    return _parsed(batches, row, ROWS_SCHEMA)


def transactions_by_hand(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a row of a transaction needs: where, of which kind, what it ends, topic, group and keys."""

    def row(raw: bytes, body_at: int, found: tuple[Any, ...]) -> tuple[Any, ...]:
        topic_at = body_at + found[16]
        properties_at = topic_at + 1 + raw[topic_at]
        topic = raw[topic_at + 1 : properties_at].decode()
        items = raw[properties_at + 2 : body_at - HEAD_SIZE + found[0]].decode().split("\x02")
        said = dict(item.split("\x01") for item in items if item).get
        kind, place = found[7] & 12, found[6]
        half = found[15] if kind > 4 else place
        return half, place << 4 | kind, topic, said("PGROUP"), said("KEYS"), said("UNIQ_KEY")

    return _parsed(batches, row, ENDS_SCHEMA)


def bench(path: str, directory: Path) -> None:
    """Measure, and print."""
    log = StoreLocation(path).log()
    started = time.monotonic()
    spark = session("local[2]", memory="4g")  # binaryFile needs it; ours does with 1 GB
    print(f"session: {time.monotonic() - started:.1f} s")
    started = time.monotonic()
    scan(spark, path, columns=COLUMNS, endOffset=4096).count()
    print(f"first query: {time.monotonic() - started:.1f} s")
    chunks = directory / "pieces"
    cut_into_files(log, chunks)
    kinds = ("bigint", "int", "bigint", "bigint", "string", "binary")
    ddl = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, kinds, strict=True))
    digests: set[str] = set()
    with ProcessPoolExecutor(2) as pool:
        number = iter(range(1000))
        subjects: dict[str, Callable[[], Any]] = {
            "transactions, local, 2 processes": lambda: digests.add(
                local_transactions(pool, log, path, directory / f"local{next(number)}")
            ),
            "transactions, Spark": lambda: digests.add(
                write_transactions(spark, path, str(directory / f"out{next(number)}")).digest
            ),
            "rows, local, 2 processes": lambda: local_rows(pool, log),
            "rows, Spark": lambda: _drain(scan(spark, path, columns=COLUMNS)),
            "rows, binaryFile + mapInArrow": lambda: _without_us(spark, str(chunks), ddl),
            "transactions, binaryFile + mapInArrow": lambda: _transactions_without_us(
                spark, str(chunks), str(directory / f"hand{next(number)}")
            ),
        }
        best = dict.fromkeys(subjects, float("inf"))
        for turn in range(ROUNDS):
            for name, run in subjects.items():
                started = time.monotonic()
                run()
                seconds = time.monotonic() - started
                best[name] = min(best[name], seconds)
                print(f"  {turn} {name:<36}{seconds:7.2f} s")
    megabytes = log.bytes / 1e6
    for name, seconds in best.items():
        print(f"{name:<38}{seconds:7.2f} s {megabytes / seconds:7.0f} MB/s")
    print(f"one digest: {len(digests) == 1}")
    for name, subject, yardstick in (
        ("transactions, Spark to local", "transactions, Spark", "transactions, local, 2 processes"),
        ("rows, Spark to local", "rows, Spark", "rows, local, 2 processes"),
        ("transactions to binaryFile", "transactions, Spark", "transactions, binaryFile + mapInArrow"),
        ("rows to binaryFile", "rows, Spark", "rows, binaryFile + mapInArrow"),
    ):
        print(f"{name:<38}{best[yardstick] / best[subject]:7.2f}")
    spark.stop()


def _without_us(spark: Any, chunks: str, ddl: str) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")  # a file is a row
    _drain(mapped(spark.read.format("binaryFile").load(chunks).select("content"), by_hand, ddl))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")


def _transactions_without_us(spark: Any, chunks: str, out: str) -> None:
    """A row for each transaction, with its latest state, to Parquet."""
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    ddl = "half bigint, latest bigint, topic string, producer_group string, `keys` string, unique_key string"
    records = mapped(spark.read.format("binaryFile").load(chunks).select("content"), transactions_by_hand, ddl)
    others = [f.first(name).alias(name) for name in ENDS[2:]]
    records.groupBy("half").agg(f.max("latest").alias("latest"), *others).write.parquet(out)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")


def _drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    """One store, given or made."""
    with tempfile.TemporaryDirectory(prefix="checkback-bench-") as directory:
        path = sys.argv[1] if len(sys.argv) > 1 else str(Path(directory) / "store")
        if len(sys.argv) < 2:
            make_store(path, "state-table", 2_000_000_000)
        bench(path, Path(directory))


if __name__ == "__main__":
    main()
