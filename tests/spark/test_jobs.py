"""The jobs in Spark itself: transactions and verification equal the local engine's."""

from __future__ import annotations

import errno
import gzip
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

import broker
from broker.errors import CorruptStore, StoreError, StoreFull
from recovery.pipeline import joins
from recovery.pipeline.in_memory import InMemoryExecutor
from recovery.pipeline.store_location import StoreLocation
from recovery.pipeline.transaction_files import write_transaction_files
from recovery.pipeline.transaction_rows import TRANSACTIONS
from recovery.spark import transactions, verify, write_transactions
from recovery.spark.mapping import mapped
from recovery.spark.progress import watched
from recovery.transactions.in_doubt import Pending
from recovery.verify.verifier import verify as local_verify
from tests.scan.logs import Chunk, Log, Wanted
from tests.spark.inline import comparable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("name", "split_bytes"),
    [
        ("rocketmq-3.1.5-killed", 1 << 30),
        ("rocketmq-3.1.5-recovered", 60_000),
        ("rocketmq-5.3.3-clean", 60_000),
        ("rocketmq-5.3.3-killed", 1 << 30),
    ],
)
def test_verify_equals_the_local_engine(
    spark: SparkSession, golden: Callable[[str], Path], name: str, split_bytes: int
) -> None:
    """Findings, counts, digest, sizes: all of the report but its time."""
    path = str(golden(name))
    assert comparable(verify(spark, path, split_bytes=split_bytes)) == comparable(local_verify(path))


@pytest.mark.parametrize("name", ["rocketmq-3.1.5-killed", "rocketmq-5.3.3-killed"])
def test_transactions(spark: SparkSession, golden: Callable[[str], Path], name: str) -> None:
    """A row for each; those in doubt are those that `pending` lists, with the same keys, group, age and place."""
    path = str(golden(name))
    now_ms = 1_900_000_000_000
    rows = transactions(spark, path, split_bytes=100_000, now_ms=now_ms).toArrow().to_pylist()
    report = local_verify(path)
    assert len(rows) == report.transactions["total"]
    states = Counter(row["state"] for row in rows)
    assert {state: states[state] for state in states} == {
        state: count for state, count in report.transactions.items() if count and state != "total"
    }
    listed = {row["half_offset"]: row for row in rows if row["state"] == "in_doubt"}
    pending = list(Pending(path, now_ms))
    assert {half.commitlog_offset for half in pending} == set(listed)
    for half in pending:
        row = listed[half.commitlog_offset]
        assert (row["producer_group"], row["topic"], row["checks"]) == (half.producer_group, half.topic, half.checks)
        assert (row["keys"] or "").split() == half.keys
        assert row["unique_key"] == half.unique_key
        assert row["age_ms"] / 1000 == half.age_s
        assert row["queue_offset"] == (half.slot if half.queue_offset is None else half.queue_offset)
    for row in rows:
        assert (row["delivered_offset"] is not None) == (row["state"] == "committed")
        assert (row["end_offset"] or 1 << 62) > row["half_offset"]


def test_parquet_with_a_manifest(spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path) -> None:
    """The files hold every transaction, and the manifest the digest of the local engine; nothing is overwritten."""
    path, out = golden("rocketmq-5.3.3-clean"), tmp_path / "out"
    seen: list[tuple[int, int]] = []
    written = write_transactions(spark, path, out, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] <= seen[-1][1], "progress goes on, and never past the end"
    report = local_verify(path)
    assert (written.digest, written.transactions) == (report.digest, report.transactions)
    assert (written.records, written.bytes, written.end_offset) == (report.records, report.bytes, report.end_offset)
    assert spark.read.parquet(str(out)).count() == report.transactions["total"]
    assert json.loads((tmp_path / "out" / "_checkback.json").read_text())["digest"] == report.digest
    with pytest.raises(StoreError, match="is there already"):
        write_transactions(spark, path, out)


def test_files_of_a_store_without_transactions_have_their_columns(tmp_path: Path) -> None:
    """There was no file, so that a query over the directory failed on a quiet day."""
    path, out = str(tmp_path / "store"), str(tmp_path / "out")
    with broker.open(path, layout=broker.StoreLayout.small()) as store:
        store.append(broker.Message("orders", b"plain"))
    written = write_transaction_files(InMemoryExecutor(), StoreLocation(path).log(), path, out, 0)
    assert written.transactions["total"] == 0
    rows = pq.read_table(out)
    assert (len(rows), rows.schema) == (0, TRANSACTIONS)


