"""Append records to the CommitLog, with many threads and processes on it, any of them killed at any instant.

Under the append lock:

    intent = where the records will end     from here on, bytes beyond `tail` are nobody's
    the bytes                               beyond the tail: no reader looks there
    tail   = where they end                 one move instruction: now they exist
    store time                              of the newest record; behind the tail, so that it is never that of none
    derived files                           ConsumeQueue, redo log, state table, index
    dispatched = tail

Killed before the tail moved, the records never existed: the next to take the lock clears what was begun, so that a
reader that walks bytes never sees them. Killed after it, the next finishes the dispatch. Nobody waits for the dead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker.errors import CorruptRecord, CorruptStore, StoreError
from broker.format.commitlog import BLANK_SIZE, MAGIC_BLANK, RecordHead, encode_blank
from broker.format.consumequeue import UNIT_SIZE, Unit
from broker.format.redolog import PREPARED_TAG
from broker.format.statetable import SLOT_SIZE, Slot
from broker.format.sysflag import TransactionType
from broker.format.topics import SCHEDULE_TOPIC
from broker.store.clock import StoreClock
from broker.store.disk.files import Missing
from broker.store.disk.locks import AppendLock
from broker.store.write.control import STATE, STATE_AT, ControlPage, Word
from broker.store.write.dispatch import Dispatcher, wrapped_s
from broker.store.write.layout import StoreLayout
from broker.store.write.mapped import MappedQueue, zero
from broker.store.write.pending_record import PendingRecord, check_size, draft_of, place, target_topic
from broker.store.write.presence import Poison, files_lost
from broker.store.write.queue_offsets import CELL_WORDS

# Plain numbers: an attribute of an enum takes as long as a write to a map.
_TAIL, _INTENT, _DISPATCHED, _STORE_MS = int(Word.TAIL), int(Word.INTENT), int(Word.DISPATCHED), int(Word.STORE_MS)
_GENERATION, _POISON = int(Word.GENERATION), int(Word.POISON)
_SLOTS, _REDO_UNITS = int(Word.SLOTS), int(Word.REDO_UNITS)
_PREPARED, _ROLLBACK = int(TransactionType.PREPARED), int(TransactionType.ROLLBACK)
_pack_unit, _pack_slot = Unit.STRUCT.pack_into, Slot.STRUCT.pack_into
_look, _now_ns, _new_tuple = STATE.unpack_from, time.time_ns, tuple.__new__

_RECENT = 1024  # halves that are remembered as drafts, so that their end needs no decoding
_RECENT_BYTES_MAX = 16_384  # of one of them


class Appended(NamedTuple):
    """Where a record went."""

    commitlog_offset: int
    queue_offset: int  # in its ConsumeQueue; of a prepared record its slot
    size: int
    store_timestamp_ms: int

    @property
    def end(self) -> int:
        return self.commitlog_offset + self.size


class Appender:
    """The writing end of a CommitLog. Threads may share it; a process makes its own."""

    def __init__(
        self,
        log: MappedQueue,
        control: ControlPage,
        dispatcher: Dispatcher,
        lock: AppendLock,
        layout: StoreLayout,
        clock: StoreClock,
    ) -> None:
        self.log, self.control, self.dispatcher, self.lock = log, control, dispatcher, lock
        self._clock = clock
        self._words, self._page = control.words, control.view
        self.check_files: Callable[[], None] = lambda: None  # raises when a file of the store is not in its place
        self._layout = layout
        self._segment_bytes, self._size_max = layout.segment_bytes, layout.record_bytes_max
        self._table_bytes, self._redo_bytes = layout.state_table_bytes, layout.redo_log_bytes
        self._queue_bytes = layout.consume_queue_bytes
        self._known_cell, self._cell_words = dispatcher.cells.known.get, dispatcher.cells.words
        self._recent: list[tuple[int, PendingRecord] | None] = [None] * _RECENT

    def append(self, drafts: Sequence[PendingRecord]) -> list[Appended]:
        """Append records together: all of them come to exist at one instant, in one segment.

        Raises MessageRejected when they do not fit in a segment, StoreFull when the disk has no room: then nothing was
        written.
        """
        check_size(sum([len(draft.raw) for draft in drafts]), self._size_max)
        with self.lock:
            return self.append_locked(drafts)

    def append_one(self, draft: PendingRecord) -> Appended:
        """The same for one record."""
        if len(draft.raw) > self._size_max:
            check_size(len(draft.raw), self._size_max)
        with self.lock:
            return self.append_one_locked(draft)

    def recent(self, half_offset: int, slot: int) -> PendingRecord | None:
        """The draft of a half message that this process appended lately; None when it is no longer known."""
        known = self._recent[slot % _RECENT]
        return known[1] if known is not None and known[0] == half_offset else None

    def heal(self) -> None:
        """Finish or undo what a killed process left; call under the lock, before anything else is read or written."""
        words = self._words
        if words[_POISON]:
            self.check_files()
            raise poisoned(os.path.dirname(self.log.folder), words[_POISON])
        if words[_GENERATION] != self.dispatcher.generation:
            self.dispatcher.refresh()
        tail = words[_TAIL]
        if words[_INTENT] != tail:
            self._clear(tail, words[_INTENT])
            words[_INTENT] = tail
        if words[_DISPATCHED] != tail:
            self.replay(words[_DISPATCHED], tail)

    def _clear(self, start: int, stop: int) -> None:
        """Zero what was begun; files that were not even made hold nothing."""
        segment = self._layout.segment_bytes
        own_end = start - start % segment + segment
        zero(self.log, start, min(stop, own_end))
        if stop > own_end:
            zero(self.log, own_end, stop)

    def replay(self, start: int, stop: int) -> None:
        """Dispatch the records of [start, stop) again."""
        segment = self._layout.segment_bytes
        at = start
        while at < stop:
            view, position = self.log.at(at)
            size = int.from_bytes(view[position : position + 4], "big", signed=True)
            magic = int.from_bytes(view[position + 4 : position + 8], "big", signed=True)
            if magic == MAGIC_BLANK:
                at += segment - position
                self.control[Word.DISPATCHED] = min(at, stop)
                continue
            if not RecordHead.SIZE < size <= segment - position:
                raise CorruptStore(
                    f"{self.log.path_of(at - position)} at {position}: no record is where one was published"
                )
            draft, record = draft_of(bytes(view[position : position + size]))
            if draft.kind is TransactionType.COMMIT:
                draft.slot = self.slot_of(draft)
            self.dispatcher.dispatch(draft, at, record.queue_offset, record.store_timestamp_ms, again=True)
            self._words[_STORE_MS] = max(self._words[_STORE_MS], record.store_timestamp_ms)
            at += size
            self.control[Word.DISPATCHED] = at

    def slot_of(self, end: PendingRecord) -> int:
        """The slot that an end settles, which the prepared record says; -1 when the end names none of its own."""
        if not 0 <= end.prepared_offset < self.control[Word.TAIL]:
            return -1
        try:
            half, record = draft_of(self.read(end.prepared_offset))
        except (CorruptRecord, Missing):  # none is there, or not any more
            return -1
        meant = (end.group_hash, target_topic(end))
        own = half.kind is TransactionType.PREPARED and (half.group_hash, half.topic) == meant
        return record.queue_offset if own else -1

    def read(self, commitlog_offset: int) -> bytes:
        """The bytes of the published record that begins at an offset; needs no lock.

        Raises CorruptRecord when none begins there, and Missing when retention has removed it.
        """
        if not 0 <= commitlog_offset < self._words[_TAIL]:
            raise CorruptRecord("no record begins here: the log ends before it", commitlog_offset=commitlog_offset)
        view, at = self.log.existing(commitlog_offset)
        size = int.from_bytes(view[at : at + 4], "big", signed=True)
        if not RecordHead.SIZE < size <= self._segment_bytes - at:
            raise CorruptRecord("no record begins here", at=at, commitlog_offset=commitlog_offset)
        return bytes(view[at : at + size])

    def append_one_locked(self, draft: PendingRecord) -> Appended:
        """Append one record; for a caller that holds the lock.

        This is `append_locked` for the common case, in one piece, at a third of the time: there is nothing to heal, and
        every file is mapped where the record needs it. Whatever is not so leads to the general way. The steps, and what
        is stored at each, are those of `append_locked` and `Dispatcher.dispatch`.
        """
        raw, kind, words, derived = draft.raw, draft.kind, self._words, self.dispatcher
        tail, intent, done, _, generation, poison, slots, units, _, last_ms, _, number = _look(self._page, STATE_AT)
        size = len(raw)
        log_base, log = self.log.last
        redo_base, redo = derived.redo_log.last
        unit_at, at, end = units * UNIT_SIZE - redo_base, tail - log_base, tail + size
        ready = tail == intent == done and not poison and generation == derived.generation
        codes = draft.index_codes
        room = derived.index.room_for(len(codes), number)
        ready = ready and 0 <= at <= self._size_max - size
        ready = ready and (not kind or 0 <= unit_at < self._redo_bytes)
        queue_offset, cell, place_at, table = slots, -1, 0, log  # `place_at` is in the state table or the ConsumeQueue
        if kind == _PREPARED:
            base, table = derived.table.last
            place_at = slots * SLOT_SIZE - base
            ready = ready and 0 <= place_at < self._table_bytes
        elif kind == _ROLLBACK:
            queue_offset = draft.slot
        else:
            cell = self._known_cell((draft.topic, draft.queue_id), -1)
            ready = ready and cell in derived.queues and draft.topic != SCHEDULE_TOPIC
            if ready:
                queue_offset = self._cell_words[cell * CELL_WORDS]
                base, table = derived.queues[cell].last
                place_at = queue_offset * UNIT_SIZE - base
                ready = 0 <= place_at < self._queue_bytes
        if not ready or room is None:
            return self.append_locked((draft,))[0]
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
            if size <= _RECENT_BYTES_MAX:
                self._recent[slots % _RECENT] = (tail, draft)
        else:
            if kind:
                _pack_unit(redo, unit_at, tail, size, draft.prepared_offset)
                words[_REDO_UNITS] = units + 1
                derived.settle(draft.slot, draft.prepared_offset, kind)
            if kind != _ROLLBACK:
                _pack_unit(table, place_at, tail, size, draft.tags_code)
                self._cell_words[cell * CELL_WORDS] = queue_offset + 1
        if codes:
            derived.index.put_into(room, codes, tail, store_ms)
        words[_DISPATCHED] = end
        return _new_tuple(Appended, (tail, queue_offset, size, store_ms))

    def append_locked(self, drafts: Sequence[PendingRecord]) -> list[Appended]:
        """Append records together; for a caller that holds the lock."""
        self.heal()
        words, segment = self._words, self._segment_bytes
        tail, size = words[_TAIL], sum([len(draft.raw) for draft in drafts])
        at, room = tail, segment - tail % segment
        if size + BLANK_SIZE > room:
            at = tail + room
        if tail % segment:
            self.log.existing(tail)  # what is published in it must not be lost to a new file
        queue_offsets = self.dispatcher.reserve(drafts)
        self.log.allocate(at)
        words[_INTENT] = at + size
        if at != tail:
            view, position = self.log.at(tail)
            view[position : position + BLANK_SIZE] = encode_blank(room)
        if (store_ms := _now_ns() // 1_000_000) < words[_STORE_MS] or store_ms < self._clock.seen_ms:
            store_ms = self._clock.now_ms()  # which knows STORE_MS
        appended: list[Appended] = []
        for draft, queue_offset in zip(drafts, queue_offsets, strict=True):
            view, position = self.log.at(at)
            place(view, position, draft.raw, queue_offset, at, store_ms)
            appended.append(Appended(at, queue_offset, len(draft.raw), store_ms))
            at += len(draft.raw)
        words[_TAIL] = at
        words[_STORE_MS] = store_ms
        for draft, done in zip(drafts, appended, strict=True):
            self.dispatcher.dispatch(draft, done.commitlog_offset, done.queue_offset, store_ms)
            if draft.kind == _PREPARED and done.size <= _RECENT_BYTES_MAX:
                self._recent[done.queue_offset % _RECENT] = (done.commitlog_offset, draft)
        words[_DISPATCHED] = at
        return appended


def poisoned(folder: str, why: int = Poison.SYNC_FAILED) -> StoreError:
    """The error for whoever would write after a forced write failed or files were lost, in whichever process."""
    if why == Poison.FILES_LOST:
        return files_lost(folder)
    text = f"{folder}: a forced write failed, so that nothing more can be promised. Close the store in every process"
    return StoreError(f"{text}, see to the disk, and open it again: it recovers what is there", path=folder)
