"""The index: from a key of a topic to the CommitLog offsets of its records, newest first.

How many slots and items a file has is RocketMQ's configuration and stands nowhere; from the wrong numbers every lookup
would silently find nothing. They are worked out from the size and the contents, and confirmed by the newest item.
RocketMQ: IndexService, IndexFile (5.3.3).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from shlex import quote

from broker.errors import CorruptRecord, CorruptStore
from broker.format.index import (
    HEADER_SIZE,
    ITEM_SIZE,
    SLOT_SIZE,
    IndexHeader,
    IndexItem,
    file_size,
    find_counts,
    item_at,
    key_hash,
    key_hash_3_0,
    slot_at,
    slot_of,
    solve_counts,
)
from broker.store.disk.files import Entry, Missing, ReadFile
from broker.store.read.directory import StoreDirectory
from broker.store.read.layout import read_layout
from broker.store.read.segments import Segment

_CHUNK_BYTES = 1 << 20
_PAUSES_S = (0.0, 0.001, 0.004)  # the broker writes item, slot and header one after the other
_LATE_MS = 1000  # an item holds whole seconds
_DIFF_MAX_S = ((1 << 31) - 1) // 1000  # 3.0 says this of everything that was stored later


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file of the index, open."""

    file: ReadFile
    header: IndexHeader
    slots: int
    items: int
    store_path: str

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """CommitLog offsets that the key's hash leads to, newest first: other keys may share it.

        Both kinds of hash are taken: 3.0 kept the sign. Ends where RocketMQ ends, and where a chain does not go back in
        time, which no intact chain does. RocketMQ: IndexFile.selectPhyOffset (5.3.3).
        """
        codes = {key_hash(topic, key), key_hash_3_0(topic, key)}
        item = self._slot(slot_of(max(codes), self.slots))
        while 0 < item < self.items:
            value = self._item(item)
            stored_ms = self.header.begin_timestamp_ms + 1000 * value.time_diff_s
            may_be_late = stored_ms + _LATE_MS > begin_ms or value.time_diff_s >= _DIFF_MAX_S
            if value.key_hash in codes and stored_ms < end_ms and may_be_late:
                yield value.commitlog_offset
            if value.previous >= item:
                return
            item = value.previous

    def is_confirmed(self) -> bool:
        """Whether the newest item lies where these numbers put it: its slot must name it."""
        newest = self.header.next_item - 1
        if newest == 0:
            return True
        if not 0 < newest < self.items:
            return False
        value = self._item(newest)
        sound = value.commitlog_offset <= self.header.end_commitlog_offset and 0 <= value.previous < newest
        return sound and self._slot(slot_of(value.key_hash, self.slots)) >= newest

    def _slot(self, slot: int) -> int:
        return int.from_bytes(self.file.pread(SLOT_SIZE, slot_at(slot)), "big", signed=True)

    def _item(self, item: int) -> IndexItem:
        raw = self.file.pread(ITEM_SIZE, item_at(item, self.slots))
        if len(raw) < ITEM_SIZE:
            step = f"Run: checkback verify {quote(self.store_path)}"
            text = f"{self.file.path} ends before its item {item}: it was cut. {step}"
            raise CorruptStore(text, path=self.file.path)
        return IndexItem.unpack_from(raw)