def test_a_damaged_store_gives_findings_and_no_failed_job(
    spark: SparkSession, golden_copy: Callable[[str], Path]
) -> None:
    """A segment damaged in the middle, a redo log that is gone: the report says so, as the local one does."""
    store = golden_copy("rocketmq-3.1.5-killed")
    segment = min((store / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(100_000)
        file.write(b"\xff" * 5000)
    shutil.rmtree(store / "transaction" / "redolog")
    report = verify(spark, str(store), split_bytes=50_000)
    assert comparable(report) == comparable(local_verify(str(store)))
    assert report.findings.counts["corrupt-region"] == 1
    assert report.findings.counts["files-missing"] == 1


def test_what_a_task_cannot_read_is_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """Half an archive: the command called it a defect of checkback, with a traceback and the exit code 70."""
    log = Log(4096)
    for _ in range(20):
        log.append(Wanted(chunks=(Chunk("bytes", b"x" * 300),)))
    (segment, *_) = sorted((log.write(tmp_path / "store") / "commitlog").iterdir())
    segment.with_name(f"{segment.name}.gz").write_bytes(gzip.compress(segment.read_bytes())[:90])
    segment.unlink()
    with pytest.raises(CorruptStore, match="cannot be unpacked as gzip"):
        verify(spark, str(tmp_path / "store"))


@pytest.mark.parametrize(
    ("refusal", "kind", "sentence"),
    [
        (FileNotFoundError(errno.ENOENT, "Failed to open local file"), StoreError, "that all machines share"),
        (OSError(errno.ENOSPC, "Error writing bytes to file"), StoreFull, "No space left"),
    ],
)
def test_rows_that_a_task_cannot_write_are_a_sentence(
    golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: OSError,
    kind: type[StoreError], sentence: str,
) -> None:  # fmt: skip
    """A cluster whose machines do not share the directory, or whose disk is full: it was called a defect."""

    def refuse(*_: object) -> None:
        raise refusal

    monkeypatch.setattr(joins, "write_rows", refuse)
    path, out = str(golden("kinds/rocketmq-5.5.0-clean")), tmp_path / "out"
    with pytest.raises(kind, match=sentence):
        write_transaction_files(InMemoryExecutor(), StoreLocation(path).log(), path, str(out), 0)
    assert not out.exists()


def test_leaving_by_an_exception_cancels_the_tasks(spark: SparkSession) -> None:
    """Ctrl-C in the driver ends what runs in the cluster."""

    def slow(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            time.sleep(60)
            yield batch

    started = time.monotonic()
    frame = mapped(spark.range(0, 2, 1, 2), slow, "id bigint")
    failures: list[BaseException] = []

    def run(tag: str) -> None:
        spark.sparkContext.addJobTag(tag)
        try:
            frame.count()
        except Exception as error:  # noqa: BLE001 - what it is, is asked below
            failures.append(error)

    tracker = spark.sparkContext.statusTracker()
    jobs: list[threading.Thread] = []

    def interrupted() -> None:
        with watched(spark, None, 0) as tag:
            jobs.append(threading.Thread(target=run, args=(tag,)))
            jobs[0].start()
            while not tracker.getActiveStageIds():
                time.sleep(0.05)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    jobs[0].join(30)
    assert "cancel" in str(failures[0]).lower()
    assert time.monotonic() - started < 40


def test_what_spark_lost_and_cannot_read_again_is_no_empty_part(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """The rows of a store that went away were 0, without a word, as those of a segment that was removed since."""
    path = tmp_path / "store"
    log = shutil.copytree(golden("rocketmq-3.1.5-killed"), path) / "commitlog"
    rows = transactions(spark, path)
    count = rows.count()
    spark.catalog.clearCache()
    log.rename(tmp_path / "aside")
    with pytest.raises(PySparkException, match=r"NotAStore: .*commitlog is not there for a task of Spark"):
        rows.count()
    log.mkdir()
    with pytest.raises(PySparkException, match=r"StoreError: .*the file was removed since\. Run it again"):
        rows.count()
    log.rmdir()
    (tmp_path / "aside").rename(log)
    assert rows.count() == count > 0
