"""Cut the index at a checkpoint: later files go, later items are cleared, and no slot names one of them.

The cost is that of the items behind the checkpoint, and of one look over the slots: an index file of RocketMQ's usual
size has 420 MB.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from sys import byteorder

from broker.format.index import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, IndexHeader, file_size
from broker.store.disk import Disk, Map

_PIECE_ITEMS = 1 << 16


def cut_index(disk: Disk, folder: str, slots: int, items: int, number: int, header: str) -> None:
    """Bring the folder back to what a checkpoint says: the file in use, and its header in hexadecimal."""
    for entry in disk.entries(folder) if disk.entry(folder) else []:
        if not entry.name.isdecimal() or int(entry.name) > number:
            disk.remove(entry.path)
    if not number:
        return
    opened = disk.open_map(f"{folder}/{number:017}", file_size(slots, items))
    try:
        _cut(opened, slots, bytes.fromhex(header))
        opened.sync()
    finally:
        opened.close()


def _cut(opened: Map, slots: int, header: bytes) -> None:
    view = opened.view
    count = max(1, IndexHeader.unpack_from(header).item_count)
    view[:HEADER_SIZE] = header
    late = _late_slots(view, slots, count)
    if late:
        heads = dict.fromkeys(late, 0)
        for item, code in _codes(view, slots, count):
            if code % slots in heads:
                heads[code % slots] = item
        for slot, item in heads.items():
            at = HEADER_SIZE + SLOT_SIZE * slot
            view[at : at + SLOT_SIZE] = item.to_bytes(SLOT_SIZE, "big")
    _clear(view, HEADER_SIZE + SLOT_SIZE * slots + ITEM_SIZE * count)


def _late_slots(view: memoryview[int], slots: int, count: int) -> list[int]:
    """The slots whose newest item lies behind the checkpoint, or is none."""
    found: list[int] = []
    for first in range(0, slots, _PIECE_ITEMS):
        stop = min(slots, first + _PIECE_ITEMS)
        raw = bytes(view[HEADER_SIZE + SLOT_SIZE * first : HEADER_SIZE + SLOT_SIZE * stop])
        if raw.count(0) == len(raw):
            continue
        heads = array("I", raw)
        if byteorder == "little":
            heads.byteswap()
        if max(heads) >= count:
            found += [first + slot for slot, item in enumerate(heads) if item >= count]
    return found


def _codes(view: memoryview[int], slots: int, count: int) -> Iterator[tuple[int, int]]:
    """The items before the checkpoint with their hashes."""
    items_at = HEADER_SIZE + SLOT_SIZE * slots
    for first in range(1, count, _PIECE_ITEMS):
        stop = min(count, first + _PIECE_ITEMS)
        raw = bytes(view[items_at + ITEM_SIZE * first : items_at + ITEM_SIZE * stop])
        codes = array("I", b"".join(raw[at : at + 4] for at in range(0, len(raw), ITEM_SIZE)))
        if byteorder == "little":
            codes.byteswap()
        yield from enumerate(codes, first)


def _clear(view: memoryview[int], start: int) -> None:
    """Zero everything from a position on, without touching what is zero already."""
    piece = _PIECE_ITEMS * ITEM_SIZE
    for at in range(start, len(view), piece):
        data = bytes(view[at : at + piece])
        if data.count(0) != len(data):
            view[at : at + len(data)] = bytes(len(data))
