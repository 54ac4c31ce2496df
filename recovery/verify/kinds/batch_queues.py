"""BatchConsumeQueues against the CommitLog: each record of such a topic has its unit, and each unit its record.

Units follow each other in log order and are not numbered by queue offsets, so a record's unit is looked for by its
CommitLog offset: by a search where the file is in order, in the whole queue where it is not.

RocketMQ: BatchConsumeQueue.putBatchMessagePositionInfo, CommitLog.setBatchSizeIfNeeded (5.5.0; 5.3.3).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from broker.format import properties as names
from broker.format.consumequeue import BatchUnit
from broker.format.sysflag import TransactionType
from recovery.findings import Finding, Findings
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles
from recovery.scan.strings import java_hashes
from recovery.scan.units import Interval, IntervalSet, Rows, UnitFile
from recovery.transactions.events import numbers_in
from recovery.verify.comparison import FinishContext

BATCH_UNIT = np.dtype(BatchUnit.DTYPE)
_EXPECTED = np.dtype([(name, kind.replace(">", "")) for name, kind in BatchUnit.DTYPE])
_COMPARED = ("commitlog_offset", "size", "tags_code", "store_timestamp_ms", "queue_offset", "count")
_SLACK = 16  # units read beyond those of a run, for entries that a recovery wrote twice
_AT_ONCE = 1 << 16

BatchQueueName = tuple[str, int]


class BatchRun(NamedTuple):
    """The units that the records of one queue should have, in log order."""

    topic: str
    queue_id: int
    units: Rows  # shape (n,), the fields of BatchUnit in the machine's byte order


def batch_runs(records: Records, kinds: Kinds, topics: frozenset[str]) -> Iterator[BatchRun]:
    """The units of all records of these topics that consumers get, queue by queue."""
    of_topics = np.array([topic.decode("utf-8", "replace") in topics for topic in kinds.topics], np.bool_)
    if not of_topics.any():
        return
    types = kinds.types << 2
    delivered = (types != TransactionType.PREPARED) & (types != TransactionType.ROLLBACK)
    which = np.flatnonzero(of_topics[kinds.codes] & delivered)
    if not len(which):
        return
    part = records.take(which)
    units = np.zeros(len(which), _EXPECTED)
    units["commitlog_offset"], units["size"] = part.offsets, part.sizes
    units["tags_code"] = java_hashes(part.values(names.TAGS))
    units["store_timestamp_ms"] = part.field("store_timestamp_ms")
    base, count = (numbers_in(part.values(name), missing=-1) for name in (names.INNER_BASE, names.INNER_NUM))
    is_batch = (base >= 0) & (count >= 0)
    units["queue_offset"] = np.where(is_batch, base, part.field("queue_offset"))
    units["count"] = np.where(is_batch, count, 1)
    units["compacted_offset"] = -1
    queue_ids = part.field("queue_id")
    group = (kinds.codes[which].astype(np.int64) << 32) | (queue_ids & 0xFFFFFFFF)
    order = np.argsort(group, kind="stable")
    for run in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        topic = kinds.topics[kinds.codes[which[run[0]]]].decode("utf-8", "replace")
        yield BatchRun(topic, int(queue_ids[run[0]]), units[run])


@dataclass
class _BatchQueue:
    topic: str
    queue_id: int
    units: UnitFile
    used: int  # units before the first empty one
    claimed: IntervalSet = field(default_factory=IntervalSet)
    missing: list[Rows] = field(default_factory=list)


class BatchQueueComparison:
    """Takes the records of a scan, compares as it goes, and reports at the end what stayed wrong."""

    def __init__(self, files: StoreFiles, findings: Findings) -> None:
        self._files, self._findings = files, findings
        self._queues: dict[BatchQueueName, _BatchQueue] = {}

    def add(self, records: Records, kinds: Kinds) -> None:
        """Compare the units of all records of these topics."""
        for run in batch_runs(records, kinds, self._files.batch_topics):
            queue = self._queue(run.topic, run.queue_id)
            first = _first_from(queue.units, int(run.units["commitlog_offset"][0]), queue.used)
            live = queue.units.read(first, min(len(run.units) + _SLACK, max(queue.used - first, 0)))
            found = _claim(queue, run.units, first, live)
            if not found.all():
                queue.missing.append(run.units[~found])

    def claims(self) -> dict[BatchQueueName, list[Interval]]:
        """The units of each queue that records claimed; what stayed missing until now is reported."""
        self._report_missing()
        return {name: queue.claimed.within(queue.units.begin, queue.used) for name, queue in self._queues.items()}

    def claim(self, topic: str, queue_id: int, intervals: list[Interval]) -> None:
        """Take over the claims of comparisons that each saw a part of the log."""
        self._queue(topic, queue_id).claimed = IntervalSet(intervals)

    def finish(self, context: FinishContext) -> None:
        """Report what stayed missing, and the units that no record claims."""
        self._report_missing()
        for topic, queue_id in self._files.batch_queues():
            queue = self._queue(topic, queue_id)
            for first, stop in queue.claimed.gaps(queue.units.begin, queue.used):
                for number, rows in queue.units.filled(first, stop):
                    self._report_orphans(queue, number, rows, context)

    def _queue(self, topic: str, queue_id: int) -> _BatchQueue:
        name = (topic, queue_id)
        if name not in self._queues:
            units = self._files.batch_units(topic, queue_id)
            self._queues[name] = _BatchQueue(topic, queue_id, units, _used(units))
        return self._queues[name]

    def _report_missing(self) -> None:
        """Look for what was missing in the whole queue: a damaged unit leads a search astray."""
        for queue in self._queues.values():
            if not queue.missing:
                continue
            expected = np.concatenate(queue.missing)
            queue.missing.clear()
            queue.used = _used(queue.units)
            for first in range(queue.units.begin, queue.used, _AT_ONCE):
                live = queue.units.read(first, min(_AT_ONCE, queue.used - first))
                expected = expected[~_claim(queue, expected, first, live)]
            for row in expected:
                text = (
                    f"the BatchConsumeQueue {queue.queue_id} of {queue.topic} has no unit for it, or one that states "
                    f"something else: nobody will consume it"
                )
                self._report("queue-missing", queue, -1, int(row["queue_offset"]), int(row["commitlog_offset"]), text)

    def _report_orphans(self, queue: _BatchQueue, number: int, rows: Rows, context: FinishContext) -> None:
        at = rows["commitlog_offset"]
        orphan = (at >= context.begin_offset) & ((rows["size"] != 0) | (at != 0))
        if context.ignore_from is not None:
            orphan &= at < context.ignore_from
        for index in np.flatnonzero(orphan):
            text = (
                f"unit {number + index} of the BatchConsumeQueue {queue.queue_id} of {queue.topic} names "
                f"{rows['size'][index]} bytes at {at[index]}, where no record of that queue offset is"
            )
            place = number + int(index)
            self._report("queue-orphan", queue, place, int(rows["queue_offset"][index]), int(at[index]), text)

    def _report(
        self, kind: str, queue: _BatchQueue, unit: int, queue_offset: int, commitlog_offset: int, text: str
    ) -> None:
        facts: dict[str, Any] = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": queue_offset}
        directory = os.path.join("batchconsumequeue", queue.topic, str(queue.queue_id))
        file = queue.units.file_of(unit) if unit >= 0 else ""
        self._findings.add(Finding(kind, commitlog_offset, text, file or directory, facts))


def _claim(queue: _BatchQueue, expected: Rows, first: int, live: Rows) -> npt.NDArray[np.bool_]:
    """Which of the expected units are among these live ones; those and their repetitions are claimed."""
    found = np.zeros(len(expected), np.bool_)
    if not len(live) or not len(expected):
        return found
    order = np.argsort(expected["commitlog_offset"], kind="stable")
    ranked = expected[order]
    at = np.searchsorted(ranked["commitlog_offset"], live["commitlog_offset"].astype(np.int64))
    at = np.minimum(at, len(ranked) - 1)
    same = np.ones(len(live), np.bool_)
    for name in _COMPARED:
        same &= live[name] == ranked[name][at]
    found[order[at[same]]] = True
    queue.claimed.add(first + np.flatnonzero(same))
    return found


def _used(units: UnitFile) -> int:
    """The number behind the last unit that is written."""
    low, high = units.begin, units.end
    while low < high:
        middle = (low + high) // 2
        if int(units.read(middle, 1)["size"][0]) > 0:
            low = middle + 1
        else:
            high = middle
    return int(low)


def offsets_of(units: UnitFile) -> tuple[int, int]:
    """The queue offsets of the first message and of the one that comes next."""
    used = _used(units)
    if used <= units.begin:
        return 0, 0
    last = units.read(used - 1, 1)[0]
    return int(units.read(units.begin, 1)["queue_offset"][0]), int(last["queue_offset"]) + int(last["count"])


def _first_from(units: UnitFile, commitlog_offset: int, stop: int) -> int:
    """The first unit of a record at or behind an offset; a damaged one may lead astray."""
    low, high = units.begin, stop
    while low < high:
        middle = (low + high) // 2
        if int(units.read(middle, 1)["commitlog_offset"][0]) < commitlog_offset:
            low = middle + 1
        else:
            high = middle
    return int(low)
