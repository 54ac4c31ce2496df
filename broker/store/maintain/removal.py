"""Remove the oldest segments of a store in use, whole, and what is derived from them.

Of ConsumeQueues, redo log, state table and index go the files in which nothing speaks of a record that is kept. The
newest file of each kind stays.

Files go one after another, oldest first, each before the next: a power cut leaves no hole. Readers in all processes
find a file missing and say so; a process that maps one releases it within seconds.

RocketMQ: DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService (5.3.3), which take half messages along.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from shlex import quote

from broker.errors import CorruptRecord, StoreError, StoreFull
from broker.format.commitlog import decode
from broker.format.consumequeue import UNIT_SIZE, Unit
from broker.format.index import HEADER_SIZE, IndexHeader
from broker.format.statetable import SLOT_SIZE, Slot
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.maintain.checkpointing import checkpoint, last_checkpoint, slots_in_doubt
from broker.store.maintain.retention import OldSegment
from broker.store.read.segments import is_base
from broker.store.shared.control import Word
from broker.store.write.parts import StoreParts

RESERVE_BYTES = 256 << 10  # enough to open a store and write a checkpoint


def begin_of(parts: StoreParts) -> int:
    """The CommitLog offset where the oldest segment begins."""
    return min(_bases(parts, parts.paths.commitlog), default=0)


def old_segments(parts: StoreParts) -> Iterator[OldSegment]:
    """The segments that the log has left behind, oldest first; the first record of the next is not older than any in
    it.

    Each is looked at when it is asked for.
    """
    log, tail = parts.appender.log, parts.control[Word.TAIL]
    for base in _bases(parts, log.directory):
        following = base + log.file_size
        if following >= tail:
            return
        try:
            newest_ms = decode(parts.appender.read(following), check_crc=False).store_timestamp_ms
        except CorruptRecord:  # of an unknown age
            newest_ms = parts.control[Word.STORE_MS]
        yield OldSegment(base, newest_ms)


def halves_in_doubt(parts: StoreParts) -> list[int]:
    """The CommitLog offsets of the half messages that nobody ended, parked ones included, in order.

    Afterwards everything that was published by now is dispatched: each message is in its queue.
    """
    with parts.append_lock:
        parts.appender.heal()
        slots = slots_in_doubt(parts, last_checkpoint(parts))
    return sorted(parts.dispatcher.slot(slot).commitlog_offset for slot in slots)


def remove_segments(parts: StoreParts, bases: Sequence[int]) -> tuple[list[str], list[str]]:
    """Remove the oldest segments, given by their CommitLog offsets; call under the background lock.

    Returns the paths of the segments and of the derived files that went. Also looks for derived files that a process
    which was killed here left behind. Raises StoreError.
    """
    begin = bases[-1] + parts.layout.segment_bytes if bases else begin_of(parts)
    if bases and parts.control[Word.CHECKPOINTED] < begin:
        _checkpoint_first(parts)
    segments = [parts.appender.log.path_of(base) for base in bases]
    for path in segments:
        parts.disk.remove(path)
    derived = _remove_derived(parts, begin)
    parts.forget_removed()
    return segments, derived


def keep_reserve(disk: Disk, paths: Paths) -> None:
    """Reserve a few blocks of the disk, so that a full store can be opened and room be made."""
    with contextlib.suppress(StoreError):
        found = disk.entry(paths.reserve)
        if found is None or found.size < RESERVE_BYTES:
            disk.allocate(paths.reserve, RESERVE_BYTES, durable=False)


def give_up_reserve(disk: Disk, paths: Paths) -> bool:
    """Free the blocks of the reserve; whether there were any. The next to open the store takes them back."""
    if disk.entry(paths.reserve) is None:
        return False
    disk.remove(paths.reserve)
    return True


def _checkpoint_first(parts: StoreParts) -> None:
    """A checkpoint that speaks of removed records would be worth nothing.

    On a full disk there may be no room for another: then there is none until the next, and a recovery meanwhile reads
    the whole log.
    """
    try:
        checkpoint(parts)
    except StoreFull:
        with contextlib.suppress(StoreFull):
            if parts.disk.entry(parts.paths.own_checkpoint) is not None:
                parts.disk.remove(parts.paths.own_checkpoint)


def _bases(parts: StoreParts, directory: str) -> list[int]:
    """The positions at which the files of a queue of files begin."""
    if parts.disk.entry(directory) is None:
        return []
    return [int(entry.name) for entry in parts.disk.entries(directory) if entry.is_file and is_base(entry.name)]


def _remove_derived(parts: StoreParts, begin: int) -> list[str]:
    """Remove the derived files that speak only of records below the log's beginning."""
    disk, paths, layout = parts.disk, parts.paths, parts.layout
    removed = []
    for topic in disk.entries(paths.consumequeue):
        for queue in disk.entries(topic.path) if topic.is_directory else []:
            removed += _remove_units(parts, queue.path, layout.consume_queue_bytes, UNIT_SIZE, _unit_offset, begin)
    removed += _remove_units(parts, paths.redo_log, layout.redo_log_bytes, UNIT_SIZE, _unit_offset, begin)
    removed += _remove_units(parts, parts.engine.table(paths), layout.state_table_bytes, SLOT_SIZE, _slot_offset, begin)
    index = parts.dispatcher.index
    for number in index.numbers()[:-1]:
        if _offset_in(parts, index.path(number), 0, HEADER_SIZE, _index_end) >= begin:
            break
        disk.remove(index.path(number))
        removed.append(index.path(number))
    return removed


def _unit_offset(raw: bytes) -> int:
    return Unit.unpack_from(raw).commitlog_offset


def _slot_offset(raw: bytes) -> int:
    return Slot.unpack_from(raw).commitlog_offset


def _index_end(raw: bytes) -> int:
    return IndexHeader.unpack_from(raw).end_commitlog_offset


def _offset_in(parts: StoreParts, path: str, position: int, size: int, offset_of: Callable[[bytes], int]) -> int:
    """The CommitLog offset that some bytes of a derived file name. Raises CorruptRecord."""
    try:
        return offset_of(parts.disk.open_read(path).pread(size, position))
    except CorruptRecord as error:
        raise CorruptRecord(
            f"{error.reason}. Run: checkback rebuild {quote(parts.path)}", at=position, path=path
        ) from None


def _remove_units(
    parts: StoreParts, directory: str, file_size: int, unit_size: int, offset_of: Callable[[bytes], int], begin: int
) -> list[str]:
    """A file goes when its last unit names a record that is gone.

    RocketMQ: MappedFileQueue.deleteExpiredFileByOffset (5.3.3).
    """
    removed = []
    for base in _bases(parts, directory)[:-1]:
        path = os.path.join(directory, f"{base:020}")
        if _offset_in(parts, path, file_size - unit_size, unit_size, offset_of) >= begin:
            break
        parts.disk.remove(path)
        removed.append(path)
    return removed
