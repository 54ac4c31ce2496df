"""Open a store for writing, and hold it. Threads share a writer; a forked child gets locks and threads of its own.

    lock the store → open its parts → survey → plan → recover, if this process is alone → join

    STORE/checkback/store.json    the sizes of its files, and its id  (broker.store.read.layout)
    STORE/checkback/control       what all processes share            (broker.store.shared.control)
    STORE/checkback/queues        the next offset of each queue       (broker.store.shared.queue_offsets)
    STORE/checkback/durable       a lower bound of what is on disk    (broker.store.maintain.background)
    STORE/checkback/append.lock, sync.lock, upkeep.lock

RocketMQ ignores the directory `checkback`; deleting it loses no decision.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Sequence
from functools import partial
from shlex import quote

from broker.errors import BrokerError, StoreError, StoreLocked
from broker.format.commitlog import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from broker.store import engines
from broker.store.disk.files import Disk
from broker.store.disk.lock_calls import flock_holder, is_stopped
from broker.store.disk.os_errors import closed_store
from broker.store.disk.paths import Paths
from broker.store.disk.store_lock import StoreLock
from broker.store.maintain.background import BackgroundTasks
from broker.store.maintain.checkpointing import checkpoint
from broker.store.read.layout import StoreFile, StoreLayout, read_store_file
from broker.store.read.log_reader import LogReader
from broker.store.recover.load import RecoveryPlan, apply, leave, plan
from broker.store.recover.lost_derived import lost_derived_file
from broker.store.recover.lost_log import check_log
from broker.store.recover.steps import Progress
from broker.store.recover.survey import survey
from broker.store.recover.tail import is_continued
from broker.store.shared.control import Word, boot_words, lock_written_ns, two_words
from broker.store.write.appender import poisoned
from broker.store.write.engine import TransactionEngine
from broker.store.write.parts import StoreParts, open_parts
from broker.store.write.pending_record import Appended, PendingRecord

SYNC_MODES = ("each", "group", "os")
JOIN_S = 10.0  # how long a process that joins waits for an append of another process to end
_POLL_S = 0.002


def open_writer(
    path: str,
    disk: Disk,
    layout: StoreLayout | None = None,
    sync: str = "group",
    *,
    transactions: str | None = None,
    progress: Progress = lambda _done, _total: None,
    expected: RecoveryPlan | None = None,
) -> StoreWriter:
    """Open a store for writing; a new one is made, one that crashed is recovered first.

    `transactions` is the engine of a new store, and must be that of an old one; None takes any.
    `progress` hears (bytes done, bytes in all) of a recovery. With `expected` the recovery is the one that was shown:
    raises StoreError when the store needs another by now. Raises StoreLocked, StoreError, CorruptStore, StoreFull,
    NotUnderstood.
    """
    if sync not in SYNC_MODES:
        raise BrokerError(f"sync is one of {', '.join(SYNC_MODES)}, not {sync!r}")
    paths = Paths(path)
    check_log(paths, disk)  # before anything is made
    _make_directories(paths, disk)
    lock = StoreLock(paths.lock, disk)
    try:
        alone = lock.try_exclusive()
        if not alone:
            lock.share()
        file = _store_file(paths, disk, layout, transactions, alone=alone)
        engine = _engine(paths, file)
        _make(disk, *engine.directories(paths))
        parts = open_parts(disk, paths, file, engine)
        try:
            _admit(parts, lock, alone=alone, progress=progress, expected=expected)
        except BaseException:
            parts.close()
            raise
    except BaseException:
        lock.release()
        raise
    return StoreWriter(parts, lock, sync)


def _make_directories(paths: Paths, disk: Disk) -> None:
    if not disk.is_local(paths.store):
        kind = disk.file_system(paths.store)
        text = f"{paths.store} lies on {kind}, where locks and maps do not reach other machines"
        raise StoreError(f"{text}. Put the store on a local disk", path=paths.store)
    if disk.entry(paths.store) is None:
        disk.create_directory(paths.store, in_store=False)
    _make(disk, paths.commitlog, paths.own, paths.consumequeue, paths.index)
    disk.check_renames(paths.own, paths.consumequeue)


def _make(disk: Disk, *directories: str) -> None:
    for directory in directories:
        if disk.entry(directory) is None:
            disk.create_directory(directory)


def _engine(paths: Paths, file: StoreFile) -> TransactionEngine:
    if file.transactions not in engines.ENGINES:
        text = f"{paths.store_json} names transactions {file.transactions!r}, which this version does not know"
        raise StoreError(f"{text}: update checkback", path=paths.store_json)
    return engines.ENGINES[file.transactions]


def _store_file(
    paths: Paths, disk: Disk, wanted: StoreLayout | None, transactions: str | None, *, alone: bool
) -> StoreFile:
    """The id, sizes and engine that the store was made with; a new store takes those that are asked for."""
    file = read_store_file(disk, paths)
    if file is not None:
        if transactions not in (None, file.transactions):
            text = f"{paths.store} keeps its transactions as {file.transactions}, and cannot as {transactions}, too"
            raise StoreError(f"{text}: open it without transactions=, or make another store", path=paths.store)
        return file
    if any(entry.is_file for entry in disk.entries(paths.commitlog)):
        text = f"{paths.store} was written by another program: this version only reads it (read_only=True)"
        raise StoreError(text, path=paths.store)
    if not alone:
        raise StoreLocked(f"{paths.store} is being made by another process: open it again", path=paths.store)
    file = StoreFile.new(wanted or StoreLayout(), transactions or engines.default)
    disk.write_file(paths.store_json, file.encode())
    return file


def _admit(
    parts: StoreParts, lock: StoreLock, *, alone: bool, progress: Progress, expected: RecoveryPlan | None
) -> None:
    """Join the other processes, or recover the store first."""
    trusted = _is_trusted(parts, alone=alone)
    if not alone and not trusted:  # the process that was to recover it may have died while we waited
        alone = lock.try_exclusive()
    if alone:
        if not trusted:
            _recover(parts, progress, expected)
        for directory in (parts.paths.store, parts.paths.own, parts.paths.config("")):
            if parts.disk.entry(directory) is not None:
                parts.disk.remove_unfinished(directory)
        parts.control[Word.SHARED] = 0
        parts.disk.write_file(parts.paths.abort, str(os.getpid()).encode())
        lock.downgrade()
        return
    parts.control[Word.SHARED] = 1
    _meet_others(parts)
    if parts.control[Word.POISON] and parts.control.is_initialised():
        raise poisoned(parts.path, parts.control[Word.POISON])
    if not trusted:
        _check_boots(parts)
        text = f"{parts.path} is open in a process of another version, or {parts.paths.queues} was deleted meanwhile"
        raise StoreLocked(f"{text}: close it there", path=parts.path)


def _check_boots(parts: StoreParts) -> None:
    """A page of an unknown boot is never trusted, so that no second process can join. Raises StoreLocked."""
    stored = tuple(parts.control.words[Word.BOOT_HIGH : Word.BOOT_LOW + 1])
    if (0, 0) in (stored, boot_words(parts.disk)):
        text = f"{parts.path} is open in another process, and one of the two cannot read the id of this boot from /proc"
        raise StoreLocked(f"{text}: mount /proc there, or use the store in one process", path=parts.path)


def _recover(parts: StoreParts, progress: Progress, expected: RecoveryPlan | None) -> None:
    current = plan(survey(parts.path, parts.disk, alone=True))
    if expected is not None and (current.case, current.steps) != (expected.case, expected.steps):
        shown, needed = expected.case.label, current.case.label
        text = f"{parts.path} changed since the plan was made (it was {shown!r}, and is {needed!r})"
        raise StoreError(f"{text}: nothing was done. Look at the plan again: checkback recover {quote(parts.path)}")
    apply(current, parts, progress)


def _is_trusted(parts: StoreParts, *, alone: bool) -> bool:
    """Whether the control page speaks of this store as it is now. Else the log must be walked.

    What begins at the tail is an append that was cut off, or another program's records; while other processes are at
    work it says nothing.
    """
    control, segment_bytes, disk = parts.control, parts.layout.segment_bytes, parts.disk
    boot, store = boot_words(disk), two_words(int(parts.store_id, 16))
    if not control.fits(boot, store, disk.inode(parts.paths.control), segment_bytes) or control[Word.POISON]:
        return False
    if not parts.cells.is_whole():  # the file was deleted, and has just been made again
        return False
    if not alone:
        return True
    if lost_derived_file(disk, parts.paths, parts.layout, parts.engine.name, control.words) is not None:
        return False
    if control[Word.LOCK_NS] != lock_written_ns(disk, parts.paths):  # a broker has started on the store since
        return False
    tail, log = control[Word.TAIL], parts.appender.log
    if disk.entry(parts.paths.poisoned) is not None:
        return False
    reader = LogReader(disk, parts.paths.commitlog, segment_bytes)
    if reader.missing(tail) is not None:
        return False
    last = disk.entry(log.path_of(tail - tail % segment_bytes))
    if last is None or (tail % segment_bytes == 0 and last.size < segment_bytes):
        return True  # no record is in it: who made it was killed before it had its size, and the next append goes on
    view, at = log.existing(tail)
    magic = int.from_bytes(view[at + 4 : at + 8], "big", signed=True)
    nothing_begins = magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)  # the usual case, by one look at a mapped page
    return nothing_begins or not is_continued(reader, tail, control[Word.INTENT])


def _meet_others(parts: StoreParts) -> None:
    """See that the locks go round: a process stopped while it holds one would block this one forever.

    A flush may take longer than `JOIN_S`: of who holds its lock it is asked whether it is stopped.
    """
    deadline = time.monotonic() + JOIN_S
    while not parts.append_lock.try_acquire():
        if time.monotonic() >= deadline:
            holder = flock_holder(parts.paths.append_lock)
            process = f"process {holder}" if holder else "another process"
            text = f"{parts.path}: {process} has held the append lock for {JOIN_S:g} s"
            raise StoreLocked(f"{text}. If it is stopped, continue or end it", path=parts.path)
        time.sleep(_POLL_S)
    parts.append_lock.release()
    while (holder := flock_holder(parts.paths.sync_lock)) and is_stopped(holder):
        if time.monotonic() >= deadline:
            text = f"{parts.path}: process {holder} is stopped while it flushes the log"
            raise StoreLocked(f"{text}: continue or end it", path=parts.path)
        time.sleep(_POLL_S)


class StoreWriter:
    """One process's hold on a store. `open_writer` makes it."""

    def __init__(self, parts: StoreParts, lock: StoreLock, sync: str) -> None:
        self.parts, self.lock, self.sync = parts, lock, sync
        self.path, self.disk, self.paths, self.layout = parts.path, parts.disk, parts.paths, parts.layout
        self.control, self.cells, self.dispatcher = parts.control, parts.cells, parts.dispatcher
        self.append_lock, self.appender, self.syncer = parts.append_lock, parts.appender, parts.syncer
        self.upkeep_lock, self.clock = parts.upkeep_lock, parts.clock
        self.upkeep = BackgroundTasks(parts, sync)
        self._dropped = weakref.finalize(self, self.upkeep.drop, partial(_release, parts, lock))
        self._dropped.atexit = False  # a process that ends releases everything
        _open.add(self)

    @property
    def store_id(self) -> str:
        """The id that the store was given when it was made: 32 hexadecimal digits."""
        return self.parts.store_id

    def check_open(self) -> None:
        """Raises StoreError when it was closed."""
        if not self.control.is_open:
            raise closed_store(self.path)

    # Appending

    def append(self, drafts: Sequence[PendingRecord], *, wait: bool = True) -> list[Appended]:
        """Append records together, as durable as the store's sync mode says; without `wait` the caller settles them.

        Raises MessageRejected, StoreFull, SyncFailed.
        """
        if not self.upkeep.runs[0]:
            self.upkeep.start()
        appended = self.appender.append(drafts)
        if wait and self.sync != "os":
            self.syncer.start_write(appended[0].commitlog_offset, appended[-1].end)
            self.settle(appended[-1].end)
        return appended

    def append_one(self, draft: PendingRecord, *, wait: bool = True) -> Appended:
        """The same for one record; without `wait` the caller will `settle` it."""
        if not self.upkeep.runs[0]:
            self.upkeep.start()
        appended = self.appender.append_one(draft)
        if wait:
            self.settle_one(appended)
        return appended

    def append_at_once(self, draft: PendingRecord) -> Appended | None:
        """The same without waiting: None, and nothing stored, where a lock is taken or a file is to be made."""
        if not self.upkeep.runs[0]:
            self.upkeep.start()
        return self.appender.compiled_append(draft)

    def settle_one(self, appended: Appended) -> None:
        """`settle` for a record that was just appended, with which the disk begins at once."""
        if self.sync != "os":
            end = appended.commitlog_offset + appended.size
            self.syncer.start_write(appended.commitlog_offset, end)
            self.settle(end)

    def begin_flush(self, end: int) -> bool:
        """Let the log become as durable as `settle` has it, beside the caller; False: the caller settles it now."""
        try:
            return self.sync == "os" or self.syncer.begin(end)
        except ValueError:  # the map of the control file was closed under us: `settle` says so
            return False

    def settle(self, end: int) -> None:
        """Wait until the log is as durable as the sync mode says. Raises SyncFailed, StoreError."""
        if self.sync != "os":
            try:
                self.syncer.wait_durable(end)
            except ValueError as error:  # the map of the control file was closed under us
                raise closed_store(self.path) from error

    def sync_now(self) -> None:
        """Flush everything that is published. Raises SyncFailed, StoreError."""
        self.check_open()
        self.syncer.force_now()

    def checkpoint(self) -> None:
        """Write a checkpoint, where a recovery will begin; appends go on meanwhile. Raises SyncFailed, StoreFull."""
        with self.upkeep_lock:
            checkpoint(self.parts)

    # Reading

    @property
    def visible_end(self) -> int:
        """Consumers and check-back see records below it: what is durable, or in mode os what is published."""
        return self.control[Word.TAIL if self.sync == "os" else Word.DURABLE]

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message of a queue will get; 0 when there was none."""
        return self.cells.end(topic, queue_id)

    # The end

    def after_fork(self) -> None:
        """In a forked child: locks open themselves again, threads begin with the first append."""
        self.control[Word.SHARED] = 1
        self.syncer.after_fork()
        self.upkeep.after_fork()

    def close(self) -> None:
        """Release the store; the last process to leave flushes everything and removes `abort`."""
        _open.discard(self)
        self._dropped.detach()
        self.upkeep.close()
        _release(self.parts, self.lock)


def _release(parts: StoreParts, lock: StoreLock) -> None:
    try:
        if lock.held and lock.try_exclusive():
            leave(parts)
    finally:  # also when that failed: the next process that opens the store recovers it, and must not wait
        lock.release()
        parts.close()


_open: weakref.WeakSet[StoreWriter] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_open):
        with contextlib.suppress(BaseException):  # what fails for one must not leave out the next
            writer.after_fork()


os.register_at_fork(after_in_child=_after_fork)
