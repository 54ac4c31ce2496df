"""The stages of a judgement in this process, in a shuffled order: fast enough for thousands of hostile splits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from broker.store.recover.watermark import Watermark
from recovery.findings import Report
from recovery.pipeline.in_memory import InMemoryExecutor
from recovery.pipeline.inspection import InspectionTask, SplitSummary
from recovery.pipeline.joins import JoinContext, PartitionResult
from recovery.pipeline.splits import Split
from recovery.pipeline.stages import Join
from recovery.pipeline.store_location import StoreLocation, manifest_of
from recovery.pipeline.verification import verify_in_stages
from recovery.verify.verifier import verify_by


class ShuffledExecutor:
    """The inline executor; tasks end in any order, rows are listed as well, and `before` is called before each read."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._inner, self._before = InMemoryExecutor(_shuffled), before

    def inspect(self, task: InspectionTask, splits: Sequence[Split]) -> list[SplitSummary]:
        self._before()
        return self._inner.inspect(task, splits)

    def join(self, context: JoinContext, joins: Sequence[tuple[str, Join]]) -> list[PartitionResult]:
        return self._inner.join(replace(context, with_rows=True), joins)

    def close(self) -> None:
        self._inner.close()


def _shuffled(function: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
    results = list(map(function, *arguments))
    random.Random(len(results)).shuffle(results)
    return results


def verify_inline(path: str, split_bytes: int, before: Callable[[], None] = lambda: None) -> Report:
    """The report that Spark would give."""
    location = StoreLocation(path)

    def verify_up_to(mark: Watermark | None) -> Report:
        files = location.files(mark)
        log = manifest_of(location, files)
        return verify_in_stages(ShuffledExecutor(before), files, log, split_bytes=split_bytes)

    return verify_by(location.inside, location.disk(), verify_up_to)


def comparable(report: Report) -> dict[str, Any]:
    """What two engines must agree on: everything but the time it took and the order of findings at one place."""
    answer = report.as_json()
    answer.pop("seconds")
    answer["findings"] = sorted(map(repr, answer["findings"]))
    return answer
