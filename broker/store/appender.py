"""Append records to the CommitLog, with many threads and processes on it, any of them killed at any instant.

Under the append lock:

    intent = where the records will end     from here on, bytes beyond `tail` are nobody's
    the bytes                               beyond the tail: no reader looks there
    tail   = where they end                 one move instruction: now they exist
    derived files                           ConsumeQueue, redo log, state table, index
    dispatched = tail

Killed before the tail moved, the records never existed: the next to take the lock clears what was begun, so that a
reader that walks bytes never sees them. Killed after it, the next finishes the dispatch. Nobody waits for the dead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from broker.errors import CorruptRecord, CorruptStore, StoreError
from broker.format.commitlog import BLANK_SIZE, MAGIC_BLANK, RecordHead, encode_blank
from broker.format.sysflag import TransactionType
from broker.store.control import ControlPage, Word
from broker.store.dispatch import Dispatcher
from broker.store.draft import Draft, check_size, draft_of, place
from broker.store.layout import StoreLayout
from broker.store.locks import AppendLock
from broker.store.mapped import MappedQueue, zero


@dataclass(frozen=True, slots=True)
class Appended:
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
        self, log: MappedQueue, control: ControlPage, dispatcher: Dispatcher, lock: AppendLock, layout: StoreLayout
    ) -> None:
        self.log, self.control, self.dispatcher, self.lock = log, control, dispatcher, lock
        self._layout = layout

    def append(self, drafts: Sequence[Draft]) -> list[Appended]:
        """Append records together: all of them come to exist at one instant, in one segment.

        Raises MessageRejected when they do not fit in a segment, StoreFull when the disk has no room: then nothing was
        written.
        """
        size = sum(draft.size for draft in drafts)
        check_size(size, self._layout.record_bytes_max)
        with self.lock:
            self.heal()
            return self.append_locked(drafts)

    def heal(self) -> None:
        """Finish or undo what a killed process left; call under the lock, before anything else is read or written."""
        words = self.control
        if words[Word.POISON]:
            raise StoreError("a forced write to this store failed: close it everywhere and run checkback recover")
        tail = words[Word.TAIL]
        if words[Word.INTENT] != tail:
            self._clear(tail, words[Word.INTENT])
            words[Word.INTENT] = tail
        if words[Word.DISPATCHED] != tail:
            self.replay(words[Word.DISPATCHED], tail)

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
            at += size
            self.control[Word.DISPATCHED] = at

    def slot_of(self, end: Draft) -> int:
        """The slot that an end settles, which the prepared record says; -1 when the end names none of its own."""
        if not 0 <= end.prepared_offset < self.control[Word.TAIL]:
            return -1
        try:
            half, record = draft_of(self.read(end.prepared_offset))
        except CorruptRecord:
            return -1
        own = half.kind is TransactionType.PREPARED and (half.group_hash, half.topic) == (end.group_hash, end.topic)
        return record.queue_offset if own else -1

    def read(self, commitlog_offset: int) -> bytes:
        """The bytes of the record that begins at an offset below the tail. Raises CorruptRecord when none does."""
        view, at = self.log.at(commitlog_offset)
        size = int.from_bytes(view[at : at + 4], "big", signed=True)
        if not RecordHead.SIZE < size <= self._layout.segment_bytes - at:
            raise CorruptRecord("no record begins here", at=at, commitlog_offset=commitlog_offset)
        return bytes(view[at : at + size])

    def append_locked(self, drafts: Sequence[Draft]) -> list[Appended]:
        """The same for a caller that holds the lock and has healed the store."""
        words, segment = self.control, self._layout.segment_bytes
        tail, size = words[Word.TAIL], sum(draft.size for draft in drafts)
        at = tail
        room = segment - tail % segment
        if size + BLANK_SIZE > room:
            at = tail + room
        cells = [self._reserve(draft) for draft in drafts]
        self.log.allocate(at)
        words[Word.INTENT] = at + size
        if at != tail:
            view, position = self.log.at(tail)
            view[position : position + BLANK_SIZE] = encode_blank(room)
        store_ms = max(time.time_ns() // 1_000_000, words[Word.STORE_MS])
        appended = self._write(drafts, cells, at, store_ms)
        words[Word.STORE_MS] = store_ms
        words[Word.TAIL] = at + size
        for draft, done in zip(drafts, appended, strict=True):
            self.dispatcher.dispatch(draft, done.commitlog_offset, done.queue_offset, store_ms)
        words[Word.DISPATCHED] = at + size
        return appended

    def _reserve(self, draft: Draft) -> int:
        """Everything the dispatch will need, before a byte is written; returns the queue's cell."""
        delivered = draft.kind in (TransactionType.NONE, TransactionType.COMMIT)
        cell = self.dispatcher.cells.of(draft.topic, draft.queue_id) if delivered else -1
        self.dispatcher.reserve(draft, cell)
        return cell

    def _write(self, drafts: Sequence[Draft], cells: Sequence[int], at: int, store_ms: int) -> list[Appended]:
        """The bytes, each with the next offset of its queue; two of one queue get successive ones."""
        taken: dict[int, int] = {}
        slots = self.control[Word.SLOTS]
        appended: list[Appended] = []
        for draft, cell in zip(drafts, cells, strict=True):
            if draft.kind == TransactionType.PREPARED:
                queue_offset, slots = slots, slots + 1
            elif draft.kind == TransactionType.ROLLBACK:
                queue_offset = draft.slot
            else:
                queue_offset = taken.get(cell, self.dispatcher.cells[cell])
                taken[cell] = queue_offset + 1
            view, position = self.log.at(at)
            place(view, position, draft.raw, queue_offset, at, store_ms)
            appended.append(Appended(at, queue_offset, draft.size, store_ms))
            at += draft.size
        return appended
