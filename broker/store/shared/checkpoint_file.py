"""Our checkpoint: up to where the derived files were on disk, and what was in doubt then.

    STORE/checkback/checkpoint    a line with the CRC of the rest, then JSON
    STORE/checkback/durable       the same, around one number: the log below it was flushed (a lower bound)
    STORE/checkback/adopted       the same: records of another program below this offset are accepted

It also holds landmarks: the last unit of each queue and of the redo log, the last slot of the state table, where the
index file begins. Files that lack them were cut, removed or made again by another program, and the checkpoint does not
speak of them.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from broker.errors import CorruptRecord
from broker.format.consumequeue import UNIT_SIZE
from broker.format.index import HEADER_SIZE, IndexHeader
from broker.format.statetable import STATE_AT, Slot
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths
from broker.store.read.segments import is_base


@dataclass(frozen=True, slots=True)
class OwnCheckpoint:
    """Derived files are on disk for every record below `commitlog_offset`."""

    commitlog_offset: int
    slots: int = 0
    redo_units: int = 0
    store_ms: int = 0
    in_doubt: list[int] = field(default_factory=list)  # slots that were in doubt then
    queues: list[tuple[str, int, int]] = field(default_factory=list)  # topic, queue id, next offset
    index: tuple[int, str] = (0, "")  # the index file in use, and its header
    landmarks: list[str] = field(default_factory=list)  # of each queue, the redo log, the table, the index
    table: str = "transaction/statetable"  # the directory of the slots, below the store

    def encode(self) -> bytes:
        content = {one.name: getattr(self, one.name) for one in fields(self)}  # `asdict` would copy each slot
        return seal(json.dumps(content).encode())

    @classmethod
    def decode(cls, raw: bytes) -> OwnCheckpoint | None:
        """The checkpoint in these bytes; None when they are none, are not whole, or are another version's."""
        content = unseal(raw)
        try:
            queues = [(topic, queue_id, following) for topic, queue_id, following in content.pop("queues")]
            number, header = content.pop("index")
            return cls(**content, queues=queues, index=(number, header))
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


def seal(text: bytes) -> bytes:
    """A text with its CRC in the line before it."""
    return b"%08x\n" % zlib.crc32(text) + text


def unseal(raw: bytes) -> Any:
    """The JSON value in what `seal` made; None when it is damaged."""
    head, _, text = raw.partition(b"\n")
    if head != b"%08x" % zlib.crc32(text):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def read_point(disk: Disk, paths: Paths) -> OwnCheckpoint | None:
    """The checkpoint of a store; None without a whole one whose landmarks stand."""
    try:
        found = OwnCheckpoint.decode(disk.read(paths.own_checkpoint))
    except Missing:
        return None
    return found if found is not None and landmarks(disk, paths, found) == found.landmarks else None


def read_number(disk: Disk, path: str) -> int:
    """The number in a sealed file; 0 without a whole one."""
    try:
        content = unseal(disk.read(path))
    except Missing:
        return 0
    return content if isinstance(content, int) else 0


def landmarks(disk: Disk, paths: Paths, point: OwnCheckpoint) -> list[str]:
    """What the derived files hold right below a checkpoint; the state of a slot is left out, for it changes."""
    return [*(_last(disk, *place) for place in _places(paths, point)), _index_begin(disk, paths, point)]


def _index_begin(disk: Disk, paths: Paths, point: OwnCheckpoint) -> str:
    """Where and when the index file in use begins, which never changes; empty before its first item."""
    number, header = point.index
    if not number or IndexHeader.unpack_from(bytes.fromhex(header)).next_item == 1:
        return ""
    try:
        raw = disk.open_read(f"{paths.index}/{number:017}").pread(HEADER_SIZE, 0)
        found = IndexHeader.unpack_from(raw)
    except (Missing, CorruptRecord):
        return ""
    return f"{found.begin_timestamp_ms:x}-{found.begin_commitlog_offset:x}"


def _places(paths: Paths, point: OwnCheckpoint) -> Iterator[tuple[str, int, int, int]]:
    """Directory, position behind the last value, its size, and how much of it never changes."""
    for topic, queue_id, following in point.queues:
        yield paths.queue(topic, queue_id), following * UNIT_SIZE, UNIT_SIZE, UNIT_SIZE
    yield paths.redo_log, point.redo_units * UNIT_SIZE, UNIT_SIZE, UNIT_SIZE
    yield os.path.join(paths.store, point.table), point.slots * Slot.SIZE, Slot.SIZE, STATE_AT


def _last(disk: Disk, directory: str, stop: int, size: int, kept: int) -> str:
    """The value that ends at a position of a queue of files; empty when nothing should be there, or is."""
    at = stop - size
    if at < 0:
        return ""
    try:
        names = [entry for entry in disk.entries(directory) if entry.is_file and is_base(entry.name)]
        base = max((entry for entry in names if int(entry.name) <= at), key=lambda entry: entry.name, default=None)
        if base is None:
            return ""
        raw = disk.open_read(base.path).pread(kept, at - int(base.name))
    except Missing:
        return ""
    return raw.hex() if any(raw) else ""
