"""The verification of a store on Spark: the same findings, names and digest as `recovery.verify.verifier.verify`.

As in:

    report = verify(spark, "shop.store")
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broker.store.disk.paths import given_path
from broker.store.recover.watermark import Watermark
from recovery.findings import Report
from recovery.pipeline.splits import SPLIT_BYTES
from recovery.pipeline.store_location import StoreLocation, manifest_of
from recovery.pipeline.verification import verify_in_stages
from recovery.spark.executor import SparkExecutor
from recovery.spark.progress import Progress, watched
from recovery.spark.sessions import running
from recovery.spark.shipping import ship
from recovery.verify.verifier import verify_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    split_bytes: int = SPLIT_BYTES,
    progress: Progress | None = None,
) -> Report:
    """Verify a store on Spark; whatever is wrong with a store that can be read is a finding.

    `split_bytes` (1 KiB at least) of the CommitLog are one task; `progress(done, total)` hears of bytes of the log.
    Raises NotAStore, StoreError for files that cannot be read, ValueError for smaller splits.
    """
    location = StoreLocation(given_path(path))
    ship(spark)
    location.files()  # a wrong path is reported before the watermark is looked for

    def verify_up_to(mark: Watermark | None) -> Report:
        files = location.files(mark)
        log = manifest_of(location, files)
        with watched(spark, progress, log.bytes):
            return verify_in_stages(SparkExecutor(spark), files, log, split_bytes=split_bytes)

    return verify_by(location.inside, location.disk(), verify_up_to)


def verify_with(master: str, path: str, progress: Progress | None = None) -> Report:
    """Verify a store on a session of its own: what `checkback verify --spark MASTER` does.

    Raises SparkNotReady, SparkJobFailed.
    """
    StoreLocation(path).files()  # a wrong path is reported before Spark starts
    with running(master) as spark:
        return verify(spark, path, progress=progress)
