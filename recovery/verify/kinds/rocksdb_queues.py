"""The ConsumeQueues that a broker keeps in a RocksDB against the CommitLog: each deliverable record has its unit there.

A unit states the record's store time besides. A broker writes units to the disk together, with the CommitLog offset up
to which it did: after a crash it writes the rest again, so a unit of a later record is asked for only in a store that
was closed. RocketMQ: RocksDBConsumeQueueStore, RocksDBConsumeQueueTable (5.3.3 to 5.5.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from broker.errors import CorruptStore
from broker.format.kinds import rocksdb_queue as layout
from broker.format.kinds.rocksdb_queue import QueueValue
from broker.store.disk.paths import Paths
from broker.store.read.kinds.rocksdb import NoRocksDB
from broker.store.read.kinds.rocksdb_queues import RocksDBQueue, RocksDBQueues, has_queue_files
from recovery.findings import Finding, Findings
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Ints, NumberedUnits, Rows
from recovery.verify.comparison import FinishContext
from recovery.verify.consume_queues import QueueComparison

_VALUE = np.dtype(QueueValue.DTYPE)
_AT_ONCE = 1 << 14


class RocksDBUnits(NumberedUnits):
    """The units of one queue, up to the end that the table of offsets states."""

    def __init__(self, queues: RocksDBQueues, topic: str, queue_id: int, *, first: int = 0, up_to: int | None = None):
        """Records below the queue offset `first`, and those behind the CommitLog offset `up_to`, need no unit."""
        self.dtype, self._path, self._first, self._up_to = _VALUE, queues.path, first, up_to
        self._queue = RocksDBQueue(queues, topic, queue_id)
        stated = queues.ends.get((topic, queue_id))
        self.end = stated.queue_offset + 1 if stated is not None else 0
        self.fault: CorruptStore | None = None
        lowest = next(self._values(0, 1 << 62), None)
        self.begin = min(lowest[0], self.end) if lowest is not None else self.end

    def read(self, first: int, count: int) -> Rows:
        """Units first … first + count - 1; those that are not there are zero."""
        rows = np.zeros(count, self.dtype)
        for number, found in self.filled(first, first + count):
            rows[number - first : number - first + len(found)] = found
        return rows

    def filled(self, first: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Runs of units in [first, stop) whose numbers follow each other."""
        start, values = first, list[bytes]()
        for number, value in self._values(first, min(stop, self.end)):
            if values and (number != start + len(values) or len(values) == _AT_ONCE):
                yield start, _rows(values)
                values = []
            start = start if values else number
            values.append(value)
        if values:
            yield start, _rows(values)

    def _values(self, first: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """The queue offsets and values in [first, stop); none behind a table that is damaged."""
        try:
            for key, value in self._queue.values(first):
                number = layout.queue_offset_of(key)
                if number >= stop:
                    return
                yield number, value
        except CorruptStore as fault:
            self.fault = fault

    def file_of(self, unit: int) -> str:
        """The directory of the RocksDB: no file of it is that of a unit."""
        del unit
        return self._path

    def holds(self, expected: Rows) -> npt.NDArray[np.bool_] | None:
        """Which of the expected units must be there; None for all."""
        if not self._first and self._up_to is None:
            return None
        held: npt.NDArray[np.bool_] = expected["queue_offset"] >= self._first
        return held if self._up_to is None else held & (expected["commitlog_offset"] <= self._up_to)


class StoreTimes:
    """Units that state another store time than their record are unlike it."""

    def resolve(self, units: Rows, store_ms: Ints) -> Rows:
        """The units, with a tags code that fits nothing where the time does not."""
        wrong = (units["size"] > 0) & (units["store_timestamp_ms"] != store_ms)
        if wrong.any():
            units = units.copy()
            units["tags_code"][wrong] = ~units["tags_code"][wrong]
        return units


class RocksDBQueueComparison(QueueComparison):
    """Compares as for queues in files, and what the table of offsets states besides."""

    def __init__(self, files: StoreFiles, findings: Findings, *, defers_delayed: bool = False) -> None:
        assert files.rocksdb_queues is not None
        self._databases, self._sink, self._files = files.rocksdb_queues, findings, files
        self._has_files = has_queue_files(Paths(files.path), files.disk)
        dispatched = -1 if self._databases.dispatched is None else self._databases.dispatched
        self._up_to = dispatched if files.closed_at_ms() is None else None
        super().__init__(
            self._units_of, findings, open_ext=lambda _topic, _queue_id: StoreTimes(), defers_delayed=defers_delayed
        )

    def _units_of(self, topic: str, queue_id: int) -> RocksDBUnits | None:
        """The units of a queue; None where the RocksDB need not have one: a deleted topic, or one that is in files."""
        is_there = (topic, queue_id) in self._databases.ends
        if not is_there and (self._has_files or not self._files.knows_topic(topic)):
            return None
        units = RocksDBUnits(self._databases, topic, queue_id, up_to=self._up_to)
        if self._has_files:  # it began to be written when the setting was made
            units = RocksDBUnits(self._databases, topic, queue_id, first=units.begin, up_to=self._up_to)
        return units

    def finish(self, context: FinishContext) -> None:
        """Report what stayed missing, the units that no record claims, and ends that are not those of the units."""
        opened = tuple((*name, RocksDBUnits(self._databases, *name)) for name in sorted(self._databases.ends))
        super().finish(replace(context, queues=opened))
        self._report_fault(opened)
        for topic, queue_id, units in opened:
            stated = self._databases.ends[topic, queue_id]
            found = int(units.read(stated.queue_offset, 1)["commitlog_offset"][0])
            if stated.commitlog_offset >= context.begin_offset and found != stated.commitlog_offset:
                text = (
                    f"the table of offsets states that queue {queue_id} of {topic} ends with the message "
                    f"{stated.queue_offset}, at {stated.commitlog_offset}, and the unit of that message does not"
                )
                facts = {"topic": topic, "queue_id": queue_id, "queue_offset": stated.queue_offset}
                self._sink.add(Finding("rocksdb-end-wrong", stated.commitlog_offset, text, self._databases.path, facts))

    def _report_fault(self, opened: tuple[tuple[str, int, RocksDBUnits], ...]) -> None:
        """A damaged table makes units missing: then each is looked for once more, to name it."""
        if not self._sink.counts["queue-missing"]:
            return
        for _, _, units in opened:
            for _run in units.filled(units.begin, units.end):
                pass
            if units.fault is not None:
                self._sink.add(Finding("file-damaged", 0, str(units.fault), self._databases.path))
                return


def rocksdb_comparison(
    files: StoreFiles, findings: Findings, *, defers_delayed: bool = False
) -> RocksDBQueueComparison | None:
    """The comparison of the queues in a RocksDB; None where there is none, or it cannot be read (`rocksdb_fault`)."""
    if files.rocksdb is None or rocksdb_fault(files) is not None:
        return None
    return RocksDBQueueComparison(files, findings, defers_delayed=defers_delayed)


def rocksdb_fault(files: StoreFiles) -> CorruptStore | NoRocksDB | None:
    """Why the RocksDB of queues cannot be read; None where it can, or there is none."""
    try:
        _ = files.rocksdb_queues
    except (CorruptStore, NoRocksDB) as fault:
        return fault
    return None


def _rows(values: list[bytes]) -> Rows:
    whole = [value if len(value) == QueueValue.SIZE else bytes(QueueValue.SIZE) for value in values]
    return np.frombuffer(b"".join(whole), _VALUE)
