"""Does a store hold what its CommitLog says? One pass over the log, every derived file compared with it, one report.

    report = verify("shop.store")
    report.ok, report.transactions, report.findings

Nothing on disk is changed, and no write permission is needed. Memory is bounded whatever the size: a window of the log,
one partition of its events (`recovery.scan.spill`), and the findings that are listed. RocketMQ has no such tool.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from broker.format import properties as names
from broker.format.consumequeue import Unit
from broker.format.statetable import Slot
from broker.store.disk.locks import is_held
from broker.store.read.segments import Listing
from broker.transaction.events import Generation, TransactionState
from recovery.findings import Finding, Findings, Report
from recovery.scan.framing import Stop, walk
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.scanner import Scan
from recovery.scan.spill import pick
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import UnitFile
from recovery.transactions.digest import Digest
from recovery.transactions.events import diverted_halves
from recovery.transactions.fingerprint import difference
from recovery.transactions.outcomes import Outcomes
from recovery.transactions.tracker import TransactionTracker
from recovery.verify.consume_queues import QueueComparison
from recovery.verify.field_checks import implausible
from recovery.verify.index import IndexComparison, IndexFileView, open_index
from recovery.verify.live_writes import LAG_MS, Unfinished
from recovery.verify.redo_log import RedoLogComparison
from recovery.verify.state_table import StateTableComparison

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_UNIT = np.dtype(Unit.DTYPE)
_SLOT = np.dtype(Slot.DTYPE)
_LOOK_BYTES = 1 << 16
_PROPERTIES = (names.KEYS, names.TAGS, names.PGROUP, names.UNIQ_KEY)
_STATES = {
    TransactionState.COMMITTED: "committed",
    TransactionState.ROLLED_BACK: "rolled_back",
    TransactionState.PREPARED: "in_doubt",
    TransactionState.PARKED: "parked",
}


def verify(path: str | os.PathLike[str], *, progress: Progress = lambda _done, _total: None) -> Report:
    """Read the whole store at `path` and compare all its files.

    Raises NotAStore or another StoreError when there is nothing to judge; whatever is wrong with a store that can be
    read is a finding.
    """
    verification = Verification(StoreFiles.open(path), progress)
    return verification.run()


def _prepare(records: Records) -> None:
    """What every comparison asks for, made in the scan's thread while the batch before is compared."""
    records.bad_crcs()
    _ = records.topic_codes
    for name in _PROPERTIES:
        records.values(name)
    _ = records.property_sums


