"""Flush what was appended to the disk: one fsync for all that wait, across threads and processes.

Of the threads that need the log durable one leads: it takes the sync lock, which keeps the leaders of other processes
out, and flushes everything that is published by then, its own records and those of others. The others sleep. When it
is done, all whose records are durable go on at once, and one of the rest leads. A record that another process forced
meanwhile needs nothing more: the durable offset is a word of the control page.

A thread that has work to do before it needs its record durable lets a flush begin beside it (`begin`). The next leader
waits for that flush first: the system reports an error once, and it must reach those who rely on the flush.

RocketMQ: CommitLog.GroupCommitService (5.3.3) does this for the threads of one process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from broker.errors import BrokerError, SyncFailed
from broker.store.disk.append_lock import AppendLock
from broker.store.disk.files import Disk
from broker.store.shared.control import ControlPage, Word
from broker.store.write.mapped import MappedQueue
from broker.store.write.presence import Poison, files_lost

_MANY = 4  # threads
_UNBEGUN_MAX = 2  # half messages
_SLOW_S = 0.002  # most work beside a flush takes less
_AHEAD_BYTES = 256 << 10  # so much more of the log is written with one flush in some hundred
_FEW_BYTES = 64 << 10  # are flushed at once: where it is more, new pages are a small part of what a flush takes
_DURABLE, _TAIL, _POISON, _WRITTEN = int(Word.DURABLE), int(Word.TAIL), int(Word.POISON), int(Word.WRITTEN)


class Syncer:
    """Makes a CommitLog durable. `on_failure` marks the store as poisoned for all processes.

    `check_files` raises StoreError, and does the same, when a file that was flushed is not in its place any more.
    """

    def __init__(
        self,
        disk: Disk,
        log: MappedQueue,
        control: ControlPage,
        lock: AppendLock,
        on_failure: Callable[[], None],
        check_files: Callable[[], None],
    ) -> None:
        self._disk, self.log, self._words = disk, log, control.words
        self.lock, self._on_failure, self._check_files = lock, on_failure, check_files
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child nobody leads and nobody waits: no other thread lives there."""
        self._mutex = threading.RLock()  # knows its owner, so that a signal handler inside can be refused
        self._leader = 0  # the thread that leads; 0: none does
        self._waited = 0  # how many threads waited beside the leader when the last flush was done
        self._waiting: list[tuple[int, threading.Lock]] = []
        self._flusher = self._disk.flusher()
        self._begun: int | None = None  # where the flush ends that was begun, until a leader has waited for it
        self._is_alone = True  # nobody appended behind the last record that a flush was to begin for
        self._is_slow = False  # the last flush kept its leader waiting
        self._unbegun = 0  # half messages that were to wait for `begin`, since it was called

    def start_write(self, start: int, stop: int) -> None:
        """Let the disk begin with what was just published; a caller that needs it durable still calls `wait_durable`.

        Not while many threads wait for each flush: its pages have records of all of them, and would be written several
        times (16 threads: 0.86 of the rate; 4: 1.1).
        """
        if self._waited < _MANY and not self._leader:
            self.log.start_write(start, stop)

    def expects_begin(self) -> bool:
        """Whether a half message that was just stored will probably see `begin`, and that will begin a flush.

        Asked once for each. A session begins a flush before it commits; a connection and Django have no place for it.
        """
        self._unbegun += 1
        is_begun = self._unbegun <= _UNBEGUN_MAX
        return is_begun and self._flusher is not None and self._is_alone and not self._is_slow

    def begin(self, commitlog_offset: int) -> bool:
        """Let a flush begin, and wait for nothing: `wait_durable` will, before anything rests on it.

        False when the caller does better to wait now: where others append, too, since one flush serves them all, and
        where flushes are slow, since later the caller may hold a lock of its database.
        """
        self._unbegun = 0
        words, flusher = self._words, self._flusher
        durable, stop = words[_DURABLE], words[_TAIL]
        self._is_alone = stop == commitlog_offset
        if durable >= commitlog_offset:
            return True
        if flusher is None or not self._is_alone or self._is_slow or words[_POISON]:
            return False
        self._check_not_inside()
        if words[_WRITTEN] < stop:
            self._write_ahead(durable, stop)
        with self._mutex:
            if self._begun is None and not self._leader and self.log.begin_flush(flusher, durable, stop):
                self._begun = stop
            return self._begun == stop

    def wait_durable(self, commitlog_offset: int) -> None:
        """Return when everything below an offset is on disk.

        Raises SyncFailed when that can no longer be known, StoreError when files of the store were deleted or cut.
        """
        words, turn = self._words, None
        try:
            while words[_DURABLE] < commitlog_offset:
                self._check_not_inside()
                with self._mutex:
                    turn = None
                    if self._leader in (0, threading.get_ident()):  # its own: an interrupt left it the lead
                        self._leader = threading.get_ident()
                    else:
                        turn = threading.Lock()
                        turn.acquire()
                        self._waiting.append((commitlog_offset, turn))
                if turn is None:
                    self._lead(commitlog_offset)
                else:
                    turn.acquire()  # until a leader lets this thread go on, or makes it the next
        except BaseException as error:
            if not isinstance(error, BrokerError):  # an interrupt, which can come at any line
                self.give_back(turn)
            raise

    @property
    def is_mine(self) -> bool:
        """Whether a signal handler interrupted this thread where the others wait for it."""
        return self._mutex._is_owned()  # type: ignore[attr-defined, no-any-return]  # noqa: SLF001

    def _check_not_inside(self) -> None:
        """Raises StoreError in a signal handler that interrupted this thread inside: to wait would never end."""
        if self.lock.is_mine or self.is_mine:
            raise self.lock.taken_twice()

    def _lead(self, commitlog_offset: int) -> None:
        try:
            with self.lock:
                if self._words[_DURABLE] < commitlog_offset:  # else the leader of another process has flushed it
                    self._force()
        finally:
            self._hand_over()

    def give_back(self, turn: threading.Lock | None = None) -> None:
        """Release what an interrupt left this thread with: followers must not wait for a leader that is gone.

        `turn` is what this thread waited for, if it did: it may have been made the next leader.
        """
        self.lock.give_back()
        with self._mutex:
            was_led = self._leader == threading.get_ident()
            chosen = turn is not None and all(other is not turn for _, other in self._waiting)
            self._waiting = [one for one in self._waiting if one[1] is not turn]
        if was_led or chosen:
            self._hand_over(was_led=was_led)

    def _hand_over(self, *, was_led: bool = True) -> None:
        """Let all go whose records are durable, and one of the rest, who will lead; of a closed store all: they see it.

        A signal handler closes it here, and what it raises then has to leave as it is.
        """
        try:
            durable = self._words[_DURABLE]
        except ValueError:  # its map was closed under us
            durable = sys.maxsize
        with self._mutex:
            self._waited = len(self._waiting)
            if self._waiting:
                rest = [one for one in self._waiting if one[0] > durable]
                for _, turn in [one for one in self._waiting if one[0] <= durable] + rest[:1]:
                    if turn.locked():  # else it was let go before an interrupt
                        turn.release()
                self._waiting = rest[1:]
            if was_led:  # last: until here an interrupt has this thread do it all again
                self._leader = 0

    def _force(self) -> None:
        """Flush the log from what is durable to what is published, or to where a flush that was begun ends.

        Call under the sync lock.
        """
        words, log, begun, flusher = self._words, self.log, self._begun, self._flusher
        if words[_POISON] == Poison.FILES_LOST:
            self._check_files()
            raise files_lost(os.path.dirname(log.directory))
        if words[_POISON]:  # pages that failed once are clean now, and lost: a sync that works would prove nothing
            text = f"{log.directory}: an fsync failed before. Close the store in every process, check the disk, and"
            raise SyncFailed(f"{text} open it again: it recovers what is there")
        start, stop = words[_DURABLE], words[_TAIL] if begun is None else begun
        if words[_WRITTEN] < stop:
            self._write_ahead(start, stop)
        since, is_quick = time.perf_counter(), False
        try:
            try:
                self._check_files()  # beside the disk, which has begun: behind the flush it would cost 20 µs
                if begun is None:
                    log.sync(start, stop)
                elif flusher is None:
                    raise ValueError("the store was closed while its log was flushed")
                else:
                    flusher.wait()
                is_quick = time.perf_counter() - since <= _SLOW_S
            finally:
                self._is_slow = not is_quick
                if not is_quick:  # files had time to go, or the flush failed since one is gone
                    self._check_files()
            if start // log.file_size != (stop - 1) // log.file_size or start % log.file_size == 0:
                self._disk.sync_directory(log.directory)  # the name of a new segment
        except SyncFailed:
            words[_POISON] = Poison.SYNC_FAILED
            self._on_failure()
            raise
        words[_DURABLE] = max(start, stop)  # another process may have flushed more than what was begun here
        self._begun = None

    def _write_ahead(self, start: int, stop: int) -> None:
        """Before a flush of few records: have the pages that the next ones come to written with it."""
        if stop - start <= _FEW_BYTES and self.log.write_pages(stop - 1, stop + _AHEAD_BYTES):
            self._words[_WRITTEN] = stop + _AHEAD_BYTES - _FEW_BYTES  # before they come to the end of these

    def force_now(self) -> None:
        """Flush everything that is published."""
        self.wait_durable(self._words[_TAIL])

    def close(self) -> None:
        self._flusher = None  # with its thread, when that is done
        self.log.close()
        self.lock.close()
