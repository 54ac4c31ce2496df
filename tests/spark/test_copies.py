"""Spark's jobs on a copy that is being followed: the master's records, its transactions, and what comes meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.spark import findings, scan, stream
from recovery.verify.verifier import verify
from tests.following.masters import SEGMENT, follow_once, served, traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_jobs_see_what_the_master_has(spark: SparkSession, tmp_path: Path) -> None:
    """Records by kind, no finding; a stream over the copy goes on with what the follower brought."""
    copy, seen = tmp_path / "copy", []

    def take(batch: Any, _number: int) -> None:
        seen.extend(row[0] for row in batch.select("commitlog_offset").collect())

    def run_stream() -> None:
        writer = stream(spark, str(copy)).writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(tmp_path / "at")).trigger(availableNow=True).start()
        query.awaitTermination(60)

    with served(tmp_path / "master", "half-op") as (store, address):
        traffic(store, 30)
        follow_once(address, copy, start="first", segment_bytes=SEGMENT)
        run_stream()
        first = len(seen)
        traffic(store, 30)
        follow_once(address, copy)
        run_stream()
        columns = ["commitlog_offset", "kind"]
        of_copy = [tuple(row) for row in scan(spark, str(copy), columns=columns).collect()]
        of_master = [tuple(row) for row in scan(spark, str(store.path), columns=columns).collect()]
    assert sorted(of_copy) == sorted(of_master)
    assert sorted(seen) == sorted(at for at, _ in of_copy)
    assert 0 < first < len(seen)
    assert findings(spark, str(copy)).count() == 0
    assert verify(copy).digest == verify(tmp_path / "master").digest
