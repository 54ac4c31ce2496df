"""Where a group begins, where it stands, and how both are changed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from broker.consuming.group.consumer_table import UNSET, ConsumerTable
from broker.consuming.group.offset_export import SCHEDULE_GROUP, OffsetExport
from broker.errors import BrokerError, given_in_seconds
from broker.format.topics import DELAYS_MS, SCHEDULE_TOPIC
from broker.store.shared.control import boot_words

if TYPE_CHECKING:
    from broker.writable_store import WritableStore


@dataclass(frozen=True)
class Start:
    """Where a group begins that never consumed a topic: `first`, `last`, or a time in milliseconds."""

    word: str = "first"
    time_ms: int = 0

    @classmethod
    def parse(cls, start: str | int | datetime) -> Start:
        """Raises BrokerError for anything but first, last, milliseconds since 1970, and a datetime with a time zone."""
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise BrokerError(f"start={start!r} has no time zone: nobody knows which moment is meant")
            return cls("time", int(start.timestamp() * 1000))
        if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
            if wrong := given_in_seconds(start):
                raise BrokerError(f"start {wrong}, or a datetime with a time zone")
            return cls("time", start)
        if start in ("first", "last"):
            return cls(str(start))
        raise BrokerError(f"start is 'first', 'last' or a time (milliseconds, or a datetime), not {start!r}")

    def position(self, store: WritableStore, topic: str, queue_id: int) -> int:
        """The queue offset of the first message to be consumed."""
        first, end = store.queue_range(topic, queue_id)
        if self.word == "last":
            return end
        return store.offset_at_time(topic, queue_id, self.time_ms) if self.word == "time" else first


class Positions:
    """The positions of all groups of one store. Threads share them; close them."""

    def __init__(self, store: WritableStore) -> None:
        self._store = store
        writer = store.writer
        self.cells = ConsumerTable(writer.disk, writer.paths.own, boot_words(writer.disk), self._clamp)
        self.exchange = OffsetExport(self.cells, writer.paths, store.queue_end)
        with self.cells.lock:
            if self.exchange.take_over():
                self.exchange.clamp()  # of groups that the files alone know

    def close(self) -> None:
        self.exchange.close()
        self.cells.close()

    def _clamp(self, cells: ConsumerTable) -> None:
        """After a machine crash a queue may end before a position: what comes next is new to the group.

        Also before one that the export alone has kept: then the group's cells are lost, or those of a new group.
        """
        for cell, (_, topic, queue_id) in list(cells.all()):
            position = cells.position(cell)
            if queue_id >= 0 and position != UNSET:
                end = self._store.queue_end(topic, queue_id)
                if position > end:
                    cells.set_position(cell, end)
        with contextlib.closing(OffsetExport(cells, self._store.writer.paths, self._store.queue_end)) as exchange:
            exchange.clamp()

    def queues(self, topic: str) -> list[int]:
        """The queues of a topic: those that its configuration has, and those that are there."""
        known = self._store.topic(topic)
        count = 0 if known is None else known.read_queue_count
        return sorted({*range(count), *self._store.queues(topic)})

    def begin(self, group: str, topic: str, start: Start) -> None:
        """Give each queue of a topic a position for a group, at once and on disk; what it has already, it keeps.

        A queue that appears later begins with its first message, whatever `start` says: nothing is skipped.
        """
        with self.cells.lock:
            if self.cells.keep(group, topic):
                return
            exported = self.exchange.offsets().positions.get((topic, group))
            for queue_id in self.queues(topic) if exported is None else sorted(exported):
                position = (
                    start.position(self._store, topic, queue_id) if exported is None else max(0, exported[queue_id])
                )
                end = self._store.queue_end(topic, queue_id)
                self.cells.make(group, topic, queue_id, min(position, end))
            self.cells.put(self.cells.make(group, topic, -1, 0), 0)  # last: from now on the group was there
        if start.word != "first":
            self.exchange.export(at_once=True)

    def cell(self, group: str, topic: str, queue_id: int) -> int:
        """The cell of one queue; it begins with the first message if it has none."""
        found = self.cells.find(group, topic, queue_id)
        if found is None:
            with self.cells.lock:
                found = self.cells.make(group, topic, queue_id, self._first(group, topic, queue_id))
        return found

    def _first(self, group: str, topic: str, queue_id: int) -> int:
        if group == SCHEDULE_GROUP:
            return max(0, self.exchange.delays().positions.get(queue_id + 1, 0))
        exported = self.exchange.offsets().positions.get((topic, group), {}).get(queue_id, 0)
        return min(max(0, exported), self._store.queue_end(topic, queue_id))

    def write(self, group: str, wanted: Mapping[str, int]) -> None:
        """Put a group to a queue offset of queue 0 of each topic, and on disk; the log is durable up to there.

        For a group without consumers of ours. Nothing is written when it stands there. Raises StoreFull, SyncFailed,
        CorruptRecord.
        """
        held = self.exchange.offsets().positions
        if all(held.get((topic, group), {}).get(0) == position for topic, position in wanted.items()):
            return
        self._store.sync_now()  # nothing that a power cut may take back
        for topic, position in wanted.items():
            cell = self.cell(group, topic, 0)
            with self.cells.lock:
                self.cells.set_position(cell, position)
        self.exchange.export(at_once=True)

    def levels(self) -> list[int]:
        """The cells of the delay levels, level 1 first."""
        return [self.cell(SCHEDULE_GROUP, SCHEDULE_TOPIC, queue_id) for queue_id in range(len(DELAYS_MS))]

    def reset(self, group: str, topic: str, start: Start | int, queue_id: int | None = None) -> dict[int, int]:
        """Put a group back or forward, in one queue or in all; returns the new positions.

        An int is a queue offset. Consumers at work notice within a second and go on from there; what they acknowledge
        of the time before counts no more. It is on disk then. Raises StoreFull, SyncFailed.
        """
        self.begin(group, topic, Start())
        new: dict[int, int] = {}
        for one in self.queues(topic) if queue_id is None else [queue_id]:
            first, end = self._store.queue_range(topic, one)
            position = start if isinstance(start, int) else start.position(self._store, topic, one)
            cell = self.cell(group, topic, one)
            new[one] = min(max(position, first), end)
            with self.cells.lock:
                self.cells.set_position(cell, new[one])
        self.exchange.export(at_once=True)
        self.cells.flush()  # a power cut may have left a later position in the cell, which goes before the export
        return new
