"""The writing side of a store: lock, control page, the log's writing end, and what is derived from it, held together.

Threads share a StoreWriter, and so does a forked child, which gets locks and threads of its own at once.

    STORE/checkback/store.json    the sizes of its files, and its id
    STORE/checkback/control       what all processes share           (broker.store.write.control)
    STORE/checkback/queues        the next offset of each queue       (broker.store.write.queue_offsets)
    STORE/checkback/durable       up to where the log is surely on disk (broker.store.maintain.background)
    STORE/checkback/append.lock, sync.lock, upkeep.lock

RocketMQ ignores the folder `checkback`; deleting it loses no decision.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict

from broker.errors import BrokerError, StoreError, StoreLocked
from broker.format.commitlog import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from broker.store.clock import StoreClock
from broker.store.disk.files import Disk
from broker.store.disk.locks import AppendLock, StoreLock, flock_holder
from broker.store.disk.paths import Paths
from broker.store.maintain.background import BackgroundTasks
from broker.store.maintain.checkpointing import checkpoint
from broker.store.recover.tail import LogReader
from broker.store.write.appender import Appended, Appender, poisoned
from broker.store.write.control import PAGE_SIZE, ControlPage, Word
from broker.store.write.dispatch import Dispatcher
from broker.store.write.layout import StoreLayout
from broker.store.write.mapped import MappedQueue
from broker.store.write.pending_record import PendingRecord
from broker.store.write.presence import FilesInPlace, Poison
from broker.store.write.queue_offsets import NextOffsets
from broker.store.write.sync import Syncer

SYNC_MODES = ("each", "group", "os")
_LAYOUT_VERSION = 1
JOIN_S = 10.0  # for how long who joins waits for an append of another process to end
_POLL_S = 0.002


class StoreWriter:
    """One process's hold on a store."""

    def __init__(self, path: str, disk: Disk, layout: StoreLayout | None = None, sync: str = "group") -> None:
        if sync not in SYNC_MODES:
            raise BrokerError(f"sync is one of {', '.join(SYNC_MODES)}, not {sync!r}")
        self.path, self.disk, self.sync = path, disk, sync
        self.paths = Paths(path)
        self._make_folders()
        self.lock = StoreLock(self.paths.lock, disk)
        alone = self.lock.try_exclusive()
        if not alone:
            self.lock.share()
        try:
            self.layout = self._layout(layout, alone=alone)
            self._open_parts()
            self._admit(alone=alone)
        except BaseException:
            self.lock.release()
            self._close_parts()
            raise
        _open.add(self)

    def _make_folders(self) -> None:
        if not self.disk.is_local(self.path):
            kind = self.disk.file_system(self.path)
            raise StoreError(f"{self.path} lies on {kind}, where locks and maps do not reach everyone", path=self.path)
        paths = self.paths
        derived = (paths.consumequeue, paths.index, paths.state_table, paths.redo_log)
        for folder in (self.path, paths.commitlog, paths.own, *derived):
            if self.disk.entry(folder) is None:
                self.disk.create_folder(folder)

    def _layout(self, wanted: StoreLayout | None, *, alone: bool) -> StoreLayout:
        """The sizes that the store was made with; a new store takes those that are asked for."""
        if self.disk.entry(self.paths.store_json) is not None:
            return self._layout_said()
        if any(entry.is_file for entry in self.disk.entries(self.paths.commitlog)):
            text = f"{self.path} was written by another program: this version only reads it (read_only=True)"
            raise StoreError(text, path=self.path)
        if not alone:
            raise StoreLocked(f"{self.path} is being made by another process: open it again", path=self.path)
        layout = wanted or StoreLayout()
        self._id = secrets.randbits(128)
        said = {"version": _LAYOUT_VERSION, "id": f"{self._id:032x}", "layout": asdict(layout)}
        self.disk.write_file(self.paths.store_json, json.dumps(said, indent=1).encode())
        return layout

    def _layout_said(self) -> StoreLayout:
        try:
            said = json.loads(self.disk.read(self.paths.store_json))
            version, self._id, layout = said["version"], int(said["id"], 16), StoreLayout(**said["layout"])
        except (KeyError, TypeError, ValueError) as error:
            text = f"{self.paths.store_json} is damaged ({error!r}). Put it back from a copy of the store"
            raise StoreError(text, path=self.paths.store_json) from error
        if version != _LAYOUT_VERSION:
            text = f"{self.path} was made by a version of checkback that this one does not know ({version}): update it"
            raise StoreError(text, path=self.path)
        return layout

    def _open_parts(self) -> None:
        disk, paths, segment_bytes = self.disk, self.paths, self.layout.segment_bytes
        disk.allocate(paths.control, PAGE_SIZE)
        self.control = ControlPage(disk.open_map(paths.control, PAGE_SIZE))
        self.cells = NextOffsets(disk, paths.queues, self.control)
        self.clock = StoreClock(lambda: self.control.words[Word.STORE_MS] if self.control.is_initialised() else 0)
        self.dispatcher = Dispatcher(disk, paths, self.layout, self.control, self.cells)
        log = MappedQueue(disk, paths.commitlog, segment_bytes)
        self.append_lock = AppendLock(paths.append_lock, disk)
        self.appender = Appender(log, self.control, self.dispatcher, self.append_lock, self.layout, self.clock)
        own = MappedQueue(disk, paths.commitlog, segment_bytes)
        sync_lock = AppendLock(paths.sync_lock, disk)
        self.syncer = Syncer(disk, own, self.control, sync_lock, self.poison, self.check_files)
        self._in_place = FilesInPlace(disk, paths, self._id, self.control.page, (log, own))
        self.appender.check_files = self.check_files
        self.upkeep_lock = AppendLock(paths.upkeep_lock, disk)
        self.upkeep = BackgroundTasks(self, self.upkeep_lock)

    def _admit(self, *, alone: bool) -> None:
        """Join the others, or bring the store in order first."""
        from broker.store.recover.load import load

        boot, inode = self._boot(), self.disk.inode(self.paths.control)
        trusted = self._is_trusted(boot, inode, alone=alone)
        if not alone and not trusted:  # who was to recover it may have died while we waited
            alone = self.lock.try_exclusive()
        if alone:
            if not trusted:
                load(self, boot, inode)
            self.control[Word.SHARED] = 0
            self.disk.write_file(self.paths.abort, str(os.getpid()).encode())
            self.lock.downgrade()
            return
        self.control[Word.SHARED] = 1
        self._meet_others()
        if self.control[Word.POISON] and self.control.is_initialised():
            raise poisoned(self.path, self.control[Word.POISON])
        if not trusted:
            raise StoreLocked(f"{self.path} is open in a process of another version: close it there", path=self.path)

    def _meet_others(self) -> None:
        """See that the append lock goes round: who is stopped while it has it would keep us waiting for ever."""
        deadline = time.monotonic() + JOIN_S
        while not self.append_lock.try_acquire():
            if time.monotonic() >= deadline:
                holder = flock_holder(self.paths.append_lock)
                who = f"process {holder}" if holder else "another process"
                text = f"{self.path}: {who} is inside of an append and does not come out"
                raise StoreLocked(f"{text}. If it is stopped, continue or end it", path=self.path)
            time.sleep(_POLL_S)
        self.append_lock.release()

    def _is_trusted(self, boot: tuple[int, int], inode: int, *, alone: bool) -> bool:
        """Whether the control page tells of this store as it is now. Else the log must be walked.

        A record at the tail was written by another program, or, while others are at work, begins to be written.
        """
        control, segment_bytes = self.control, self.layout.segment_bytes
        store = (self._id >> 64, self._id & ((1 << 64) - 1))
        if not control.fits(boot, store, inode, segment_bytes) or control[Word.POISON]:
            return False
        if not alone:
            return True
        tail, log = control[Word.TAIL], self.appender.log
        if self.disk.entry(self.paths.poisoned) is not None:
            return False
        if LogReader(self.disk, self.paths.commitlog, segment_bytes).missing(tail) is not None:
            return False
        if self.disk.entry(log.path_of(tail - tail % segment_bytes)) is None:
            return True
        view, at = log.existing(tail)
        magic = int.from_bytes(view[at + 4 : at + 8], "big", signed=True)
        return control[Word.INTENT] != tail or magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)

    def _boot(self) -> tuple[int, int]:
        number = int(self.disk.boot_id().replace("-", "") or "0", 16)
        return number >> 64, number & ((1 << 64) - 1)

    def poison(self) -> None:
        """A forced write failed: nobody appends any more, here or elsewhere, until the store was recovered."""
        self.control[Word.POISON] = Poison.SYNC_FAILED
        self.disk.write_file(self.paths.poisoned, b"a forced write failed\n")

    def check_files(self) -> None:
        """See that the files of the store are in their places.

        Raises StoreError, and stops the appends of all processes, when one was deleted, replaced or cut.
        """
        try:
            self._in_place.check()
        except StoreError:
            self.control[Word.POISON] = Poison.FILES_LOST
            raise

    # Appending

    def append(self, drafts: Sequence[PendingRecord]) -> list[Appended]:
        """Append records together, as durable as the store's sync mode says.

        Raises MessageRejected, StoreFull, SyncFailed.
        """
        if not self.upkeep.is_running:
            self.upkeep.start()
        appended = self.appender.append(drafts)
        self.settle(appended[-1].end)
        return appended

    def append_one(self, draft: PendingRecord, *, wait: bool = True) -> Appended:
        """The same for one record; without `wait` the caller will `settle` it."""
        if not self.upkeep.is_running:
            self.upkeep.start()
        appended = self.appender.append_one(draft)
        if wait and self.sync != "os":
            self.syncer.wait_durable(appended.commitlog_offset + appended.size)
        return appended

    def settle(self, end: int) -> None:
        """Wait until the log is as durable as the sync mode says."""
        if self.sync != "os":
            self.syncer.wait_durable(end)

    def sync_now(self) -> None:
        """Force everything that is published. Raises SyncFailed."""
        self.syncer.force_now()

    def checkpoint(self) -> None:
        """Write a checkpoint, where a recovery will begin; appends go on meanwhile. Raises SyncFailed, StoreFull."""
        with self.upkeep_lock:
            self.checkpoint_alone()

    def checkpoint_alone(self) -> None:
        """The same for one who has the upkeep lock."""
        checkpoint(self)

    # Reading

    @property
    def visible_end(self) -> int:
        """Consumers and check-back see records below it: what is durable, or in mode os what is published."""
        return self.control[Word.TAIL if self.sync == "os" else Word.DURABLE]

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message of a queue will get; 0 when there was none."""
        return self.cells.end(topic, queue_id)

    def refresh(self) -> None:
        """Let go of derived files that were swapped for others; call under the append lock."""
        self.dispatcher.refresh()

    def forget_removed(self) -> None:
        """Let go of files that retention removed, in whichever process: their space is not free before."""
        for queue in (self.appender.log, self.syncer.log):
            queue.forget_removed()
        self.dispatcher.forget_removed()

    # The end

    def after_fork(self) -> None:
        """In a forked child: locks open themselves anew, threads begin with the first append."""
        self.control[Word.SHARED] = 1
        self.syncer.after_fork()
        self.upkeep.after_fork()

    def close(self) -> None:
        """Let go of the store; the last to leave forces everything and removes `abort`."""
        from broker.store.recover.load import leave

        _open.discard(self)
        self.upkeep.close()
        if self.lock.held and self.lock.try_exclusive():
            leave(self)
        self.lock.release()
        self._close_parts()

    def _close_parts(self) -> None:
        """Let go of files and maps; a store that was not admitted may lack some."""
        if hasattr(self, "upkeep"):
            self.dispatcher.close()
            self.appender.log.close()
            self.syncer.close()
            self.cells.close()
            self.control.close()
            self.append_lock.close()


_open: weakref.WeakSet[StoreWriter] = weakref.WeakSet()


def _after_fork() -> None:
    for writer in list(_open):
        with contextlib.suppress(BaseException):  # what fails for one must not leave out the next
            writer.after_fork()


os.register_at_fork(after_in_child=_after_fork)
