"""The figures of a report: what a verification sees in passing, summed up by time, topic and state.

    figures = survey("shop.store", now_ms)
    figures.report.ok, figures.topics, figures.transactions

One pass over the log, in bounded memory: times are counted in buckets, which become wider while there are too many.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from broker.transaction.events import TransactionState
from recovery.findings import Report
from recovery.scan.records import Records
from recovery.transactions.outcomes import STATE_NAMES, Outcomes
from recovery.verify.verifier import Progress, verify

STATES = {state: name.replace("_", " ") for state, name in STATE_NAMES.items()}
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
    traffic: TimeSums  # records, bytes
    transactions: TimeSums  # by the half message's time
    ages: Counter[str]  # of those in doubt
    checks: Counter[int]
    topics: Counter[str]  # bytes
    topic_records: Counter[str]


def survey(path: str | os.PathLike[str], now_ms: int, progress: Progress | None = None) -> Figures:
    """Verify a store, and sum up what is seen. Raises NotAStore."""
    sums = _Sums(now_ms)
    report = verify(path, progress=progress or (lambda _done, _total: None), observers=[sums])
    return Figures(report, now_ms, sums.traffic, sums.transactions, sums.ages, sums.checks, sums.topics, sums.records)


class _Sums:
    """Counts what a verification reads."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.traffic, self.transactions = TimeSums(2), TimeSums(len(STATES))
        self.ages: Counter[str] = Counter()
        self.checks: Counter[int] = Counter()
        self.topics: Counter[str] = Counter()
        self.records: Counter[str] = Counter()

    def on_records(self, records: Records) -> None:
        """Bytes and records by time and by topic."""
        sizes = records.sizes
        times_ms = records.field("store_timestamp_ms")
        self.traffic.add(times_ms, np.stack((np.ones(len(sizes), np.int64), sizes), axis=1))
        codes, topics = records.topic_codes
        for number, topic in enumerate(topics):
            name, own = topic.decode("utf-8", "replace"), codes == number
            self.topics[name] += int(sizes[own].sum())
            self.records[name] += int(own.sum())

    def on_outcomes(self, outcomes: Outcomes) -> None:
        """Transactions by time and state; checks, and the ages of those in doubt."""
        rows = outcomes.rows
        ones = np.stack([rows["state"] == state for state in STATES], axis=1).astype(np.int64)
        self.transactions.add(rows["store_ms"], ones)
        checks, counts = np.unique(np.minimum(rows["checks"], CHECKS_MAX), return_counts=True)
        self.checks.update(dict(zip(checks.tolist(), counts.tolist(), strict=True)))
        ages_ms = self._now_ms - rows["store_ms"][rows["state"] == TransactionState.PREPARED]
        at = np.searchsorted([limit for _, limit in AGES_MS], ages_ms, side="right")
        for number, count in zip(*(part.tolist() for part in np.unique(at, return_counts=True)), strict=True):
            self.ages[AGES_MS[min(number, len(AGES_MS) - 1)][0]] += count
