"""The stages of a verification, for any executor: every split of the log is inspected once, then events are joined.

    inspected = inspect_log(executor, StoreLocation("shop.store").log())
    inspected.summaries                                            # one for each split: the whole log was read
    join_transactions(executor, inspected, inspected.context())    # sums and findings of each partition

An executor runs the tasks of a stage somewhere and keeps what they hand to the next stage: in this process or a pool of
processes (`recovery.pipeline.in_memory`), or on Spark (`recovery.spark.executor`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

import pyarrow as pa

from broker.errors import CorruptStore
from broker.transaction.events import Generation, GenerationEvidence, generation, prepared_generation
from recovery.pipeline.blocks import EVENTS, KEYED, NAMED, PARTITION_BYTES
from recovery.pipeline.inspection import InspectionTask, SplitSummary
from recovery.pipeline.joins import JoinContext, PartitionResult, join_ends, join_keys, join_ops
from recovery.pipeline.splits import SPLIT_BYTES, Split, plan
from recovery.pipeline.store_location import LogManifest
from recovery.scan.scanner import Damage

_PARTITIONS_MAX = 20_000
_ATTEMPTS = 3

# A join: the tag of the blocks that it takes, and the function over those of one partition.
Join = Callable[[JoinContext], Callable[[pa.Table], Iterator[tuple[str, int, Any]]]]
JOINS: tuple[tuple[str, Join], ...] = ((EVENTS, join_ends), (NAMED, join_ops), (KEYED, join_keys))


class Executor(Protocol):
    """Runs the tasks of the stages."""

    def inspect(self, task: InspectionTask, splits: Sequence[Split]) -> list[SplitSummary]:
        """Inspect every split, keep the blocks, return the summaries in any order."""

    def join(self, context: JoinContext, joins: Sequence[tuple[str, Join]]) -> list[PartitionResult]:
        """Run joins one after the other, each over the blocks of each partition; the results of all partitions."""

    def close(self) -> None:
        """Release what is kept."""


@dataclass(frozen=True)
class InspectedLog:
    """What the first stage leaves besides the events."""

    log: LogManifest
    task: InspectionTask
    summaries: tuple[SplitSummary, ...]  # in log order
    evidence: GenerationEvidence

    @property
    def generation(self) -> Generation:
        """How this store says what became of its transactions."""
        return generation(self.evidence)

    @property
    def records(self) -> int:
        return sum(summary.records for summary in self.summaries)

    @property
    def bytes(self) -> int:
        return sum(summary.bytes for summary in self.summaries)

    @property
    def last_store_ms(self) -> int:
        """The latest store time of a record; 0 without one."""
        return max((summary.last_store_ms for summary in self.summaries), default=0)

    @property
    def end_offset(self) -> int:
        """The CommitLog offset behind the last record."""
        ends = [summary.end_offset for summary in self.summaries if summary.end_offset is not None]
        return max(ends, default=self.log.begin)

    @property
    def damages(self) -> list[Damage]:
        """What is wrong with the log between its records."""
        return [damage for summary in self.summaries for damage in summary.damages]

    def context(self, **options: Any) -> JoinContext:
        """What the partitions get; `options` are fields of `JoinContext`."""
        least: dict[int, int] = {}
        for summary in self.summaries:
            for queue_id, queue_offset in summary.least_half.items():
                least[queue_id] = min(least.get(queue_id, queue_offset), queue_offset)
        prepared = prepared_generation(self.evidence)
        return JoinContext(self.log, self.task.partitions, prepared, self.log.begin, least, **options)


def inspect_log(
    executor: Executor,
    log: LogManifest,
    *,
    split_bytes: int = SPLIT_BYTES,
    crc: bool = True,
    strings: bool = False,
    prepare: Callable[[tuple[Split, ...]], InspectionTask] | None = None,
) -> InspectedLog:
    """Read the log, each split once; `prepare` makes the task from the splits where there is more to ask.

    A segment in which a split did not begin with a record is read again as one split. Raises CorruptStore when that
    does not help.
    """
    partitions = min(max(1, -(-log.bytes // PARTITION_BYTES)), _PARTITIONS_MAX)
    splits = plan(log, split_bytes)
    for _ in range(_ATTEMPTS):
        task = prepare(tuple(splits)) if prepare else InspectionTask(log, partitions, crc, strings)
        task = replace(task, partitions=partitions)
        summaries = sorted(executor.inspect(task, splits), key=lambda summary: summary.split.number)
        misled = misled_segments(summaries)
        if not misled:
            return InspectedLog(log, task, tuple(summaries), merged_evidence(summaries))
        executor.close()
        splits = _unsplit(splits, misled)
    path = log.place.path
    raise CorruptStore(f"{path}: its records could not be distinguished. Run: checkback verify, without --spark")


def join_transactions(executor: Executor, inspected: InspectedLog, context: JoinContext) -> list[PartitionResult]:
    """Run the joins that this generation needs: sums and findings of every partition."""
    return executor.join(context, joins_of(inspected))


def joins_of(inspected: InspectedLog) -> tuple[tuple[str, Join], ...]:
    """All three for a store with op messages, else the first."""
    return JOINS if inspected.evidence.half_op else JOINS[:1]


def merged_evidence(summaries: Sequence[SplitSummary]) -> GenerationEvidence:
    """What all splits say; two prepared records at 0 that follow each other may lie in two splits."""
    total, last = GenerationEvidence(), None
    for summary in summaries:
        total = GenerationEvidence(*(a + b for a, b in zip(total, summary.evidence, strict=True)))
        if summary.first_slot is not None:
            total = total._replace(gap=total.gap + (summary.first_slot == 0 and last == 0))
            last = summary.last_slot
    return total


def misled_segments(summaries: Sequence[SplitSummary]) -> set[int]:
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
