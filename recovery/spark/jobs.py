"""The transactions of a store, a row each: as a DataFrame, as Parquet files, and as a job for spark-submit.

    transactions(spark, "shop.store").where("state = 'in_doubt'").show()
    python -m recovery.spark.jobs transactions shop.store out/ --master local[*]
    spark-submit --py-files checkback.zip job.py verify shop.store

where job.py says `from recovery.spark.jobs import main; main()`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from broker.errors import BrokerError, StoreError
from broker.transaction.events import TransactionState
from recovery.pipeline.blocks import ROWS, values_of
from recovery.pipeline.joins import STATE_NAMES, TRANSACTIONS, PartitionResult
from recovery.pipeline.splits import SPLIT_BYTES
from recovery.pipeline.stages import TransactionStages
from recovery.pipeline.store_location import StoreLocation, filesystem_of
from recovery.spark.mapping import mapped
from recovery.spark.progress import Progress, watched
from recovery.spark.sessions import session
from recovery.spark.shipping import package, ship
from recovery.transactions.digest import Digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DDL_NAMES = {pa.string(): "string", pa.int64(): "bigint", pa.int32(): "int"}
DDL = ", ".join(f"{field.name} {_DDL_NAMES[field.type]}" for field in TRANSACTIONS)
MANIFEST = "_checkback.json"
_TEMPORARY = "_temporary"  # readers of Parquet pass over such names
_ROWS_AT_ONCE = 1 << 14


def transactions(
    spark: SparkSession,
    path: str,
    *,
    split_bytes: int = SPLIT_BYTES,
    crc: bool = False,
    now_ms: int | None = None,
) -> DataFrame:
    """A row for each transaction of a store (columns: docs/spark.md). The log is read when this is called, once.

    What is read stays cached in the session until `spark.catalog.clearCache()`. Raises NotAStore.
    """
    ship(spark)
    stages = TransactionStages(spark, StoreLocation(path).log(), split_bytes=split_bytes, crc=crc, strings=True)
    blocks = stages.blocks(stages.context(with_rows=True, now_ms=_now_ms(now_ms)))

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for rows in values_of(pa.Table.from_batches([batch]), ROWS):
                yield from rows.to_batches(max_chunksize=_ROWS_AT_ONCE)

    return mapped(blocks.where(f"tag = '{ROWS}'"), unpack, DDL)


def _now_ms(given: int | None) -> int:
    return time.time_ns() // 1_000_000 if given is None else given


@dataclass(frozen=True, slots=True)
class Written:
    """What `write_transactions` wrote; `as_json` is the manifest beside the Parquet files."""

    path: str
    store: str
    generation: str
    transactions: dict[str, int]
    digest: str
    records: int
    bytes: int
    begin_offset: int
    end_offset: int
    bad_crcs: int
    damages: list[dict[str, Any]]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The manifest."""
        return {name: getattr(self, name) for name in self.__slots__}


