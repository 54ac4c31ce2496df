"""The ConsumeQueues: for each queue of each topic, where its messages lie in the CommitLog.

RocketMQ: ConsumeQueue, ConsumeQueueStore (5.3.3).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from broker.format.consumequeue import Unit, is_end
from broker.store.disk.files import Disk
from broker.store.disk.paths import is_topic_directory
from broker.store.disk.read_file import NotCached
from broker.store.read.directory import StoreDirectory
from broker.store.read.fixedqueue import FixedQueue


class ConsumeQueue:
    """One queue of one topic."""

    def __init__(self, topic: str, queue_id: int, units: FixedQueue[Unit]) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.units = units
        self._least: tuple[object, int] | None = None  # what `min_offset` found, and for which files

    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get. RocketMQ: ConsumeQueue.getMaxOffsetInQueue (5.3.3)."""
        return self.units.end

    def min_offset(self, begin_offset: int, *, cached_only: bool = False) -> int:
        """The least queue offset whose message still lies in the CommitLog, which begins at `begin_offset`.

        It is searched once for each beginning of the log and set of files; with `cached_only` never: raises NotCached.
        RocketMQ: ConsumeQueue.correctMinOffset (5.3.3).
        """
        searched = begin_offset, self.units.stamp
        if (least := self._least) is not None and least[0] == searched:
            return least[1]
        if cached_only:
            raise NotCached(f"{self.topic} {self.queue_id}")
        first, end = self.units.first, self.max_offset
        found = first + bisect_left(
            range(end - first), 1, key=lambda number: self._is_kept(first + number, begin_offset)
        )
        self._least = searched, found
        return found

    def get(self, queue_offset: int) -> Unit | None:
        """The unit of one message; None where the queue does not reach, and for a filler."""
        unit = self.units.get(queue_offset)
        return None if unit is None or unit.is_filler else unit

    def walk(self, start: int | None = None, end: int | None = None) -> Iterator[Unit]:
        """The units from one queue offset to another, fillers included."""
        return self.units.walk(start, end)

    def _is_kept(self, queue_offset: int, begin_offset: int) -> bool:
        unit = self.get(queue_offset)
        return unit is not None and unit.commitlog_offset >= begin_offset


class ConsumeQueues:
    """The directory `consumequeue`: topics, and in each its queues."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._paths = directory.paths
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}

    def topics(self) -> list[str]:
        """The topics that have a directory, sorted."""
        return directories_in(self._directory.disk, self._paths.consumequeue)

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of a topic, sorted. A directory that is not a number is none, as for RocketMQ."""
        if not is_topic_directory(topic):
            return []
        return queue_ids_in(self._directory.disk, self._paths.topic(topic))

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """One queue; None when it has no directory."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if not is_topic_directory(topic) or self._directory.disk.entry(self._paths.queue(topic, queue_id)) is None:
                return None
            units = FixedQueue(self._directory, self._paths.queue(topic, queue_id), Unit, is_end)
            queue = self._queues[topic, queue_id] = ConsumeQueue(topic, queue_id, units)
        return queue


def directories_in(disk: Disk, path: str) -> list[str]:
    """The names of the directories in a directory, sorted; none where it is not there."""
    return [entry.name for entry in disk.entries_if_any(path) if entry.is_directory]


def queue_ids_in(disk: Disk, path: str) -> list[int]:
    """The queues of a topic that has this directory, sorted."""
    names = directories_in(disk, path)
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and str(int(name)) == name)
