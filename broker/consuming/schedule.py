"""Deliver what is due: one consumer of the store does it for all, by lease.

    SCHEDULE_TOPIC_XXXX, queue level - 1 ──► the topic that each record names

A queue holds one delay level, so it is due in order: only its head is looked at. Killed between the delivery and the
position, the next one delivers a message twice; its unique key is the same. RocketMQ: ScheduleMessageService (5.3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.consuming.group.membership import SEEN_EVERY_MS, Membership, monotonic_ms
from broker.consuming.group.offset_export import SCHEDULE_GROUP
from broker.consuming.group.positions import Positions
from broker.consuming.reading import readable_end
from broker.consuming.redelivery import due
from broker.errors import CorruptStore, MessageRejected
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.topics import DELAYS_MS, LONGEST_DELAY_MS, SCHEDULE_TOPIC, deliver_time_ms
from broker.store.read.consumequeue import ConsumeQueue
from broker.store.write.pending_record import PendingRecord

if TYPE_CHECKING:
    from broker.writable_store import WritableStore

_BATCH = 32
_BATCH_BYTES = 256 << 10  # what is appended together must fit in one segment


class Schedule:
    """One consumer's part in it: tries for the lease, and delivers while it has it."""

    def __init__(
        self,
        store: WritableStore,
        positions: Positions,
        member: Membership,
        delays_ms: Sequence[int] = DELAYS_MS,
    ) -> None:
        self._store, self._positions, self._member = store, positions, member
        self._delays_ms = delays_ms
        self._cells = positions.cells
        self._fence: int | None = None
        self._lease_cell: int | None = None
        self._due_ms: dict[tuple[int, int], int] = {}  # (level's queue, queue offset) of a head → when it is due
        self._seen_ms = -SEEN_EVERY_MS

    def deliver(self, now_ms: int) -> int:
        """Deliver what is due by the store's clock; returns how many. Raises StoreFull, CorruptStore, MessageRejected.

        A level whose next message cannot be read or delivered waits, and is raised once the others had their turn.
        """
        if not self._store.queues(SCHEDULE_TOPIC):
            return 0
        if not self._has_lease():
            return 0
        self._say_so(now_ms)
        delivered, fault = 0, None
        for queue_id in self._store.queues(SCHEDULE_TOPIC):
            try:
                delivered += self._level(queue_id, now_ms)
            except (CorruptStore, MessageRejected) as error:
                fault = fault or error
        if fault is not None:
            raise fault
        return delivered

    def _has_lease(self) -> bool:
        if self._lease_cell is None:
            self._positions.levels()
            with self._cells.lock:
                self._lease_cell = self._cells.make(SCHEDULE_GROUP, SCHEDULE_TOPIC, -1, 0)
        cell = self._lease_cell
        if self._fence is not None and self._cells.fence(cell) == self._fence:
            return True
        self._fence = None
        owner, place = self._cells.owner(cell)
        if owner and owner != self._member.number and self._member.lives(owner, place):
            return False
        with self._cells.lock:
            if self._cells.owner(cell)[0] not in (0, owner):
                return False
            self._fence = self._cells.give(cell, self._member.number, self._member.place)
        return True

    def _say_so(self, now_ms: int) -> None:
        """For retention: what waits for its time is looked after."""
        monotonic = monotonic_ms()
        if self._lease_cell is not None and monotonic - self._seen_ms >= SEEN_EVERY_MS:
            self._seen_ms = monotonic
            self._cells.see(self._lease_cell, now_ms, monotonic)

    def release(self) -> None:
        """Let another do it."""
        if self._fence is not None and self._lease_cell is not None:
            with self._cells.lock:
                self._cells.free(self._lease_cell, self._fence)
            self._fence = None

    def _level(self, queue_id: int, now_ms: int) -> int:
        queue = self._store.consumequeues.queue(SCHEDULE_TOPIC, queue_id)
        if queue is None:
            return 0
        delivered = 0
        while (records := self._due(queue, queue_id, now_ms)) and self._has_lease():
            drafts = self._drafts([record for _, record in records], now_ms)
            self._store.writer.append(drafts)
            self._move(queue_id, records[len(drafts) - 1][0] + 1)
            delivered += len(drafts)
        return delivered

    def _drafts(self, records: list[Record], now_ms: int) -> list[PendingRecord]:
        """What the first records become, as many as fit in one segment: delivered, a record may be larger than it was.

        Raises only for the very first, so that those before another go on.
        """
        drafts: list[PendingRecord] = []
        room = self._store.writer.layout.record_bytes_max
        for record in records:
            try:
                made = due(record, now_ms, self._delays_ms)
            except (CorruptStore, MessageRejected):
                if not drafts:
                    raise
                break
            room -= made.size
            if drafts and room < 0:
                break
            drafts.append(made)
        return drafts

    def _due(self, queue: ConsumeQueue, queue_id: int, now_ms: int) -> list[tuple[int, Record]]:
        """The records at the head whose time has come, with their queue offsets."""
        cell = self._positions.cell(SCHEDULE_GROUP, SCHEDULE_TOPIC, queue_id)
        # What retention removed before its time is passed over; else its units would hide those behind them for good.
        position = max(self._cells.position(cell), queue.min_offset(self._store.begin_offset))
        if self._due_ms.get((queue_id, position), 0) > now_ms:
            return []
        found: list[tuple[int, Record]] = []
        end, size = readable_end(self._store), 0
        size_max = min(_BATCH_BYTES, self._store.writer.layout.record_bytes_max)
        for queue_offset, unit in enumerate(queue.walk(position, position + _BATCH), position):
            size += unit.size
            if unit.is_filler or unit.commitlog_offset + unit.size > end or (found and size > size_max):
                break
            try:
                record = self._store.commitlog.read(unit.commitlog_offset, unit.size)
            except CorruptStore:
                if found:  # it is met again, as the first
                    break
                raise
            if record is None:
                continue
            due_ms = self._when(queue_id, record, unit.tags_code)
            if due_ms > now_ms:
                self._due_ms[queue_id, queue_offset] = due_ms
                break
            found.append((queue_offset, record))
        return found

    def _when(self, queue_id: int, record: Record, of_unit_ms: int) -> int:
        """When a record is due: as this process is set, unless its unit states a delay of the store's former broker.

        Levels are whole seconds, and 3.0 to 3.1.4, whose messages have no unique key, read the clock twice. What else
        is there is a flipped bit: by it a message would come a year late.
        """
        stored_ms = record.store_timestamp_ms
        delay_ms = of_unit_ms - stored_ms
        is_of_broker = of_unit_ms != deliver_time_ms(queue_id + 1, stored_ms)
        is_level = delay_ms % 1000 == 0 or names.UNIQ_KEY not in record.property_map
        if is_of_broker and is_level and 0 <= delay_ms <= LONGEST_DELAY_MS:
            return of_unit_ms
        return deliver_time_ms(queue_id + 1, stored_ms, self._delays_ms)

    def _move(self, queue_id: int, position: int) -> None:
        """Only the holder of the lease moves these positions, and only forward."""
        cell = self._positions.cell(SCHEDULE_GROUP, SCHEDULE_TOPIC, queue_id)
        self._due_ms = {key: at for key, at in self._due_ms.items() if key[0] != queue_id}
        with self._cells.lock:
            is_mine = self._lease_cell is not None and self._cells.fence(self._lease_cell) == self._fence
            if is_mine and self._cells.position(cell) < position:
                self._cells.put(cell, position)
