"""One record in, every derived file brought up to date; done twice, it changes nothing.

Call under the append lock, for the records in log order. A process that is killed in between leaves `dispatched` behind
`tail`, and the next process that takes the lock does the rest again: each write here goes to a place that the record
itself says, or to a counted end whose count is raised last.

RocketMQ: DefaultMessageStore.doDispatch, ConsumeQueue.putMessagePositionInfo, TransactionStateService (3.1.4).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from shlex import quote
from typing import TypeVar

from broker.errors import CorruptStore
from broker.format.consumequeue import UNIT_SIZE
from broker.format.redolog import PREPARED_TAG
from broker.format.statetable import SLOT_SIZE, Slot
from broker.format.sysflag import TransactionType
from broker.format.topics import SCHEDULE_TOPIC, deliver_time_ms
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths, is_topic_directory
from broker.store.read.layout import StoreLayout
from broker.store.shared.control import ControlPage, Word
from broker.store.shared.directory_swap import finish_swap
from broker.store.shared.queue_offsets import NextOffsets
from broker.store.write.engine import TransactionEngine
from broker.store.write.indexwriter import IndexWriter
from broker.store.write.mapped import MappedQueue, NewNames, OpenMaps, UnitQueue
from broker.store.write.pending_record import PendingRecord

# Plain numbers: an attribute of an enum takes as long as a write to a map.
_pack_slot, _unpack_slot = Slot.STRUCT.pack_into, Slot.STRUCT.unpack_from
_LAST_OF_STATE = SLOT_SIZE - 1  # one byte holds the state: the other three of the big-endian word are zero
_PREPARED, _COMMIT = int(TransactionType.PREPARED), int(TransactionType.COMMIT)
_ROLLBACK = int(TransactionType.ROLLBACK)
ANY_HALF = -1  # in the place of a CommitLog offset
_SLOTS, _REDO_UNITS, _GENERATION = int(Word.SLOTS), int(Word.REDO_UNITS), int(Word.GENERATION)

_Read = TypeVar("_Read")


class Dispatcher:
    """The derived files of a store, open for writing."""

    def __init__(
        self,
        disk: Disk,
        paths: Paths,
        layout: StoreLayout,
        control: ControlPage,
        cells: NextOffsets,
        engine: TransactionEngine,
    ) -> None:
        self._disk, self._paths, self._layout = disk, paths, layout
        self.engine, self.has_redo_log = engine, engine.has_redo_log
        self._control, self.cells = control, cells
        self._words, self._table_bytes = control.words, layout.state_table_bytes
        self.queues: dict[int, UnitQueue] = {}  # by cell, those that were touched
        self._open_maps = OpenMaps()
        # In a recovery: when a record of the schedule topic is due that another program stored; None: as ours are.
        self.due_of_broker: Callable[[int, int, int, int], int | None] | None = None
        self.table = MappedQueue(disk, engine.table(paths), layout.state_table_bytes)
        self.new_names = NewNames(disk, paths.store)
        self.redo_log = UnitQueue(
            disk, paths.redo_log, layout.redo_log_bytes, paths.begun("redolog"), self._open_maps, self.new_names
        )
        self.index = IndexWriter(disk, paths.index, layout.index_slots, layout.index_items, control)
        generation = control.words[_GENERATION]
        self.generation = -1 if generation % 2 else generation  # odd: a swap was killed, `refresh` goes on

    def refresh(self) -> None:
        """Release the maps if the derived files were swapped since; call under the append lock."""
        generation = self._words[_GENERATION]
        if generation != self.generation:
            if generation % 2:
                finish_swap(self._disk, self._paths, self._control)
                generation = self._words[_GENERATION]
            for queue in (*self.queues.values(), self.table, self.redo_log):
                queue.forget()
            self.index.forget()
            self.generation = generation

    def queue(self, cell: int) -> UnitQueue:
        """The ConsumeQueue of a cell."""
        found = self.queues.get(cell)
        if found is None:
            topic, queue_id = self.cells.queue(cell)
            if not is_topic_directory(topic):  # a log that another program wrote is replayed, too
                text = f"{self._paths.consumequeue} can have no directory for the topic {topic!r:.80} of a record"
                text = f"{text}: no broker can have written it. Run: checkback verify {quote(self._paths.store)}"
                raise CorruptStore(text, path=self._paths.consumequeue)
            directory, beside = self._paths.queue(topic, queue_id), self._paths.begun(f"queue-{cell}")
            found = self.queues[cell] = UnitQueue(
                self._disk, directory, self._layout.consume_queue_bytes, beside, self._open_maps, self.new_names
            )
        return found

    def reserve(self, drafts: Sequence[PendingRecord], commitlog_offset: int) -> list[int]:
        """Have every file ready that dispatching these records needs, and say which queue offset each will get.

        A half message's is its slot. `commitlog_offset` is where the first of them will begin. A full disk says so
        here, before anything is written: raises StoreFull.
        """
        slots, units, at = self._words[_SLOTS], self._words[_REDO_UNITS], commitlog_offset
        taken: dict[int, int] = {}
        queue_offsets = []
        for draft in drafts:
            kind, size = draft.kind, len(draft.raw)
            if kind and self.has_redo_log:
                self.redo_log.make_ready(units * UNIT_SIZE, at, size, _redo_tag(draft))
                units += 1
            if kind == _PREPARED:
                self.table.at(slots * SLOT_SIZE)
                queue_offset, slots = slots, slots + 1
            elif kind and kind != _COMMIT:
                queue_offset = draft.slot
            else:
                cell = self.cells.of(draft.topic, draft.queue_id)
                queue_offset = taken.get(cell, -1)
                if queue_offset < 0:
                    queue_offset = self.cells[cell]
                taken[cell] = queue_offset + 1
                self.queue(cell).make_ready(queue_offset * UNIT_SIZE, at, size, draft.tags_code)
                if draft.target is not None:
                    self.table.at(queue_offset * SLOT_SIZE)
            queue_offsets.append(queue_offset)
            at += size
        self.index.reserve(sum([len(draft.index_codes) for draft in drafts]))
        return queue_offsets

    def dispatch(
        self,
        draft: PendingRecord,
        commitlog_offset: int,
        queue_offset: int,
        store_timestamp_ms: int,
        *,
        again: bool = False,
    ) -> None:
        """Bring all derived files up to date with one record; `again` when a part of it may be there already."""
        kind, size, words = draft.kind, len(draft.raw), self._words
        if not self.has_redo_log:
            if kind & _PREPARED:  # of the type PREPARED or ROLLBACK: no half message of this engine, nor its end
                self._put_index(draft, commitlog_offset, store_timestamp_ms, again=again)
                return
        elif kind and not (again and self._has_redo(commitlog_offset)):
            unit = words[_REDO_UNITS]
            self.redo_log.put(unit * UNIT_SIZE, commitlog_offset, size, _redo_tag(draft))
            words[_REDO_UNITS] = unit + 1
        if kind == _PREPARED:
            self._open_slot(draft, commitlog_offset, queue_offset, store_timestamp_ms)
        else:
            if not kind or kind == _COMMIT:
                cell = self.cells.of(draft.topic, draft.queue_id)
                waits = draft.topic == SCHEDULE_TOPIC  # a unit says there when it is due, not which tag it has
                code = draft.tags_code
                if waits:
                    code = self._due_ms(draft.queue_id, queue_offset, commitlog_offset, store_timestamp_ms)
                self.queue(cell).put(queue_offset * UNIT_SIZE, commitlog_offset, size, code)
                self.cells[cell] = queue_offset + 1
                if draft.target is not None:
                    self._open_slot(draft, commitlog_offset, queue_offset, store_timestamp_ms)
            if kind:
                self.settle(draft.slot, draft.prepared_offset, kind)
            for slot in draft.ended:
                self.settle(slot, ANY_HALF, _ROLLBACK)
        self._put_index(draft, commitlog_offset, store_timestamp_ms, again=again)

    def _due_ms(self, queue_id: int, queue_offset: int, commitlog_offset: int, stored_ms: int) -> int:
        due_ms = None
        if self.due_of_broker is not None:
            due_ms = self.due_of_broker(queue_id, queue_offset, commitlog_offset, stored_ms)
        return deliver_time_ms(queue_id + 1, stored_ms) if due_ms is None else due_ms

    def _open_slot(self, draft: PendingRecord, commitlog_offset: int, slot: int, store_timestamp_ms: int) -> None:
        view, at = self.table.at(slot * SLOT_SIZE)
        seconds = wrapped_s(store_timestamp_ms)
        _pack_slot(view, at, commitlog_offset, len(draft.raw), seconds, draft.group_hash, _PREPARED)
        self._words[_SLOTS] = slot + 1

    def _put_index(
        self, draft: PendingRecord, commitlog_offset: int, store_timestamp_ms: int, *, again: bool
    ) -> None:  # fmt: skip
        if draft.index_codes:
            self.index.put(draft.index_codes, commitlog_offset, store_timestamp_ms, again=again)

    def _has_redo(self, commitlog_offset: int) -> bool:
        """Whether the redo log holds a record's unit: RocketMQ's own rule against writing one twice."""
        count = self._words[_REDO_UNITS]
        if not count:
            return False
        view, at = self.redo_log.at((count - 1) * UNIT_SIZE)
        return int.from_bytes(view[at : at + 8], "big") >= commitlog_offset

    def settle(self, slot: int, half_offset: int, kind: int) -> None:
        """Put the state of an end into its slot, once. RocketMQ: TransactionStateService.updateTransactionState.

        An op message names its half by the slot alone (`ANY_HALF`); behind a commit it finds the slot settled.
        """
        if 0 <= slot < self._words[_SLOTS]:
            base, view = self.table.last
            at = slot * SLOT_SIZE - base
            if not 0 <= at < self._table_bytes:
                view, at = self.table.at(slot * SLOT_SIZE)
            held_offset, size, _, _, state = _unpack_slot(view, at)
            if state == _PREPARED and (held_offset == half_offset or half_offset == ANY_HALF) and size > 0:
                view[at + _LAST_OF_STATE] = kind

    def slot(self, slot: int) -> Slot:
        """What the state table holds; needs no lock. Raises Missing for a slot whose file is not there."""
        return self._of_one_table(lambda: Slot.unpack_from(*self.table.existing(slot * SLOT_SIZE)))

    def slots_in_state(self, state: int, first: int, stop: int) -> list[int]:
        """Those of the slots [first, stop) that say a state; see `slots_in_state` of this module. Needs no lock."""
        return self._of_one_table(lambda: list(slots_in_state(self.table, state, first, stop)))

    def _of_one_table(self, read: Callable[[], _Read]) -> _Read:
        """What `read` finds in the state table, read again where another one was put in its place meanwhile."""
        while True:
            generation = self._words[_GENERATION]
            if generation != self.generation:
                self.table.forget()  # the next append releases the rest
            found = read()
            if self._words[_GENERATION] == generation:
                return found

    def forget_removed(self) -> None:
        """Release files that retention removed."""
        for queue in (*list(self.queues.values()), self.table, self.redo_log):
            queue.forget_removed()

    def close(self) -> None:
        for queue in (*self.queues.values(), self.table, self.redo_log):
            queue.close()
        self.index.close()


def states(view: memoryview[int], start: int, stop: int) -> bytes:
    """The states of slots [start, stop) of one file, a byte each, whose place in it is given."""
    return bytes(view[start * SLOT_SIZE + _LAST_OF_STATE : stop * SLOT_SIZE : SLOT_SIZE])


def slots_in_state(table: MappedQueue, state: int, first: int, stop: int) -> Iterator[int]:
    """The slots [first, stop) that say a state, in order, without those in files that retention removed."""
    per_file = table.file_size // SLOT_SIZE
    while first < stop:
        end = min(stop, first - first % per_file + per_file)
        with contextlib.suppress(Missing):
            view, at = table.existing(first * SLOT_SIZE)
            found = states(view, at // SLOT_SIZE, at // SLOT_SIZE + end - first)
            number = found.find(state)
            while number >= 0:
                yield first + number
                number = found.find(state, number + 1)
        first = end


def _redo_tag(draft: PendingRecord) -> int:
    return PREPARED_TAG if draft.kind == _PREPARED else draft.prepared_offset


def wrapped_s(store_timestamp_ms: int) -> int:
    """A slot's time in seconds. Java's (int) cast: the field ends in 2038 and goes on below zero."""
    return (store_timestamp_ms // 1000 + (1 << 31)) % (1 << 32) - (1 << 31)
