"""What a recovery takes away: bytes behind the log's end (kept aside first), and derived data behind a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from broker.format.consumequeue import UNIT_SIZE
from broker.format.properties import UNIQ_KEY
from broker.format.statetable import STATE_AT, Slot
from broker.format.sysflag import TransactionType
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.log_reader import LogReader
from broker.store.read.segments import is_base
from broker.store.recover.tail import Tail, whole_records
from broker.store.recover.truncate_index import cut_index
from broker.store.shared.checkpoint_file import OwnCheckpoint
from broker.store.write.engine import TransactionEngine
from broker.store.write.mapped import MappedQueue
from broker.store.write.parts import StoreParts

PIECE_BYTES = 1 << 20


def keep_aside(disk: Disk, paths: Paths, tail: Tail, segment_bytes: int) -> list[str]:
    """Copy what follows the log's end to STORE/checkback/torn, in pieces named by their CommitLog offset.

    The file with the ending .jsonl lists each whole record in it. Returns the paths.
    """
    log = LogReader(disk, paths.commitlog, segment_bytes)
    if disk.entry(paths.torn) is None:
        disk.create_directory(paths.torn)
    kept = []
    for place, data in log.filled(tail.end):
        kept.append(_free_name(disk, os.path.join(paths.torn, f"{place:020}")))
        disk.write_file(kept[-1], data.rstrip(b"\0"))
    lines = []
    for record in whole_records(log, tail.end):
        content = {
            "commitlog_offset": record.commitlog_offset,
            "size": record.total_size,
            "topic": record.topic,
            "queue_id": record.queue_id,
            "queue_offset": record.queue_offset,
            "transaction_type": int(record.transaction_type),
            "unique_key": record.property_map.get(UNIQ_KEY),
        }
        lines.append(json.dumps(content) + "\n")
    if lines:
        kept.append(_free_name(disk, os.path.join(paths.torn, f"{tail.end:020}.jsonl")))
        disk.write_file(kept[-1], "".join(lines).encode())
    return kept


def _free_name(disk: Disk, path: str) -> str:
    """A recovery that was killed here may have cut a part of what it kept: its copy is never written over."""
    number, name = 0, path
    while disk.entry(name) is not None:
        number += 1
        name = f"{path}.{number}"
    return name


def cut_log(disk: Disk, paths: Paths, tail: Tail, segment_bytes: int) -> None:
    """Clear everything behind the log's end, and flush it."""
    log = LogReader(disk, paths.commitlog, segment_bytes)
    queue = MappedQueue(disk, paths.commitlog, segment_bytes)
    try:
        for place, data in log.filled(tail.end):
            view, at = queue.at(place)
            view[at : at + len(data)] = bytes(len(data))
            queue.sync(place, place + len(data))
    finally:
        queue.close()


def write_again(disk: Disk, paths: Paths, start: int, segment_bytes: int) -> None:
    """Put a fresh copy in place of each segment that holds bytes from `start` on.

    After an fsync failed, the system takes pages for clean that never reached the disk: another fsync proves
    nothing, and storing the same bytes may not make them dirty. A new file is written from the first byte.
    """
    log = LogReader(disk, paths.commitlog, segment_bytes)
    for base, entry in sorted(log.files.items()):
        if base + segment_bytes <= start:
            continue
        beside = os.path.join(paths.own, f"segment-{base:020}")
        if disk.entry(beside) is not None:
            disk.remove(beside)
        disk.allocate(beside, segment_bytes)
        old, copy = disk.open_read(entry.path), disk.open_map(beside, segment_bytes)
        try:
            for at in range(0, segment_bytes, PIECE_BYTES):
                data = old.pread(min(PIECE_BYTES, segment_bytes - at), at)
                if data.count(0) != len(data):
                    copy.view[at : at + len(data)] = data
            copy.sync()
        finally:
            copy.close()
        disk.rename(beside, entry.path)


# What is derived


