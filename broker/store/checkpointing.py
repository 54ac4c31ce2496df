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
from broker.store.control import Word
from broker.store.disk import Missing
from broker.store.mapped import MappedQueue
from broker.store.point import Checkpoint, landmarks

if TYPE_CHECKING:
    from broker.store.writing import Writing

_PREPARED = int(TransactionType.PREPARED)
_LAST_OF_STATE = SLOT_SIZE - 1


def checkpoint(writing: Writing) -> None:
    """Write a checkpoint of a store in use. Raises SyncFailed, which poisons the store, and StoreFull."""
    disk, paths = writing.disk, writing.paths
    before = _last_one(writing)
    with writing.append_lock:
        writing.appender.heal()
        generation = writing.control[Word.GENERATION]
        made = _copied(writing, before)
    writing.syncer.wait_durable(made.commitlog_offset)
    try:
        _force(writing, before, made)
    except SyncFailed:
        writing.poison()
        raise
    made.landmarks.extend(landmarks(disk, paths, made))
    beside = f"{paths.own_checkpoint}.next"
    disk.write_file(beside, made.encode())
    with writing.append_lock:
        if writing.control[Word.GENERATION] != generation:
            return
        disk.rename(beside, paths.own_checkpoint, durable=False)
        writing.control[Word.CHECKPOINTED] = made.commitlog_offset
    disk.sync_folder(paths.own)
    disk.write_file(paths.checkpoint, encode_rocket(RocketCheckpoint(made.store_ms, made.store_ms)))


def _last_one(writing: Writing) -> Checkpoint:
    """What the last checkpoint speaks of need not be forced again, and its slots not be looked at again."""
    try:
        found = Checkpoint.decode(writing.disk.read(writing.paths.own_checkpoint))
    except Missing:
        found = None
    if found is None or found.commitlog_offset != writing.control[Word.CHECKPOINTED]:
        return Checkpoint(0)
    return found


def _copied(writing: Writing, before: Checkpoint) -> Checkpoint:
    """The state of a healed store, under the append lock."""
    control, cells = writing.control, writing.cells
    return Checkpoint(
        control[Word.DISPATCHED],
        control[Word.SLOTS],
        control[Word.REDO_UNITS],
        control[Word.STORE_MS],
        slots_in_doubt(writing, before),
        [(*cells.queue(cell), cells[cell]) for cell in range(len(cells))],
        writing.dispatcher.index.state(),
    )


def slots_in_doubt(writing: Writing, before: Checkpoint) -> list[int]:
    """The slots of transactions that nobody ended, in order, given an earlier checkpoint of this store.

    A slot that was settled by then stays so; of the slots since then only the states are looked at.
    """
    table, stop = writing.dispatcher.table, writing.control[Word.SLOTS] * SLOT_SIZE
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


def _force(writing: Writing, before: Checkpoint, made: Checkpoint) -> None:
    """Force what the derived files got between two checkpoints."""
    disk, paths, layout = writing.disk, writing.paths, writing.layout
    forced = {(topic, queue_id): following for topic, queue_id, following in before.queues}
    for topic, queue_id, following in made.queues:
        queue = MappedQueue(disk, paths.queue(topic, queue_id), layout.consume_queue_bytes)
        _force_range(writing, queue, forced.get((topic, queue_id), 0) * UNIT_SIZE, following * UNIT_SIZE)
    redo_log = MappedQueue(disk, paths.redo_log, layout.redo_log_bytes)
    _force_range(writing, redo_log, before.redo_units * UNIT_SIZE, made.redo_units * UNIT_SIZE)
    table = MappedQueue(disk, paths.state_table, layout.state_table_bytes)
    _force_range(writing, table, before.slots * SLOT_SIZE, made.slots * SLOT_SIZE)
    settled = {slot * SLOT_SIZE // table.file_size * table.file_size for slot in before.in_doubt}
    for base in sorted(settled):
        _force_range(writing, table, base, base + 1)
    writing.dispatcher.index.force()


def _force_range(writing: Writing, queue: MappedQueue, start: int, stop: int) -> None:
    """By the names of the files, so that no map is made for it; one that retention removed needs none."""
    for base in range(start - start % queue.file_size, stop, queue.file_size):
        if writing.disk.entry(queue.path_of(base)) is not None:
            writing.disk.sync_file(queue.path_of(base))
