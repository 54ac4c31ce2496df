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

from broker.format.index import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, IndexHeader, file_size, time_diff_s
from broker.store.control import ControlPage, Word
from broker.store.disk import Disk, Map

_HEADER = IndexHeader.STRUCT
_ITEM = struct.Struct(">iqii")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_ENDS = struct.Struct(">q")
_REST = struct.Struct(">qii")
_BEGIN_MS_AT, _END_MS_AT = IndexHeader.OFFSET["begin_timestamp_ms"], IndexHeader.OFFSET["end_timestamp_ms"]
_BEGIN_AT, _END_AT = IndexHeader.OFFSET["begin_commitlog_offset"], IndexHeader.OFFSET["end_commitlog_offset"]
_COUNT_AT = IndexHeader.OFFSET["item_count"]


class IndexWriter:
    """The newest index file of a store; call under the append lock."""

    def __init__(self, disk: Disk, folder: str, slots: int, items: int, control: ControlPage) -> None:
        self._disk, self._folder, self._control = disk, folder, control
        self._slots, self._items = slots, items
        self._items_at = HEADER_SIZE + SLOT_SIZE * slots
        self._number = 0
        self._map: Map | None = None

    def reserve(self, count: int) -> None:
        """Have room for so many items. Raises StoreFull."""
        opened = self._newest()
        if self._next(opened.view) + count > self._items:
            self._roll(opened)

    def put(self, codes: Sequence[int], commitlog_offset: int, store_timestamp_ms: int, *, again: bool) -> None:
        """Add an item for each hash of a record's keys; `again` leaves out those that are there already."""
        view = self._newest().view
        begin_ms, _, _, last, used, count = _HEADER.unpack_from(view, 0)
        count = max(count, 1)
        if again and count > 1 and commitlog_offset <= last:
            codes = codes[self._done(view, count, commitlog_offset) :] if commitlog_offset == last else ()
        if again and count + len(codes) > self._items:  # else `reserve` has seen to it
            self._roll(self._newest())
            self.put(codes, commitlog_offset, store_timestamp_ms, again=False)
            return
        if count == 1:
            begin_ms = store_timestamp_ms
            _LONG.pack_into(view, _BEGIN_MS_AT, begin_ms)
            _LONG.pack_into(view, _BEGIN_AT, commitlog_offset)
        after_s = time_diff_s(store_timestamp_ms, begin_ms)
        for code in codes:
            slot_at = HEADER_SIZE + SLOT_SIZE * (code % self._slots)
            (previous,) = _INT.unpack_from(view, slot_at)
            previous = previous if 0 < previous < count else 0
            _ITEM.pack_into(view, self._items_at + ITEM_SIZE * count, code, commitlog_offset, after_s, previous)
            used += not previous
            _INT.pack_into(view, slot_at, count)
            count += 1
            _ENDS.pack_into(view, _END_MS_AT, store_timestamp_ms)
            _REST.pack_into(view, _END_AT, commitlog_offset, used, count)

    def _done(self, view: memoryview[int], count: int, commitlog_offset: int) -> int:
        """How many of the last record's keys are in already."""
        done = 0
        while done < count - 1:
            item = _ITEM.unpack_from(view, self._items_at + ITEM_SIZE * (count - 1 - done))
            if item[1] != commitlog_offset:
                break
            done += 1
        return done

    def _next(self, view: memoryview[int]) -> int:
        return max(1, int(_INT.unpack_from(view, _COUNT_AT)[0]))

    def state(self) -> tuple[int, str]:
        """The file in use and its header in hexadecimal, for a checkpoint; (0, "") before the first."""
        number = self._control[Word.INDEX]
        return (number, bytes(self._newest().view[:HEADER_SIZE]).hex()) if number else (0, "")

    def force(self) -> None:
        """Force the file in use; earlier ones were forced when they were full. Raises SyncFailed."""
        if self._control[Word.INDEX]:
            self._newest().sync()

    def cut(self, number: int, header: str) -> None:
        """Go back to a checkpoint's state: later files go, later items are cleared, and every slot names its newest."""
        for entry in self._disk.entries(self._folder) if self._disk.entry(self._folder) else []:
            if not entry.name.isdecimal() or int(entry.name) > number:
                self._disk.remove(entry.path)
        self._control[Word.INDEX] = number
        if not number:
            return
        view = self._newest().view
        view[:HEADER_SIZE] = bytes.fromhex(header)
        count = self._next(view)
        view[self._items_at + ITEM_SIZE * count :] = bytes(len(view) - self._items_at - ITEM_SIZE * count)
        heads = [0] * self._slots
        items = view[self._items_at + ITEM_SIZE : self._items_at + ITEM_SIZE * count]
        for item, (code, _, _, _) in enumerate(_ITEM.iter_unpack(items), 1):
            heads[code % self._slots] = item
        view[HEADER_SIZE : self._items_at] = struct.pack(f">{self._slots}i", *heads)

    def _newest(self) -> Map:
        """The file in use, which another process may have begun."""
        number = self._control[Word.INDEX]
        if number == 0:
            self._create()
        elif self._map is None or number != self._number:
            self._open(number)
        assert self._map is not None
        return self._map

    def _roll(self, full: Map) -> None:
        """A new file, whose times and places begin where the full one ended."""
        header = IndexHeader.unpack_from(full.view)
        full.sync()
        self._create()
        assert self._map is not None
        ends = (
            header.end_timestamp_ms,
            header.end_timestamp_ms,
            header.end_commitlog_offset,
            header.end_commitlog_offset,
        )
        _HEADER.pack_into(self._map.view, 0, *ends, 0, 1)

    def _create(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03}"
        number = max(int(name), self._control[Word.INDEX] + 1)
        if self._disk.entry(self._folder) is None:
            self._disk.create_folder(self._folder)
        self._disk.allocate(self._path(number), file_size(self._slots, self._items))
        self._open(number)
        self._control[Word.INDEX] = number

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number:017}")

    def _open(self, number: int) -> None:
        if self._map is not None:
            self._map.close()
        self._map = self._disk.open_map(self._path(number), file_size(self._slots, self._items))
        self._number = number

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
