"""The index: from a key of a topic to records, as a hash table with chains in one file of fixed size.

    STORE/index/20261121023714211    named by the local time of its creation

    header (40 bytes)   slots (4 bytes each)   items (20 bytes each; item 0 is never used)

A slot holds the number of its newest item, an item that of the next older one in the same slot; 0 ends the chain. Only
hashes are stored: a reader that finds an item must compare the key in the record. RocketMQ: IndexFile, IndexHeader
(5.3.3).

How many slots and items a file has is configuration, and many pairs give the same size. `solve_counts` knows RocketMQ's
default, `find_counts` works the numbers out from where the used items end; `broker.store.read.index` has the file for
it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from broker.errors import CorruptRecord
from broker.format.java import string_hash
from broker.format.layout import Layout, i32, i64

SLOT_COUNT = 5_000_000  # by default
ITEM_COUNT = 20_000_000  # by default
HEADER_SIZE = 40
SLOT_SIZE = 4
ITEM_SIZE = 20
NO_ITEM = 0
TIME_DIFF_S_MAX = (1 << 31) - 1  # what an item can hold

_SLOT = struct.Struct(">i")
_INT_MIN = -(1 << 31)


@dataclass(frozen=True)
class IndexHeader(Layout, size=HEADER_SIZE):
    """Times and places of what the file indexes, and how full it is."""

    begin_timestamp_ms: i64  # store timestamp of the first record indexed
    end_timestamp_ms: i64  # of the last
    begin_commitlog_offset: i64
    end_commitlog_offset: i64
    used_slots: i32  # 3.0 to 4.5.2 count items here
    item_count: i32  # the number of the next item; the first is 1. A fresh file says 0

    @property
    def next_item(self) -> int:
        """The number of the item that would be written next. RocketMQ: IndexHeader.load (5.3.3)."""
        return max(1, self.item_count)


@dataclass(frozen=True)
class IndexItem(Layout, size=ITEM_SIZE):
    """One key of one record."""

    key_hash: i32  # of TOPIC#KEY; 3.0 to 3.1.4 keep the sign
    commitlog_offset: i64
    time_diff_s: i32  # store timestamp, in whole seconds after the header's begin_timestamp_ms
    previous: i32  # the next older item of the slot; 0 when there is none


def file_size(slots: int = SLOT_COUNT, items: int = ITEM_COUNT) -> int:
    return HEADER_SIZE + SLOT_SIZE * slots + ITEM_SIZE * items


def slot_at(slot: int) -> int:
    """Where a slot lies in the file."""
    return HEADER_SIZE + SLOT_SIZE * slot


def item_at(item: int, slots: int) -> int:
    """Where an item lies in the file."""
    return HEADER_SIZE + SLOT_SIZE * slots + ITEM_SIZE * item


def key_hash(topic: str, key: str) -> int:
    """The hash that 4.x and 5.x store for a key, never negative. RocketMQ: IndexFile.indexKeyHashMethod (5.3.3)."""
    code = string_hash(f"{topic}#{key}")
    return 0 if code == _INT_MIN else abs(code)


def key_hash_3_0(topic: str, key: str) -> int:
    """The hash that 3.0 stores for a key, with its sign. RocketMQ: IndexFile.putKey (3.1.5)."""
    code = string_hash(f"{topic}#{key}")
    return 0 if code == _INT_MIN else code


def slot_of(code: int, slots: int) -> int:
    """The slot in which a stored hash of either kind is found."""
    return abs(code) % slots


def time_diff_s(store_timestamp_ms: int, begin_timestamp_ms: int) -> int:
    """What an item holds for a record's time. RocketMQ: IndexFile.putKey (5.3.3).

    Quirk (3.0): it cuts the milliseconds, not the seconds, at 2^31 - 1: after 24 days all items say the same time.
    """
    if begin_timestamp_ms <= 0:
        return 0
    return min(max(0, (store_timestamp_ms - begin_timestamp_ms) // 1000), TIME_DIFF_S_MAX)


def chain(buffer: Any, code: int, slots: int, items: int) -> Iterator[tuple[int, IndexItem]]:
    """The items of a hash's slot with their numbers, newest first; other hashes of the same slot come along.

    Ends where RocketMQ ends: at a number that is not a used item, or at an item that names itself. A chain that does
    not go back in time is damage: CorruptRecord. RocketMQ: IndexFile.selectPhyOffset (5.3.3).
    """
    _check_size(buffer, slots, items)
    count = IndexHeader.unpack_from(buffer).item_count
    (item,) = _SLOT.unpack_from(buffer, slot_at(slot_of(code, slots)))
    while NO_ITEM < item <= min(count, items - 1):
        value = IndexItem.unpack_from(buffer, item_at(item, slots))
        yield item, value
        if value.previous > item:
            raise CorruptRecord(f"index item {item} says that item {value.previous} is older", at=item_at(item, slots))
        if value.previous == item:
            return
        item = value.previous


def solve_counts(size: int, given: tuple[int, int] | None = None) -> tuple[int, int] | None:
    """(slots, items) of a file of `size` bytes: the given pair when it fits, else RocketMQ's default, else None."""
    for pair in (given, (SLOT_COUNT, ITEM_COUNT)):
        if pair is not None and file_size(*pair) == size:
            return pair
    return None


def find_counts(size: int, next_item: int, used_bytes: int) -> tuple[int, int]:
    """(slots, items) of an index file of `size` bytes, worked out from where its last byte that is not zero ends.

    That byte belongs to the last used item, or lies at most 20 bytes before its end, which leaves one number of slots.
    In a file without items any pair is right. Raises CorruptRecord when no pair fits.
    """
    room = size - HEADER_SIZE
    if room % SLOT_SIZE:
        raise CorruptRecord(f"no index file has {size} bytes")
    fewest = -((HEADER_SIZE + ITEM_SIZE * next_item - used_bytes) // SLOT_SIZE) if next_item > 1 else 1
    slots = fewest + (room // SLOT_SIZE - fewest) % (ITEM_SIZE // SLOT_SIZE)  # one item less is five slots more
    items = (room - SLOT_SIZE * slots) // ITEM_SIZE
    if slots <= 0 or items < next_item:
        raise CorruptRecord(f"an index file of {size} bytes cannot hold {next_item - 1} items")
    return slots, items


def _check_size(buffer: Any, slots: int, items: int) -> None:
    if slots <= 0 or items <= 0 or len(buffer) != file_size(slots, items):
        raise CorruptRecord(f"an index file with {slots} slots and {items} items does not have {len(buffer)} bytes")
