"""A checkpoint while the store is in use: appends wait only while a few numbers are copied.

    under the append lock     copy the numbers: where the log ends, how far each derived file goes, what is in doubt
    outside                   force the log up to there, then the derived files, then the checkpoint beside its place
    under the append lock     put it in its place, unless the derived files were swapped meanwhile

By the time they are forced the derived files hold more than the checkpoint says. Recovery cuts that off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import SyncFailed
from broker.format.checkpoint import Checkpoint as RocketCheckpoint
from broker.format.checkpoint import encode as encode_rocket
from broker.format.consumequeue import UNIT_SIZE
from broker.format.statetable import SLOT_SIZE
from broker.format.sysflag import TransactionType
from broker.store.disk.files import Missing
from broker.store.write.checkpoint_file import Checkpoint, landmarks
from broker.store.write.control import Word
from broker.store.write.mapped import MappedQueue

if TYPE_CHECKING:
    from broker.store.writer import StoreWriter

_PREPARED = int(TransactionType.PREPARED)
_LAST_OF_STATE = SLOT_SIZE - 1


def checkpoint(writer: StoreWriter) -> None:
    """Write a checkpoint of a store in use. Raises SyncFailed, which poisons the store, and StoreFull."""
    disk, paths = writer.disk, writer.paths
    before = last_checkpoint(writer)
    with writer.append_lock:
        writer.appender.heal()
        generation = writer.control[Word.GENERATION]
        made = _copied(writer, before)
    writer.syncer.wait_durable(made.commitlog_offset)
    try:
        _force(writer, before, made)
    except SyncFailed:
        writer.poison()
        raise
    made.landmarks.extend(landmarks(disk, paths, made))
    beside = f"{paths.own_checkpoint}.next"
    disk.write_file(beside, made.encode())
    with writer.append_lock:
        if writer.control[Word.GENERATION] != generation:
            return
        disk.rename(beside, paths.own_checkpoint, durable=False)
        writer.control[Word.CHECKPOINTED] = made.commitlog_offset
    disk.sync_folder(paths.own)
    disk.write_file(paths.checkpoint, encode_rocket(RocketCheckpoint(made.store_ms, made.store_ms)))


def last_checkpoint(writer: StoreWriter) -> Checkpoint:
    """What the last checkpoint speaks of need not be forced again, and its slots not be looked at again."""
    try:
        found = Checkpoint.decode(writer.disk.read(writer.paths.own_checkpoint))
    except Missing:
        found = None
    if found is None or found.commitlog_offset != writer.control[Word.CHECKPOINTED]:
        return Checkpoint(0)
    return found


def _copied(writer: StoreWriter, before: Checkpoint) -> Checkpoint:
    """The state of a healed store, under the append lock."""
    control, cells = writer.control, writer.cells
    return Checkpoint(
        control[Word.DISPATCHED],
        control[Word.SLOTS],
        control[Word.REDO_UNITS],
        control[Word.STORE_MS],
        slots_in_doubt(writer, before),
        [(*cells.queue(cell), cells[cell]) for cell in range(len(cells))],
        writer.dispatcher.index.state(),
    )


def slots_in_doubt(writer: StoreWriter, before: Checkpoint) -> list[int]:
    """The slots of transactions that nobody ended, in order, given an earlier checkpoint of this store.

    A slot that was settled by then stays so; of the slots since then only the states are looked at.
    """
    table, stop = writer.dispatcher.table, writer.control[Word.SLOTS] * SLOT_SIZE
    found = []
    for slot in before.in_doubt:
        view, at = table.existing(slot * SLOT_SIZE)  # retention keeps what is in doubt
        if view[at + _LAST_OF_STATE] == _PREPARED:
            found.append(slot)
    place = before.slots * SLOT_SIZE
    while place < stop:
        try:
            view, at = table.existing(place)
        except Missing:  # retention removed it
            place += table.file_size - place % table.file_size
            continue
        end = min(at + stop - place, table.file_size)
        states = bytes(view[at + _LAST_OF_STATE : end : SLOT_SIZE])
        number = states.find(_PREPARED)
        while number >= 0:
            found.append(place // SLOT_SIZE + number)
            number = states.find(_PREPARED, number + 1)
        place += end - at
    return found


def _force(writer: StoreWriter, before: Checkpoint, made: Checkpoint) -> None:
    """Force what the derived files got between two checkpoints."""
    disk, paths, layout = writer.disk, writer.paths, writer.layout
    forced = {(topic, queue_id): following for topic, queue_id, following in before.queues}
    for topic, queue_id, following in made.queues:
        queue = MappedQueue(disk, paths.queue(topic, queue_id), layout.consume_queue_bytes)
        _force_range(writer, queue, forced.get((topic, queue_id), 0) * UNIT_SIZE, following * UNIT_SIZE)
    redo_log = MappedQueue(disk, paths.redo_log, layout.redo_log_bytes)
    _force_range(writer, redo_log, before.redo_units * UNIT_SIZE, made.redo_units * UNIT_SIZE)
    table = MappedQueue(disk, paths.state_table, layout.state_table_bytes)
    _force_range(writer, table, before.slots * SLOT_SIZE, made.slots * SLOT_SIZE)
    settled = {slot * SLOT_SIZE // table.file_size * table.file_size for slot in before.in_doubt}
    for base in sorted(settled):
        _force_range(writer, table, base, base + 1)
    writer.dispatcher.index.force()


def _force_range(writer: StoreWriter, queue: MappedQueue, start: int, stop: int) -> None:
    """By the names of the files, so that no map is made for it; one that retention removed needs none."""
    for base in range(start - start % queue.file_size, stop, queue.file_size):
        if writer.disk.entry(queue.path_of(base)) is not None:
            writer.disk.sync_file(queue.path_of(base))