def write_transactions(
    spark: SparkSession,
    path: str,
    out: str,
    *,
    split_bytes: int = SPLIT_BYTES,
    crc: bool = True,
    now_ms: int | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write a row for each transaction of a store as Parquet files into the folder `out`, a manifest with the digest
    last: a folder without it is not complete.

    Raises NotAStore, and StoreError when `out` is there already.
    """
    ship(spark)
    log = StoreLocation(path).log()

    def stages() -> TransactionStages:
        return TransactionStages(spark, log, split_bytes=split_bytes, crc=crc, strings=True)

    with watched(spark, progress, log.bytes):
        return write(stages, path, out, _now_ms(now_ms))


def write(make: Callable[[], TransactionStages], path: str, out: str, now_ms: int) -> Written:
    """Judge, and write the rows and then the manifest: what fails leaves nothing behind."""
    if "://" not in out and os.path.exists(out):
        raise StoreError(f"{out} is there already. Give a folder that is not, or remove it", path=out)
    started = time.monotonic()
    filesystem, folder = filesystem_of(out)
    temporary = f"{folder}/{_TEMPORARY}"
    filesystem.create_dir(temporary, recursive=True)
    try:
        stages = make()
        try:
            asked = {"with_rows": True, "now_ms": now_ms, "folder": f"{_absolute(out)}/{_TEMPORARY}"}
            results = stages.results(stages.context(**asked))
            written = _manifest(stages, results, path, out, started)
        finally:
            stages.close()
    except BaseException:
        filesystem.delete_dir(folder)
        raise
    files = [result.file for result in results if result.file is not None]
    for number, name in enumerate(files):
        filesystem.move(f"{temporary}/{name}", f"{folder}/part-{number:05}.parquet")
    filesystem.delete_dir(temporary)  # with it, what tasks wrote that Spark then ran again
    with filesystem.open_output_stream(f"{temporary}.json") as file:
        file.write(json.dumps(written.as_json(), indent=2).encode() + b"\n")
    filesystem.move(f"{temporary}.json", f"{folder}/{MANIFEST}")
    return written


def _absolute(path: str) -> str:
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def _manifest(
    stages: TransactionStages, results: list[PartitionResult], path: str, out: str, started: float
) -> Written:
    digest, states = Digest(), dict.fromkeys(STATE_NAMES.values(), 0)
    for result in results:
        digest.total += result.digest
        for state, count in result.states.items():
            states[STATE_NAMES[TransactionState(state)]] += count
    summaries = stages.summaries
    damages = [damage for summary in summaries for damage in summary.damages]
    ends = [summary.end_offset for summary in summaries if summary.end_offset is not None]
    return Written(
        path=out,
        store=path,
        generation=stages.generation.label,
        transactions={"total": sum(states.values()), **states},
        digest=digest.hex(),
        records=sum(summary.records for summary in summaries),
        bytes=sum(summary.bytes for summary in summaries),
        begin_offset=stages.log.begin,
        end_offset=max(ends, default=stages.log.begin),
        bad_crcs=sum(summary.findings.counts["crc-mismatch"] for summary in summaries),
        damages=[
            {"kind": one.kind, "commitlog_offset": one.commitlog_offset, "size": one.size, "file": one.file}
            for one in damages
        ],
        seconds=round(time.monotonic() - started, 3),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m recovery.spark.jobs`: transactions STORE OUT, verify STORE, package OUT; JSON on standard output.

    Returns the exit code: 0 well, 1 findings, 2 what the sentence on standard error says.
    """
    from recovery.cli.output import warn

    try:
        return _run(_parsed(arguments))
    except BrokerError as error:
        warn(str(error))
        return 2


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recovery.spark.jobs", description=main.__doc__)
    parser.add_argument("--master", default=None, help="Spark's master; spark-submit sets it (else local[*])")
    parser.add_argument("--memory", default="1g", help="heap of the driver and of each executor")
    parser.add_argument("--split-bytes", type=int, default=SPLIT_BYTES)
    verbs = parser.add_subparsers(dest="verb", required=True)
    listing = verbs.add_parser("transactions", help="Parquet files, a row for each transaction")
    listing.add_argument("store")
    listing.add_argument("out")
    verbs.add_parser("verify", help="judge a store").add_argument("store")
    verbs.add_parser("package", help="the code for --py-files").add_argument("out")
    return parser.parse_args(arguments)


def _run(given: argparse.Namespace) -> int:
    from recovery.cli.output import print_json
    from recovery.spark.verification import verify

    if given.verb == "package":
        package(given.out)
        return 0
    spark = session(given.master or "local[*]", memory=given.memory)
    if given.verb == "transactions":
        print_json(write_transactions(spark, given.store, given.out, split_bytes=given.split_bytes).as_json())
        return 0
    report = verify(spark, given.store, split_bytes=given.split_bytes)
    print_json(report.as_json())
    return 0 if report.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
