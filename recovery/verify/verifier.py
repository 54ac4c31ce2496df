"""Does a store hold what its CommitLog says? One pass over the log, every derived file compared with it, one report.

    report = verify("shop.store")
    report.ok, report.transactions, report.findings

A store of ours is verified up to its watermark (`broker.store.recover.watermark`), so that writers may go on, and be
killed, meanwhile. What a store of another program may not have finished is taken back (`live_writes`).

Nothing on disk is changed, and no write permission is needed. Memory is bounded whatever the size: a window of the log,
one partition of its events (`recovery.scan.spill`), and the findings that are listed. RocketMQ has no such tool.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol

from broker.compiled import fast
from broker.format import properties as names
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import given_path
from broker.store.recover.watermark import Watermark, has_moved, log_begin, read_watermark
from broker.transaction.events import Generation
from recovery.findings import Findings, Report
from recovery.scan.kinds import Kinds
from recovery.scan.record_at import record_at
from recovery.scan.records import Records
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.transactions.events import Rows
from recovery.transactions.fingerprint import difference
from recovery.transactions.outcomes import Outcomes
from recovery.transactions.tracker import TransactionTracker
from recovery.verify.conclusion import Comparisons, Conclusion, LogFacts, TransactionSums
from recovery.verify.consume_queues import QueueComparison
from recovery.verify.index import IndexComparison
from recovery.verify.index_files import open_live_index
from recovery.verify.kinds.batch_queues import BatchQueueComparison
from recovery.verify.kinds.queue_ext import queue_ext_of
from recovery.verify.kinds.rocksdb_queues import rocksdb_comparison
from recovery.verify.kinds.timers import TimerComparison, timers_of
from recovery.verify.record_checks import WANTS, have_keys, wrong_crcs, wrong_fields
from recovery.verify.redo_log import RedoLogComparison
from recovery.verify.state_table import StateTableComparison

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_PROPERTIES = (names.KEYS, names.TAGS, names.PGROUP, names.UNIQ_KEY)
_TRIES = 3
# What a record that is gone has left behind, or takes with it.
_OF_RECORDS = frozenset({
    "segment-missing", "corrupt-region", "queue-missing", "index-missing", "redo-missing", "slot-missing",
    "slot-wrong-state", "queue-orphan", "index-orphan", "redo-orphan", "slot-orphan", "end-without-half",
})  # fmt: skip


class Observer(Protocol):
    """Sees in passing what a verification reads."""

    def on_records(self, records: Records) -> None:
        """Some records, in log order."""

    def on_outcomes(self, outcomes: Outcomes) -> None:
        """Some transactions, each once."""


def verify(
    path: str | os.PathLike[str],
    *,
    progress: Progress = lambda _done, _total: None,
    observers: Sequence[Observer] = (),
) -> Report:
    """Read the whole store at `path` and compare all its files; the store may be in use.

    The log is read once, in bounded memory; where a running process changed the store in a way that findings may come
    of, up to three times. `progress(done, total)` hears of bytes of the log, `observers` of its records. Raises
    NotAStore when there is nothing to verify, StoreError for files that cannot be read; whatever is wrong with a store
    that can be read is a finding.
    """

    def verify_up_to(mark: Watermark | None) -> Report:
        return Verification(StoreFiles.open(path, mark), progress, observers).run()

    return verify_by(given_path(path), Disk(), verify_up_to)


def verify_by(
    path: str, disk: Disk, verify_up_to: Callable[[Watermark | None], Report], *, tries: int = _TRIES
) -> Report:
    """Verify a store up to its watermark; once more when something moved that the watermark does not allow for.

    Retention took a segment, a rebuild exchanged the derived files, or a store at rest was opened: what was found, or
    missing, may come of that. A healthy report stands either way.
    """
    mark = read_watermark(path, disk, while_written=tries < _TRIES)
    try:
        report = verify_up_to(mark)
    except Missing:  # it was there when the files were listed
        if tries == 1:
            raise
        return verify_by(path, disk, verify_up_to, tries=tries - 1)
    if report.ok:
        return report
    begin = log_begin(path, disk)
    if mark is not None:
        drop_expired(report.findings, begin)
    has_changed = has_moved(mark, path, disk) or (mark is not None and begin != report.begin_offset)
    if len(report.findings) and has_changed and tries > 1:
        return verify_by(path, disk, verify_up_to, tries=tries - 1)
    return report


def drop_expired(findings: Findings, begin_offset: int) -> None:
    """Take back what is about records that retention removed while they were compared."""
    findings.drop(
        lambda one: one.kind in _OF_RECORDS and int(one.facts.get("half_offset", one.commitlog_offset)) < begin_offset
    )


class _Ahead(NamedTuple):
    """What the scan's thread took out of a batch; the events only where it had the time."""

    records: Records
    kinds: Kinds
    events: tuple[Rows, Rows] | None


