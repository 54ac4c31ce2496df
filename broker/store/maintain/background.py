"""What a store needs done now and then, by a thread that no append waits for.

    every 20 ms     the append and sync locks are let go, if a process that is alone with the store kept them
                    the log is read ahead of a process that appends fast: its pages are ready when it comes to them;
                    behind it they leave its map, so that a flush need not interrupt who appends
                    what was appended and not flushed becomes durable, so that consumers see it   (modes each, group)
    every second    the log is flushed                                                             (mode os)
                    a lower bound of what is durable is put on disk: STORE/checkback/durable
    when due        the next segment is made before the log needs it
                    old segments are removed, in a process that has a retention   (broker.retainer)
                    a checkpoint, so that a recovery has little to replay

Each process has its own threads, from its first append on; a lock lets one of them work at a time. A process that is
killed in here leaves nothing that the next one does not find.

RocketMQ: FlushRealTimeService, AllocateMappedFileService (5.3.3).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from broker.errors import BrokerError, StoreError, StoreFull
from broker.store.disk.files import ReadFile
from broker.store.disk.fork_mark import fork_mark
from broker.store.disk.lock_calls import forked_unseen
from broker.store.maintain.checkpointing import checkpoint
from broker.store.shared.checkpoint_file import seal
from broker.store.shared.control import Word
from broker.store.write.parts import StoreParts

SHARE_EVERY_S = SYNC_EVERY_S = 0.02
CARE_EVERY_S = 0.1
RETAIN_LOOK_S = 1.0  # whether a round of retention is due
FORCE_EVERY_S = 1.0  # in mode os
BOUND_EVERY_S = 0.5
LOOK_EVERY_S = 5.0  # for files that retention removed
CHECKPOINT_BYTES = 64 << 20  # a checkpoint each time the log grew by so much
CHECKPOINT_EVERY_S = 60.0  # or when it grew at all
WARM_BYTES = 16 << 20  # are ready ahead of who appends
WARM_RATE = 1 << 16  # bytes in SHARE_EVERY_S: who appends less fast seldom comes to a new page
_CROWD = int(Word.SHARED)
_AHEAD_SHARE = 4  # the next segment is made when less than a quarter is left of this one,
_AHEAD_LOOKS = 4  # or less than what is appended between so many looks


class BackgroundTasks:
    """The threads of one process. The background lock keeps those of other processes out."""

    def __init__(self, parts: StoreParts, sync: str) -> None:
        self._parts, self._lock, self._is_os = parts, parts.upkeep_lock, sync == "os"
        self._kept = (parts.append_lock, parts.syncer.lock)
        self._words, self._disk, self._paths = parts.control.words, parts.disk, parts.paths
        self.retain: Callable[[], None] | None = None  # a round of retention if it is due; set before `start`
        self._is_closed = False
        self.say_dropped: Callable[[], None] = lambda: None  # before a store that was dropped is released
        self._release: Callable[[], None] | None = None  # once nobody refers to the store any more
        self.runs = fork_mark()  # set once the threads are there, of this process
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child no thread lives: they start with its first append."""
        self.runs[0] = 0
        self._process = os.getpid()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._serving: dict[str, threading.Thread] = {}  # by the name of its work, who does it
        self._starting = threading.Lock()
        self._bound = self._seen = 0
        self._care_tail = -1  # where the log ended at the last look
        self._warmed: ReadFile | None = None
        self._bound_s = self._looked_s = self._forced_s = self._checkpoint_s = self._checked_s = time.monotonic()

    def start(self) -> None:
        """Begin, once; on a disk that counts its steps there is no background.

        Raises StoreError of a closed store, and in a process that was forked without Python's handlers.
        """
        if self._process != os.getpid():
            raise forked_unseen(self._paths.store, self._process)
        with self._starting:
            if self._is_closed:
                text = f"{self._paths.store} belongs to a store that was closed: open it again with broker.open"
                raise StoreError(text, path=self._paths.store)
            if self.runs[0]:
                return
            self.runs[0] = 1
            try:
                self._start_missing()
            except BaseException as error:  # an interrupt, too: `close` would join a thread that never runs
                started = threading.enumerate()
                self._threads = [one for one in self._threads if one in started]
                if isinstance(error, RuntimeError) and "interpreter shutdown" in str(error):
                    return  # what atexit calls, in Python 3.12: a send flushes by itself, and `close` does the rest
                self.runs[0] = 0  # the next append starts those that are missing
                raise

    def _start_missing(self) -> None:
        if not self._disk.background:
            return
        loops = [(self._care, CARE_EVERY_S), (self._share, SHARE_EVERY_S)]
        if not self._is_os:
            loops.append((self._sync, SYNC_EVERY_S))
        if self.retain is not None:
            loops.append((self._retain, RETAIN_LOOK_S))
        for work, every_s in loops:
            if work.__name__ in self._serving:
                continue
            thread = threading.Thread(
                target=self._loop, args=(work, every_s), name=f"checkback{work.__name__}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
            self._serving.setdefault(work.__name__, thread)

    def _loop(self, work: Callable[[], None], every_s: float) -> None:
        me, stop = threading.current_thread(), self._stop
        if self._serving.setdefault(work.__name__, me) is not me:
            return  # an interrupt in the `start` of another, which did begin: nobody could tell
        try:
            while not stop.wait(every_s) and self._release is None:
                # A full disk, a store that failed: the next append says so. No memory: the next round may get some.
                with contextlib.suppress(BrokerError, MemoryError):
                    work()
        except ValueError:  # of memory that is mapped no more
            if not stop.is_set():
                raise
        finally:
            for lock in self._kept:
                lock.release_kept()
            if self._release is not None:
                self._end_dropped(work.__name__, self._release)

    def drop(self, release: Callable[[], None]) -> None:
        """Have the last thread release a store that nobody closed, and nobody refers to.

        The garbage collector calls it, wherever a thread is: it takes no lock and waits for nothing.
        """
        self._release = release

    def _end_dropped(self, name: str, release: Callable[[], None]) -> None:
        with self._starting:
            self._serving.pop(name, None)
            if self._serving:
                return
        self.say_dropped()
        with contextlib.suppress(BrokerError):  # as when the process was killed: who opens it next recovers it
            release()

    def _share(self) -> None:
        """Let others have both locks, and keep them while this process is alone and appends one after another.

        A call of the system to lock a file lets another thread run meanwhile, and that one does not hurry.
        """
        self._parts.clock.now_ms()  # so that it is known when the wall clock is set back
        tail = self._words[Word.TAIL]
        keeps = tail != self._seen and not self._words[Word.SHARED] and not self._stop.is_set()
        for lock in self._kept:
            lock.release_kept()
            if keeps:
                lock.hold_across_appends(self._is_alone)
        grown, self._seen = tail - self._seen, tail
        if grown < WARM_RATE:
            self._warmed = None
        else:
            self._parts.appender.log.unmap_pages(tail - grown, tail)
            self._warm_up(tail)

    def _warm_up(self, tail: int) -> None:
        """Read what the log will come to. A new page must be cleared first, which here is done on another core."""
        warm, log = self._words[Word.WARM], self._parts.appender.log
        base = tail - tail % log.file_size
        start = warm if tail < warm <= tail + WARM_BYTES else tail  # any other is of another day
        stop = min(tail + WARM_BYTES, base + log.file_size)
        if stop - start < WARM_BYTES // 4:
            return
        path = log.path_of(base)
        if self._warmed is None or self._warmed.path != path:  # kept: the system reads in larger pages as it goes on
            self._warmed = self._disk.open_read(path)
        self._words[Word.WARM] = stop  # before it is: another process need not do the same
        self._warmed.warm(start - base, stop - base)

    def _is_alone(self) -> bool:
        return not self._words[_CROWD]

    def _sync(self) -> None:
        """Flush what no send waits for."""
        if self._words[Word.DURABLE] < self._words[Word.TAIL]:
            self._parts.syncer.force_now()

    def _care(self) -> None:
        """Everything else that is due, unless another process is at it."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._parts.forget_removed()
        if now_s - self._checked_s >= BOUND_EVERY_S:
            self._checked_s = now_s
            self._parts.check_files()
        if self._words[Word.POISON] or not self._lock.try_acquire():
            return
        try:
            tail, before = self._words[Word.TAIL], self._care_tail
            self._care_tail = tail
            with contextlib.suppress(StoreFull):  # the append that needs it says so; what is there is flushed
                self.make_segment_ahead(tail - before if before >= 0 else 0)
            if now_s - self._forced_s >= FORCE_EVERY_S:
                self._forced_s = now_s
                self._sync()
            if now_s - self._bound_s >= BOUND_EVERY_S:
                self._bound_s = now_s
                self.persist_bound()
            grown = self._words[Word.TAIL] - self._words[Word.CHECKPOINTED]
            if grown >= CHECKPOINT_BYTES or (grown and now_s - self._checkpoint_s >= CHECKPOINT_EVERY_S):
                self._checkpoint_s = now_s
                checkpoint(self._parts)
        finally:
            self._lock.release()

    def _retain(self) -> None:
        """A round of retention, unless another process is at it."""
        if self.retain is None or self._words[Word.POISON] or not self._lock.try_acquire():
            return
        try:
            self.retain()
        finally:
            self._lock.release()

    def persist_bound(self) -> None:
        """Put on disk up to where the log is durable: damage below it is not a torn write. Raises StoreFull."""
        bound = self._words[Word.DURABLE]
        if bound != self._bound:
            self._disk.write_file(self._paths.durable, seal(b"%d" % bound))
            self._bound = bound

    def make_segment_ahead(self, grown: int = 0) -> None:
        """Make the next segment if the log will soon need it: aside, and put in its place under the append lock.

        `grown`: the bytes that were appended since the last look. Raises StoreFull.
        """
        segment, log = self._parts.layout.segment_bytes, self._parts.appender.log
        tail = self._words[Word.TAIL]
        following = tail - tail % segment + segment
        left = following - tail
        is_far = left * _AHEAD_SHARE > segment and left > grown * _AHEAD_LOOKS
        if is_far or self._disk.entry(log.path_of(following)) is not None:
            return
        beside = os.path.join(self._paths.own, "next-segment")
        self._disk.allocate(beside, segment)
        with self._parts.append_lock:  # under which everybody makes segments
            if self._disk.entry(log.path_of(following)) is None:
                self._disk.rename(beside, log.path_of(following), durable=False)
        self._disk.sync_directory(log.directory)
        self._disk.sync_directory(self._paths.own)

    def close(self) -> None:
        """End the threads; what they were to do, the last to leave does.

        They are not waited for by a signal handler that interrupted this thread where they wait for it.
        """
        self._is_closed, self.runs[0] = True, 0
        if self._process != os.getpid():  # the threads are its parent's, and go on there
            return
        self._stop.set()
        for held in (self._lock, self._parts.append_lock, self._parts.syncer):
            held.give_back()
        for thread in () if self._parts.syncer.is_mine else self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                with contextlib.suppress(RuntimeError):  # an interrupt in `start`: it begins only now, and ends at once
                    thread.join()
        self._threads.clear()
