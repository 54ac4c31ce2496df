"""The end of a verification: what the pass over the log collected, and the comparisons, become one report.

The local engine calls this with what it read itself; the pipeline with what its splits and partitions handed over.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from broker.errors import CorruptStore
from broker.transaction.events import Generation, GenerationEvidence, generation
from recovery.findings import Finding, Findings, Report
from recovery.scan.records import Records
from recovery.scan.scanner import Damage
from recovery.scan.store_files import StoreFiles, breaks_off
from recovery.scan.windows import WINDOW_BYTES
from recovery.transactions.digest import Digest
from recovery.transactions.outcomes import STATE_NAMES, Outcomes
from recovery.verify.causes.roots import Roots, roots_of
from recovery.verify.comparison import Comparison, FinishContext
from recovery.verify.consume_queues import QueueComparison
from recovery.verify.index import IndexComparison
from recovery.verify.kinds.batch_queues import BatchQueueComparison
from recovery.verify.kinds.not_judged import not_judged
from recovery.verify.kinds.queue_lives import take_back_earlier_lives
from recovery.verify.kinds.rocksdb_queues import rocksdb_fault
from recovery.verify.kinds.timers import TimerComparison
from recovery.verify.later_ends import later_ends
from recovery.verify.live_writes import LAG_MS, Unfinished, is_live
from recovery.verify.redo_log import RedoLogComparison
from recovery.verify.state_table import StateTableComparison

_STALE_BYTES = 8  # fewer may stand anywhere
_OF_LATER = frozenset({"queue-orphan", "index-orphan", "redo-orphan"})


@dataclass
class LogFacts:
    """What the pass over the log collected."""

    end_offset: int
    damages: list[Damage]
    evidence: GenerationEvidence
    records: int = 0
    bytes: int = 0
    last_store_ms: int = 0
    delivers: bool = False  # whether any record is neither prepared nor rolled back
    has_keys: bool = False  # whether any record has a key; looked for only where there is no index


@dataclass
class Comparisons:
    """One for each kind of derived file that is there."""

    queues: QueueComparison | None = None
    rocksdb_queues: QueueComparison | None = None
    batch_queues: BatchQueueComparison | None = None
    index: IndexComparison | None = None
    redo_log: RedoLogComparison | None = None
    timers: TimerComparison | None = None
    table: StateTableComparison | None = None

    def of_records(self) -> Iterator[Comparison]:
        """Those that take the records of the log; the state table's takes outcomes."""
        every = (self.queues, self.rocksdb_queues, self.batch_queues, self.index, self.timers, self.redo_log)
        return (one for one in every if one is not None)


@dataclass
class TransactionSums:
    """The digest of all transactions, and how many are in each state."""

    digest: Digest = field(default_factory=Digest)
    states: Counter[int] = field(default_factory=Counter)

    def count(self, outcomes: Outcomes) -> None:
        """Count some transactions by state; the digest is summed elsewhere, in a thread of its own."""
        numbers, counts = np.unique(outcomes.rows["state"], return_counts=True)
        self.states.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))


