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

from recovery.spark.blocks import EVENTS, KEYED, NAMED, SCHEMA, SUMMARY, VERDICTS, rows_of, values_of
from recovery.spark.inspection import Inspection, Task
from recovery.spark.jobs import Written, write
from recovery.spark.judging import Court, Sentence, join_ops, judge_ends, judge_keys
from recovery.spark.pipeline import Judgement
from recovery.spark.places import Log, Place
from recovery.spark.progress import Progress
from recovery.spark.splits import SPLIT_BYTES, Split


def write_transactions_here(
    path: str, out: str, now_ms: int, *, processes: int | None = None, progress: Progress | None = None
) -> Written:
    """The Parquet files and the manifest that `write_transactions` writes on Spark.

    Raises NotAStore, and StoreError when `out` is there already.
    """
    log = Place(path).log()
    with workers(processes or os.cpu_count() or 1) as pool:
        return write(lambda: JudgementByProcesses(pool, log, progress), path, out, now_ms)


@contextmanager
def workers(count: int) -> Iterator[Executor]:
    """Processes that start empty: a fork of a process with threads may hang."""
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


class JudgementByProcesses(Judgement):
    """The stages, run by a pool."""

    def __init__(
        self, pool: Executor, log: Log, progress: Progress | None = None, split_bytes: int = SPLIT_BYTES
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

    def judged(self, court: Court) -> list[Sentence]:
        """The verdicts of every partition without their rows."""
        tables = list(self._held)
        for tag, stage in ((EVENTS, judge_ends), (NAMED, join_ops), (KEYED, judge_keys)):
            parts = parts_of(tables, tag)
            tables.extend(self._pool.map(_judged, [stage] * len(parts), [court] * len(parts), parts))
        return [one for table in tables for one in values_of(table, VERDICTS)]


def parts_of(tables: list[pa.Table], tag: str) -> list[pa.Table]:
    """The blocks of each partition that travel under a tag."""
    parts: dict[int, list[pa.Table]] = defaultdict(list)
    for table in tables:
        tags, numbers = table.column("tag").to_pylist(), table.column("part").to_pylist()
        for row, (found, part) in enumerate(zip(tags, numbers, strict=True)):
            if found == tag:
                parts[part].append(table.slice(row, 1))
    return [pa.concat_tables(found) for found in parts.values()]


def _inspected(task: Task, split: Split) -> pa.Table:
    return pa.Table.from_batches(rows_of(Inspection(task, split).run()), SCHEMA)


def _judged(stage: Callable[[Court], Any], court: Court, table: pa.Table) -> pa.Table:
    return pa.Table.from_batches(rows_of(stage(court)(table)), SCHEMA)
