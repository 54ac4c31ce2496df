"""The executor on Spark: splits and partitions are tasks, and what a stage hands to the next is cached, on disk where
memory ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from broker.errors import BrokerError, StoreError
from recovery.pipeline.blocks import FAILED, OUTCOMES, SCHEMA_DDL, SUMMARY, rows_of, values_of
from recovery.pipeline.inspection import Inspection, InspectionTask, SplitSummary
from recovery.pipeline.joins import JoinContext, PartitionResult
from recovery.pipeline.splits import Split
from recovery.pipeline.stages import InspectedLog, Join, joins_of
from recovery.spark.mapping import mapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASKS_PER_CORE = 16
_FIRST_TIME = "checkback.first"  # what the tasks of a job find set that read the log for the first time


class SparkExecutor:
    """Runs the stages of one job on a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cached: list[DataFrame] = []
        self._events: DataFrame | None = None

    def inspect(self, task: InspectionTask, splits: Sequence[Split]) -> list[SplitSummary]:
        """The only stage that reads the log."""
        every = tuple(splits)

        def inspect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from rows_of(_inspected(task, every[number]))

        numbers = self._spark.range(0, len(splits), 1, self.tasks(len(splits)))
        self._events = self._keep(mapped(numbers, inspect, SCHEMA_DDL))
        context = self._spark.sparkContext
        context.setLocalProperty(_FIRST_TIME, "true")
        try:
            found = self.events.where(f"tag in ('{SUMMARY}', '{FAILED}')").toArrow()
        finally:
            context.setLocalProperty(_FIRST_TIME, None)  # type: ignore[arg-type] # which removes it
        for error in values_of(found, FAILED):
            raise error
        return list(values_of(found, SUMMARY))

    @property
    def events(self) -> DataFrame:
        """The blocks of all splits; call when they are inspected."""
        assert self._events is not None
        return self._events

    def join(self, context: JoinContext, joins: Sequence[tuple[str, Join]]) -> list[PartitionResult]:
        """The results of all partitions, without their rows."""
        return list(values_of(self._joined(context, joins).where(f"tag = '{OUTCOMES}'").toArrow(), OUTCOMES))

    def blocks(self, context: JoinContext, inspected: InspectedLog) -> DataFrame:
        """What the joins hand over, as blocks with the tags `outcomes` and `rows`, among others."""
        return self._joined(context, joins_of(inspected))

    def _joined(self, context: JoinContext, joins: Sequence[tuple[str, Join]]) -> DataFrame:
        results: list[DataFrame] = []
        for number, (tag, join) in enumerate(joins, 1):
            blocks = self.events
            for earlier in results:
                blocks = blocks.unionAll(earlier)
            frame = self._by_partition(blocks.where(f"tag = '{tag}'"), join, context)
            results.append(frame if number == len(joins) else self._keep(frame))
        total = results[0]
        for frame in results[1:]:
            total = total.unionAll(frame)
        return total

    def _by_partition(self, blocks: DataFrame, join: Join, context: JoinContext) -> DataFrame:
        """Bring the blocks of each partition together and join them; a task has one partition in memory at a time."""
        run = join(context)

        def apply(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in _by_part(batches):
                yield from rows_of(run(table))

        tasks = self.tasks(context.partitions)
        dealt = blocks.repartitionById(tasks, blocks["part"] % tasks)
        if tasks < context.partitions:
            dealt = dealt.sortWithinPartitions("part")
        return mapped(dealt, apply, SCHEMA_DDL)

    def tasks(self, wanted: int) -> int:
        """Starting a task takes 10 to 20 ms: many small pieces of work share one."""
        return max(1, min(wanted, _TASKS_PER_CORE * self._spark.sparkContext.defaultParallelism))

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist()
        self._cached.append(kept)
        return kept

    def close(self) -> None:
        """Release what is cached."""
        for frame in self._cached:
            frame.unpersist()
        self._cached.clear()


def _inspected(task: InspectionTask, split: Split) -> Iterator[tuple[str, int, Any]]:
    """What the inspection of a split hands over, or why there is none.

    Spark does it again for a join where cached blocks were lost: nobody looks then for why there is none, so it raises.
    """
    is_again = _is_again()
    try:
        inspection = Inspection(task, split)
        yield from inspection.run()
    except BrokerError as error:
        if is_again:
            raise
        yield FAILED, 0, error
        return
    if is_again and inspection.is_expired:
        path = task.log.file_at(split.start)
        text = f"{path} was read, Spark lost what it had kept of it, and the file was removed since. Run it again"
        raise StoreError(text, path=path)


def _is_again() -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.getLocalProperty(_FIRST_TIME) is None


def _by_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The blocks of each partition together; they come sorted by its number."""
    held: list[pa.RecordBatch] = []
    current: int | None = None
    for batch in batches:
        parts = batch.column("part").to_pylist()
        for row, part in enumerate(parts):
            if part != current and held:
                yield pa.Table.from_batches(held)
                held = []
            current = part
            held.append(batch.slice(row, 1))
    if held:
        yield pa.Table.from_batches(held)
