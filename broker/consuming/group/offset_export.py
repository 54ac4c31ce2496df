"""Positions as RocketMQ keeps them: written from our cells every few seconds, and read when another program wrote them.

    config/consumerOffset.json     group and topic → queue → the next queue offset
    config/delayOffset.json        delay level → the next queue offset of the schedule topic

Each is flushed before it takes the old one's place, and the old one is kept as `.bak`. What we wrote last is known by
its CRC: another content is another program's, and its positions win. RocketMQ: ConfigManager.persist (5.3.3).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar
from zlib import crc32

from broker.consuming.group.consumer_table import EXPORTED_DELAYS, EXPORTED_MS, EXPORTED_OFFSETS, UNSET, ConsumerTable
from broker.consuming.group.membership import monotonic_ms
from broker.errors import CorruptRecord
from broker.format import config
from broker.format.config import ConsumerOffsets, DelayOffsets
from broker.format.topics import LMQ_PREFIX, SCHEDULE_TOPIC
from broker.store.disk.append_lock import AppendLock
from broker.store.disk.files import Missing
from broker.store.disk.paths import Paths
from broker.store.read.config import undecoded
from broker.store.shared.config_file import write_config
from broker.store.write.presence import files_lost

EXPORT_MS = 5000  # RocketMQ: flushConsumerOffsetInterval
SCHEDULE_GROUP = "CID_CHECKBACK_SCHEDULE"  # holds how far each delay level was delivered; never in consumerOffset.json
_OFFSETS, _DELAYS = "consumerOffset.json", "delayOffset.json"
_CRC = 0xFFFFFFFF
_T = TypeVar("_T")


class OffsetExport:
    """The two files of one store."""

    def __init__(self, cells: ConsumerTable, paths: Paths, queue_end: Callable[[str, int], int]) -> None:
        """`queue_end(topic, queue_id)`: no position that somebody wrote may lie beyond it."""
        self._cells, self._paths, self._queue_end = cells, paths, queue_end
        self._disk = cells.disk
        self._decoded = b"", ConsumerOffsets()
        table = os.path.join(cells.directory, "consumers")
        self._table = table, self._disk.inode(table)
        self._lock = AppendLock(os.path.join(cells.directory, "export.lock"), cells.disk)

    def close(self) -> None:
        self._lock.close()

    def offsets(self) -> ConsumerOffsets:
        """consumerOffset.json as it stands; it is decoded once for each version. Raises CorruptRecord."""
        raw, (before, offsets) = self._read(_OFFSETS), self._decoded
        if raw != before:  # who asks for the positions of every group asks thousands of times
            offsets = _decoded(self._path(_OFFSETS), raw, config.decode_consumer_offsets, ConsumerOffsets())
            self._decoded = raw, offsets
        return offsets

    def delays(self) -> DelayOffsets:
        """delayOffset.json as it stands. Raises CorruptRecord."""
        return _decoded(self._path(_DELAYS), self._read(_DELAYS), config.decode_delay_offsets, DelayOffsets())

    def take_over(self) -> bool:
        """Take positions from files that another program wrote since we did; whether there were any.

        Under the cells' lock. Every queue whose position changes loses its lease, so that its owner begins again.
        """
        offsets, delays = self._is_foreign(_OFFSETS, EXPORTED_OFFSETS), self._is_foreign(_DELAYS, EXPORTED_DELAYS)
        if offsets or delays:
            exported, levels = self.offsets().positions, self.delays().positions
            for cell, (group, topic, queue_id) in list(self._cells.all()):
                at = _exported_position(group, topic, queue_id, exported if offsets else {}, levels if delays else {})
                if at is not None and at != self._cells.position(cell):
                    self._cells.set_position(cell, min(at, self._queue_end(topic, queue_id)))
        for foreign, name, word in ((offsets, _OFFSETS, EXPORTED_OFFSETS), (delays, _DELAYS, EXPORTED_DELAYS)):
            if foreign:
                self._remember(word, self._read(name))
        return offsets or delays

    def clamp(self) -> None:
        """Have the files state no position beyond the end of its queue. Under the cells' lock, before anything is sent.

        After a machine crash a group whose cells are lost would else be put behind what comes next, and is new to it.
        A process that holds the lock of exports had the store open before. Raises CorruptRecord, StoreFull, SyncFailed.
        """
        if not self._lock.try_acquire():
            return
        try:
            self.take_over()
            offsets = {
                (topic, group): {queue_id: self._within(topic, queue_id, at) for queue_id, at in queues.items()}
                for (topic, group), queues in self.offsets().positions.items()
            }
            levels = self.delays().positions.items()
            for name, word, raw in self._changed(
                offsets, {level: self._within(SCHEDULE_TOPIC, level - 1, at) for level, at in levels}
            ):
                self._note(name, word, raw)
                write_config(self._disk, self._path(name), raw)
        finally:
            self._lock.release()

    def _within(self, topic: str, queue_id: int, position: int) -> int:
        """The position, or the end of its queue before it. How long a broker's own queues are nobody knows here."""
        if topic.startswith(LMQ_PREFIX) or position <= (end := self._queue_end(topic, queue_id)):
            return position
        return position if topic in self._batch_topics() else end

    def _batch_topics(self) -> set[str]:
        """The topics whose queues are BatchConsumeQueues."""
        return {entry.name for entry in self._disk.entries_if_any(self._paths.batchconsumequeue)}

    def export(self, *, at_once: bool = False) -> None:
        """Write the files if they are due and say something else than the cells. Raises StoreFull, SyncFailed."""
        if not at_once and not self._is_due():
            return
        if at_once:
            self._lock.acquire()
        elif not self._lock.try_acquire():  # another is at it
            return
        try:
            if at_once or self._is_due():
                self._export()
                with self._cells.lock:
                    self._cells.set_head(EXPORTED_MS, monotonic_ms())
        finally:
            self._lock.release()

    def _is_due(self) -> bool:
        return not 0 <= monotonic_ms() - self._cells.head(EXPORTED_MS) < EXPORT_MS

    def _export(self) -> None:
        with self._cells.lock:
            self.take_over()
            positions: dict[tuple[str, str], dict[int, int]] = {}
            levels: dict[int, int] = {}
            for cell, (group, topic, queue_id) in self._cells.all():
                position = self._cells.position(cell)
                if queue_id < 0 or position == UNSET:
                    continue
                if group == SCHEDULE_GROUP:
                    levels[queue_id + 1] = position
                else:
                    positions.setdefault((topic, group), {})[queue_id] = position
        exported = self.offsets()
        merged = {
            **exported.positions,
            **{key: {**exported.positions.get(key, {}), **new} for key, new in positions.items()},
        }
        for name, word, raw in self._changed(merged, {**self.delays().positions, **levels}):
            with self._cells.lock:
                self._note(name, word, raw)
            write_config(self._disk, self._path(name), raw)

    def _changed(
        self, positions: Mapping[tuple[str, str], Mapping[int, int]], levels: Mapping[int, int]
    ) -> Iterator[tuple[str, int, bytes]]:
        """The files that say something else: name, the word of its CRC, and what it is to say."""
        exported, known, now_ms = self.offsets(), self.delays(), time.time_ns() // 1_000_000
        if positions != exported.positions:
            made = ConsumerOffsets(positions, exported.version.changed(now_ms), exported.extra)
            yield _OFFSETS, EXPORTED_OFFSETS, config.encode_consumer_offsets(made)
        if levels != known.positions:
            yield (
                _DELAYS,
                EXPORTED_DELAYS,
                config.encode_delay_offsets(DelayOffsets(levels, known.version.changed(now_ms), known.extra)),
            )

    def _note(self, name: str, word: int, raw: bytes) -> None:
        """Both count as ours: we may be killed before or after the rename, or lack room. Under the cells' lock.

        Raises StoreError where the store was moved, or another one is in its place, as a backup that was put back while
        this process had it open: its groups would be put behind messages that they never read.
        """
        self._disk.create_in_store(self._paths.store, self._paths.config(""))
        if not self._disk.stands(*self._table):
            raise files_lost(self._paths.store)
        self._remember(word, self._read(name), raw)

    def _remember(self, word: int, there: bytes, next_one: bytes = b"") -> None:
        """The CRC of what takes the place of the file and, above it, of what is there: however often that fails."""
        self._cells.set_head(word, crc32(there) << 32 | crc32(next_one or there))

    def _is_foreign(self, name: str, word: int) -> bool:
        raw, ours = self._read(name), self._cells.head(word)
        return bool(raw) and crc32(raw) not in (ours & _CRC, ours >> 32)

    def _read(self, name: str) -> bytes:
        """The file's content, `.bak` in its place when there is none; empty without both."""
        for path in (self._path(name), self._path(f"{name}.bak")):
            try:
                raw = self._disk.read(path)
            except Missing:
                continue
            if raw.strip():
                return raw
        return b""

    def _path(self, name: str) -> str:
        return self._paths.config(name)


def _exported_position(
    group: str,
    topic: str,
    queue_id: int,
    offsets: Mapping[tuple[str, str], Mapping[int, int]],
    levels: Mapping[int, int],
) -> int | None:
    """Where the files say that a group is in a queue; None where they do not say it."""
    if queue_id < 0:
        return None
    is_level = group == SCHEDULE_GROUP and topic == SCHEDULE_TOPIC
    found = levels.get(queue_id + 1) if is_level else offsets.get((topic, group), {}).get(queue_id)
    return None if found is None else max(0, found)


def _decoded(path: str, raw: bytes, decode: Callable[[bytes], _T], default: _T) -> _T:
    if not raw:
        return default
    try:
        return decode(raw)
    except CorruptRecord as error:
        raise undecoded(error, path) from None
