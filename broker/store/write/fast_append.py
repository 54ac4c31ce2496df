"""Fast path: append and dispatch one record in one piece, for the common case.

Why          a record of 1 KiB costs 6 µs of CPU here, and 10 µs by `Appender.append_locked`
Measured by  `make bench`: "transactions/s, storage layer only"
General twin `Appender.append_locked`; the steps, and what is stored at each, are the same
Kept equal   tests/store/test_fast_append.py: random histories by all three ways, compared byte by byte

`compiled_append` is the same in C (`broker._fast.Append`), with the append lock around it; it stores half messages and
their ends in one call each, too. What is stored at each of its steps: tests/store/test_compiled_steps.py.

It applies where there is nothing to heal and every file is mapped where the record needs it. It looks at the control
page once and at the index header once, before anything is stored; what it read there is what it writes by, since the
append lock is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from broker import compiled
from broker.format.consumequeue import UNIT_SIZE, Unit
from broker.format.redolog import PREPARED_TAG
from broker.format.statetable import SLOT_SIZE, Slot
from broker.format.sysflag import TransactionType
from broker.format.topics import SCHEDULE_TOPIC
from broker.store.clock import StoreClock
from broker.store.disk.append_lock import AppendLock
from broker.store.read.layout import StoreLayout
from broker.store.shared.control import STATE, STATE_AT, ControlPage, Word
from broker.store.shared.queue_offsets import CELL_WORDS
from broker.store.write.dispatch import ANY_HALF, Dispatcher, wrapped_s
from broker.store.write.mapped import MappedQueue
from broker.store.write.pending_record import Appended, PendingRecord, place

# Plain numbers: an attribute of an enum takes as long as a write to a map.
_TAIL, _INTENT, _DISPATCHED, _STORE_MS = int(Word.TAIL), int(Word.INTENT), int(Word.DISPATCHED), int(Word.STORE_MS)
_SLOTS, _REDO_UNITS = int(Word.SLOTS), int(Word.REDO_UNITS)
_PREPARED, _ROLLBACK = int(TransactionType.PREPARED), int(TransactionType.ROLLBACK)
_COMMIT = int(TransactionType.COMMIT)
_pack_unit, _pack_slot = Unit.STRUCT.pack_into, Slot.STRUCT.pack_into
_look, _now_ns, _new_tuple = STATE.unpack_from, time.time_ns, tuple.__new__


class FastAppend:
    """The fast path of one process's appender. `cache_half` gets the offset, slot and record of a half message."""

    def __init__(
        self,
        log: MappedQueue,
        control: ControlPage,
        dispatcher: Dispatcher,
        layout: StoreLayout,
        clock: StoreClock,
        cache_half: Callable[[int, int, PendingRecord], None],
    ) -> None:
        self._log, self._words, self._page, self._dispatcher = log, control.words, control.view, dispatcher
        self._size_max, self._queue_bytes = layout.record_bytes_max, layout.consume_queue_bytes
        self._table_bytes, self._redo_bytes = layout.state_table_bytes, layout.redo_log_bytes
        self._known_queue, self._cell_words = dispatcher.cells.known.get, dispatcher.cells.words
        self._clock, self._cache_half = clock, cache_half

    def append(self, draft: PendingRecord) -> Appended | None:
        """Append one record; None when this is not the common case: then nothing was stored. Call under the lock."""
        if draft.target is not None or draft.ended:
            return self._append_aside(draft)
        raw, kind, words, derived = draft.raw, draft.kind, self._words, self._dispatcher
        tail, intent, done, _, generation, poison, slots, units, _, last_ms, _, number = _look(self._page, STATE_AT)
        size = len(raw)
        log_base, log = self._log.last
        redo_base, redo = derived.redo_log.last
        unit_at, at, end = units * UNIT_SIZE - redo_base, tail - log_base, tail + size
        ready = tail == intent == done and not poison and generation == derived.generation
        codes = draft.index_codes
        room = derived.index.room_for(len(codes), number)
        ready = ready and 0 <= at <= self._size_max - size
        ready = ready and (not kind or 0 <= unit_at < self._redo_bytes or not derived.has_redo_log)
        queue_offset, cell, place_at, table = slots, -1, 0, log  # `place_at` is in the state table or the ConsumeQueue
        if kind == _PREPARED:
            base, table = derived.table.last
            place_at = slots * SLOT_SIZE - base
            ready = ready and 0 <= place_at < self._table_bytes
        elif kind == _ROLLBACK:
            queue_offset = draft.slot
        else:
            cell = self._known_queue((draft.topic, draft.queue_id), -1)
            ready = ready and cell in derived.queues and draft.topic != SCHEDULE_TOPIC
            if ready:
                queue_offset = self._cell_words[cell * CELL_WORDS]
                base, table = derived.queues[cell].last
                place_at = queue_offset * UNIT_SIZE - base
                ready = 0 <= place_at < self._queue_bytes
        if not ready or room is None:
            return None
        if (store_ms := _now_ns() // 1_000_000) < last_ms or store_ms < self._clock.seen_ms:
            store_ms = self._clock.now_ms()  # the wall clock was set back
        words[_INTENT] = end
        place(log, at, raw, queue_offset, tail, store_ms)
        words[_TAIL] = end
        words[_STORE_MS] = store_ms
        if kind == _PREPARED:
            _pack_unit(redo, unit_at, tail, size, PREPARED_TAG)
            words[_REDO_UNITS] = units + 1
            _pack_slot(table, place_at, tail, size, wrapped_s(store_ms), draft.group_hash, _PREPARED)
            words[_SLOTS] = slots + 1
            self._cache_half(tail, slots, draft)
        else:
            if kind and derived.has_redo_log:
                _pack_unit(redo, unit_at, tail, size, draft.prepared_offset)
                words[_REDO_UNITS] = units + 1
            if kind != _ROLLBACK:
                _pack_unit(table, place_at, tail, size, draft.tags_code)
                self._cell_words[cell * CELL_WORDS] = queue_offset + 1
            if kind:
                derived.settle(draft.slot, draft.prepared_offset, kind)
        if codes:
            derived.index.put_into(room, codes, tail, store_ms)
        words[_DISPATCHED] = end
        return _new_tuple(Appended, (tail, queue_offset, size, store_ms))

    def _append_aside(self, draft: PendingRecord) -> Appended | None:
        """The same for a half message of the half topic, and for the op message that rolls one back."""
        raw, words, derived, is_half = draft.raw, self._words, self._dispatcher, draft.target is not None
        tail, intent, done, _, generation, poison, _, _, _, last_ms, _, number = _look(self._page, STATE_AT)
        log_base, log = self._log.last
        at, size, codes = tail - log_base, len(raw), draft.index_codes
        room = derived.index.room_for(len(codes), number)
        cell = self._known_queue((draft.topic, draft.queue_id), -1)
        queue = derived.queues.get(cell)
        if (
            tail != intent
            or tail != done
            or poison
            or generation != derived.generation
            or queue is None
            or room is None
        ):
            return None
        queue_offset = self._cell_words[cell * CELL_WORDS]
        base, units = queue.last
        unit_at = queue_offset * UNIT_SIZE - base
        base, table = derived.table.last
        slot_at = queue_offset * SLOT_SIZE - base if is_half else 0
        ready = 0 <= at <= self._size_max - size and 0 <= unit_at < self._queue_bytes
        if not ready or not 0 <= slot_at < self._table_bytes:
            return None
        if (store_ms := _now_ns() // 1_000_000) < last_ms or store_ms < self._clock.seen_ms:
            store_ms = self._clock.now_ms()  # the wall clock was set back
        words[_INTENT] = tail + size
        place(log, at, raw, queue_offset, tail, store_ms)
        words[_TAIL] = tail + size
        words[_STORE_MS] = store_ms
        _pack_unit(units, unit_at, tail, size, draft.tags_code)
        self._cell_words[cell * CELL_WORDS] = queue_offset + 1
        if is_half:
            _pack_slot(table, slot_at, tail, size, wrapped_s(store_ms), draft.group_hash, _PREPARED)
            words[_SLOTS] = queue_offset + 1
            self._cache_half(tail, queue_offset, draft)
        else:
            for slot in draft.ended:
                derived.settle(slot, ANY_HALF, _ROLLBACK)
        if codes:
            derived.index.put_into(room, codes, tail, store_ms)
        words[_DISPATCHED] = tail + size
        return _new_tuple(Appended, (tail, queue_offset, size, store_ms))

    def append_pair(self, commit: PendingRecord, op: PendingRecord) -> Appended | None:
        """The same for a commit with its op message, which come to exist at one instant; where the commit went."""
        words, derived, known, cells = self._words, self._dispatcher, self._known_queue, self._cell_words
        tail, intent, done, _, generation, poison, _, _, _, last_ms, _, number = _look(self._page, STATE_AT)
        log_base, log = self._log.last
        at, size, op_size, codes = tail - log_base, len(commit.raw), len(op.raw), commit.index_codes
        room = derived.index.room_for(len(codes), number)
        cell, op_cell = known((commit.topic, commit.queue_id), -1), known((op.topic, op.queue_id), -1)
        queue, op_queue = derived.queues.get(cell), derived.queues.get(op_cell)
        ready = tail == intent == done and not poison and generation == derived.generation
        ready = ready and 0 <= at <= self._size_max - size - op_size and commit.topic != SCHEDULE_TOPIC
        if not ready or queue is None or op_queue is None or room is None:
            return None
        queue_offset, op_offset = cells[cell * CELL_WORDS], cells[op_cell * CELL_WORDS]
        base, units = queue.last
        unit_at = queue_offset * UNIT_SIZE - base
        base, op_units = op_queue.last
        op_unit_at = op_offset * UNIT_SIZE - base
        if not (0 <= unit_at < self._queue_bytes and 0 <= op_unit_at < self._queue_bytes):
            return None
        if (store_ms := _now_ns() // 1_000_000) < last_ms or store_ms < self._clock.seen_ms:
            store_ms = self._clock.now_ms()  # the wall clock was set back
        op_at = tail + size
        words[_INTENT] = op_at + op_size
        place(log, at + size, op.raw, op_offset, op_at, store_ms)  # the last first: who reads on finds both or none
        place(log, at, commit.raw, queue_offset, tail, store_ms)
        words[_TAIL] = op_at + op_size
        words[_STORE_MS] = store_ms
        _pack_unit(units, unit_at, tail, size, commit.tags_code)
        cells[cell * CELL_WORDS] = queue_offset + 1
        derived.settle(commit.slot, commit.prepared_offset, _COMMIT)
        _pack_unit(op_units, op_unit_at, op_at, op_size, op.tags_code)
        cells[op_cell * CELL_WORDS] = op_offset + 1
        if codes:
            derived.index.put_into(room, codes, tail, store_ms)
        words[_DISPATCHED] = op_at + op_size
        return _new_tuple(Appended, (tail, queue_offset, size, store_ms))


CompiledAppend = Callable[..., Appended | None]


class CompiledAppender(Protocol):
    """What the C module makes. All take the append lock; None: nothing was stored, the Python has to do it."""

    append: CompiledAppend  # (record)
    # (fields of a Message, more properties or None, unique key, queue, born milliseconds, Origin or None)
    send: CompiledAppend
    # (Half, fields of a Message, more properties or None, unique key, queue, born milliseconds, group, Origin or None)
    prepare: Callable[..., Any]
    # (CommitLog offset of what `prepare` stored, slot, group, kind, milliseconds since 1970, Ended, state)
    end_kept: Callable[..., Any]
    end: Callable[..., Any]  # (any half message, its CommitLog offset, its slot, kind, … the same)


def compiled_append(
    log: MappedQueue,
    control: ControlPage,
    dispatcher: Dispatcher,
    lock: AppendLock,
    layout: StoreLayout,
    clock: StoreClock,
    cached: list[Any],
    now_ns: Callable[[], int],
) -> CompiledAppender | None:
    """The compiled append of one process's appender; None where there is no C module.

    `cached` are the half messages that the appender remembers, by slot; `now_ns` is the wall clock.
    """
    if compiled.fast is None:
        return None
    op, half_queue = dispatcher.engine.op_model, dispatcher.engine.half_queue
    made: CompiledAppender = compiled.fast.Append(
        lock=lock,
        control=control.words,
        cells=dispatcher.cells.words,
        log=log,
        dispatcher=dispatcher,
        redo=dispatcher.redo_log,
        table=dispatcher.table,
        queues=dispatcher.queues,
        known=dispatcher.cells.known,
        index=dispatcher.index,
        clock=clock,
        now_ns=now_ns,
        cached=cached,
        result=Appended,
        schedule_topic=SCHEDULE_TOPIC,
        half_key=half_queue,
        op_key=(op.topic, op.queue_id) if op else None,
        op_model=op.raw if op else None,
        op_tags=op.tags_code if op else 0,
        size_max=layout.record_bytes_max,
        table_bytes=layout.state_table_bytes,
        redo_bytes=layout.redo_log_bytes,
        queue_bytes=layout.consume_queue_bytes,
        index_slots=layout.index_slots,
        index_items=layout.index_items,
        has_redo_log=dispatcher.has_redo_log,
    )
    return made
