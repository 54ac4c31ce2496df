"""The parts of a store that is open for writing, as one plain value.

Recovery, checkpoints, retention and the writer all take `StoreParts`; none of them needs another one to be ready first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.errors import StoreError
from broker.store.clock import StoreClock
from broker.store.disk.append_lock import AppendLock
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.layout import StoreFile, StoreLayout
from broker.store.shared.control import PAGE_SIZE, ControlPage, Word
from broker.store.shared.queue_offsets import NextOffsets
from broker.store.write.appender import Appender
from broker.store.write.dispatch import Dispatcher
from broker.store.write.engine import TransactionEngine
from broker.store.write.mapped import MappedQueue
from broker.store.write.presence import FilesInPlace, Poison
from broker.store.write.sync import Syncer


@dataclass(frozen=True, slots=True)
class StoreParts:
    """What every process maps and locks of a store. One process makes its own; threads share them."""

    disk: Disk
    paths: Paths
    store_id: str
    layout: StoreLayout
    control: ControlPage
    cells: NextOffsets
    dispatcher: Dispatcher
    append_lock: AppendLock
    appender: Appender
    syncer: Syncer
    upkeep_lock: AppendLock
    clock: StoreClock
    check_files: Callable[[], None]  # raises StoreError, and stops all appends, when a file is not in its place
    also_forget: list[Callable[[], None]] = field(default_factory=list)  # releases other files that were removed

    @property
    def path(self) -> str:
        """The store's directory."""
        return self.paths.store

    @property
    def engine(self) -> TransactionEngine:
        """How the store records transactions."""
        return self.dispatcher.engine

    def poison(self) -> None:
        """An fsync failed: no process appends any more until the store was recovered."""
        poison(self.disk, self.paths, self.control)

    def forget_removed(self) -> None:
        """Release the maps of files that retention removed, in whichever process: their space is not free before."""
        for queue in (self.appender.log, self.syncer.log):
            queue.forget_removed()
        self.dispatcher.forget_removed()
        for forget in self.also_forget:
            forget()

    def close(self) -> None:
        """Release all files, maps and locks."""
        self.dispatcher.close()
        self.appender.log.close()
        self.syncer.close()
        self.cells.close()
        self.control.close()
        self.append_lock.close()
        self.upkeep_lock.close()


def open_parts(disk: Disk, paths: Paths, file: StoreFile, engine: TransactionEngine) -> StoreParts:
    """Map and open the parts of a store whose directories exist. Nothing is recovered here.

    Raises StoreError, StoreFull.
    """
    layout = file.layout
    with contextlib.ExitStack() as opened:  # closed where a later part cannot be opened: a process may try for long
        disk.allocate(paths.control, PAGE_SIZE)
        control = ControlPage(disk.open_map(paths.control, PAGE_SIZE))
        opened.callback(control.close)
        cells = NextOffsets(disk, paths.queues, control)
        opened.callback(cells.close)
        append_lock, sync_lock, upkeep_lock = (
            opened.enter_context(contextlib.closing(AppendLock(path, disk)))
            for path in (paths.append_lock, paths.sync_lock, paths.upkeep_lock)
        )
        opened.pop_all()
    clock = StoreClock(lambda: control.words[Word.STORE_MS] if control.is_initialised() else 0)
    dispatcher = Dispatcher(disk, paths, layout, control, cells, engine)
    log = MappedQueue(disk, paths.commitlog, layout.segment_bytes)
    own = MappedQueue(disk, paths.commitlog, layout.segment_bytes)
    in_place = FilesInPlace(disk, paths, int(file.store_id, 16), control.page, (log, own))

    def check_files() -> None:
        try:
            in_place.check()
        except StoreError:
            control[Word.POISON] = Poison.FILES_LOST
            raise

    appender = Appender(log, control, dispatcher, append_lock, layout, clock)
    appender.check_files = check_files
    syncer = Syncer(disk, own, control, sync_lock, lambda: poison(disk, paths, control), check_files)
    return StoreParts(
        disk=disk,
        paths=paths,
        store_id=file.store_id,
        layout=layout,
        control=control,
        cells=cells,
        dispatcher=dispatcher,
        append_lock=append_lock,
        appender=appender,
        syncer=syncer,
        upkeep_lock=upkeep_lock,
        clock=clock,
        check_files=check_files,
    )


def poison(disk: Disk, paths: Paths, control: ControlPage) -> None:
    """Mark a store as failed, in memory and on disk."""
    control[Word.POISON] = Poison.SYNC_FAILED
    disk.write_file(paths.poisoned, b"an fsync failed\n")
