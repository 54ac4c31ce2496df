"""The next offset of every queue, in a file of cells that all processes share.

    STORE/checkback/queues      cells of 512 bytes: next offset, queue id, length of the topic, topic

RocketMQ keeps this table in memory (topicQueueTable) and makes it again from the ConsumeQueues at every start; with
many processes it must lie where all see it. A cell is written whole before the control page counts it.
"""

from __future__ import annotations

import struct

from broker.errors import StoreError
from broker.store.disk.files import Disk, Map, Missing
from broker.store.shared.control import ControlPage, Word

CELL_SIZE = 512
CELLS = 16_384
_AT_ONCE = 128  # cells for which the disk gives blocks together
_HEAD = struct.Struct("=Qiq")  # the next offset is a native word: it changes under the eyes of others
_TOPIC_AT = 24
CELL_WORDS = CELL_SIZE // 8


def cell_at(cells: memoryview[int] | bytes, cell: int) -> tuple[int, str, int]:
    """Next offset, topic and queue id of a cell. Raises UnicodeDecodeError when it holds no topic."""
    at = cell * CELL_SIZE
    following, queue_id, size = _HEAD.unpack_from(cells, at)
    return following, bytes(cells[at + _TOPIC_AT : at + _TOPIC_AT + size]).decode(), queue_id


def read_cells(disk: Disk, path: str, count: int) -> dict[tuple[str, int], int] | None:
    """The next offset of each queue, from a file that is not mapped; None when it does not hold so many cells."""
    try:
        raw = disk.open_read(path).pread(CELL_SIZE * count, 0)
        if len(raw) < CELL_SIZE * count:
            return None
        cells = [cell_at(raw, cell) for cell in range(count)]
    except (Missing, UnicodeDecodeError):
        return None
    return {(topic, queue_id): following for following, topic, queue_id in cells}


class NextOffsets:
    """Finds, makes and reads cells; call under the append lock."""

    def __init__(self, disk: Disk, path: str, control: ControlPage) -> None:
        self._disk, self._path = disk, path
        disk.allocate_head(path, CELL_SIZE * CELLS, CELL_SIZE * _AT_ONCE)
        self._map: Map = disk.open_map(path, CELL_SIZE * CELLS)
        self.words = self._map.words
        self._control = control
        self.known: dict[tuple[str, int], int] = {}  # the cells that this process has met; grows, is never replaced

    def of(self, topic: str, queue_id: int) -> int:
        """The cell of a queue, made on first use. Raises StoreFull."""
        cell = self.known.get((topic, queue_id))
        if cell is None:
            self._learn()
            cell = self.known.get((topic, queue_id))
        return self._make(topic, queue_id) if cell is None else cell

    def end(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message of a queue will get; needs no lock, and makes no cell."""
        cell = self.known.get((topic, queue_id))
        if cell is None:
            self._learn()
            cell = self.known.get((topic, queue_id))
        return 0 if cell is None else self[cell]

    def _learn(self) -> None:
        """Read the cells that other processes made."""
        for cell in range(len(self.known), self._control[Word.QUEUES]):
            self.known[self.queue(cell)] = cell

    def queue(self, cell: int) -> tuple[str, int]:
        """Topic and queue id of a cell."""
        _, topic, queue_id = cell_at(self._map.view, cell)
        return topic, queue_id

    def _make(self, topic: str, queue_id: int) -> int:
        cell, raw = self._control[Word.QUEUES], topic.encode()
        if cell >= CELLS:
            raise StoreError(f"{self._map.path}: a store has room for {CELLS} queues, and all are taken")
        if cell % _AT_ONCE == 0:
            self._disk.reserve(self._path, CELL_SIZE * (cell + _AT_ONCE))
        at = cell * CELL_SIZE
        _HEAD.pack_into(self._map.view, at, 0, queue_id, len(raw))
        self._map.view[at + _TOPIC_AT : at + _TOPIC_AT + len(raw)] = raw
        self._control[Word.QUEUES] = cell + 1
        self.known[topic, queue_id] = cell
        return cell

    def is_whole(self) -> bool:
        """Whether the first and the last cell that the control page counts are there: a new file has none."""
        count = len(self)
        return not count or all(self.queue(cell)[0] for cell in (0, count - 1))

    def __getitem__(self, cell: int) -> int:
        """The queue offset that the next message of a queue will get."""
        return self.words[cell * CELL_WORDS]

    def __setitem__(self, cell: int, next_offset: int) -> None:
        self.words[cell * CELL_WORDS] = next_offset

    def __len__(self) -> int:
        return self._control[Word.QUEUES]

    def reset(self) -> None:
        """Forget all cells: recovery makes them again."""
        self.known.clear()
        self._control[Word.QUEUES] = 0

    def close(self) -> None:
        self._map.close()
