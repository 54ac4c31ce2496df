"""Cut the index at a checkpoint: later files go, later items are cleared, and no slot names one of them.

The cost is that of one look over the slots, of the hashes before the checkpoint, and of what follows it: an index
file of RocketMQ's usual size has 420 MB, most of them a hole.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from sys import byteorder

from broker.format.index import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, IndexHeader, file_size
from broker.store.disk.files import Disk, ReadFile

_PIECE_ITEMS = 1 << 16


def cut_index(disk: Disk, directory: str, slots: int, items: int, number: int, header: str) -> None:
    """Bring the directory back to what a checkpoint says: the file in use, and its header in hexadecimal."""
    for entry in disk.entries(directory) if disk.entry(directory) else []:
        if not entry.name.isdecimal() or int(entry.name) > number:
            disk.remove(entry.path)
    if not number:
        return
    path = f"{directory}/{number:017}"
    opened = disk.open_map(path, file_size(slots, items))
    try:
        count = _cut(opened.view, slots, bytes.fromhex(header))
        _clear(opened.view, disk.open_read(path), HEADER_SIZE + SLOT_SIZE * slots + ITEM_SIZE * count)
        opened.sync()
    finally:
        opened.close()


def _cut(view: memoryview[int], slots: int, header: bytes) -> int:
    """Bring header and slots back; returns how many items stay."""
    count = max(1, IndexHeader.unpack_from(header).item_count)
    view[:HEADER_SIZE] = header
    late = _late_slots(view, slots, count)
    heads = dict.fromkeys(late, 0)
    for first, codes in _codes(view, slots, count) if late else ():
        heads.update([(slot, item) for item, code in enumerate(codes, first) if (slot := code % slots) in heads])
    for slot, item in heads.items():
        at = HEADER_SIZE + SLOT_SIZE * slot
        view[at : at + SLOT_SIZE] = item.to_bytes(SLOT_SIZE, "big")
    return count


def _late_slots(view: memoryview[int], slots: int, count: int) -> list[int]:
    """The slots whose newest item follows the checkpoint, or is none."""
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


def _codes(view: memoryview[int], slots: int, count: int) -> Iterator[tuple[int, array[int]]]:
    """The hashes of the items before the checkpoint, piece by piece, with the number of the first of each."""
    items_at, words = HEADER_SIZE + SLOT_SIZE * slots, ITEM_SIZE // SLOT_SIZE
    for first in range(1, count, _PIECE_ITEMS):
        stop = min(count, first + _PIECE_ITEMS)
        raw = memoryview(bytes(view[items_at + ITEM_SIZE * first : items_at + ITEM_SIZE * stop]))
        codes = array("I", raw.cast("I")[::words].tobytes())
        if byteorder == "little":
            codes.byteswap()
        yield first, codes


def _clear(view: memoryview[int], file: ReadFile, start: int) -> None:
    """Zero everything from a position on, without touching what is zero already, or looking into a hole."""
    piece = _PIECE_ITEMS * ITEM_SIZE
    for first, stop in file.filled(start):
        for at in range(first, stop, piece):
            data = bytes(view[at : min(stop, at + piece)])
            if data.count(0) != len(data):
                view[at : at + len(data)] = bytes(len(data))