@dataclass
class Conclusion:
    """Finishes the comparisons and writes the report; use once."""

    files: StoreFiles
    findings: Findings
    log: LogFacts
    comparisons: Comparisons
    look: Callable[[int], Records | None]

    def report(self, sums: TransactionSums, started: float) -> Report:
        """Let each comparison report, drop what a live broker explains, and sum up."""
        live = is_live(self.files, self.log.end_offset)
        roots = self._explain(live)
        self._finish()
        earlier = take_back_earlier_lives(self.findings, self.files)
        self._report_damages()
        live = live or is_live(self.files, self.log.end_offset)
        if live and self.files.watermark is None:
            self._drop_unfinished()
        states = {name: sums.states[state] for state, name in STATE_NAMES.items()}
        return Report(
            path=self.files.path,
            generation=generation(self.log.evidence).label,
            records=self.log.records,
            bytes=self.log.bytes,
            transactions={"total": sums.states.total(), **states},
            digest=sums.digest.hex(),
            findings=self.findings,
            begin_offset=self.files.commitlog.begin,
            end_offset=self.log.end_offset,
            seconds=time.monotonic() - started,
            live=live,
            not_judged=(*not_judged(self.files), *earlier),
            causes=roots.causes(),
        )

    def _explain(self, live: bool) -> Roots:
        """From now on, count findings with their causes."""
        log = self.log
        roots = roots_of(self.files, log.damages, log.end_offset, log.last_store_ms, self.look, is_live=live)
        self.findings.explain(roots.cause_of)
        return roots

    def _finish(self) -> None:
        """Let each comparison report what stayed wrong; what a live broker appended since is not compared."""
        parts, files = self.comparisons, self.files
        ignore_from = files.ignore_from
        if files.watermark is None and is_live(self.files, self.log.end_offset):
            ignore_from = self.log.end_offset
        context = FinishContext(
            files.commitlog.begin,
            ignore_from,
            self.look,
            tuple((topic, number, files.queue_units(topic, number)) for topic, number in files.queues()),
            partial(later_ends, files),
        )
        for comparison in parts.of_records():
            if comparison is not parts.redo_log or self.log.evidence.lone:
                comparison.finish(context)
        is_half_op = files.table_generation is Generation.HALF_OP
        if parts.table is not None and (self.log.evidence.half_op if is_half_op else self.log.evidence.lone):
            parts.table.finish(context)
        self.findings.drop(self._is_under_way)
        self._add(self._missing_directories())
        if isinstance(fault := rocksdb_fault(self.files), CorruptStore):
            self.findings.add(Finding("file-damaged", 0, str(fault), self.files.rocksdb or ""))
        self._add(self.files.damaged_small_files(self.log.last_store_ms, self._stored_ms))

    def _stored_ms(self, commitlog_offset: int) -> int | None:
        """The store time of the record that begins at an offset; None where none does."""
        record = self.look(commitlog_offset)
        return None if record is None else int(record.field("store_timestamp_ms")[0])

    def _is_under_way(self, finding: Finding) -> bool:
        """Whether a delivery is the last record that is verified: its op message, stored with it, comes after."""
        stop = self.files.ignore_from
        if stop is None or finding.kind != "committed-without-op":
            return False
        last = self.look(int(finding.facts["delivered_offset"]))
        return last is not None and int(last.offsets[0] + last.sizes[0]) == stop

    def _missing_directories(self) -> Iterable[Finding]:
        """A store of nothing but a CommitLog is legal, and RocketMQ rebuilds the rest; half of the rest is not."""
        parts, begin = self.comparisons, self.files.commitlog.begin
        derived = (parts.queues, parts.index, parts.table, parts.redo_log)
        if not self.log.records or all(part is None for part in derived):
            return
        wanted = {"consumequeue": parts.queues is None and self.log.delivers}
        if self.files.table_generation is Generation.HALF_OP:
            wanted[os.path.relpath(self.files.table, self.files.path)] = parts.table is None
        elif generation(self.log.evidence) is Generation.STATE_TABLE:
            wanted |= {"transaction/statetable": parts.table is None, "transaction/redolog": parts.redo_log is None}
        for directory, missing in wanted.items():
            if missing:
                path = os.path.join(self.files.path, directory)
                text = f"{directory} is not there, though the log holds records for it"
                yield Finding("files-missing", begin, text, path)
        if parts.index is None and self.log.has_keys and not self.files.index_now():
            text = "there is no index: no query by key finds anything. That is right where messageIndexEnable=false, "
            text += "and where 5.5 keeps it in a RocksDB (indexFileWriteEnable=false)"
            yield Finding("files-missing", begin, text, os.path.join(self.files.path, "index"))

    def _report_damages(self) -> None:
        for damage in self._damages():
            text = f"{damage.reason} ({damage.size} bytes)" if damage.size else damage.reason
            self.findings.add(Finding(damage.kind, damage.commitlog_offset, text, damage.file, {"size": damage.size}))
        self._add(self.files.wrong_sizes())

    def _damages(self) -> list[Damage]:
        """What is wrong with the log; where it breaks off below what was published, its end is not just torn."""
        found, mark = self.log.damages, self.files.watermark
        if mark is None and self._ended_cleanly():
            found = [one for one in found if one.kind != "torn-tail" or not self._is_stale(one)]
        at = breaks_off(self.files, self.log.end_offset)
        if mark is None or at is None:
            return found
        if any(one.commitlog_offset <= at < one.commitlog_offset + one.size for one in found
               if one.kind != "torn-tail"):  # fmt: skip
            return found
        stop = mark.dispatched
        kept = [one for one in found if one.kind != "torn-tail" or one.commitlog_offset >= stop]
        reason = f"no record begins here, and the log was published up to {stop}"
        return [*kept, Damage("corrupt-region", at, stop - at, reason, self.files.commitlog_file(at))]

    def _ended_cleanly(self) -> bool:
        """Whether a broker closed the store behind the last record: bytes after it are of an older write.

        Its checkpoint is of that record then, and no unit or item names a place behind it.
        RocketMQ: DefaultMappedFile.appendMessagesInner with writeWithoutMmap (5.5.0).
        """
        behind = any(one.kind in _OF_LATER and one.commitlog_offset >= self.log.end_offset for one in self.findings)
        return not behind and self.files.closed_at_ms() == self.log.last_store_ms

    def _is_stale(self, damage: Damage) -> bool:
        """Whether bytes behind the last record repeat what an earlier record has: a buffer was written as a whole."""
        segment = self.files.commitlog.at(damage.commitlog_offset)
        if segment is None or damage.size < _STALE_BYTES:
            return False
        at = damage.commitlog_offset - segment.base
        first = max(0, at - WINDOW_BYTES)
        stale = self.files.read(segment, at, min(damage.size, 2 * _STALE_BYTES)).tobytes()
        if len(stale) - stale.count(0) < _STALE_BYTES:
            return False
        return stale in self.files.read(segment, first, at - first).tobytes()

    def _drop_unfinished(self) -> None:
        known = [file.path for file in self.files.index]
        growing = {*known[-1:], *(file.path for file in self.files.index_now() if file.path not in known)}
        growing.add(self.files.checkpoint)
        recent_ms = min(self.files.opened_ms, self.log.last_store_ms) - LAG_MS
        Unfinished(self.log.end_offset, recent_ms, frozenset(growing), self.look).take_back(self.findings)

    def _add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.findings.add(finding)
