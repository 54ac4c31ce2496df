"""The timer wheel against the CommitLog: each message that waits is in the wheel, and each place in it is of a record.

A broker that was killed puts what it had not flushed into the wheel again when it starts, so a wheel is compared in a
store that was closed. A message with a long delay is put into the wheel more than once, each time by another record: of
records with one unique key the last counts. RocketMQ: TimerMessageStore.doEnqueue, TimerMessageStore.recover (5.3.3).
"""

from __future__ import annotations

import os
from hashlib import blake2b

import numpy as np

from broker.errors import CorruptRecord
from broker.format import properties as names
from broker.format.topics import TIMER_TOPIC
from broker.store.disk.files import Missing
from broker.store.read.directory import StoreDirectory
from broker.store.read.kinds.timers import Timers, read_timers
from recovery.findings import Finding, Findings
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Rows
from recovery.verify.comparison import FinishContext

# A record of the timer topic that was not due when its broker was closed.
WAITING = np.dtype(
    [("commitlog_offset", "i8"), ("size", "i4"), ("queue_offset", "i8"), ("due_ms", "i8"), ("key", "i8")]
)
_IN_WHEEL = np.dtype([("commitlog_offset", "i8"), ("size", "i4"), ("position", "i8")])
_TOPIC = TIMER_TOPIC.encode()
_LONGEST_NUMBER = 18
_NEXT_SLOTS_MS = 60_000  # what was due that soon may have been on its way out of the wheel


def timers_of(files: StoreFiles) -> Timers | None:
    """The timers of a store that can be compared; None where there are none, or a RocksDB may hold some.

    The damages of a checkpoint file that cannot be read are found with the other small files.
    """
    if files.closed_at_ms() is None or _may_be_in_rocksdb(files):
        return None
    try:
        return read_timers(StoreDirectory(files.path, files.disk))
    except CorruptRecord:
        return None


def _may_be_in_rocksdb(files: StoreFiles) -> bool:
    """Whether timers may be in a RocksDB instead of the wheel. RocketMQ: timerRocksDBEnable (5.4.0)."""
    try:
        return any(one.name.endswith(".sst") for one in files.disk.entries(os.path.join(files.path, "rocksdbstore")))
    except Missing:
        return False


class TimerComparison:
    """Takes the records of a scan, keeps those that wait, and compares them with the wheel at the end."""

    def __init__(self, timers: Timers, findings: Findings) -> None:
        self._timers, self._findings = timers, findings
        self.waiting: list[Rows] = []

    def add(self, records: Records, kinds: Kinds) -> None:
        """Keep the records of the timer topic that were not due yet."""
        if _TOPIC not in kinds.topics:
            return
        which = np.flatnonzero(kinds.codes == kinds.topics.index(_TOPIC))
        if not len(which):
            return
        part = records.take(which)
        due = [_number(text) for text in part.property(names.TIMER_OUT_MS).to_pylist()]
        keys = [key_of(text or b"") for text in part.property(names.UNIQ_KEY).to_pylist()]
        rows = np.zeros(len(which), WAITING)
        rows["commitlog_offset"], rows["size"] = part.offsets, part.sizes
        rows["queue_offset"], rows["due_ms"], rows["key"] = part.field("queue_offset"), due, keys
        self.waiting.append(rows[rows["due_ms"] >= self._timers.check.read_ms])

    def finish(self, context: FinishContext) -> None:
        """Report what the wheel lacks, and what in it leads to no record."""
        timers = self._timers
        rows = np.concatenate([np.zeros(0, WAITING), *self.waiting])
        entries = ((one.commitlog_offset, one.record_size, one.position) for one in timers.waiting())
        wheel = np.fromiter(entries, _IN_WHEEL)
        at = np.minimum(np.searchsorted(rows["commitlog_offset"], wheel["commitlog_offset"]), max(len(rows) - 1, 0))
        known = np.zeros(len(wheel), np.bool_)
        if len(rows):
            known = (rows["commitlog_offset"][at] == wheel["commitlog_offset"]) & (rows["size"][at] == wheel["size"])
        for entry in wheel[~known]:
            self._look_at(int(entry["commitlog_offset"]), int(entry["size"]), int(entry["position"]), context)
        for damage in timers.damages:
            self._findings.add(Finding("timer-orphan", 0, damage.text, damage.path, {"position": damage.position}))
        expected = _expected(rows, timers)
        for row in expected[~np.isin(expected["commitlog_offset"], wheel["commitlog_offset"])]:
            text = "the timer wheel lacks this message: nobody will deliver it when it is due"
            facts = {"due_ms": int(row["due_ms"]), "queue_offset": int(row["queue_offset"])}
            self._findings.add(Finding("timer-missing", int(row["commitlog_offset"]), text, timers.path, facts))

    def _look_at(self, commitlog_offset: int, size: int, position: int, context: FinishContext) -> None:
        """A record that was put into the wheel for an earlier moment than it states is right, too."""
        record = context.look(commitlog_offset) if commitlog_offset >= context.begin_offset else None
        is_timed = record is not None and Kinds(record).topics == [_TOPIC] and int(record.sizes[0]) == size
        if commitlog_offset >= context.begin_offset and not is_timed:
            text = f"unit {position} of the timer log names {size} bytes at {commitlog_offset}, where no message waits"
            place = {"position": position}
            self._findings.add(Finding("timer-orphan", commitlog_offset, text, self._timers.log_path, place))


def _expected(rows: Rows, timers: Timers) -> Rows:
    """The records that the wheel must have: they were put into it, and no later one is of the same message."""
    last = np.unique(rows["key"][::-1], return_index=True)[1]
    rows = rows[np.sort(len(rows) - 1 - last)]
    put = rows["queue_offset"] < min(timers.check.queue_offset, timers.check.master_queue_offset)
    return rows[put & (rows["due_ms"] >= timers.check.read_ms + _NEXT_SLOTS_MS)]


def key_of(unique_key: bytes) -> int:
    """A number that stands for a unique key, the same in every process."""
    return int.from_bytes(blake2b(unique_key, digest_size=8).digest(), "big", signed=True)


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) <= _LONGEST_NUMBER else -1
