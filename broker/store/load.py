"""Load and recover: bring a store in order that no live process vouches for.

    survey (what is there) → case (a row of CASES) → plan (what to do) → apply → report

Our checkpoint says up to where the derived files were forced, and which slots were in doubt then. What lies behind it
is cut off and made again from the log, which is the truth: a slot that reached the disk as committed while its end
record did not must not survive. Without a checkpoint everything derived is made anew.

RocketMQ: DefaultMessageStore.load, recover (3.1.4), whose table rebuild renumbers slots; ours keeps them.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from broker.errors import CorruptRecord, CorruptStore
from broker.format.checkpoint import Checkpoint as RocketCheckpoint
from broker.format.checkpoint import encode as encode_rocket
from broker.format.commitlog import MAGIC_BLANK, RECORD_SIZE_MIN, decode
from broker.format.consumequeue import UNIT_SIZE
from broker.format.statetable import Slot
from broker.format.sysflag import TransactionType
from broker.store.control import Word
from broker.store.disk import Missing
from broker.store.mapped import MappedQueue, zero

if TYPE_CHECKING:
    from broker.store.writing import Writing

_STATE_AT = Slot.OFFSET["state"]
_BLOCK = 512  # what a disk writes at once


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Derived files are on disk for every record below `commitlog_offset`."""

    commitlog_offset: int
    slots: int
    redo_units: int
    store_ms: int
    in_doubt: list[int] = field(default_factory=list)  # slots that were in doubt then
    queues: list[tuple[str, int, int]] = field(default_factory=list)  # topic, queue id, next offset
    index: tuple[int, str] = (0, "")  # the index file in use, and its header

    def encode(self) -> bytes:
        text = json.dumps(asdict(self)).encode()
        return b"%08x\n" % zlib.crc32(text) + text

    @classmethod
    def decode(cls, raw: bytes) -> Checkpoint | None:
        """The checkpoint in these bytes; None when they are none, or not whole."""
        head, _, text = raw.partition(b"\n")
        if head != b"%08x" % zlib.crc32(text):
            return None
        said = json.loads(text)
        queues = [(topic, queue_id, following) for topic, queue_id, following in said.pop("queues")]
        number, header = said.pop("index")
        return cls(**said, queues=queues, index=(number, header))


def load(store: Writing, boot: tuple[int, int], inode: int) -> None:
    """Recover from the checkpoint on; call alone, with the store locked exclusively."""
    checkpoint = _read_checkpoint(store)
    end = _find_end(store, checkpoint.commitlog_offset)
    _cut_derived(store, checkpoint)
    _reset(store, boot, inode, checkpoint, end)
    store.appender.replay(checkpoint.commitlog_offset, end)
    store.syncer.force_now()
    write_checkpoint(store)


def _read_checkpoint(store: Writing) -> Checkpoint:
    try:
        found = Checkpoint.decode(store.disk.read(store.paths.own_checkpoint))
    except Missing:
        found = None
    return found or Checkpoint(_least_offset(store), 0, 0, 0)


def _least_offset(store: Writing) -> int:
    names = [entry.name for entry in store.disk.entries(store.paths.commitlog) if entry.name.isdecimal()]
    return int(names[0]) if names else 0


# The end of the log


def _find_end(store: Writing, start: int) -> int:
    """Where the records end that begin at `start`; half a record behind them is kept aside and cleared.

    Raises CorruptStore when what ends them is no torn write.
    """
    log, segment = store.appender.log, store.layout.segment_bytes
    at = start
    while store.disk.entry(log.path_of(at - at % segment)) is not None:
        view, position = log.at(at)
        size = int.from_bytes(view[position : position + 4], "big", signed=True)
        magic = int.from_bytes(view[position + 4 : position + 8], "big", signed=True)
        if magic == MAGIC_BLANK and size == segment - position:
            at += segment - position
            continue
        if not RECORD_SIZE_MIN <= size <= segment - position:
            break
        try:
            decode(view[position : position + size], commitlog_offset=at)
        except CorruptRecord:
            break
        at += size
    return _judge_tail(store, log, at)


def _judge_tail(store: Writing, log: MappedQueue, end: int) -> int:
    """Clear what lies behind the end, once a copy is kept and it is sure that no record is lost with it."""
    segment = store.layout.segment_bytes
    rest = end - end % segment
    while store.disk.entry(log.path_of(rest)) is not None:
        view, first = log.at(max(rest, end))
        tail = bytes(view[first:])
        if tail.count(0) != len(tail):
            _keep_aside(store, max(rest, end), tail)
            zero(log, max(rest, end), rest + segment)
            log.sync(max(rest, end), rest + segment)
        rest += segment
    return end