class Index:
    """The directory `index`. A store may lack it: then nothing is found by key."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._directory = directory
        self._counts: tuple[int, int] | None = None  # of the last file that was complete: usually those of all
        layout = read_layout(directory.disk, directory.paths)  # of a store of ours nothing has to be worked out
        self._capacity = (layout.index_slots, layout.index_items) if layout is not None else None

    def files(self) -> list[IndexFile]:
        """The files, newest first; one that RocketMQ has only begun is left out."""
        entries = self._directory.disk.entries_if_any(self._directory.paths.index)
        named = [entry for entry in entries if entry.is_file and entry.name.isdecimal()]
        opened = (self._open(entry) for entry in reversed(named))
        return [file for file in opened if file is not None]

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """CommitLog offsets that the key's hash leads to, newest first, of records stored in begin_ms <= time < end_ms.

        The caller must compare the key in the record. Raises CorruptStore when a file makes no sense.
        """
        for file in self.files():
            in_time = file.header.begin_timestamp_ms < end_ms and file.header.end_timestamp_ms >= begin_ms
            if in_time and file.header.next_item > 1:
                yield from file.find(topic, key, begin_ms, end_ms)

    def _open(self, listed: Entry) -> IndexFile | None:
        entry, used_items = listed, 0
        for pause_s in _PAUSES_S:
            if pause_s:  # a sleep of nothing takes a tenth of a millisecond, for each file of each lookup
                time.sleep(pause_s)
                # it may have been empty when it was listed, and be in use by now
                entry = self._directory.disk.entry(listed.path) or listed
            try:
                file = self._directory.files.get(entry.path, entry.inode)
            except Missing:
                return None
            raw = file.pread(HEADER_SIZE, 0)
            if len(raw) < HEADER_SIZE:
                return None
            header = IndexHeader.unpack_from(raw)
            used_items = header.next_item - 1
            if used_items == 0:
                return None
            with suppress(CorruptRecord):
                found = work_out(file, header, entry.size, self._directory.path, self._counts, self._capacity)
                if found.is_confirmed():
                    self._counts = (found.slots, found.items)
                    return found
        reason = f"no number of slots and items fits its {entry.size} bytes and its {used_items} items"
        next_step = f"Run: checkback verify {quote(self._directory.path)}"
        raise CorruptStore(f"{entry.path}: not an index that RocketMQ wrote: {reason}. {next_step}", path=entry.path)


def in_log_order(segments: Sequence[Segment]) -> list[Segment]:
    """The files of an index in the order of the log, as far as their headers agree on one; else as they are named.

    Quirk: a file is named by the local time at which it was made. Where a broker's time zone changes, its clock is set
    back or its summer time ends, a later file has a smaller name. RocketMQ: IndexService.getAndCreateLastIndexFile.
    """
    spans: list[tuple[int, int, int]] = []
    unused: list[Segment] = []
    for number, segment in enumerate(segments):
        with suppress(Missing, CorruptRecord):
            header = IndexHeader.unpack_from(segment.read(0, HEADER_SIZE))
            if header.next_item > 1:
                spans.append((header.begin_commitlog_offset, header.end_commitlog_offset, number))
                continue
        unused.append(segment)
    ordered = sorted(spans)
    agree = all(before[1] <= after[1] for before, after in pairwise(ordered))
    if ordered == spans or not agree:
        return list(segments)
    return [*(segments[number] for _, _, number in ordered), *unused]


def work_out(
    file: ReadFile,
    header: IndexHeader,
    size: int,
    store_path: str,
    given: tuple[int, int] | None = None,
    capacity: tuple[int, int] | None = None,
) -> IndexFile:
    """An index file of `size` bytes with its numbers of slots and items: those that its newest item confirms.

    `capacity` is that of the store's own layout, which hold where they fit: the contents of a file that is being
    written lead astray. `given` are those of another file, which are tried first. Where none is confirmed, as in a
    damaged file, it is the most likely. Reads an item, a slot and the end of what is used, never the whole file. Raises
    CorruptRecord when no numbers fit.
    """
    if capacity is not None and file_size(*capacity) == size:
        return IndexFile(file, header, *capacity, store_path)
    likely = solve_counts(size, given)
    found = IndexFile(file, header, *likely, store_path) if likely else None
    if found is not None and found.is_confirmed():
        return found
    try:
        counts = find_counts(size, header.next_item, _used_size(file, size))
    except CorruptRecord:
        if found is None:
            raise
        return found
    other = IndexFile(file, header, *counts, store_path)
    return other if found is None or other.is_confirmed() else found


def _used_size(file: ReadFile, size: int) -> int:
    """Where the file's last byte that is not zero ends."""
    end = size
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        if start and file.next_data(start) >= end:  # a hole: nothing to read
            end = start
            continue
        if used := file.pread(end - start, start).rstrip(b"\0"):
            return start + len(used)
        end = start
    return 0
