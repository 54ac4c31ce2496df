"""The checkpoint: up to where the derived files are on disk. One writer of it, for a store in use and for a recovery.

    capture    copy the numbers: where the log ends, how far each derived file goes, which slots are in doubt
    flush      fsync the log up to there, then the derived files, then the checkpoint beside its place
    publish    put it in its place, unless the derived directories were exchanged meanwhile

Appends wait only for the capture and for the last step, which take the append lock. By the time of the fsync the
derived files hold more than the checkpoint states; recovery truncates that.
"""

from __future__ import annotations

import os

from broker.errors import SyncFailed
from broker.format.checkpoint import Checkpoint as RocketCheckpoint
from broker.format.checkpoint import encode as encode_rocket
from broker.format.consumequeue import UNIT_SIZE
from broker.format.statetable import SLOT_SIZE
from broker.format.sysflag import TransactionType
from broker.store.disk.files import Missing
from broker.store.shared.checkpoint_file import OwnCheckpoint, landmarks
from broker.store.shared.control import Word
from broker.store.write.dispatch import slots_in_state
from broker.store.write.mapped import MappedQueue
from broker.store.write.parts import StoreParts


def checkpoint(parts: StoreParts) -> None:
    """Write a checkpoint of a store in use; the caller holds the background lock. Raises SyncFailed, StoreFull.

    SyncFailed poisons the store: nobody knows what of a derived file is on disk.
    """
    with parts.append_lock:
        parts.appender.heal()
        captured, generation = _capture(parts), parts.control[Word.GENERATION]
    _flush(parts, captured)
    with parts.append_lock:
        if parts.control[Word.GENERATION] != generation:
            return
        _publish(parts, captured)
    _finish(parts, captured)


def checkpoint_as_is(parts: StoreParts) -> None:
    """The same for a caller that is alone, or that holds the append lock; `dispatched` may be short of the tail."""
    captured = _capture(parts)
    _flush(parts, captured)
    _publish(parts, captured)
    _finish(parts, captured)


def _capture(parts: StoreParts) -> OwnCheckpoint:
    """The state of the derived files, as numbers; call alone, or under the append lock."""
    control, cells = parts.control, parts.cells
    return OwnCheckpoint(
        control[Word.DISPATCHED],
        control[Word.SLOTS],
        control[Word.REDO_UNITS],
        control[Word.STORE_MS],
        slots_in_doubt(parts, last_checkpoint(parts)),
        [(*cells.queue(cell), cells[cell]) for cell in range(len(cells))],
        parts.dispatcher.index.state(),
        table=os.path.relpath(parts.engine.table(parts.paths), parts.path),
    )


def _flush(parts: StoreParts, captured: OwnCheckpoint) -> None:
    """Have everything on disk that a captured checkpoint speaks of, and the checkpoint beside its place."""
    parts.syncer.wait_durable(captured.commitlog_offset)
    try:
        parts.dispatcher.new_names.flush()
        _sync_derived(parts, last_checkpoint(parts), captured)
    except SyncFailed:
        parts.poison()
        raise
    captured.landmarks.extend(landmarks(parts.disk, parts.paths, captured))
    parts.disk.write_file(_beside(parts), captured.encode())


def _publish(parts: StoreParts, captured: OwnCheckpoint) -> None:
    """Put a flushed checkpoint in its place; call alone, or under the append lock. Its name is not durable yet."""
    parts.disk.rename(_beside(parts), parts.paths.own_checkpoint, durable=False)
    parts.control[Word.CHECKPOINTED] = captured.commitlog_offset


def _finish(parts: StoreParts, captured: OwnCheckpoint) -> None:
    """Make the published name durable, and write RocketMQ's own checkpoint."""
    disk, paths = parts.disk, parts.paths
    disk.sync_directory(paths.own)
    disk.write_file(paths.checkpoint, encode_rocket(RocketCheckpoint(captured.store_ms, captured.store_ms)))


def _beside(parts: StoreParts) -> str:
    return f"{parts.paths.own_checkpoint}.next"


def last_checkpoint(parts: StoreParts) -> OwnCheckpoint:
    """The checkpoint in force: what it speaks of is on disk, and its settled slots stay settled."""
    try:
        on_disk = OwnCheckpoint.decode(parts.disk.read(parts.paths.own_checkpoint))
    except Missing:
        on_disk = None
    if on_disk is None or on_disk.commitlog_offset != parts.control[Word.CHECKPOINTED]:
        return OwnCheckpoint(0)
    return on_disk


def slots_in_doubt(parts: StoreParts, before: OwnCheckpoint) -> list[int]:
    """The slots of transactions that nobody ended, in order, given an earlier checkpoint of this store.

    A slot that was settled by then stays so; of the slots since then only the states are read.
    """
    table, slots = parts.dispatcher.table, list[int]()
    for slot in before.in_doubt:
        slots += slots_in_state(table, TransactionType.PREPARED, slot, slot + 1)
    slots += slots_in_state(table, TransactionType.PREPARED, before.slots, parts.control[Word.SLOTS])
    return slots


def _sync_derived(parts: StoreParts, before: OwnCheckpoint, captured: OwnCheckpoint) -> None:
    """fsync what the derived files got between two checkpoints."""
    disk, paths, layout = parts.disk, parts.paths, parts.layout
    flushed = {(topic, queue_id): following for topic, queue_id, following in before.queues}
    for topic, queue_id, following in captured.queues:
        queue = MappedQueue(disk, paths.queue(topic, queue_id), layout.consume_queue_bytes)
        _sync_range(parts, queue, flushed.get((topic, queue_id), 0) * UNIT_SIZE, following * UNIT_SIZE)
    redo_log = MappedQueue(disk, paths.redo_log, layout.redo_log_bytes)
    _sync_range(parts, redo_log, before.redo_units * UNIT_SIZE, captured.redo_units * UNIT_SIZE)
    table = MappedQueue(disk, parts.engine.table(paths), layout.state_table_bytes)
    _sync_range(parts, table, before.slots * SLOT_SIZE, captured.slots * SLOT_SIZE)
    settled = {slot * SLOT_SIZE // table.file_size * table.file_size for slot in before.in_doubt}
    for base in sorted(settled):
        _sync_range(parts, table, base, base + 1)
    parts.dispatcher.index.force()


def _sync_range(parts: StoreParts, queue: MappedQueue, start: int, stop: int) -> None:
    """By the names of the files, so that no map is made for it; one that retention removed needs none."""
    for base in range(start - start % queue.file_size, stop, queue.file_size):
        if parts.disk.entry(queue.path_of(base)) is not None:
            parts.disk.sync_file(queue.path_of(base))
