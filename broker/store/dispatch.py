"""One record in, every derived file brought up to date; done twice, it changes nothing.

Call under the append lock, for the records in log order. A process that is killed in between leaves `dispatched` behind
`tail`, and whoever takes the lock next does the rest again: each write here goes to a place that the record itself
says, or to a counted end whose count is raised last.

RocketMQ: DefaultMessageStore.doDispatch, ConsumeQueue.putMessagePositionInfo, TransactionStateService (3.1.4).
"""

from __future__ import annotations

from broker.format.consumequeue import UNIT_SIZE, Unit
from broker.format.redolog import PREPARED_TAG
from broker.format.statetable import Slot
from broker.format.sysflag import TransactionType
from broker.store.cells import QueueCells
from broker.store.control import ControlPage, Word
from broker.store.disk import Disk
from broker.store.draft import Draft
from broker.store.indexwriter import IndexWriter
from broker.store.layout import StoreLayout
from broker.store.mapped import MappedQueue
from broker.store.paths import Paths

_UNIT, _SLOT = Unit.STRUCT, Slot.STRUCT
_STATE_AT = Slot.OFFSET["state"]
_STATE = Slot.STRUCT.size - _STATE_AT
_NONE, _PREPARED, _COMMIT = (
    int(kind) for kind in (TransactionType.NONE, TransactionType.PREPARED, TransactionType.COMMIT)
)
_DELIVERED = (_NONE, _COMMIT)
_SLOTS, _REDO_UNITS = int(Word.SLOTS), int(Word.REDO_UNITS)


class Dispatcher:
    """The derived files of a store, open for writing."""

    def __init__(self, disk: Disk, paths: Paths, layout: StoreLayout, control: ControlPage, cells: QueueCells) -> None:
        self._disk, self._paths, self._layout = disk, paths, layout
        self._control, self.cells = control, cells
        self._queues: dict[int, MappedQueue] = {}
        self.table = MappedQueue(disk, paths.state_table, layout.state_table_bytes)
        self.redo_log = MappedQueue(disk, paths.redo_log, layout.redo_log_bytes)
        self.index = IndexWriter(disk, paths.index, layout.index_slots, layout.index_items, control)

    def queue(self, cell: int) -> MappedQueue:
        """The ConsumeQueue of a cell."""
        found = self._queues.get(cell)
        if found is None:
            topic, queue_id = self.cells.queue(cell)
            folder = self._paths.queue(topic, queue_id)
            found = self._queues[cell] = MappedQueue(self._disk, folder, self._layout.consume_queue_bytes)
        return found

    def reserve(self, draft: Draft, cell: int) -> None:
        """Have every file ready that the record's dispatch needs: a full disk says so before anything is written."""
        if cell >= 0:
            self.queue(cell).at(self.cells[cell] * UNIT_SIZE)
        if draft.kind:
            self.redo_log.at(self._control.words[_REDO_UNITS] * UNIT_SIZE)
            if draft.kind == _PREPARED:
                self.table.at(self._control.words[_SLOTS] * Slot.SIZE)
        self.index.reserve(len(draft.index_codes))

    def dispatch(
        self, draft: Draft, commitlog_offset: int, queue_offset: int, store_timestamp_ms: int, *, again: bool = False
    ) -> None:
        """Bring all derived files up to date with one record; `again` when a part of it may be there already."""
        kind = draft.kind
        if kind in _DELIVERED:
            cell = self.cells.of(draft.topic, draft.queue_id)
            view, at = self.queue(cell).at(queue_offset * UNIT_SIZE)
            _UNIT.pack_into(view, at, commitlog_offset, len(draft.raw), draft.tags_code)
            self.cells[cell] = queue_offset + 1
        if kind:
            prepared = kind == _PREPARED
            if not (again and self._has_redo(commitlog_offset)):
                self._redo(commitlog_offset, len(draft.raw), PREPARED_TAG if prepared else draft.prepared_offset)
            if prepared:
                view, at = self.table.at(queue_offset * Slot.SIZE)
                seconds = _wrapped(store_timestamp_ms // 1000)
                _SLOT.pack_into(view, at, commitlog_offset, len(draft.raw), seconds, draft.group_hash, _PREPARED)
                self._control.words[_SLOTS] = queue_offset + 1
            else:
                self.settle(draft.slot, draft.prepared_offset, kind)
        if draft.index_codes:
            self.index.put(draft.index_codes, commitlog_offset, store_timestamp_ms, again=again)

    def _has_redo(self, commitlog_offset: int) -> bool:
        """Whether the redo log holds a record's unit: RocketMQ's own rule against writing one twice."""
        count = self._control.words[_REDO_UNITS]
        if not count:
            return False
        view, at = self.redo_log.at((count - 1) * UNIT_SIZE)
        return int.from_bytes(view[at : at + 8], "big") >= commitlog_offset

    def _redo(self, commitlog_offset: int, size: int, tags_code: int) -> None:
        words = self._control.words
        count = words[_REDO_UNITS]
        view, at = self.redo_log.at(count * UNIT_SIZE)
        _UNIT.pack_into(view, at, commitlog_offset, size, tags_code)
        words[_REDO_UNITS] = count + 1

    def settle(self, slot: int, half_offset: int, kind: int) -> None:
        """Put the state of an end into its slot, once. RocketMQ: TransactionStateService.updateTransactionState."""
        if not 0 <= slot < self._control[Word.SLOTS]:
            return
        view, at = self.table.at(slot * Slot.SIZE)
        held = Slot.unpack_from(view, at)
        if held.commitlog_offset == half_offset and held.size > 0 and held.state == _PREPARED:
            view[at + _STATE_AT + _STATE - 1] = int(kind)  # one byte: the other three of the big-endian word are zero

    def slot(self, slot: int) -> Slot:
        """What the state table holds."""
        view, at = self.table.at(slot * Slot.SIZE)
        return Slot.unpack_from(view, at)

    def close(self) -> None:
        for queue in (*self._queues.values(), self.table, self.redo_log):
            queue.close()
        self.index.close()


def _wrapped(seconds: int) -> int:
    """Java's (int) cast: the field ends in 2038 and goes on below zero."""
    return (seconds + (1 << 31)) % (1 << 32) - (1 << 31)
