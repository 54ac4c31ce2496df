"""All queues of a store that is only read: ConsumeQueues, BatchConsumeQueues, and those in a RocksDB.

A store of ours has the first kind alone, and its writers and consumers use `ConsumeQueues` itself.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import Protocol

from broker.format.consumequeue import BatchUnit, Unit
from broker.store.disk.paths import is_topic_directory
from broker.store.disk.thread_lock import ThreadLock
from broker.store.read.consumequeue import ConsumeQueues, directories_in, queue_ids_in
from broker.store.read.directory import StoreDirectory
from broker.store.read.fixedqueue import FixedQueue
from broker.store.read.kinds.rocksdb import missing_extra
from broker.store.read.kinds.rocksdb_queues import RocksDBQueues, queue_database


class AnyQueue(Protocol):
    """What every kind of queue answers."""

    topic: str
    queue_id: int

    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get."""

    def min_offset(self, begin_offset: int) -> int:
        """The least queue offset whose message still lies in the CommitLog, which begins at `begin_offset`."""

    def get(self, queue_offset: int) -> Unit | None:
        """The unit of one message; None where the queue has none."""


class BatchConsumeQueue:
    """A BatchConsumeQueue: units follow each other in log order, and each is of one record, which may hold a batch."""

    def __init__(self, topic: str, queue_id: int, units: FixedQueue[BatchUnit]) -> None:
        self.topic, self.queue_id, self.units = topic, queue_id, units

    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get."""
        end = self.units.end
        last = self.units.get(end - 1) if end > self.units.first else None
        return 0 if last is None else last.queue_offset + last.count

    def min_offset(self, begin_offset: int) -> int:
        """The queue offset of the first message whose record lies in the CommitLog.

        RocketMQ: BatchConsumeQueue.correctMinOffset (5.3.3).
        """
        first, end = self.units.first, self.units.end
        at = first + bisect_right(
            range(end - first), begin_offset - 1, key=lambda number: self._at(first + number).commitlog_offset
        )
        return self._at(at).queue_offset if at < end else self.max_offset

    def get(self, queue_offset: int) -> Unit | None:
        """The unit of the record that holds a message; None where the queue has none."""
        first, end = self.units.first, self.units.end
        at = bisect_right(range(end - first), queue_offset, key=lambda number: self._at(first + number).queue_offset)
        unit = self.units.get(first + at - 1) if at else None
        if unit is None or queue_offset >= unit.queue_offset + unit.count:
            return None
        return Unit(unit.commitlog_offset, unit.size, unit.tags_code)

    def _at(self, number: int) -> BatchUnit:
        """A unit in use; one that expired meanwhile counts as the least."""
        return self.units.get(number) or BatchUnit(-1, 0, 0, 0, -1, 0, 0, 0)


def _is_unused(unit: BatchUnit) -> bool:
    """Whether the units of a file end before this one. RocketMQ: BatchConsumeQueue.recover (5.3.3)."""
    return unit.size <= 0 or unit.commitlog_offset < 0


class EveryQueue:
    """The queues of a store, whatever kind they are of."""

    def __init__(self, directory: StoreDirectory, consumequeues: ConsumeQueues) -> None:
        self._directory, self._files = directory, consumequeues
        self._batches = directory.paths.batchconsumequeue
        self._opening = ThreadLock()  # not cached_property: before Python 3.12 all objects share its lock, forks or not
        self._opened: list[RocksDBQueues | None] = []  # one, once it was looked for

    def close(self) -> None:
        """Release the RocksDB, where one was opened."""
        with self._opening:
            for opened in filter(None, self._opened):
                opened.database.close()
            self._opened.clear()

    @property
    def _in_rocksdb(self) -> RocksDBQueues | None:
        """The queues that a broker keeps in a RocksDB, as they were when one was asked for first."""
        with self._opening:
            if not self._opened:
                path = queue_database(self._directory.paths, self._directory.disk)
                found = None if path is None or missing_extra() else RocksDBQueues(path, self._directory.disk)
                self._opened.append(found)
            return self._opened[0]

    def topics(self) -> list[str]:
        """The topics that have queues, sorted."""
        in_rocksdb = self._in_rocksdb.topics() if self._in_rocksdb is not None else []
        return sorted({*self._files.topics(), *directories_in(self._directory.disk, self._batches), *in_rocksdb})

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic, sorted."""
        if not is_topic_directory(topic):
            return []
        batches = queue_ids_in(self._directory.disk, os.path.join(self._batches, topic))
        in_rocksdb = self._in_rocksdb.queue_ids(topic) if self._in_rocksdb is not None else []
        return sorted({*self._files.queue_ids(topic), *batches, *in_rocksdb})

    def queue(self, topic: str, queue_id: int) -> AnyQueue | None:
        """One queue; None when there is none, or when it is in a RocksDB that this installation cannot read."""
        found: AnyQueue | None = self._files.queue(topic, queue_id)
        if found is None and is_topic_directory(topic):
            path = os.path.join(self._batches, topic, str(queue_id))
            if self._directory.disk.entry(path) is not None:
                return BatchConsumeQueue(topic, queue_id, FixedQueue(self._directory, path, BatchUnit, _is_unused))
            found = self._in_rocksdb.queue(topic, queue_id) if self._in_rocksdb is not None else None
        return found
