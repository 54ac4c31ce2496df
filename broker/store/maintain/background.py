"""What a store needs done now and then, by a thread that no append waits for.

    every 20 ms     the append and sync locks are let go, if a process that is alone with the store kept them
                    the log is read ahead of a process that appends fast: its pages are ready when it comes to them
                    what was appended and not forced becomes durable, so that consumers see it   (modes each, group)
    every second    the log is forced                                                             (mode os)
                    a lower bound of what is durable is put on disk: STORE/checkback/durable
    when due        the next segment is made before the log needs it
                    a checkpoint, so that a recovery has little to replay

Each process has its own threads, from its first append on; a lock lets one of them work at a time. Whoever is killed
in here leaves nothing that the next one does not find.

RocketMQ: FlushRealTimeService, AllocateMappedFileService (5.3.3).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.errors import BrokerError
from broker.store.disk.files import ReadFile
from broker.store.disk.locks import AppendLock
from broker.store.write.checkpoint_file import seal
from broker.store.write.control import Word

if TYPE_CHECKING:
    from broker.store.writer import StoreWriter

SHARE_EVERY_S = SYNC_EVERY_S = 0.02
CARE_EVERY_S = 0.1
FORCE_EVERY_S = 1.0  # in mode os
BOUND_EVERY_S = 0.5
LOOK_EVERY_S = 5.0  # for files that retention removed
CHECKPOINT_BYTES = 64 << 20  # a checkpoint each time the log grew by so much
CHECKPOINT_EVERY_S = 60.0  # or when it grew at all
WARM_BYTES = 16 << 20  # are ready ahead of who appends
WARM_RATE = 1 << 20  # bytes in SHARE_EVERY_S: who appends less fast does not wait for pages
_CROWD = int(Word.SHARED)
_AHEAD_SHARE = 4  # the next segment is made when less than a quarter is left of this one


class BackgroundTasks:
    """The threads of one process. `lock` keeps those of other processes out."""

    def __init__(self, writer: StoreWriter, lock: AppendLock) -> None:
        self._writer, self._lock = writer, lock
        self._kept = (writer.append_lock, writer.syncer.lock)
        self._words, self._disk, self._paths = writer.control.words, writer.disk, writer.paths
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child no thread lives: they start with its first append."""
        self.is_running = False
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._bound = self._seen = self._warm = 0
        self._warmed: ReadFile | None = None
        self._bound_s = self._looked_s = self._forced_s = self._checkpoint_s = self._checked_s = time.monotonic()

    def start(self) -> None:
        """Begin, once; on a disk that counts its steps there is no background."""
        with self._starting:
            if self.is_running:
                return
            self.is_running = True
            if not self._disk.background:
                return
            loops = [(self._care, CARE_EVERY_S), (self._share, SHARE_EVERY_S)]
            if self._writer.sync != "os":
                loops.append((self._sync, SYNC_EVERY_S))
            for work, every_s in loops:
                thread = threading.Thread(
                    target=self._loop, args=(work, every_s), name=f"checkback{work.__name__}", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _loop(self, work: Callable[[], None], every_s: float) -> None:
        stop = self._stop
        try:
            while not stop.wait(every_s):
                with contextlib.suppress(BrokerError):  # a full disk, a store that failed: the next append says so
                    work()
        finally:
            for lock in self._kept:
                lock.let_go()

    def _share(self) -> None:
        """Let others have both locks, and keep them while this process is alone and appends one after another.

        A call of the system to lock a file lets another thread run meanwhile, and that one does not hurry.
        """
        self._writer.clock.now_ms()  # so that it is known when the wall clock is set back
        tail = self._words[Word.TAIL]
        keeps = tail != self._seen and not self._words[Word.SHARED] and not self._stop.is_set()
        for lock in self._kept:
            lock.let_go()
            if keeps:
                lock.keep(self._is_alone)
        grown, self._seen = tail - self._seen, tail
        if grown < WARM_RATE:
            self._warmed = None
        else:
            self._warm_up(tail)

    def _warm_up(self, tail: int) -> None:
        """Read what the log will come to. A new page must be cleared first, which here is done on another core."""
        log = self._writer.appender.log
        base = tail - tail % log.file_size
        start, stop = max(tail, self._warm), min(tail + WARM_BYTES, base + log.file_size)
        if stop - start < WARM_BYTES // 4:
            return
        path = log.path_of(base)
        if self._warmed is None or self._warmed.path != path:  # kept: the system reads in larger pages as it goes on
            self._warmed = self._disk.open_read(path)
        self._warmed.warm(start - base, stop - base)
        self._warm = stop

    def _is_alone(self) -> bool:
        return not self._words[_CROWD]

    def _sync(self) -> None:
        """Force what nobody waits for."""
        if self._words[Word.DURABLE] < self._words[Word.TAIL]:
            self._writer.syncer.force_now()

    def _care(self) -> None:
        """Everything else that is due, unless another process is at it."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._writer.forget_removed()
        if now_s - self._checked_s >= BOUND_EVERY_S:
            self._checked_s = now_s
            self._writer.check_files()
        if self._words[Word.POISON] or not self._lock.try_acquire():
            return
        try:
            self.make_segment_ahead()
            if now_s - self._forced_s >= FORCE_EVERY_S:
                self._forced_s = now_s
                self._sync()
            if now_s - self._bound_s >= BOUND_EVERY_S:
                self._bound_s = now_s
                self.persist_bound()
            grown = self._words[Word.TAIL] - self._words[Word.CHECKPOINTED]
            if grown >= CHECKPOINT_BYTES or (grown and now_s - self._checkpoint_s >= CHECKPOINT_EVERY_S):
                self._checkpoint_s = now_s
                self._writer.checkpoint_alone()
        finally:
            self._lock.release()

    def persist_bound(self) -> None:
        """Put on disk up to where the log is durable: damage below it is no torn write. Raises StoreFull."""
        bound = self._words[Word.DURABLE]
        if bound != self._bound:
            self._disk.write_file(self._paths.durable, seal(b"%d" % bound))
            self._bound = bound

    def make_segment_ahead(self) -> None:
        """Make the next segment if the log will soon need it: aside, and put in its place under the append lock.

        Raises StoreFull.
        """
        segment, log = self._writer.layout.segment_bytes, self._writer.appender.log
        tail = self._words[Word.TAIL]
        following = tail - tail % segment + segment
        if (following - tail) * _AHEAD_SHARE > segment or self._disk.entry(log.path_of(following)) is not None:
            return
        beside = os.path.join(self._paths.own, "next-segment")
        self._disk.allocate(beside, segment)
        with self._writer.append_lock:  # under which everybody makes segments
            if self._disk.entry(log.path_of(following)) is None:
                self._disk.rename(beside, log.path_of(following), durable=False)
        self._disk.sync_folder(log.folder)
        self._disk.sync_folder(self._paths.own)

    def close(self) -> None:
        """End the threads; what they were to do, the last to leave does."""
        self._stop.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads.clear()
        self._lock.close()
