"""The verification of a store by Spark: the same findings, names and digest as `recovery.verify.verifier.verify`.

    report = verify(spark, "shop.store")

Each split is read and compared where it is read; the joins run partition by partition; the driver brings together what
stayed wrong and says it by the local engine's own code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from broker.format.statetable import Slot
from recovery.findings import Findings, Report
from recovery.pipeline.inspection import InspectionTask, SplitSummary
from recovery.pipeline.split_comparison import UNIT, MergedIndex, MergedQueues, MergedRedo, MergedTable, cuts, opener
from recovery.pipeline.splits import SPLIT_BYTES, Split
from recovery.pipeline.stages import TransactionStages
from recovery.pipeline.store_location import LogManifest, StoreLocation, manifest_of
from recovery.scan.scanner import Damage
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import UnitFile
from recovery.spark.progress import Progress, watched
from recovery.spark.sessions import session
from recovery.spark.shipping import ship
from recovery.transactions.digest import Digest
from recovery.transactions.events import Names
from recovery.verify.verifier import Verification

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLOT = np.dtype(Slot.DTYPE)


def verify(
    spark: SparkSession,
    path: str,
    *,
    split_bytes: int = SPLIT_BYTES,
    progress: Progress | None = None,
) -> Report:
    """Judge a store on Spark. Raises NotAStore; whatever is wrong with a store that can be read is a finding."""
    ship(spark)
    place = StoreLocation(path)
    files = place.files()
    log = manifest_of(place, files.commitlog)
    with watched(spark, progress, log.bytes):
        return judge(files, log, TransactionStages(spark, log, split_bytes=split_bytes, prepare=comparing(files, log)))


def verify_with(master: str, path: str, progress: Progress | None = None) -> Report:
    """Judge a store on a session of its own: what `checkback verify --spark MASTER` does. Raises SparkNotReady."""
    StoreLocation(path).files()  # a wrong path is said before Spark starts
    spark = session(master)
    try:
        return verify(spark, path, progress=progress)
    finally:
        spark.stop()


def comparing(files: StoreFiles, log: LogManifest) -> Callable[[tuple[Split, ...]], InspectionTask]:
    """What the splits of a verification are asked: everything."""
    return lambda splits: InspectionTask(log, 1, crc=True, compare=True, cuts=cuts(files, splits))


def judge(files: StoreFiles, log: LogManifest, stages: TransactionStages) -> Report:
    """The report, when the log was read; the judgement is closed."""
    try:
        return _Verification(files, log, stages).run()
    finally:
        stages.close()


class _Verification(Verification):
    """The local verification, which is told what Spark found instead of reading."""

    def __init__(self, files: StoreFiles, log: LogManifest, stages: TransactionStages) -> None:
        super().__init__(files, lambda _done, _all: None)
        self._told, summaries = stages, stages.summaries
        self.scan = _Scanned(log, summaries)  # type: ignore[assignment]
        self.tracker = _Judged(stages, summaries)  # type: ignore[assignment]
        self.delivers = any(summary.delivers for summary in summaries)
        for summary in summaries:
            _pass_on(summary.findings, self.findings)
        self._merge(summaries, stages.task)

    def _merge(self, summaries: list[SplitSummary], task: InspectionTask) -> None:
        splits = [summary.split for summary in summaries]
        parts = [summary.compared for summary in summaries if summary.compared is not None]
        files = self.files
        if self.queues is not None:
            queues = MergedQueues(opener(files), self.findings, has_ext=files.has_queue_ext)
            queues.take(splits, parts)
            self.queues = queues
        if self.index is not None:
            index = MergedIndex(lambda _: self._open_index(Findings()), self.findings)  # what is wrong was said above
            index.take(splits, parts, task.cuts)
            self.index = index
        if self.redo_log is not None:
            redo = MergedRedo(UnitFile(files.redo_log, UNIT), self.findings)
            redo.take(splits, parts, task.cuts)
            self.redo_log = redo

    def _judge(self) -> tuple[Digest, Counter[int]]:
        """Run the joins, and hand what the state table's tasks claimed to its comparison."""
        digest, states = Digest(), Counter[int]()
        results = self._told.results(self._told.context(with_table=self.table is not None))
        for result in results:
            digest.total += result.digest
            states.update(result.states)
            _pass_on(result.findings, self.findings)
        if self.table is not None:
            names = Names()
            table = MergedTable(UnitFile(self.files.state_table, _SLOT), names, 1, self.findings)
            table.take((result.table for result in results if result.table is not None), names)
            self.table = table
        return digest, states


class _Scanned:
    """What the local verification asks of its scan, when the reading is done."""

    def __init__(self, log: LogManifest, summaries: list[SplitSummary]) -> None:
        now = log.place.log().damages  # a segment in the middle may have gone, or been cut, while the tasks read
        every = [*log.damages, *(one for one in now if one not in log.damages)]
        files = [Damage(one.kind, one.start, one.end - one.start, one.reason, one.path) for one in every]
        self.damages = [*files, *(damage for summary in summaries for damage in summary.damages)]
        ends = [summary.end_offset for summary in summaries if summary.end_offset is not None]
        self.end_offset = max(ends, default=log.begin)

    def __iter__(self) -> Any:
        return iter(())


class _Judged:
    """What it asks of its judgement."""

    def __init__(self, stages: TransactionStages, summaries: list[SplitSummary]) -> None:
        self.records = sum(summary.records for summary in summaries)
        self.bytes = sum(summary.bytes for summary in summaries)
        self.last_store_ms = max((summary.last_store_ms for summary in summaries), default=0)
        self.evidence, self.generation = stages.evidence, stages.generation
        self.prepared_generation = stages.prepared_generation


def _pass_on(found: Findings, findings: Findings) -> None:
    """The listed ones as they are, the others as counts."""
    listed: Counter[str] = Counter()
    for finding in found:
        findings.add(finding)
        listed[finding.kind] += 1
    findings.counts.update(found.counts - listed)