def _keep_aside(store: Writing, commitlog_offset: int, tail: bytes) -> None:
    """Keep a copy of a torn tail. Raises CorruptStore when whole records lie in it: then it is not torn."""
    used = tail.rstrip(b"\0")
    at = tail.find(b"\xda\xa3\x20", 4)
    while at >= 4:
        try:
            found = decode(tail, at - 4, commitlog_offset=commitlog_offset + at - 4)
        except CorruptRecord:
            at = tail.find(b"\xda\xa3\x20", at + 1)
            continue
        reason = f"the log is damaged at {commitlog_offset}, and a whole record follows at {found.commitlog_offset}"
        text = f"{store.paths.commitlog}: {reason}. Run: checkback salvage {store.path} OUT"
        raise CorruptStore(text, path=store.paths.commitlog)
    if store.disk.entry(store.paths.torn) is None:
        store.disk.create_folder(store.paths.torn)
    store.disk.write_file(os.path.join(store.paths.torn, f"{commitlog_offset:020}"), used)


# What is derived


def _cut_derived(store: Writing, checkpoint: Checkpoint) -> None:
    """Take everything out of the derived files that the checkpoint does not vouch for."""
    disk, paths = store.disk, store.paths
    if checkpoint.commitlog_offset == _least_offset(store) and not checkpoint.queues:
        for folder in (paths.consumequeue, paths.state_table, paths.redo_log):
            disk.remove_tree(folder)
            disk.create_folder(folder)
    store.dispatcher.index.cut(*checkpoint.index)
    store.cells.reset()
    for topic, queue_id, following in checkpoint.queues:
        cell = store.cells.of(topic, queue_id)
        store.cells[cell] = following
        _zero_from(store, store.dispatcher.queue(cell), following * UNIT_SIZE)
    _zero_from(store, store.dispatcher.redo_log, checkpoint.redo_units * UNIT_SIZE)
    _zero_from(store, store.dispatcher.table, checkpoint.slots * Slot.SIZE)
    for slot in checkpoint.in_doubt:
        view, at = store.dispatcher.table.at(slot * Slot.SIZE)
        view[at + _STATE_AT : at + Slot.SIZE] = int(TransactionType.PREPARED).to_bytes(4, "big")


def _zero_from(store: Writing, queue: MappedQueue, position: int) -> None:
    base = position - position % queue.file_size
    while store.disk.entry(queue.path_of(base)) is not None:
        zero(queue, max(position, base), base + queue.file_size)
        base += queue.file_size


def _reset(store: Writing, boot: tuple[int, int], inode: int, checkpoint: Checkpoint, end: int) -> None:
    """The control page as of the checkpoint, with the log's end; the replay brings it up to date."""
    said = json.loads(store.disk.read(store.paths.store_json))
    number = int(said["id"], 16)
    control = store.control
    for word in (Word.POISON, Word.GENERATION):
        control[word] = 0
    control[Word.DISPATCHED], control[Word.DURABLE] = checkpoint.commitlog_offset, checkpoint.commitlog_offset
    control[Word.TAIL], control[Word.INTENT] = end, end
    control[Word.SLOTS], control[Word.REDO_UNITS] = checkpoint.slots, checkpoint.redo_units
    control[Word.STORE_MS], control[Word.CHECKPOINTED] = checkpoint.store_ms, checkpoint.commitlog_offset
    control.initialise(boot, (number >> 64, number & ((1 << 64) - 1)), inode, store.layout.segment_bytes)


def write_checkpoint(store: Writing) -> None:
    """Force the derived files and say so; call alone, or under the append lock."""
    control, dispatcher = store.control, store.dispatcher
    queues = [(*store.cells.queue(cell), store.cells[cell]) for cell in range(len(store.cells))]
    for cell in range(len(store.cells)):
        _force(store, dispatcher.queue(cell), store.cells[cell] * UNIT_SIZE)
    _force(store, dispatcher.redo_log, control[Word.REDO_UNITS] * UNIT_SIZE)
    _force(store, dispatcher.table, control[Word.SLOTS] * Slot.SIZE)
    dispatcher.index.force()
    in_doubt = [slot for slot in range(control[Word.SLOTS]) if dispatcher.slot(slot).state == TransactionType.PREPARED]
    checkpoint = Checkpoint(
        control[Word.DISPATCHED],
        control[Word.SLOTS],
        control[Word.REDO_UNITS],
        control[Word.STORE_MS],
        in_doubt,
        queues,
        dispatcher.index.state(),
    )
    store.disk.write_file(store.paths.own_checkpoint, checkpoint.encode())
    store_ms = control[Word.STORE_MS]
    store.disk.write_file(store.paths.checkpoint, encode_rocket(RocketCheckpoint(store_ms, store_ms)))
    control[Word.CHECKPOINTED] = checkpoint.commitlog_offset


def _force(store: Writing, queue: MappedQueue, stop: int) -> None:
    base = 0
    while base < stop:
        if store.disk.entry(queue.path_of(base)) is not None:
            queue.sync(base, base + queue.file_size)
        base += queue.file_size


def leave(store: Writing) -> None:
    """The last to leave: everything on disk, and no `abort`."""
    with store.append_lock:
        store.appender.heal()
        store.syncer.force_now()
        write_checkpoint(store)
    store.disk.remove(store.paths.abort)
