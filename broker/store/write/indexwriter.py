"""The index, written: one item for the unique key and one for each key of a record.

Items are counted last, so that a process killed in between leaves nothing that anyone reads. Our index follows the
rules of 4.x and 5.x: absolute hashes, everything but rollbacks. RocketMQ: IndexService.buildIndex, IndexFile.putKey
(5.3.3).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from functools import lru_cache

from broker.errors import MessageRejected
from broker.format.index import (
    HEADER_SIZE,
    ITEM_SIZE,
    SLOT_SIZE,
    IndexHeader,
    IndexItem,
    file_size,
    time_diff_s,
)
from broker.store.disk.files import Disk, Map
from broker.store.shared.control import ControlPage, Word

_HEADER = IndexHeader.STRUCT
_ITEM = IndexItem.STRUCT
_INT = struct.Struct(">i")
_unpack_header, _unpack_int, _pack_int = _HEADER.unpack_from, _INT.unpack_from, _INT.pack
_pack_item, _pack_long, _pack_counts = _ITEM.pack_into, struct.Struct(">q").pack_into, struct.Struct(">ii").pack
_PREVIOUS_AT = IndexItem.OFFSET["previous"]
_BEGIN_MS_AT, _END_MS_AT = IndexHeader.OFFSET["begin_timestamp_ms"], IndexHeader.OFFSET["end_timestamp_ms"]
_BEGIN_AT, _END_AT = IndexHeader.OFFSET["begin_commitlog_offset"], IndexHeader.OFFSET["end_commitlog_offset"]
_COUNTS = slice(IndexHeader.OFFSET["used_slots"], HEADER_SIZE)  # used slots and items, in 8 aligned bytes
_COUNT_AT = IndexHeader.OFFSET["item_count"]
_INDEX = int(Word.INDEX)
_after_s = lru_cache(maxsize=16)(time_diff_s)  # many records share a millisecond

_NOT_OPEN: tuple[int, memoryview[int]] = (0, memoryview(bytearray()))

Room = tuple["memoryview[int]", tuple[int, ...]]  # an index file and its header, as IndexHeader names the numbers


class IndexWriter:
    """The newest index file of a store; call under the append lock."""

    def __init__(self, disk: Disk, directory: str, slots: int, items: int, control: ControlPage) -> None:
        self._disk, self._directory, self._control = disk, directory, control
        self._slots, self._items = slots, items
        self._items_at = HEADER_SIZE + SLOT_SIZE * slots
        self._words = control.words
        self._forced = 0  # the newest file that this process forced; it may have grown since
        self._map: Map | None = None
        self.newest: tuple[int, memoryview[int]] = _NOT_OPEN  # the file that is mapped here: its name and its bytes

    def reserve(self, count: int) -> None:
        """Have room for so many items. Raises StoreFull, and MessageRejected when no file has so many."""
        if count >= self._items:
            text = f"{count} keys at once; an index file of this store holds {self._items - 1}: send fewer together"
            raise MessageRejected(text)
        opened = self._newest()
        if max(1, _unpack_int(opened.view, _COUNT_AT)[0]) + count > self._items:
            self._roll(opened)

    def room_for(self, count: int, number: int) -> Room | None:
        """The file in use, `number`, if it is mapped here and has room for so many items; else `reserve` is needed."""
        opened = self._map
        if opened is None or self.newest[0] != number:
            return None
        view = opened.view
        header = _unpack_header(view, 0)
        return (view, header) if header[5] + count < self._items else None

    def put(self, codes: Sequence[int], commitlog_offset: int, store_timestamp_ms: int, *, again: bool = False) -> None:
        """Add an item for each hash of a record's keys; `again` leaves out those that are there already."""
        view = self._newest().view
        if again:
            count = self._next(view)
            codes = codes[self._done(view, count, commitlog_offset) :]
            if count + len(codes) > self._items:  # else `reserve` has seen to it
                self._roll(self._newest())
                view = self._newest().view
        if codes:
            self.put_into((view, _unpack_header(view, 0)), codes, commitlog_offset, store_timestamp_ms)

    def put_into(self, room: Room, codes: Sequence[int], commitlog_offset: int, store_timestamp_ms: int) -> None:
        """Add an item for each hash to the file in use, which has room for them.

        What others read while it changes is written by a single store of at most 8 bytes: a slot, and both counts
        together. `pack_into` writes byte by byte, and a kill could leave half a number.
        """
        view, (begin_ms, end_ms, _, _, used, count) = room
        if count <= 1:
            count, begin_ms = 1, store_timestamp_ms
            _pack_long(view, _BEGIN_MS_AT, begin_ms)
            _pack_long(view, _BEGIN_AT, commitlog_offset)
        if store_timestamp_ms != end_ms:
            _pack_long(view, _END_MS_AT, store_timestamp_ms)
        _pack_long(view, _END_AT, commitlog_offset)
        after_s = _after_s(store_timestamp_ms, begin_ms)
        slots, item_at = self._slots, self._items_at + ITEM_SIZE * count
        for code in codes:
            slot_at = HEADER_SIZE + SLOT_SIZE * (code % slots)
            (previous,) = _unpack_int(view, slot_at)
            if not 0 < previous < count:
                previous = self._counted(view, previous, count) if previous else 0
                used += not previous
            _pack_item(view, item_at, code, commitlog_offset, after_s, previous)
            view[slot_at : slot_at + 4] = _pack_int(count)
            count += 1
            item_at += ITEM_SIZE
            view[_COUNTS] = _pack_counts(used, count)

    def _counted(self, view: memoryview[int], item: int, count: int) -> int:
        """The newest item that counts in the chain of one that does not: its writer was killed before it counted it."""
        while count <= item < self._items:
            older = _unpack_int(view, self._items_at + ITEM_SIZE * item + _PREVIOUS_AT)[0]
            item = older if older < item else 0
        return max(0, item) if item < count else 0

    def _done(self, view: memoryview[int], count: int, commitlog_offset: int) -> int:
        """How many of a record's keys are in already: all of them, if a later record's are."""
        done = 0
        while done < count - 1:
            found = _ITEM.unpack_from(view, self._items_at + ITEM_SIZE * (count - 1 - done))[1]
            if found > commitlog_offset:
                return self._items
            if found < commitlog_offset:
                break
            done += 1
        return done

    def state(self) -> tuple[int, str]:
        """The file in use and its header in hexadecimal, for a checkpoint; (0, "") before the first."""
        number = self._control[Word.INDEX]
        return (number, bytes(self._newest().view[:HEADER_SIZE]).hex()) if number else (0, "")

    def force(self) -> None:
        """Flush the file in use, and those that were filled since the last time. Raises SyncFailed."""
        for number in self.numbers():
            if number >= self._forced:
                self._disk.sync_file(self.path(number))
                self._forced = number

    def numbers(self) -> list[int]:
        """The files in use, oldest first."""
        return [number for number in self._listed() if number <= self._words[_INDEX]]

    def _begun(self) -> list[int]:
        """Files whose maker was killed before it put one to use."""
        return [number for number in self._listed() if number > self._words[_INDEX]]

    def _listed(self) -> list[int]:
        if self._disk.entry(self._directory) is None:
            return []
        return [int(entry.name) for entry in self._disk.entries(self._directory) if entry.name.isdecimal()]

    def _next(self, view: memoryview[int]) -> int:
        return max(1, int(_unpack_int(view, _COUNT_AT)[0]))

    def _newest(self) -> Map:
        """The file in use, which another process may have begun."""
        number = self._words[_INDEX]
        if number == self.newest[0] and self._map is not None:
            return self._map
        return self._open(number) if number else self._create()

    def _roll(self, full: Map) -> None:
        """A new file, whose times and places begin where the full one ended."""
        header = IndexHeader.unpack_from(full.view)
        ends = (
            header.end_timestamp_ms,
            header.end_timestamp_ms,
            header.end_commitlog_offset,
            header.end_commitlog_offset,
        )
        self._create(_HEADER.pack(*ends, 0, 1))

    def _create(self, header: bytes = b"") -> Map:
        now_ms = time.time_ns() // 1_000_000
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03}"
        number = max(int(name), self._words[_INDEX] + 1)
        if self._disk.entry(self._directory) is None:
            self._disk.create_directory(self._directory)
        begun = self._begun()
        number = begun[-1] if begun else number
        self._disk.allocate(self.path(number), file_size(self._slots, self._items))
        made = self._open(number)
        made.view[: len(header)] = header
        self._words[_INDEX] = number
        return made

    def path(self, number: int) -> str:
        """Where a file lies."""
        return os.path.join(self._directory, f"{number:017}")

    def _open(self, number: int) -> Map:
        self._map = opened = self._disk.open_map(self.path(number), file_size(self._slots, self._items))
        self.newest = (number, opened.view)
        return opened

    def forget(self) -> None:
        """Release the map: the files of these names are others now."""
        self._map, self._forced, self.newest = None, 0, _NOT_OPEN

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map, self.newest = None, _NOT_OPEN
