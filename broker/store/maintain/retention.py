"""Retention: old segments go, whole, by age and by how full the disk is; never one that holds a half message in doubt.

What is derived from them goes too: files of ConsumeQueues, redo log, state table and index in which nothing speaks of a
record that is kept. The newest file of each kind stays.

Files go one after another, oldest first, each before the next: a power cut leaves no hole. Readers in all processes
find a file missing and say so; a process that maps one lets go of it within seconds.

RocketMQ: DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService (5.3.3), which takes half messages along.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from broker.errors import CorruptRecord
from broker.format.commitlog import decode
from broker.format.consumequeue import UNIT_SIZE, Unit
from broker.format.index import HEADER_SIZE, IndexHeader
from broker.format.statetable import SLOT_SIZE, Slot
from broker.store.maintain.checkpointing import checkpoint, slots_in_doubt
from broker.store.read.segments import is_base
from broker.store.write.checkpoint_file import Checkpoint
from broker.store.write.control import Word
from broker.store.write.parts import StoreParts


@dataclass(frozen=True, slots=True)
class Expired:
    """What retention did."""

    begin: int  # the log begins here now
    segments: list[str] = field(default_factory=list)  # paths of those that are gone
    derived: list[str] = field(default_factory=list)
    pinned_by: int | None = None  # CommitLog offset of the half message that keeps a segment which is due


@dataclass(frozen=True, slots=True)
class Old:
    """A segment behind which the log goes on."""

    base: int  # CommitLog offset of its first byte
    newest_ms: int  # no record in it is younger


def expire(
    parts: StoreParts, keep_ms: int, *, now_ms: int, disk_share: float = 1.0, pinned: Iterable[int] = ()
) -> Expired:
    """Remove the segments of a store in use whose records are all older than `keep_ms`.

    While more of the disk than `disk_share` is in use, the oldest go whatever their age. `pinned` are CommitLog offsets
    that must stay, beside the half messages that are in doubt by the state table. Raises StoreError.
    """
    with parts.upkeep_lock:
        old = _old_segments(parts)
        pins = [*pinned, *(parts.dispatcher.slot(slot).commitlog_offset for slot in _in_doubt(parts))]
        used_share, total = parts.disk.used_share(parts.path)
        surplus = int((used_share - disk_share) * total)
        due = due_segments(old, parts.layout.segment_bytes, now_ms - keep_ms, surplus)
        kept = min(pins, default=None)
        going = [base for base in due if kept is None or base + parts.layout.segment_bytes <= kept]
        begin = going[-1] + parts.layout.segment_bytes if going else _begin(parts)
        if going and parts.control[Word.CHECKPOINTED] < begin:
            checkpoint(parts)  # one that speaks of removed records would be worth nothing
        segments = [parts.appender.log.path_of(base) for base in going]
        for path in segments:
            parts.disk.remove(path)
        derived = _expire_derived(parts, begin)
    parts.forget_removed()
    return Expired(begin, segments, derived, kept if len(going) < len(due) else None)


def due_segments(old: Sequence[Old], segment_bytes: int, before_ms: int, surplus_bytes: int) -> list[int]:
    """The oldest segments, one after another, as long as each is too old or the disk too full."""
    due: list[int] = []
    for segment in old:
        if segment.newest_ms >= before_ms and len(due) * segment_bytes >= surplus_bytes:
            break
        due.append(segment.base)
    return due


def _begin(parts: StoreParts) -> int:
    return min(_bases(parts, parts.paths.commitlog), default=0)


def _bases(parts: StoreParts, folder: str) -> list[int]:
    """The positions at which the files of a queue of files begin."""
    if parts.disk.entry(folder) is None:
        return []
    return [int(entry.name) for entry in parts.disk.entries(folder) if entry.is_file and is_base(entry.name)]


def _in_doubt(parts: StoreParts) -> list[int]:
    with parts.append_lock:
        parts.appender.heal()
        return slots_in_doubt(parts, Checkpoint(0))


def _old_segments(parts: StoreParts) -> list[Old]:
    """The segments that the log has left behind; the first record of the next is no older than any in it."""
    log, tail = parts.appender.log, parts.control[Word.TAIL]
    old = []
    for base in _bases(parts, log.folder):
        following = base + log.file_size
        if following >= tail:
            break
        try:
            newest_ms = decode(parts.appender.read(following), check_crc=False).store_timestamp_ms
        except CorruptRecord:  # of an unknown age
            newest_ms = parts.control[Word.STORE_MS]
        old.append(Old(base, newest_ms))
    return old


def _expire_derived(parts: StoreParts, begin: int) -> list[str]:
    """Remove the derived files that speak only of records below the log's beginning."""
    disk, paths, layout = parts.disk, parts.paths, parts.layout
    removed = []
    for topic in disk.entries(paths.consumequeue):
        for queue in disk.entries(topic.path) if topic.is_folder else []:
            removed += _expire_units(parts, queue.path, layout.consume_queue_bytes, UNIT_SIZE, _unit_offset, begin)
    removed += _expire_units(parts, paths.redo_log, layout.redo_log_bytes, UNIT_SIZE, _unit_offset, begin)
    removed += _expire_units(parts, paths.state_table, layout.state_table_bytes, SLOT_SIZE, _slot_offset, begin)
    index = parts.dispatcher.index
    for number in index.numbers()[:-1]:
        header = IndexHeader.unpack_from(disk.open_read(index.path(number)).pread(HEADER_SIZE, 0))
        if header.end_commitlog_offset >= begin:
            break
        disk.remove(index.path(number))
        removed.append(index.path(number))
    return removed


def _unit_offset(raw: bytes) -> int:
    return Unit.unpack_from(raw).commitlog_offset


def _slot_offset(raw: bytes) -> int:
    return Slot.unpack_from(raw).commitlog_offset


def _expire_units(
    parts: StoreParts, folder: str, file_size: int, unit_size: int, offset_of: Callable[[bytes], int], begin: int
) -> list[str]:
    """A file goes when its last unit names a record that is gone.

    RocketMQ: MappedFileQueue.deleteExpiredFileByOffset (5.3.3).
    """
    removed = []
    for base in _bases(parts, folder)[:-1]:
        path = os.path.join(folder, f"{base:020}")
        if offset_of(parts.disk.open_read(path).pread(unit_size, file_size - unit_size)) >= begin:
            break
        parts.disk.remove(path)
        removed.append(path)
    return removed
