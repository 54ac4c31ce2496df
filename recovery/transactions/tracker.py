"""How the transactions of a CommitLog stand, from its records alone: without a comparison of other files.

As in:

    tracker = TransactionTracker(files)
    for records in scan:
        tracker.add(records)
    for outcomes in tracker.outcomes(): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from broker.transaction.events import (
    EventKind,
    Generation,
    GenerationEvidence,
    gap_evidence,
    generation,
    prepared_generation,
)
from recovery.findings import Findings
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.spill import partitions_for
from recovery.scan.store_files import StoreFiles
from recovery.transactions.events import EVENT, OP, Names, Redeliveries, Rows, extract, extract_ops, with_events
from recovery.transactions.fingerprint import fingerprints
from recovery.transactions.outcomes import Outcomes, Transactions


class EventStream:
    """Takes the records of a scan in log order: what they say about transactions, and of which generation that is."""

    def __init__(self, last_prepared: int | None = None, redeliveries: Redeliveries | None = None) -> None:
        """`last_prepared` is the slot of the last prepared record before these; `redeliveries` knows the one at 0."""
        self.names, self.evidence = Names(), GenerationEvidence()
        self._last_prepared, self._redeliveries = last_prepared, redeliveries or Redeliveries()

    @staticmethod
    def nothing() -> tuple[Rows, Rows]:
        """What a stretch without records says."""
        return np.zeros(0, EVENT), np.zeros(0, OP)

    def take(self, records: Records, kinds: Kinds) -> tuple[Rows, Rows]:
        """Their events, and what their op messages name."""
        rows = extract(records, kinds, self.names)
        if len(rows):
            rows["copy"] = fingerprints(records.take(with_events(kinds)), rows["kind"])
        slots = records.field("queue_offset")[kinds.events == EventKind.PREPARED].tolist()
        half_op = int(np.count_nonzero((kinds.events == EventKind.HALF) | (kinds.events == EventKind.OP)))
        more = _evidence(slots, self._last_prepared)._replace(half_op=half_op)
        self.evidence = GenerationEvidence(*(a + b for a, b in zip(self.evidence, more, strict=True)))
        self._last_prepared = slots[-1] if slots else self._last_prepared
        return self._redeliveries.drop(rows), extract_ops(records, kinds)


class TransactionTracker:
    """Takes the records of a scan in log order, and says after it how their transactions stand.

    `differ` reads a half and its end by their offsets and says where they differ; without it ends are not compared.
    """

    def __init__(
        self,
        files: StoreFiles,
        findings: Findings | None = None,
        differ: Callable[[int, int], str] = lambda _half, _end: "",
    ) -> None:
        self.records = 0
        self.bytes = 0
        self.last_store_ms = 0
        self.findings = Findings() if findings is None else findings  # what contradicts itself among the transactions
        self.partitions = partitions_for(files.commitlog_bytes)
        self._stream = EventStream()
        begin, place = files.commitlog.begin, files.commitlog_file
        self._transactions = Transactions(self.partitions, begin, self.findings, place, differ)

    @property
    def names(self) -> Names:
        """The groups and topics behind the numbers in rows."""
        return self._stream.names

    @property
    def evidence(self) -> GenerationEvidence:
        """What speaks for each generation; who took the records elsewhere may set it."""
        return self._stream.evidence

    @evidence.setter
    def evidence(self, evidence: GenerationEvidence) -> None:
        self._stream.evidence = evidence

    @property
    def generation(self) -> Generation:
        """How this store says what became of its transactions, as far as its records were taken."""
        return generation(self.evidence)

    def events_of(self, records: Records, kinds: Kinds) -> tuple[Rows, Rows]:
        """What some records say, for `add`: each batch once, in log order, in whatever thread."""
        return self._stream.take(records, kinds)

    def add(self, records: Records, kinds: Kinds | None = None, events: tuple[Rows, Rows] | None = None) -> None:
        """Take some records, with their kinds and events where they are known already."""
        kinds = kinds or Kinds(records)
        self.records += len(records)
        self.bytes += int(records.sizes.sum())
        self.last_store_ms = max(self.last_store_ms, int(records.field("store_timestamp_ms").max(initial=0)))
        self._transactions.add(*(events or self._stream.take(records, kinds)))

    @property
    def prepared_generation(self) -> Generation:
        """Which generation the prepared records belong to."""
        return prepared_generation(self.evidence)

    def outcomes(self) -> Iterator[Outcomes]:
        """Every transaction once; call when all records were taken."""
        return self._transactions.outcomes(self.prepared_generation)

    def close(self) -> None:
        """Remove temporary files."""
        self._transactions.close()


def _evidence(slots: list[int], previous: int | None) -> GenerationEvidence:
    """What the slots of prepared records say; the usual run of successive ones needs no look at each."""
    if previous is not None and slots and slots == list(range(previous + 1, previous + 1 + len(slots))):
        return GenerationEvidence(state_table=len(slots), lone=len(slots))
    return gap_evidence(slots, previous)
