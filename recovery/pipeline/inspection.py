"""One task over one split: read it once, take its events out, and compare what can be compared there.

The events go to the tasks that join them; everything else is a `SplitSummary`, which is small while all goes well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from broker.format import properties as names
from broker.transaction.events import BY, EventKind, GenerationEvidence
from recovery.findings import Finding, Findings
from recovery.pipeline.blocks import (
    EVENTS,
    KEYED,
    NAMED,
    STRINGS,
    SUMMARY,
    Block,
    NumberedNames,
    by_half,
    by_key,
    by_place,
    dealt,
)
from recovery.pipeline.split_builder import EntryCounts, RebuildPlan, SplitBuilder
from recovery.pipeline.split_comparison import DerivedRange, SplitComparison, SplitDifferences
from recovery.pipeline.splits import Reading, Split
from recovery.pipeline.store_location import LogManifest
from recovery.scan.kinds import Kinds
from recovery.scan.native.columns import Wants
from recovery.scan.record_at import record_at
from recovery.scan.records import Records
from recovery.scan.scanner import Damage
from recovery.scan.spill import joined, pick
from recovery.transactions.events import EVENT, OP, Rows, extract, extract_ops, named_numbers, with_events
from recovery.transactions.fingerprint import fingerprints
from recovery.verify.record_checks import WANTS, wrong_crcs, wrong_fields


@dataclass
class SplitSummary:
    """What a split says besides its events."""

    split: Split
    first: int | None = None  # the CommitLog offset of its first record
    end_offset: int | None = None
    records: int = 0
    bytes: int = 0
    last_store_ms: int = 0
    delivers: bool = False
    evidence: GenerationEvidence = field(default_factory=GenerationEvidence)
    first_slot: int | None = None  # of its prepared records
    last_slot: int | None = None
    least_half: dict[int, int] = field(default_factory=dict)  # the least queue offset of a half, by queue
    damages: list[Damage] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    compared: SplitDifferences | None = None
    made: EntryCounts | None = None


@dataclass(frozen=True)
class InspectionTask:
    """What every split of a job is asked."""

    log: LogManifest
    partitions: int
    crc: bool = True
    strings: bool = False  # whether somebody wants to see keys
    compare: bool = False  # whether the derived files are looked at
    cuts: tuple[DerivedRange, ...] = ()
    rebuild_plan: RebuildPlan | None = None  # whether derived files are made


def _wants_of(task: InspectionTask) -> Wants:
    """What the tasks need of each record."""
    return replace(WANTS, crc=task.crc, properties=(*WANTS.properties, *((BY,) if task.strings else ())))


class Inspection:
    """One split; iterate, then take the blocks."""

    def __init__(self, task: InspectionTask, split: Split) -> None:
        task.log.check_seen()
        self._task, self._log = task, task.log
        self.summary = SplitSummary(split)
        self._reading = Reading(task.log, split, _wants_of(task))
        self._names = NumberedNames()
        self._events: list[Rows] = []
        self._ops: list[Rows] = []
        self._strings: list[pa.Table] = []
        self._listing = task.log.listing()
        self._comparing: SplitComparison | None = None
        if task.compare:
            self._comparing = SplitComparison(task.log, task.cuts[split.number], split, self.summary.findings)
        self._builder = SplitBuilder(task.rebuild_plan) if task.rebuild_plan is not None else None

    @property
    def is_expired(self) -> bool:
        """Whether the segment was removed before it was read."""
        return self._reading.is_expired

    def run(self) -> Iterator[tuple[str, int, Any]]:
        """Read the split; yields its blocks, then its summary."""
        summary = self.summary
        for records in self._reading:
            self._take(records)
        summary.first, summary.end_offset = self._reading.first, self._reading.end_offset
        summary.damages = self._reading.damages
        if self._comparing is not None:
            summary.compared = self._comparing.differences()
        if self._builder is not None:
            summary.made = self._builder.counts()
            yield from self._builder.blocks(summary.split.number)
        yield from self._blocks()
        yield SUMMARY, 0, summary

    def _take(self, records: Records) -> None:
        kinds, summary = Kinds(records), self.summary
        summary.records += len(records)
        summary.bytes += int(records.sizes.sum())
        summary.last_store_ms = max(summary.last_store_ms, int(records.field("store_timestamp_ms").max(initial=0)))
        self._take_events(records, kinds)
        self._take_evidence(records, kinds)
        self._check(records, kinds)
        if self._builder is not None:
            self._builder.add(records, kinds)

    def _take_events(self, records: Records, kinds: Kinds) -> None:
        rows = extract(records, kinds, self._names)
        if len(rows):
            part = records.take(with_events(kinds))
            rows["copy"] = fingerprints(part, rows["kind"])
            self._events.append(rows)
            if self._task.strings:
                self._take_strings(part, rows)
        ops = extract_ops(records, kinds)
        if len(ops):
            self._ops.append(ops)

    def _take_strings(self, part: Records, rows: Rows) -> None:
        halves = np.isin(rows["kind"], [EventKind.PREPARED, EventKind.HALF])
        names_decider = np.asarray(part.property(BY).is_valid())
        which = part.take(np.flatnonzero(halves | names_decider))
        columns = [which.property(name) for name in (names.UNIQ_KEY, names.KEYS, BY)]
        self._strings.append(pa.Table.from_arrays([pa.array(which.offsets), *columns], schema=STRINGS))

    def _take_evidence(self, records: Records, kinds: Kinds) -> None:
        """What speaks for each generation; what one split's last slot and the next one's first say is added later."""
        summary = self.summary
        slots = records.field("queue_offset")[kinds.events == EventKind.PREPARED]
        half_op = int(np.count_nonzero((kinds.events == EventKind.HALF) | (kinds.events == EventKind.OP)))
        gap = state_table = 0
        if len(slots):
            state_table = int((slots > 0).sum())
            before = slots[:1] * 0 + (summary.last_slot if summary.last_slot is not None else -1)
            gap = int(((slots == 0) & (np.concatenate((before, slots[:-1])) == 0)).sum())
            summary.first_slot = int(slots[0]) if summary.first_slot is None else summary.first_slot
            summary.last_slot = int(slots[-1])
        more = GenerationEvidence(state_table, gap, len(slots), half_op)
        summary.evidence = GenerationEvidence(*(a + b for a, b in zip(summary.evidence, more, strict=True)))

    def _check(self, records: Records, kinds: Kinds) -> None:
        file_at, summary = self._log.file_at, self.summary
        findings: list[Finding] = []
        if self._task.crc:
            findings += wrong_crcs(records, partial(record_at, self._listing), file_at)
        if self._comparing is not None:
            summary.delivers |= bool((kinds.types % 2 == 0).any())
            findings += wrong_fields(records, kinds, file_at)
            self._comparing.add(records, kinds)
        for finding in findings:
            summary.findings.add(finding)

    def _blocks(self) -> Iterator[tuple[str, int, Any]]:
        count, raw = self._task.partitions, self._names.raw()
        rows, ops = joined(self._events, EVENT), joined(self._ops, OP)
        strings = pa.concat_tables(self._strings) if self._strings else None
        halves = pick(rows, rows["kind"] == EventKind.HALF)
        for queue_id in np.unique(halves["queue_id"]).tolist():
            least = int(named_numbers(halves)[halves["queue_id"] == queue_id].min())
            self.summary.least_half[queue_id] = least
        by_unique_key = (rows["kind"] == EventKind.PARKED) & (rows["half"] < 0)
        parked, rows = pick(rows, by_unique_key), pick(rows, ~by_unique_key)
        for part, some, _ in dealt(parked, by_key(parked, count)):
            yield KEYED, part, Block(raw, some)
        for part, some, _ in dealt(rows, by_half(rows, count)):
            yield EVENTS, part, Block(raw, some, None if strings is None else strings_of(strings, some["offset"]))
        for part, some, _ in dealt(ops, by_place(ops, count)):
            yield NAMED, part, some


def strings_of(strings: pa.Table, commitlog_offsets: Any) -> pa.Table:
    """The strings of the records at some offsets, where they have any."""
    held = strings.column("offset").to_numpy()
    return strings.filter(pa.array(np.isin(held, commitlog_offsets)))
