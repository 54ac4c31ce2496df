"""A verification in stages: splits are inspected and compared, partitions joined, and what stayed wrong is merged.

The report is the local engine's (`recovery.verify.conclusion`), whatever the splits are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from recovery.findings import Findings, Report
from recovery.pipeline.inspection import InspectionTask
from recovery.pipeline.merging import merge_batch_queues, merge_index, merge_queues, merge_redo, merge_table
from recovery.pipeline.split_comparison import derived_ranges
from recovery.pipeline.splits import SPLIT_BYTES, Split
from recovery.pipeline.stages import Executor, InspectedLog, inspect_log, join_transactions
from recovery.pipeline.store_location import LogManifest
from recovery.scan.record_at import record_at
from recovery.scan.scanner import Damage
from recovery.scan.store_files import StoreFiles
from recovery.transactions.events import Names
from recovery.verify.conclusion import Comparisons, Conclusion, LogFacts, TransactionSums
from recovery.verify.consume_queues import QueueComparison
from recovery.verify.index import IndexComparison
from recovery.verify.index_files import open_live_index
from recovery.verify.kinds.batch_queues import BatchQueueComparison
from recovery.verify.kinds.queue_ext import queue_ext_of
from recovery.verify.kinds.rocksdb_queues import rocksdb_comparison
from recovery.verify.kinds.timers import TimerComparison, timers_of
from recovery.verify.redo_log import RedoLogComparison
from recovery.verify.state_table import StateTableComparison

Prepare = Callable[[tuple[Split, ...]], InspectionTask]


def verify_in_stages(
    executor: Executor,
    files: StoreFiles,
    log: LogManifest,
    *,
    split_bytes: int = SPLIT_BYTES,
    prepare: Prepare | None = None,
) -> Report:
    """The report on a store whose log is `log`; `prepare` is by default `comparing(files, log)`."""
    started = time.monotonic()
    try:
        inspected = inspect_log(executor, log, split_bytes=split_bytes, prepare=prepare or comparing(files, log))
        findings = Findings()
        for summary in inspected.summaries:
            findings.include(summary.findings)
        comparisons = _merged(files, inspected, findings)
        sums = _join(executor, files, inspected, comparisons, findings)
    finally:
        executor.close()
    facts = LogFacts(
        inspected.end_offset, [*damages_of_files(log), *inspected.damages], inspected.evidence, inspected.records,
        inspected.bytes, inspected.last_store_ms, any(summary.delivers for summary in inspected.summaries),
        any(summary.compared is not None and summary.compared.has_keys for summary in inspected.summaries),
    )  # fmt: skip
    look = partial(record_at, files.commitlog)
    return Conclusion(files, findings, facts, comparisons, look).report(sums, started)


def comparing(files: StoreFiles, log: LogManifest) -> Prepare:
    """What the splits of a verification are asked: everything."""
    return lambda splits: InspectionTask(log, 1, crc=True, compare=True, cuts=derived_ranges(files, splits))


def _merged(files: StoreFiles, inspected: InspectedLog, findings: Findings) -> Comparisons:
    """The comparisons as they stand behind the last record."""
    splits = [summary.split for summary in inspected.summaries]
    parts = [summary.compared for summary in inspected.summaries if summary.compared is not None]
    ranges, comparisons = inspected.task.cuts, Comparisons()
    if files.has_queues:
        queues = QueueComparison(files.expected_queue_units, findings, open_ext=partial(queue_ext_of, files))
        merge_queues(queues, splits, [part.queues for part in parts])
        comparisons.queues = queues
    comparisons.rocksdb_queues = rocksdb_comparison(files, findings)
    if comparisons.rocksdb_queues is not None:
        merge_queues(comparisons.rocksdb_queues, splits, [part.rocksdb_queues for part in parts])
    timers = timers_of(files)
    if timers is not None:
        comparisons.timers = TimerComparison(timers, findings)
        comparisons.timers.waiting = [rows for part in parts for rows in part.timers]
    if files.batch_topics:
        comparisons.batch_queues = BatchQueueComparison(files, findings)
        merge_batch_queues(comparisons.batch_queues, parts)
    if files.index:
        known = merge_index(open_live_index(files, Findings()), splits, parts, ranges)
        comparisons.index = IndexComparison(partial(open_live_index, files), findings, known)
    if files.has_redo_log:
        units = files.redo_units()
        behind = ranges[-1].redo[1] if ranges else units.begin
        known_redo = merge_redo(splits, parts, ranges)
        comparisons.redo_log = RedoLogComparison(units, findings, (behind, units.end), known_redo)
    return comparisons


def _join(
    executor: Executor, files: StoreFiles, inspected: InspectedLog, comparisons: Comparisons, findings: Findings
) -> TransactionSums:
    """Run the joins, and hand what their partitions claimed to the state table's comparison."""
    sums = TransactionSums()
    results = join_transactions(executor, inspected, inspected.context(with_table=files.has_state_table))
    for result in results:
        sums.digest.total += result.digest
        sums.states.update(result.states)
        findings.include(result.findings)
    if files.has_state_table:
        claims, names = [result.table for result in results if result.table is not None], Names()
        claimed = [interval for part in claims for interval in part.claimed]
        table = StateTableComparison(
            files.slot_units(), names, 1, findings, claimed, is_written=files.ignore_from is not None
        )
        merge_table(table, claims, names)
        comparisons.table = table
    return sums


def damages_of_files(log: LogManifest) -> list[Damage]:
    """What is wrong with the segments as files; one in the middle may have gone, or been cut, while the tasks read."""
    now = log.store_files().compared.damages
    every = [*log.damages, *(damage for damage in now if damage not in log.damages)]
    return [Damage(one.kind, one.start, one.end - one.start, one.reason, one.path) for one in every]