class Verification:
    """One verification: the scan feeds each comparison, then each says what stayed wrong."""

    def __init__(self, files: StoreFiles, progress: Progress) -> None:
        self.files, self.findings = files, Findings()
        self.scan = Scan(files.commitlog, progress=lambda done: progress(done, files.commitlog_bytes), prepare=_prepare)
        self.begin, self.delivers, self.has_keys = files.commitlog.begin, False, False
        self.tracker = TransactionTracker(files, self.findings)
        self.tracker.compare_copies(lambda half, end: difference(self._look(half), self._look(end)))
        self.queues = (
            QueueComparison(self._open_queue, self.findings, has_ext=files.has_queue_ext) if files.has_queues else None
        )
        self.index = IndexComparison(self._open_index, self.findings) if files.index else None
        self.redo_log = (
            RedoLogComparison(UnitFile(files.redo_log, _UNIT), self.findings) if files.has_redo_log else None
        )
        self.table: StateTableComparison | None = None
        if files.has_state_table:
            table, groups = UnitFile(files.state_table, _SLOT), self.tracker.names
            self.table = StateTableComparison(table, groups, self.tracker.partitions, self.findings)

    def run(self) -> Report:
        """The report; call once."""
        started = time.monotonic()
        for records in self.scan:
            self._take(records)
        digest, states = self._judge()
        self._finish()
        self._report_damages()
        live = self._is_live()
        if live:
            known = [file.path for file in self.files.index]
            growing = {*known[-1:], *(file.path for file in self.files.index_now() if file.path not in known)}
            growing.add(self.files.checkpoint)
            recent_ms = min(self.files.opened_ms, self.tracker.last_store_ms) - LAG_MS
            Unfinished(self.scan.end_offset, recent_ms, frozenset(growing), self._look).take_back(self.findings)
        transactions = {"total": states.total(), **{name: states[state] for state, name in _STATES.items()}}
        return Report(
            path=self.files.path,
            generation=self.tracker.generation.label,
            records=self.tracker.records,
            bytes=self.tracker.bytes,
            transactions=transactions,
            digest=digest.hex(),
            findings=self.findings,
            begin_offset=self.begin,
            end_offset=self.scan.end_offset,
            seconds=time.monotonic() - started,
            live=live,
        )

    def _take(self, records: Records) -> None:
        kinds = Kinds(records)
        self.tracker.add(records, kinds)
        self.delivers |= bool((kinds.types % 2 == 0).any())  # neither prepared nor rolled back
        if self.index is None and not self.has_keys:
            self.has_keys = any(bool(records.values(name).lengths.any()) for name in (names.KEYS, names.UNIQ_KEY))
        for number, text in implausible(records, kinds):
            self._add("record-implausible", int(records.offsets[number]), text)
        for number in records.bad_crcs():
            self._bad_crc(records, int(number))
        for offset in diverted_halves(records, kinds).tolist():
            text = "a half message with a delay, stored in the schedule topic: no end will ever find it"
            self._add("half-diverted", offset, text)
        for derived in (self.queues, self.index, self.redo_log):
            if derived is not None:
                derived.add(records, kinds)

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
        with ThreadPoolExecutor(1, thread_name_prefix="checkback-digest") as pool:
            hashed: Future[None] | None = None
            for outcomes in self.tracker.outcomes():
                if hashed is not None:
                    hashed.result()
                entries, starts = outcomes.entries(), outcomes.starts.tolist()
                hashed = pool.submit(digest.add_many, entries, starts, outcomes.delivered)
                numbers, counts = np.unique(outcomes.rows["state"], return_counts=True)
                states.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
                self._to_table(outcomes)
            if hashed is not None:
                hashed.result()
        return digest, states

    def _to_table(self, outcomes: Outcomes) -> None:
        if self.table is not None and self.tracker.prepared_generation is Generation.STATE_TABLE:
            self.table.add(pick(outcomes.rows, outcomes.rows["generation"] == Generation.STATE_TABLE))

    def _is_live(self) -> bool:
        """Whether a broker is or was at work: it has the lock (5.x), or had it, or the log has grown since the scan."""
        if self.files.was_held or is_held(self.files.lock):
            return True
        end, now = self.scan.end_offset, self.files.commitlog_now()
        later = [segment.base for segment in now.segments if segment.base > end]
        return any(self._look(at, now) is not None for at in (end, *later[:1]))

    def _finish(self) -> None:
        """Let each comparison say what stayed wrong; what a live broker appended since is not judged."""
        ignore_from = self.scan.end_offset if self._is_live() else None
        if self.queues is not None:
            others = [(topic, number, self._units(topic, number)) for topic, number in self.files.queues()]
            self.queues.finish(others, self.begin, ignore_from)
        if self.index is not None:
            self.index.finish(self.begin, ignore_from, self._look)
        if self.tracker.evidence.lone:
            if self.redo_log is not None:
                self.redo_log.finish(self.begin, ignore_from)
            if self.table is not None:
                self.table.finish(self.begin, ignore_from)
        self._report_missing_folders()
        for finding in self.files.damaged_small_files(self.tracker.last_store_ms):
            self.findings.add(finding)

    def _report_missing_folders(self) -> None:
        """A store of nothing but a CommitLog is legal, and RocketMQ rebuilds the rest; half of the rest is not."""
        derived = (self.queues, self.index, self.table, self.redo_log)
        if not self.tracker.records or all(part is None for part in derived):
            return
        wanted = {"consumequeue": self.queues is None and self.delivers}
        if self.tracker.generation is Generation.STATE_TABLE:
            wanted |= {"transaction/statetable": self.table is None, "transaction/redolog": self.redo_log is None}
        for folder, missing in wanted.items():
            if missing:
                path = os.path.join(self.files.path, folder)
                text = f"{folder} is not there: a broker that starts with an empty file abort builds it"
                self.findings.add(Finding("files-missing", self.begin, text, path))
        if self.index is None and self.has_keys and not self.files.index_now():
            text = "there is no index: no query by key finds anything. That is right where messageIndexEnable=false"
            text += "; any other broker builds it when it starts with an empty file abort"
            self.findings.add(Finding("files-missing", self.begin, text, os.path.join(self.files.path, "index")))

    def _report_damages(self) -> None:
        for damage in self.scan.damages:
            text = f"{damage.reason} ({damage.size} bytes)" if damage.size else damage.reason
            self.findings.add(Finding(damage.kind, damage.commitlog_offset, text, damage.file, {"size": damage.size}))
        for finding in self.files.wrong_sizes():
            self.findings.add(finding)

    def _look(self, commitlog_offset: int, listing: Listing | None = None) -> Records | None:
        """The record at an offset, read again; None when there is none."""
        listing = listing or self.files.commitlog
        segment = listing.at(commitlog_offset)
        if segment is None:
            return None
        window = self.files.read(segment, commitlog_offset - segment.base, _LOOK_BYTES)
        step = walk(window, commitlog_offset, segment.base + self.files.commitlog.segment_size)
        if step.stop is Stop.MORE and not len(step.records):
            window = self.files.read(segment, commitlog_offset - segment.base, step.claims)
            step = walk(window, commitlog_offset, segment.base + self.files.commitlog.segment_size)
        return step.records.take(slice(0, 1)) if len(step.records) else None

    def _open_index(self, findings: Findings) -> list[IndexFileView]:
        return open_index(self.files.index_now(), findings)

    def _open_queue(self, topic: str, queue_id: int) -> UnitFile | None:
        return self._units(topic, queue_id) if self.files.expects_queue(topic, queue_id) else None

    def _units(self, topic: str, queue_id: int) -> UnitFile:
        return UnitFile(self.files.queue(topic, queue_id), _UNIT)

    def _add(self, kind: str, commitlog_offset: int, text: str, **facts: int) -> None:
        place = self.files.commitlog_file(commitlog_offset)
        self.findings.add(Finding(kind, commitlog_offset, text, place, dict(facts)))
