"""The figures of a report: what a verification sees in passing, summed up by time, topic and state.

    figures = survey("shop.store", now_ms)
    figures.report.ok, figures.topics, figures.transactions

One pass over the log, in bounded memory: times are counted in buckets, which become wider while there are too many.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.transaction.events import TransactionState
from recovery.findings import Report
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles
from recovery.transactions.outcomes import Outcomes
from recovery.verify.verifier import Progress, Verification

STATES = {
    TransactionState.COMMITTED: "committed",
    TransactionState.ROLLED_BACK: "rolled back",
    TransactionState.PREPARED: "in doubt",
    TransactionState.PARKED: "parked",
}
AGES_MS = (
    ("under a minute", 60_000),
    ("to 10 minutes", 600_000),
    ("to an hour", 3_600_000),
    ("to 6 hours", 21_600_000),
    ("to a day", 86_400_000),
    ("to a week", 604_800_000),
    ("over a week", 1 << 62),
)
CHECKS_MAX = 15  # RocketMQ: BrokerConfig.transactionCheckMax (5.3.3)
_WIDTHS_MS = tuple(
    1000 * seconds for seconds in (1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400, 604_800, 2_592_000, 31_536_000)
)
_BUCKETS_MAX = 20_000


class TimeSums:
    """Sums of several columns by time; a bucket grows wider while there are too many."""

    def __init__(self, columns: int) -> None:
        self.width_ms = _WIDTHS_MS[0]
        self._columns = columns
        self._sums: dict[int, npt.NDArray[np.int64]] = {}

    def add(self, times_ms: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> None:
        """Add a row of values for each time."""
        if not len(times_ms):
            return
        buckets, which = np.unique(times_ms // self.width_ms, return_inverse=True)
        sums = np.zeros((len(buckets), self._columns), np.int64)
        np.add.at(sums, which.reshape(-1), values)
        for bucket, row in zip(buckets.tolist(), sums, strict=True):
            held = self._sums.get(bucket)
            self._sums[bucket] = row if held is None else held + row
        while len(self._sums) > _BUCKETS_MAX and self.width_ms < _WIDTHS_MS[-1]:
            self._widen(_WIDTHS_MS[_WIDTHS_MS.index(self.width_ms) + 1])

    def _widen(self, width_ms: int) -> None:
        wider: dict[int, npt.NDArray[np.int64]] = {}
        for bucket, row in self._sums.items():
            to = bucket * self.width_ms // width_ms
            wider[to] = wider[to] + row if to in wider else row
        self._sums, self.width_ms = wider, width_ms

    def series(self, most: int) -> tuple[int, int, npt.NDArray[np.int64]]:
        """When the first bucket begins (ms), how wide each is (ms), and the sums of at most so many, gaps as zeros."""
        if not self._sums:
            return 0, self.width_ms, np.zeros((0, self._columns), np.int64)
        while max(self._sums) - min(self._sums) >= most and self.width_ms < _WIDTHS_MS[-1]:
            self._widen(_WIDTHS_MS[_WIDTHS_MS.index(self.width_ms) + 1])
        first = min(self._sums)
        rows = np.zeros((min(max(self._sums) - first + 1, most), self._columns), np.int64)
        for bucket, row in self._sums.items():
            rows[min(bucket - first, most - 1)] += row
        return first * self.width_ms, self.width_ms, rows


@dataclass
class Figures:
    """What the page shows."""

    report: Report
    now_ms: int
    traffic: TimeSums = field(default_factory=lambda: TimeSums(2))  # records, bytes
    transactions: TimeSums = field(default_factory=lambda: TimeSums(len(STATES)))  # by the half message's time
    ages: Counter[str] = field(default_factory=Counter)  # of those in doubt
    checks: Counter[int] = field(default_factory=Counter)
    topics: Counter[str] = field(default_factory=Counter)  # bytes
    topic_records: Counter[str] = field(default_factory=Counter)


def survey(path: str | os.PathLike[str], now_ms: int, progress: Progress | None = None) -> Figures:
    """Verify a store, and sum up what is seen. Raises NotAStore."""
    survey = _Survey(StoreFiles.open(path), progress or (lambda _done, _total: None), now_ms)
    return survey.figures()


class _Survey(Verification):
    """A verification that counts in passing."""

    def __init__(self, files: StoreFiles, progress: Progress, now_ms: int) -> None:
        super().__init__(files, progress)
        self._now_ms = now_ms
        self._sums: Any = Figures(None, now_ms)  # type: ignore[arg-type] # the report comes last

    def figures(self) -> Figures:
        """The figures; call once."""
        report = self.run()
        self._sums.report = report
        figures: Figures = self._sums
        return figures

    def _take(self, records: Records) -> None:
        super()._take(records)
        sizes = records.sizes
        times_ms = records.field("store_timestamp_ms")
        self._sums.traffic.add(times_ms, np.stack((np.ones(len(sizes), np.int64), sizes), axis=1))
        codes, topics = records.topic_codes
        for number, topic in enumerate(topics):
            name, own = topic.decode("utf-8", "replace"), codes == number
            self._sums.topics[name] += int(sizes[own].sum())
            self._sums.topic_records[name] += int(own.sum())

    def _to_table(self, outcomes: Outcomes) -> None:
        super()._to_table(outcomes)
        rows = outcomes.rows
        ones = np.stack([rows["state"] == state for state in STATES], axis=1).astype(np.int64)
        self._sums.transactions.add(rows["store_ms"], ones)
        checks, counts = np.unique(np.minimum(rows["checks"], CHECKS_MAX), return_counts=True)
        self._sums.checks.update(dict(zip(checks.tolist(), counts.tolist(), strict=True)))
        ages_ms = self._now_ms - rows["store_ms"][rows["state"] == TransactionState.PREPARED]
        at = np.searchsorted([limit for _, limit in AGES_MS], ages_ms, side="right")
        for number, count in zip(*(part.tolist() for part in np.unique(at, return_counts=True)), strict=True):
            self._sums.ages[AGES_MS[min(number, len(AGES_MS) - 1)][0]] += count
