"""The same stages without Spark: by processes of this machine, the events in memory between the stages.

They take about a tenth of the log's size. What is larger than that belongs to a cluster.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from recovery.pipeline.blocks import EVENTS, KEYED, NAMED, OUTCOMES, SCHEMA, SUMMARY, rows_of, values_of
from recovery.pipeline.inspection import Inspection, InspectionTask
from recovery.pipeline.joins import JoinContext, PartitionResult, join_ends, join_keys, join_ops
from recovery.pipeline.splits import SPLIT_BYTES, Split
from recovery.pipeline.stages import TransactionStages
from recovery.pipeline.store_location import LogManifest, StoreLocation
from recovery.spark.jobs import Written, write
from recovery.spark.progress import Progress


def write_transactions_here(
    path: str, out: str, now_ms: int, *, processes: int | None = None, progress: Progress | None = None
) -> Written:
    """The Parquet files and the manifest that `write_transactions` writes on Spark.

    Raises NotAStore, and StoreError when `out` is there already.
    """
    log = StoreLocation(path).log()
    with workers(processes or os.cpu_count() or 1) as pool:
        return write(lambda: JudgementByProcesses(pool, log, progress), path, out, now_ms)


@contextmanager
def workers(count: int) -> Iterator[Executor]:
    """Processes that start empty: a fork of a process with threads may hang."""
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


class JudgementByProcesses(TransactionStages):
    """The stages, run by a pool."""

    def __init__(
        self, pool: Executor, log: LogManifest, progress: Progress | None = None, split_bytes: int = SPLIT_BYTES
    ) -> None:
        self._pool, self._progress = pool, progress
        super().__init__(None, log, split_bytes=split_bytes, strings=True)  # type: ignore[arg-type] # no Spark

    def _read(self, splits: list[Split]) -> None:
        self._held, done = [], 0
        for split, table in zip(splits, self._pool.map(_inspected, [self.task] * len(splits), splits), strict=True):
            self._held.append(table)
            done += split.end - split.start
            if self._progress is not None:
                self._progress(done, self.log.bytes)
        found = [one for table in self._held for one in values_of(table, SUMMARY)]
        self.summaries = sorted(found, key=lambda one: one.split.number)

    def results(self, context: JoinContext) -> list[PartitionResult]:
        """The verdicts of every partition without their rows."""
        tables = list(self._held)
        for tag, stage in ((EVENTS, join_ends), (NAMED, join_ops), (KEYED, join_keys)):
            parts = parts_of(tables, tag)
            tables.extend(self._pool.map(_judged, [stage] * len(parts), [context] * len(parts), parts))
        return [one for table in tables for one in values_of(table, OUTCOMES)]


def parts_of(tables: list[pa.Table], tag: str) -> list[pa.Table]:
    """The blocks of each partition that travel under a tag."""
    parts: dict[int, list[pa.Table]] = defaultdict(list)
    for table in tables:
        tags, numbers = table.column("tag").to_pylist(), table.column("part").to_pylist()
        for row, (found, part) in enumerate(zip(tags, numbers, strict=True)):
            if found == tag:
                parts[part].append(table.slice(row, 1))
    return [pa.concat_tables(found) for found in parts.values()]


def _inspected(task: InspectionTask, split: Split) -> pa.Table:
    return pa.Table.from_batches(rows_of(Inspection(task, split).run()), SCHEMA)


def _judged(stage: Callable[[JoinContext], Any], context: JoinContext, table: pa.Table) -> pa.Table:
    return pa.Table.from_batches(rows_of(stage(context)(table)), SCHEMA)
