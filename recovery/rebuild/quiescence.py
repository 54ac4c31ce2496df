"""Is anybody at work on a store that is not ours, or rebuilding one of ours? Asked before a byte of it is changed.

RocketMQ 3.x has no lock file, and 5.x takes its lock only after its recovery has written. So a free lock is not enough:
no process may map a file of the store, nothing may change for a while, and a person must say that it is stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker.errors import StoreError, StoreLocked
from broker.store.disk.append_lock import AppendLock
from broker.store.disk.files import Disk, Entry
from broker.store.disk.paths import Paths
from broker.transaction.foreign import check_not_followed
from recovery.verify.open_by import writers

STILL_S = 3.0
_SAY = "Stop the broker, and say so with --broker-is-stopped"


def check_still(
    path: str,
    disk: Disk,
    *,
    broker_is_stopped: bool,
    still_s: float = STILL_S,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Raises StoreLocked when a process has the store open, StoreError when it changes or may be in use unseen."""
    check_not_followed(path, disk)
    if not broker_is_stopped:
        text = f"{path} was written by another program, and changing it under a running broker would destroy it. {_SAY}"
        raise StoreError(text, path=path)
    found = [one for one in writers(path) or () if one.pid != os.getpid()]  # what this process maps, it only reads
    if found:
        who = " and ".join(f"process {one.pid} {one.how}" if one.pid else f"a process {one.how}" for one in found)
        raise StoreLocked(f"{path} is in use: {who}. Stop it first", path=path)
    before = shape(disk, path)
    wait(still_s)
    if shape(disk, path) != before:
        text = f"{path} changed within {still_s:.0f} seconds: a broker, or another command, is at work on it"
        raise StoreLocked(f"{text}. {_SAY}", path=path)


@contextmanager
def only_rebuild(path: str, disk: Disk) -> Iterator[None]:
    """Keep another rebuild of a store of ours out, which applications may have open meanwhile. Raises StoreLocked.

    Both build in one place, and the second would remove what the first has built.
    """
    lock = AppendLock(f"{Paths(path).rebuild}.lock", disk)
    try:
        if not lock.try_acquire():
            raise StoreLocked(f"{path}: another rebuild is running. Wait until it is done", path=path)
        try:
            yield
        finally:
            lock.release()
    finally:
        lock.close()


def shape(disk: Disk, path: str) -> list[tuple[str, int, int]]:
    """Every file of a store with its size and time of change in nanoseconds, sorted; our own directory left out."""
    found: list[tuple[str, int, int]] = []
    directories, own = [path], Paths(path).own
    while directories:
        for entry in disk.entries(directories.pop()):
            if entry.is_directory and entry.path != own:
                directories.append(entry.path)
            elif entry.is_file:
                found.append(_of(entry))
    return sorted(found)


def _of(entry: Entry) -> tuple[str, int, int]:
    return entry.path, entry.size, entry.changed_ns
