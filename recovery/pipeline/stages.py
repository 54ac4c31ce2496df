"""The stages of a judgement on Spark: the splits are read once, and their events go through three joins.

    judgement = Judgement(spark, Place("shop.store").log())
    judgement.summaries                       # one for each split: the whole log was read
    judgement.judged(judgement.court())       # sums and findings of each partition, joined where they lie

What a stage hands to the next is cached in Spark, on disk where memory ends; `close` lets it go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from broker.errors import CorruptStore
from broker.transaction.events import Evidence, Generation, generation, prepared_generation
from recovery.pipeline.blocks import (
    EVENTS,
    KEYED,
    NAMED,
    OUTCOMES,
    PARTITION_BYTES,
    SCHEMA_DDL,
    SUMMARY,
    rows_of,
    values_of,
)
from recovery.pipeline.inspection import Inspection, InspectionTask, SplitSummary
from recovery.pipeline.joins import JoinContext, PartitionResult, join_ends, join_keys, join_ops
from recovery.pipeline.splits import SPLIT_BYTES, Split, plan
from recovery.pipeline.store_location import LogManifest
from recovery.spark.mapping import mapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS_MAX = 20_000
_AGAIN_MAX = 3
_TASKS_PER_CORE = 16


class TransactionStages:
    """The events of a log on Spark. Making it reads the log; the joins run when they are asked for."""

    def __init__(
        self,
        spark: SparkSession,
        log: LogManifest,
        *,
        split_bytes: int = SPLIT_BYTES,
        crc: bool = True,
        strings: bool = False,
        prepare: Callable[[tuple[Split, ...]], InspectionTask] | None = None,
    ) -> None:
        self._spark, self.log = spark, log
        self._cached: list[DataFrame] = []
        partitions = min(max(1, -(-log.bytes // PARTITION_BYTES)), _PARTITIONS_MAX)
        splits = plan(log, split_bytes)
        for _ in range(_AGAIN_MAX):
            task = prepare(tuple(splits)) if prepare else InspectionTask(log, partitions, crc, strings)
            self.task = replace(task, partitions=partitions)
            self._read(splits)
            misled = misled_segments(self.summaries)
            if not misled:
                break
            self.close()
            splits = _unsplit(splits, misled)
        else:
            place = log.place.path
            raise CorruptStore(f"{place}: its records could not be told apart. Run: checkback verify, without --spark")
        self._settle()

    def _read(self, splits: list[Split]) -> None:
        """The first stage, and the only one that reads the log."""
        task = self.task
        every = tuple(splits)

        def inspect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from rows_of(Inspection(task, every[number]).run())

        numbers = self._spark.range(0, len(splits), 1, self.tasks(len(splits)))
        self.events = self._keep(mapped(numbers, inspect, SCHEMA_DDL))
        found = self.events.where(f"tag = '{SUMMARY}'").toArrow()
        self.summaries: list[SplitSummary] = sorted(values_of(found, SUMMARY), key=lambda one: one.split.number)

    def _settle(self) -> None:
        self.evidence = merged_evidence(self.summaries)
        least: dict[int, int] = {}
        for summary in self.summaries:
            for queue_id, place in summary.least_half.items():
                least[queue_id] = min(least.get(queue_id, place), place)
        self._least_half = least

    @property
    def generation(self) -> Generation:
        """How this store says what became of its transactions."""
        return generation(self.evidence)

    @property
    def prepared_generation(self) -> Generation:
        """Which generation the prepared records belong to."""
        return prepared_generation(self.evidence)

    def context(self, **asked: Any) -> JoinContext:
        """What the partitions are told; `asked` says what for (`JoinContext`)."""
        return JoinContext(
            self.log,
            self.task.partitions,
            self.prepared_generation,
            self.log.begin,
            self._least_half,
            **asked,
        )

    def blocks(self, context: JoinContext) -> DataFrame:
        """What the joins say, as blocks with the tags `outcomes` and `rows`, among others."""
        first = self._joined(self.events.where(f"tag = '{EVENTS}'"), join_ends(context))
        if not self.evidence.half_op:
            return first
        first = self._keep(first)
        named = first.unionAll(self.events).where(f"tag = '{NAMED}'")
        second = self._keep(self._joined(named, join_ops(context)))
        keyed = first.unionAll(second).unionAll(self.events).where(f"tag = '{KEYED}'")
        third = self._joined(keyed, join_keys(context))
        return first.unionAll(second).unionAll(third)

    def results(self, context: JoinContext) -> list[PartitionResult]:
        """The verdicts of every partition without their rows: sums and findings."""
        return list(values_of(self.blocks(context).where(f"tag = '{OUTCOMES}'").toArrow(), OUTCOMES))

    def _joined(self, blocks: DataFrame, judge: Callable[[pa.Table], Iterator[tuple[str, int, Any]]]) -> DataFrame:
        """Bring the blocks of each partition together and judge it; a task has one partition in memory at a time."""

        def apply(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in _by_part(batches):
                yield from rows_of(judge(table))

        tasks = self.tasks(self.task.partitions)
        dealt = blocks.repartitionById(tasks, blocks["part"] % tasks)
        if tasks < self.task.partitions:
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
        """Let go of what is cached."""
        for frame in self._cached:
            frame.unpersist()
        self._cached.clear()


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


def merged_evidence(summaries: list[SplitSummary]) -> Evidence:
    """What all splits say; two prepared records at 0 that follow each other may lie in two splits."""
    total, last = Evidence(), None
    for summary in summaries:
        total = Evidence(*(a + b for a, b in zip(total, summary.evidence, strict=True)))
        if summary.first_slot is not None:
            total = total._replace(gap=total.gap + (summary.first_slot == 0 and last == 0))
            last = summary.last_slot
    return total


def misled_segments(summaries: list[SplitSummary]) -> set[int]:
    """The segments in which a split began with something that no record before it leads to.

    Each record begins where the one before it ends, or behind damage that was found there. Only a body that holds a
    record with its own true place, larger than what is looked back for, can make a split begin elsewhere.
    """
    misled: set[int] = set()
    for base, found in groupby(summaries, key=lambda one: one.split.base):
        inside, expected = list(found), base
        damages = {damage.commitlog_offset: damage for one in inside for damage in one.damages}
        for summary in inside:
            if summary.first is None or summary.end_offset is None:
                continue
            damage = damages.get(expected)
            resumed = damage is not None and damage.commitlog_offset + damage.size == summary.first
            if summary.first != expected and not resumed:
                misled.add(base)
            expected = summary.end_offset
    return misled


def _unsplit(splits: list[Split], bases: set[int]) -> list[Split]:
    """These segments whole, the others as they were."""
    kept: list[Split] = []
    for base, found in groupby(splits, key=lambda split: split.base):
        inside = list(found)
        kept += [replace(inside[0], end=inside[-1].end)] if base in bases else inside
    return [replace(split, number=number) for number, split in enumerate(kept)]
