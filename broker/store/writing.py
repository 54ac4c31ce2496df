"""The writing side of a store: lock, control page, the log's writing end, and what is derived from it, held together.

    STORE/checkback/store.json    the sizes of its files, and its id
    STORE/checkback/control       what all processes share           (broker.store.control)
    STORE/checkback/queues        the next offset of each queue       (broker.store.cells)
    STORE/checkback/append.lock, sync.lock

RocketMQ ignores the folder `checkback`; deleting it loses no decision.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict

from broker.errors import BrokerError, StoreError, StoreLocked
from broker.store.appender import Appended, Appender
from broker.store.cells import QueueCells
from broker.store.control import PAGE_SIZE, ControlPage
from broker.store.disk import Disk
from broker.store.dispatch import Dispatcher
from broker.store.draft import Draft
from broker.store.layout import StoreLayout
from broker.store.locks import AppendLock, StoreLock
from broker.store.mapped import MappedQueue
from broker.store.paths import Paths
from broker.store.sync import Syncer

SYNC_MODES = ("each", "group", "os")


class Writing:
    """One process's hold on a store. Threads share it; a forked child must open its own."""

    def __init__(self, path: str, disk: Disk, layout: StoreLayout | None = None, sync: str = "group") -> None:
        if sync not in SYNC_MODES:
            raise BrokerError(f"sync is one of {', '.join(SYNC_MODES)}, not {sync!r}")
        self.path, self.disk, self.sync = path, disk, sync
        self.paths = Paths(path)
        self._pid = os.getpid()
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
            raise

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
            said = json.loads(self.disk.read(self.paths.store_json))
            return StoreLayout(**said["layout"])
        if any(entry.is_file for entry in self.disk.entries(self.paths.commitlog)):
            text = f"{self.path} was written by another program: this version only reads it (read_only=True)"
            raise StoreError(text, path=self.path)
        if not alone:
            raise StoreLocked(f"{self.path} is being made by another process: open it again", path=self.path)
        layout = wanted or StoreLayout()
        said = {"version": 1, "id": secrets.token_hex(16), "layout": asdict(layout)}
        self.disk.write_file(self.paths.store_json, json.dumps(said, indent=1).encode())
        return layout

    def _open_parts(self) -> None:
        self.disk.allocate(self.paths.control, PAGE_SIZE)
        self.control = ControlPage(self.disk.open_map(self.paths.control, PAGE_SIZE))
        self.cells = QueueCells(self.disk, self.paths.queues, self.control)
        self.dispatcher = Dispatcher(self.disk, self.paths, self.layout, self.control, self.cells)
        log = MappedQueue(self.disk, self.paths.commitlog, self.layout.segment_bytes)
        self.append_lock = AppendLock(self.paths.append_lock, self.disk)
        self.appender = Appender(log, self.control, self.dispatcher, self.append_lock, self.layout)
        own = MappedQueue(self.disk, self.paths.commitlog, self.layout.segment_bytes)
        self.syncer = Syncer(own, self.control, AppendLock(self.paths.sync_lock, self.disk), self._poison)

    def _admit(self, *, alone: bool) -> None:
        """Join the others, or bring the store in order first."""
        from broker.store.load import load

        boot, inode = self._boot(), self.disk.inode(self.paths.control)
        trusted = self.control.fits(boot, inode, self.layout.segment_bytes)
        if not alone and not trusted:  # who was to recover it may have died while we waited
            alone = self.lock.try_exclusive()
        if alone:
            if not trusted:
                load(self, boot, inode)
            self.disk.write_file(self.paths.abort, str(self._pid).encode())
            self.lock.downgrade()
        elif not trusted:
            raise StoreLocked(f"{self.path} is open in a process of another version: close it there", path=self.path)

    def _boot(self) -> tuple[int, int]:
        number = int(self.disk.boot_id().replace("-", "") or "0", 16)
        return number >> 64, number & ((1 << 64) - 1)

    def _poison(self) -> None:
        """Leave a mark that outlives the control page."""
        self.disk.write_file(self.paths.poisoned, b"a forced write failed\n")

    def append(self, drafts: Sequence[Draft]) -> list[Appended]:
        """Append records together, as durable as the store's sync mode says.

        Raises MessageRejected, StoreFull, SyncFailed.
        """
        appended = self.appender.append(drafts)
        self.settle(appended[-1].end)
        return appended

    def settle(self, end: int) -> None:
        """Wait until the log is as durable as the sync mode says."""
        if self.sync != "os":
            self.syncer.wait_durable(end)

    def close(self) -> None:
        """Let go of the store; the last to leave forces everything and removes `abort`."""
        from broker.store.load import leave

        if self.lock.held and self._pid == os.getpid() and self.lock.try_exclusive():
            leave(self)
        self.lock.release()
        self.dispatcher.close()
        self.appender.log.close()
        self.syncer.close()
        self.cells.close()
        self.control.close()
        self.append_lock.close()