def _decode_columns(records: Records) -> None:
    """What every comparison asks for, made in the scan's thread while the batch before is compared."""
    records.bad_crcs()
    _ = records.topic_codes
    for name in _PROPERTIES:
        records.values(name)
    _ = records.property_sums


def comparisons_of(files: StoreFiles, findings: Findings) -> Comparisons:
    """The comparisons in log order, of what the store has; the state table's needs the transactions first."""
    return Comparisons(
        QueueComparison(files.expected_queue_units, findings, open_ext=partial(queue_ext_of, files))
        if files.has_queues
        else None,
        rocksdb_comparison(files, findings),
        BatchQueueComparison(files, findings) if files.batch_topics else None,
        IndexComparison(partial(open_live_index, files), findings) if files.index else None,
        RedoLogComparison(files.redo_units(), findings) if files.has_redo_log else None,
        TimerComparison(timers, findings) if (timers := timers_of(files)) is not None else None,
    )


class Verification:
    """One verification: the scan feeds each comparison, then each reports what stayed wrong."""

    def __init__(self, files: StoreFiles, progress: Progress, observers: Sequence[Observer] = ()) -> None:
        self.files, self.findings, self._observers = files, Findings(), observers
        self.scan = Scan(
            files.compared, progress=lambda done: progress(done, files.commitlog_bytes), wants=WANTS,
            prepare=self._prepare,
        )  # fmt: skip
        self.tracker = TransactionTracker(
            files, self.findings, lambda half, end: difference(self._look(half), self._look(end))
        )
        self._ahead: dict[int, _Ahead] = {}  # by identity of the records
        self._is_comparing = False  # a batch, of which the events are known
        self._delivers = self._has_keys = False
        self.comparisons = comparisons_of(files, self.findings)
        if files.has_state_table:
            tracker = self.tracker
            self.comparisons.table = StateTableComparison(
                files.slot_units(), tracker.names, tracker.partitions, self.findings,
                is_written=files.ignore_from is not None,
            )  # fmt: skip

    def run(self) -> Report:
        """The report; call once."""
        started = time.monotonic()
        for records in self.scan:
            self._take(records)
        sums = self._sum_up()
        tracker = self.tracker
        facts = LogFacts(
            self.scan.end_offset, self.scan.damages, tracker.evidence, tracker.records, tracker.bytes,
            tracker.last_store_ms, self._delivers, self._has_keys,
        )  # fmt: skip
        return Conclusion(self.files, self.findings, facts, self.comparisons, self._look).report(sums, started)

    def _prepare(self, records: Records) -> None:
        """In the scan's thread; what it prepares is taken.

        Events are extracted in log order by the thread that has the time: here while the batch before is compared, so
        that its own are known, else by the thread that waits for this one.
        """
        _decode_columns(records)
        if fast is not None and len(records):
            kinds = Kinds(records)
            events = self.tracker.events_of(records, kinds) if self._is_comparing else None
            self._ahead[id(records)] = _Ahead(records, kinds, events)

    def _take(self, records: Records) -> None:
        ahead = self._ahead.pop(id(records), None)
        kinds = ahead.kinds if ahead else Kinds(records)
        events = (ahead.events if ahead else None) or self.tracker.events_of(records, kinds)
        self._is_comparing = True
        try:
            self._compare(records, kinds, events)
        finally:
            self._is_comparing = False

    def _compare(self, records: Records, kinds: Kinds, events: tuple[Rows, Rows]) -> None:
        file_at = self.files.commitlog_file
        self.tracker.add(records, kinds, events)
        self._delivers |= bool((kinds.types % 2 == 0).any())  # neither prepared nor rolled back
        if self.comparisons.index is None and not self._has_keys:
            self._has_keys = have_keys(records)
        for finding in (*wrong_crcs(records, self._look, file_at), *wrong_fields(records, kinds, file_at)):
            self.findings.add(finding)
        for comparison in self.comparisons.of_records():
            comparison.add(records, kinds)
        for observer in self._observers:
            observer.on_records(records)

    def _sum_up(self) -> TransactionSums:
        """Sum up every transaction, and hand those with a slot to the state table's comparison."""
        sums = TransactionSums()
        with ThreadPoolExecutor(1, thread_name_prefix="checkback-digest") as pool:
            hashed: Future[None] | None = None
            for outcomes in self.tracker.outcomes():
                if hashed is not None:
                    hashed.result()
                entries, starts = outcomes.entries(), outcomes.starts.tolist()
                hashed = pool.submit(sums.digest.add_many, entries, starts, outcomes.delivered)
                sums.count(outcomes)
                table = self.comparisons.table
                of_table = self.files.table_generation
                if table is not None and of_table in (Generation.HALF_OP, self.tracker.prepared_generation):
                    table.add(outcomes.slots(of_table))
                for observer in self._observers:
                    observer.on_outcomes(outcomes)
            if hashed is not None:
                hashed.result()
        return sums

    def _look(self, commitlog_offset: int) -> Records | None:
        return record_at(self.files.commitlog, commitlog_offset)
