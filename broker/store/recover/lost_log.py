"""Is the log of a store lost? Asked where commitlog/ holds no segment, before the store is taken for a new one.

A disk that is not mounted, or a log that lies elsewhere, leaves an empty directory. The derived files then name records
that nothing here can make again, so they must not be removed: only a store without them has no log yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from broker.errors import CorruptStore
from broker.format.index import HEADER_SIZE, IndexHeader
from broker.store.disk.files import Disk, Entry
from broker.store.disk.paths import Paths
from broker.store.read.inventory import inventory
from broker.store.read.inventory import refusal as not_understood
from broker.store.read.layout import read_store_file
from broker.store.read.segments import is_base

_PIECE_BYTES = 1 << 20


def check_log(paths: Paths, disk: Disk) -> None:
    """Look whether a store may be opened, or made, as far as its log is concerned; changes nothing.

    Raises CorruptStore when the log is lost, NotUnderstood when there is none in a store of another program, beside
    derived files that only its broker can make.
    """
    if has_segments(paths, disk):
        return
    named = file_that_names_a_record(paths, disk)
    if named is not None and not has_segments(paths, disk):  # else another process made it meanwhile
        raise lost(paths.store, reason_of(named))
    if read_store_file(disk, paths) is None and (misfits := inventory(paths.store, disk).misfits_inside()):
        raise not_understood(paths.store, misfits)


def reason_of(named: str) -> str:
    """Why a log without a segment is lost, by the derived file that shows it."""
    return f"the log is not there (no segment), but {named} names records of it"


def lost(store: str, reason: str) -> CorruptStore:
    """The error for a store whose log is lost."""
    log = Paths(store).commitlog
    text = f"{log}: {reason}. Nothing was changed. Mount the disk of the log, or put its segments back, and run: "
    text = f"{text}checkback verify {quote(store)}. If the log is lost for good, move {store} away"
    return CorruptStore(text, path=log)


def has_segments(paths: Paths, disk: Disk) -> bool:
    """Whether commitlog/ holds anything that is named as a segment is."""
    return any(entry.is_file and is_base(entry.name) for entry in disk.entries_if_any(paths.commitlog))


def file_that_names_a_record(paths: Paths, disk: Disk) -> str | None:
    """The path of the first derived file that names a record of the log; None when none does.

    Files that a broker made ahead hold zeros, or a header of the index that counts no item. Raises StoreError where
    this user may not look.
    """
    for directory in (paths.consumequeue, paths.batchconsumequeue, paths.transaction, paths.half_states):
        for entry in _files_below(directory, disk):
            if is_base(entry.name) and _is_filled(entry.path, 0, disk):
                return entry.path
    for entry in _files_below(paths.index, disk):
        if entry.name.isdecimal() and _has_items(entry.path, disk):
            return entry.path
    return None


def _has_items(path: str, disk: Disk) -> bool:
    raw = disk.open_read(path).pread(HEADER_SIZE, 0)
    counted = len(raw) == HEADER_SIZE and IndexHeader.unpack_from(raw).next_item > 1
    return counted or _is_filled(path, HEADER_SIZE, disk)


def _is_filled(path: str, start: int, disk: Disk) -> bool:
    """Whether a file holds a byte other than zero from a position on."""
    file = disk.open_read(path)
    return any(
        any(file.pread(min(_PIECE_BYTES, stop - at), at))
        for first, stop in file.filled(start)
        for at in range(first, stop, _PIECE_BYTES)
    )


def _files_below(directory: str, disk: Disk) -> Iterator[Entry]:
    waiting = [directory]
    while waiting:
        for entry in disk.entries_if_any(waiting.pop()):
            if entry.is_directory:
                waiting.append(entry.path)
            elif entry.is_file:
                yield entry


__all__ = ["check_log", "file_that_names_a_record", "has_segments", "lost", "reason_of"]
