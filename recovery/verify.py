"""Does a store hold what its CommitLog says? One pass over the log, every derived file compared with it, one report.

    report = verify("shop.store")
    report.ok, report.transactions, report.findings

Nothing on disk is changed, and no write permission is needed. Memory is bounded whatever the size: a window of the log,
one partition of its events (`recovery.spill`), and the findings that are listed. RocketMQ has no such tool.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from broker.format.consumequeue import Unit
from broker.format.statetable import Slot
from broker.transaction.events import (
    EventKind,
    Evidence,
    Generation,
    TransactionState,
    gap_evidence,
    generation,
    prepared_generation,
)
from recovery.digest import Digest
from recovery.extract import Kinds, Names, Redeliveries, Rows, diverted_halves, extract, extract_ops
from recovery.indexes import Index, open_index
from recovery.queues import Queues
from recovery.records import Records
from recovery.redo import RedoLog
from recovery.report import Finding, Findings, Report
from recovery.scan import Scan
from recovery.slots import StateTable
from recovery.spill import partitions_for
from recovery.store_files import StoreFiles
from recovery.transactions import Transactions, Verdicts
from recovery.units import Units
from recovery.walk import Stop, walk

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_UNIT = np.dtype(Unit.DTYPE)
_SLOT = np.dtype(Slot.DTYPE)
_STATES = {
    TransactionState.COMMITTED: "committed",
    TransactionState.ROLLED_BACK: "rolled_back",
    TransactionState.PREPARED: "in_doubt",
    TransactionState.PARKED: "parked",
}


def verify(path: str | os.PathLike[str], *, progress: Progress = lambda done, total: None) -> Report:
    """Read the whole store at `path` and compare all its files.

    Raises NotAStore or another StoreError when there is nothing to judge; whatever is wrong with a store that can be
    read is a finding.
    """
    verification = Verification(StoreFiles.open(path), progress)
    return verification.run()


@dataclass
class Totals:
    """What a scan counts as it goes."""

    records: int = 0
    bytes: int = 0
    evidence: Evidence = Evidence()
    last_prepared: int | None = None
    last_store_ms: int = 0

    def add(self, records: Records, kinds: Kinds) -> None:
        """Count a batch, and what speaks for each generation in it."""
        self.records += len(records)
        self.bytes += int(records.sizes.sum())
        self.last_store_ms = max(self.last_store_ms, int(records.field("store_timestamp_ms").max()))
        slots = records.field("queue_offset")[kinds.events == EventKind.PREPARED].tolist()
        half_op = int(np.count_nonzero((kinds.events == EventKind.HALF) | (kinds.events == EventKind.OP)))
        more = gap_evidence(slots, self.last_prepared)._replace(half_op=half_op)
        self.evidence = Evidence(*(a + b for a, b in zip(self.evidence, more, strict=True)))
        self.last_prepared = slots[-1] if slots else self.last_prepared


class Verification:
    """One verification: the scan feeds each comparison, then each says what stayed wrong."""

    def __init__(self, files: StoreFiles, progress: Progress) -> None:
        self.files, self.findings = files, Findings()
        self.scan = Scan(files.commitlog, progress=lambda done: progress(done, files.commitlog_bytes))
        self.names, self.redeliveries, self.totals = Names(), Redeliveries(), Totals()
        self.begin = files.commitlog.begin
        partitions = partitions_for(files.commitlog_bytes)
        self.transactions = Transactions(self.names, partitions, self.begin, self.findings, files.commitlog_file)
        self.queues = Queues(self._open_queue, self.findings) if files.has_queues else None
        self.index = Index(open_index(files.index, self.findings), self.findings) if files.has_index else None
        self.redo_log = RedoLog(Units(files.redo_log, _UNIT), self.findings) if files.has_redo_log else None
        table = Units(files.state_table, _SLOT)
        self.table = StateTable(table, self.names, partitions, self.findings) if files.has_state_table else None

    def run(self) -> Report:
        """The report; call once."""
        started = time.monotonic()
        for records in self.scan:
            self._take(records)
        digest, states = self._judge()
        self._finish()
        self._report_damages()
        transactions = {"total": states.total(), **{name: states[state] for state, name in _STATES.items()}}
        return Report(
            path=self.files.path,
            generation=generation(self.totals.evidence).label,
            records=self.totals.records,
            bytes=self.totals.bytes,
            transactions=transactions,
            digest=digest.hex(),
            findings=self.findings,
            begin_offset=self.begin,
            end_offset=self.scan.end_offset,
            seconds=time.monotonic() - started,
        )

    def _take(self, records: Records) -> None:
        kinds = Kinds(records)
        self.totals.add(records, kinds)
        self.transactions.add(self._events(records, kinds), extract_ops(records, kinds))
        for number in records.bad_crcs():
            self._bad_crc(records, int(number))
        for offset in diverted_halves(records, kinds).tolist():
            text = "a half message with a delay, stored in the schedule topic: no end will ever find it"
            self._add("half-diverted", offset, text)
        for derived in (self.queues, self.index, self.redo_log):
            if derived is not None:
                derived.add(records, kinds)

    def _events(self, records: Records, kinds: Kinds) -> Rows:
        return self.redeliveries.drop(extract(records, kinds, self.names))

    def _bad_crc(self, records: Records, number: int) -> None:
        """A record whose body changed; at the end of a log that lives, or was being written, it may be half there."""
        offset, size = int(records.offsets[number]), int(records.sizes[number])
        again = self._look(offset)
        if again is not None and not len(again.bad_crcs()):
            return
        text = "the body does not have the CRC that the record states"
        self._add("crc-mismatch", offset, text, size=size)

    def _judge(self) -> tuple[Digest, Counter[int]]:
        """Sum up every transaction, and hand those with a slot to the state table's comparison."""
        digest, states = Digest(), Counter[int]()
        prepared = prepared_generation(self.totals.evidence)
        for verdicts in self.transactions.judge(prepared):
            digest.add_many(verdicts.entries(), verdicts.starts.tolist(), verdicts.delivered)
            numbers, counts = np.unique(verdicts.rows["state"], return_counts=True)
            states.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
            self._to_table(verdicts, prepared)
        return digest, states

    def _to_table(self, verdicts: Verdicts, prepared: Generation) -> None:
        if self.table is not None and prepared is Generation.STATE_TABLE:
            self.table.add(verdicts.rows[verdicts.rows["generation"] == Generation.STATE_TABLE])

    def _finish(self) -> None:
        """Let each comparison say what stayed wrong; what a live broker appended since is not judged."""
        end = self.scan.end_offset
        ignore_from = end if self._look(end) is not None else None
        if self.queues is not None:
            others = [(topic, number, self._units(topic, number)) for topic, number in self.files.queues()]
            self.queues.finish(others, self.begin, ignore_from)
        if self.index is not None:
            self.index.finish(self.begin, ignore_from, self._look)
        if self.totals.evidence.state_table or self.totals.evidence.lone:
            if self.redo_log is not None:
                self.redo_log.finish(self.begin, ignore_from)
            if self.table is not None:
                self.table.finish(self.begin, ignore_from)
        self._report_missing_folders()
        for finding in self.files.damaged_small_files(self.totals.last_store_ms):
            self.findings.add(finding)

    def _report_missing_folders(self) -> None:
        """A store of nothing but a CommitLog is legal, and RocketMQ rebuilds the rest; half of the rest is not."""
        prepared = generation(self.totals.evidence)
        wanted = {"consumequeue": self.queues is None, "index": self.index is None}
        if prepared is Generation.STATE_TABLE:
            wanted |= {"transaction/statetable": self.table is None, "transaction/redolog": self.redo_log is None}
        if not self.totals.records or all(wanted.values()):
            return
        for folder, missing in wanted.items():
            if missing:
                path = os.path.join(self.files.path, folder)
                text = f"{folder} is not there: rebuild it with checkback rebuild {self.files.path} --apply"
                self.findings.add(Finding("files-missing", self.begin, text, path))

    def _report_damages(self) -> None:
        for damage in self.scan.damages:
            text = f"{damage.reason} ({damage.size} bytes)" if damage.size else damage.reason
            self.findings.add(
                Finding(damage.kind, damage.commitlog_offset, text, damage.file, {"size": damage.size})
            )
        for finding in self.files.wrong_sizes():
            self.findings.add(finding)

    def _look(self, offset: int) -> Records | None:
        """The record at an offset, read again; None when there is none."""
        segment = self.files.commitlog.at(offset)
        if segment is None:
            return None
        window = self.files.read(segment, offset - segment.base)
        step = walk(window, offset, segment.base + self.files.commitlog.segment_size)
        if step.stop is Stop.MORE and not len(step.records):
            window = self.files.read(segment, offset - segment.base, step.claims)
            step = walk(window, offset, segment.base + self.files.commitlog.segment_size)
        return step.records.take(slice(0, 1)) if len(step.records) else None

    def _open_queue(self, topic: str, queue_id: int) -> Units | None:
        return self._units(topic, queue_id) if self.files.expects_queue(topic, queue_id) else None

    def _units(self, topic: str, queue_id: int) -> Units:
        return Units(self.files.queue(topic, queue_id), _UNIT)

    def _add(self, kind: str, commitlog_offset: int, text: str, **facts: int) -> None:
        place = self.files.commitlog_file(commitlog_offset)
        self.findings.add(Finding(kind, commitlog_offset, text, place, dict(facts)))
