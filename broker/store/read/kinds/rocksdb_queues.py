"""The ConsumeQueues of a store that keeps them in a RocksDB, as `ConsumeQueues` has those in files.

RocketMQ: RocksDBConsumeQueueStore, RocksDBConsumeQueue (5.3.3 to 5.5.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from broker.errors import CorruptRecord
from broker.format.consumequeue import Unit
from broker.format.kinds import rocksdb_queue as layout
from broker.format.kinds.rocksdb_queue import OFFSETS, UNITS, OffsetValue, QueueValue
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.kinds.rocksdb import RocksDB, is_rocksdb, open_rocksdb

_SEPARATE = re.compile(r"consumequeue_?[rR]\w*")  # useSeparateStorePathForRocksdbCQ (5.5)
QueueName = tuple[str, int]


def queue_database(paths: Paths, disk: Disk) -> str | None:
    """The directory of the RocksDB that holds queues; None where a store has none."""
    entries = disk.entries_if_any(paths.store)
    beside = [one.path for one in entries if one.is_directory and _SEPARATE.fullmatch(one.name)]
    return next((place for place in (paths.consumequeue, *beside) if is_rocksdb(place, disk)), None)


class RocksDBQueues:
    """All queues of one RocksDB."""

    def __init__(self, path: str, disk: Disk) -> None:
        """Raises NoRocksDB, CorruptStore."""
        self.database: RocksDB = open_rocksdb(path, disk)
        self.path = path
        self.ends: dict[QueueName, OffsetValue] = {}  # as the column family `offset` states them
        self.dispatched: int | None = None  # the CommitLog offset of the last record whose units are on disk
        for key, value in self.database.items(OFFSETS):
            self._take(key, value)

    def _take(self, key: bytes, value: bytes) -> None:
        end = layout.decode_offset_key(key)
        if end.topic == layout.CHECKPOINT_TOPIC and len(value) != OffsetValue.SIZE:
            self.dispatched = layout.decode_dispatched(value)
        elif end.is_max:
            self.ends[end.topic, end.queue_id] = OffsetValue.unpack_from(value)

    def topics(self) -> list[str]:
        """The topics that have queues, sorted."""
        return sorted({topic for topic, _ in self.ends})

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic, sorted."""
        return sorted(queue_id for name, queue_id in self.ends if name == topic)

    def queue(self, topic: str, queue_id: int) -> RocksDBQueue | None:
        """One queue; None where the RocksDB knows none of that name."""
        return RocksDBQueue(self, topic, queue_id) if (topic, queue_id) in self.ends else None

    def stray(self) -> Iterator[QueueName]:
        """Queues that have units, and no end in the table of offsets."""
        found, start = self.ends.keys(), b""
        while (key := next((key for key, _ in self.database.items(UNITS, start)), None)) is not None:
            topic, queue_id, _ = layout.decode_unit_key(key)
            if (topic, queue_id) not in found:
                yield topic, queue_id
            start = layout.queue_prefix(topic, queue_id) + b"\xff" * 9


class RocksDBQueue:
    """One queue of one topic; what it answers is what `ConsumeQueue` answers."""

    def __init__(self, queues: RocksDBQueues, topic: str, queue_id: int) -> None:
        self._database, self._end = queues.database, queues.ends.get((topic, queue_id))
        self.topic, self.queue_id = topic, queue_id
        self._prefix = layout.queue_prefix(topic, queue_id)

    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get."""
        last = self._database.last(UNITS, self._prefix)
        behind_last = layout.queue_offset_of(last[0]) + 1 if last is not None else 0
        return max(behind_last, self._end.queue_offset + 1 if self._end is not None else 0)

    def min_offset(self, begin_offset: int) -> int:
        """The least queue offset whose message still lies in the CommitLog; units below it are removed late."""
        for key, value in self._database.items(UNITS, prefix=self._prefix):
            if QueueValue.unpack_from(value).commitlog_offset >= begin_offset:
                return layout.queue_offset_of(key)
        return self.max_offset

    def get(self, queue_offset: int) -> Unit | None:
        """The unit of one message; None where the queue has none."""
        value = self._database.get(UNITS, layout.unit_key(self.topic, self.queue_id, max(queue_offset, 0)))
        return None if value is None or queue_offset < 0 else _unit(value)

    def walk(self, start: int | None = None, end: int | None = None) -> Iterator[Unit]:
        """The units from one queue offset to another."""
        for key, value in self.values(max(start or 0, 0)):
            if end is not None and layout.queue_offset_of(key) >= end:
                return
            yield _unit(value)

    def values(self, start: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values as they stand there, from a queue offset on."""
        return self._database.items(UNITS, layout.unit_key(self.topic, self.queue_id, start), self._prefix)


def _unit(value: bytes) -> Unit:
    if len(value) != QueueValue.SIZE:
        raise CorruptRecord(f"a unit in the RocksDB has {len(value)} bytes, not {QueueValue.SIZE}")
    found = QueueValue.unpack_from(value)
    return Unit(found.commitlog_offset, found.size, found.tags_code)


def has_queue_files(paths: Paths, disk: Disk) -> bool:
    """Whether a store has queues in files, too: its broker writes both, or wrote them before."""
    return any(entry.is_directory for entry in disk.entries_if_any(paths.consumequeue))
