"""Append records to the CommitLog, with many threads and processes on it, any of them killed at any instant.

Under the append lock:

    intent = where the records will end     from here on, bytes beyond `tail` are uncommitted
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
from typing import Any

from broker.errors import CorruptRecord, StoreError
from broker.format.commitlog import BLANK_SIZE, MAGIC_V1, MAGIC_V2, RecordHead, encode_blank
from broker.format.framing import is_record_size
from broker.format.sysflag import TransactionType
from broker.store.clock import StoreClock
from broker.store.disk.append_lock import AppendLock
from broker.store.read.layout import StoreLayout
from broker.store.read.log_reader import LogReader
from broker.store.shared.control import ControlPage, Word
from broker.store.write.dispatch import Dispatcher
from broker.store.write.fast_append import CompiledAppend, FastAppend, compiled_append
from broker.store.write.mapped import MappedQueue, zero
from broker.store.write.pending_record import Appended, PendingRecord, check_size, place
from broker.store.write.presence import Poison, files_lost
from broker.store.write.replay import Replay

# Plain numbers: an attribute of an enum takes as long as a write to a map.
_TAIL, _INTENT, _DISPATCHED, _STORE_MS = int(Word.TAIL), int(Word.INTENT), int(Word.DISPATCHED), int(Word.STORE_MS)
_GENERATION, _POISON = int(Word.GENERATION), int(Word.POISON)
_PREPARED, _now_ns = int(TransactionType.PREPARED), time.time_ns
_MAGICS = (MAGIC_V1, MAGIC_V2)

COMPILED = ("compiled_append", "compiled_send", "compiled_prepare", "compiled_end_kept", "compiled_end")
"""Methods of an appender that the C module may have: each does the whole, or returns None and has done nothing."""
_CACHED = 1024  # half messages, so that their end needs no decoding
_CACHED_BYTES_MAX = 16_384  # of one of them


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
        self.check_files: Callable[[], None] = lambda: None  # raises when a file of the store is not in its place
        self._words = control.words
        self._segment_bytes, self._size_max = layout.segment_bytes, layout.record_bytes_max
        self._fast = FastAppend(log, control, dispatcher, layout, clock, self.cache_half)
        self._cached: list[tuple[int, PendingRecord] | None] = [None] * _CACHED
        made = compiled_append(log, control, dispatcher, lock, layout, clock, self._cached, _now_ns)
        self.compiled_append: CompiledAppend = made.append if made else lambda _draft: None
        self.compiled_send: CompiledAppend = made.send if made else lambda *_: None
        self.compiled_prepare: Callable[..., Any] = made.prepare if made else lambda *_: None
        self.compiled_end_kept: Callable[..., Any] = made.end_kept if made else lambda *_: None
        self.compiled_end: Callable[..., Any] = made.end if made else lambda *_: None

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
        if (done := self.compiled_append(draft)) is not None:
            return done
        if len(draft.raw) > self._size_max:
            check_size(len(draft.raw), self._size_max)
        with self.lock:
            return self.append_one_locked(draft)

    def cached_half(self, half_offset: int, slot: int) -> PendingRecord | None:
        """A half message that this process appended lately; None when it is no longer in memory."""
        cached = self._cached[slot % _CACHED]
        return cached[1] if cached is not None and cached[0] == half_offset else None

    def cache_half(self, half_offset: int, slot: int, draft: PendingRecord) -> None:
        """Keep a half message, so that its end needs no decoding."""
        if len(draft.raw) <= _CACHED_BYTES_MAX:
            self._cached[slot % _CACHED] = (half_offset, draft)

    def heal(self) -> None:
        """Finish or undo what a killed process left; call under the lock, before anything else is read or written."""
        words = self._words
        if words[_POISON]:
            self.check_files()
            raise poisoned(os.path.dirname(self.log.directory), words[_POISON])
        if words[_GENERATION] != self.dispatcher.generation:
            self.dispatcher.refresh()
        tail = words[_TAIL]
        if words[_INTENT] != tail:
            zero(self.log, tail, words[_INTENT])
            words[_INTENT] = tail
        if words[_DISPATCHED] != tail:
            self.replay(words[_DISPATCHED], tail)

    def replay(self, start: int, stop: int) -> None:
        """Dispatch the records of [start, stop) again, which a killed process published."""
        log = LogReader(self.log.disk, self.log.directory, self._segment_bytes)
        Replay(log, self.control, self.dispatcher, again=True).run(start, stop)

    def read(self, commitlog_offset: int) -> bytes:
        """The bytes of the published record that begins at an offset; needs no lock.

        Raises CorruptRecord when none begins there, and Missing when retention has removed it.
        """
        if not 0 <= commitlog_offset < self._words[_TAIL]:
            raise CorruptRecord("no record begins here: the log ends before it", commitlog_offset=commitlog_offset)
        view, at = self.log.existing(commitlog_offset)
        if (room := self._segment_bytes - at) >= RecordHead.SIZE:
            size, magic, _, _, _, _, stated, _, _ = RecordHead.STRUCT.unpack_from(view, at)
            if magic in _MAGICS and stated == commitlog_offset and is_record_size(size, room):
                return bytes(view[at : at + size])
        raise CorruptRecord("no record begins here", at=at, commitlog_offset=commitlog_offset)

    def append_one_locked(self, draft: PendingRecord) -> Appended:
        """The same for one record, by the fast path where that fits."""
        return self._fast.append(draft) or self.append_locked((draft,))[0]

    def append_as_one_locked(self, drafts: tuple[PendingRecord, ...]) -> Appended:
        """Append the records that end one transaction; returns where the first went. For a caller that has the lock."""
        if len(drafts) == 1:
            return self.append_one_locked(drafts[0])
        return self._fast.append_pair(*drafts) or self.append_locked(drafts)[0]

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
        queue_offsets = self.dispatcher.reserve(drafts, at)
        self.log.allocate(at)
        words[_INTENT] = at + size
        if at != tail:
            view, position = self.log.at(tail)
            view[position : position + BLANK_SIZE] = encode_blank(room)
        if (store_ms := _now_ns() // 1_000_000) < words[_STORE_MS] or store_ms < self._clock.seen_ms:
            store_ms = self._clock.now_ms()  # which knows STORE_MS
        appended: list[Appended] = []
        for draft, queue_offset in zip(drafts, queue_offsets, strict=True):
            appended.append(Appended(at, queue_offset, len(draft.raw), store_ms))
            at += len(draft.raw)
        for draft, done in zip(reversed(drafts), reversed(appended), strict=True):  # readers find all or none
            view, position = self.log.at(done.commitlog_offset)
            place(view, position, draft.raw, done.queue_offset, done.commitlog_offset, store_ms)
        words[_TAIL] = at
        words[_STORE_MS] = store_ms
        for draft, done in zip(drafts, appended, strict=True):
            self.dispatcher.dispatch(draft, done.commitlog_offset, done.queue_offset, store_ms)
            if draft.kind == _PREPARED or draft.target is not None:
                self.cache_half(done.commitlog_offset, done.queue_offset, draft)
        words[_DISPATCHED] = at
        return appended


def poisoned(directory: str, why: int = Poison.SYNC_FAILED) -> StoreError:
    """The error for a write after an fsync failed or files were lost, in any process."""
    if why == Poison.FILES_LOST:
        return files_lost(directory)
    text = f"{directory}: an fsync failed, so that nothing more can be promised. Close the store in every process"
    return StoreError(f"{text}, check the disk, and open it again: it recovers what is there", path=directory)