def empty_derived(disk: Disk, paths: Paths, engine: TransactionEngine, kept: Iterable[tuple[str, int]]) -> None:
    """Remove all derived files but the queues in `kept`, and the checkpoint that spoke of them first."""
    if disk.entry(paths.own_checkpoint) is not None:
        disk.remove(paths.own_checkpoint)
    disk.remove_tree(paths.beginnings)
    known = {(topic, str(queue_id)) for topic, queue_id in kept}
    topics = {topic for topic, _ in known}
    for directory in (paths.consumequeue, paths.index, *engine.directories(paths)):
        found = disk.entry(directory)
        if found is None or not found.is_directory:
            disk.remove_tree(directory)
            disk.create_directory(directory)
        for entry in disk.entries(directory):  # it stays itself: it may be a link, or where a disk is mounted
            if directory != paths.consumequeue or entry.name not in topics:
                disk.remove_tree(entry.path)
    _remove_other_queues(disk, paths, known)


def cut_derived(parts: StoreParts, point: OwnCheckpoint) -> None:
    """Take everything out of the derived files that a checkpoint does not vouch for.

    Slots that were in doubt then are prepared again: an end that settled one may have been lost with the log's tail.
    """
    disk, paths, layout = parts.disk, parts.paths, parts.layout
    disk.remove_tree(paths.beginnings)
    _remove_other_queues(disk, paths, {(topic, str(queue_id)) for topic, queue_id, _ in point.queues})
    for topic, queue_id, following in point.queues:
        queue = MappedQueue(disk, paths.queue(topic, queue_id), layout.consume_queue_bytes)
        _remove_empty(disk, queue, following * UNIT_SIZE)
        _cut(disk, queue, following * UNIT_SIZE)
    redo_log = MappedQueue(disk, paths.redo_log, layout.redo_log_bytes)
    _remove_empty(disk, redo_log, point.redo_units * UNIT_SIZE)
    _cut(disk, redo_log, point.redo_units * UNIT_SIZE)
    table = MappedQueue(disk, parts.engine.table(paths), layout.state_table_bytes)
    prepared = int(TransactionType.PREPARED).to_bytes(Slot.SIZE - STATE_AT, "big")
    for slot in point.in_doubt:
        view, at = table.at(slot * Slot.SIZE)
        view[at + STATE_AT : at + Slot.SIZE] = prepared
    _cut(disk, table, point.slots * Slot.SIZE)
    cut_index(disk, paths.index, layout.index_slots, layout.index_items, *point.index)


def _remove_other_queues(disk: Disk, paths: Paths, known: set[tuple[str, str]]) -> None:
    """Queues that began after the checkpoint: all of their records are dispatched again."""
    for topic in disk.entries(paths.consumequeue) if disk.entry(paths.consumequeue) else []:
        for queue in disk.entries(topic.path) if topic.is_directory else []:
            if (topic.name, queue.name) not in known:
                disk.remove_tree(queue.path)


def _remove_empty(disk: Disk, queue: MappedQueue, position: int) -> None:
    """Remove the files of units that would be left without one: a broker counts an empty last file as a message."""
    for base in _bases(disk, queue, position):
        if base >= position:
            disk.remove(queue.path_of(base))


def _cut(disk: Disk, queue: MappedQueue, position: int) -> None:
    """Clear a queue of files from a position on; what is zero already is not touched."""
    try:
        for base in _bases(disk, queue, position):
            view, _ = queue.at(base)
            for at in range(max(position - base, 0), queue.file_size, PIECE_BYTES):
                data = bytes(view[at : at + PIECE_BYTES])
                if data.count(0) != len(data):
                    view[at : at + len(data)] = bytes(len(data))
                    queue.sync(base + at, base + at + len(data))  # who closes well later does not look here again
    finally:
        queue.unmap()


def _bases(disk: Disk, queue: MappedQueue, position: int) -> list[int]:
    """The files that hold bytes from a position on."""
    found = disk.entries(queue.directory) if disk.entry(queue.directory) else []
    bases = [int(entry.name) for entry in found if is_base(entry.name)]
    return [base for base in bases if base + queue.file_size > position]
