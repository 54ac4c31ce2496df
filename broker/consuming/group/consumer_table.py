"""Where each consumer group stands, in a file of cells that all processes share.

    STORE/checkback/consumers        head, members, and a cell for each queue of each group
    STORE/checkback/consumers.lock   held for every change of more than one word

RocketMQ ignores the directory. `config/consumerOffset.json`, which it reads, is written from the cells
(`broker.consuming.group.offset_export`). Losing the file redelivers what was acknowledged since the last export; it
skips nothing.

Every number is a native word, stored with one move instruction: a process that is killed leaves each old or new. A cell
is written whole before it is counted. After a machine crash each is checked by its CRC: when one fails, all are thrown
away and made again from the export.

A cell in which a server's clients were seen, and whose group has no position in the topic, gets another name when they
left and the table is full. Each process reads the names again when the head says that one changed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from zlib import crc32

from broker.consuming.group.members import MemberEntry, MemberKind
from broker.errors import StoreError
from broker.store.disk.append_lock import AppendLock
from broker.store.disk.files import Disk

_MAGIC = 0x534E4F43_4B424B43  # native order: a page of another byte order is not ours
_VERSION = 1
_HEAD_BYTES = 4096
MEMBERS, MEMBER_BYTES = 1024, 64
CELLS, _CELL_BYTES = 4096, 1024
_AT_ONCE = 64  # cells for which the disk gives blocks together
_CELLS_AT = _HEAD_BYTES + MEMBERS * MEMBER_BYTES
_FILE_BYTES = _CELLS_AT + CELLS * _CELL_BYTES
UNSET = (1 << 64) - 1  # a position that nobody gave yet
_LEFT = UNSET - 1  # in its place: a server's clients were there, and left
_NAMELESS = 1 << 32  # in place of a CRC: the cell was given back
_SILENT_MS = 60_000  # after which a server is gone that did not say so
_SWEEP_S = 1.0  # between two searches for cells to be given back, when there were none

# Words of the head
(_HEAD_MAGIC, _HEAD_VERSION, BOOT, _BOOT_LOW, _COUNT, _LAST_MEMBER, _CHANGES, EXPORTED_OFFSETS, EXPORTED_DELAYS,
 EXPORTED_MS, _RENAMED) = range(11)  # fmt: skip
# Words of a member
_ID, _BEAT_MS, _GROUP_CELL, _TOPICS, _KIND = range(5)
# Words of a cell; the name follows at byte 128
(_POSITION, _FENCE, _OWNER, _OWNER_MEMBER, _QUEUE, _GROUP_SIZE, _TOPIC_SIZE, _CRC, _SEEN_MS,
 _SEEN_MONOTONIC_MS) = range(10)  # fmt: skip
_NAME_AT = 128
_NAME_BYTES = _CELL_BYTES - _NAME_AT
_MASK = (1 << 64) - 1

Name = tuple[str, str, int]  # group, topic, queue id; a queue id of -1 stands for something about all queues


class ConsumerTable:
    """The cells of one store. Threads share it; what needs the lock says so: `with cells.lock: ...`."""

    def __init__(
        self, disk: Disk, directory: str, boot: tuple[int, int], repair: Callable[[ConsumerTable], None]
    ) -> None:
        """`repair` is called once for each boot, under the lock: positions may point beyond what a crash left."""
        self.disk, self.directory = disk, directory
        path = os.path.join(directory, "consumers")
        self.lock = AppendLock(f"{path}.lock", disk)
        with self.lock:
            disk.allocate_head(path, _FILE_BYTES, _CELLS_AT + _AT_ONCE * _CELL_BYTES)
            self._map = disk.open_map(path, _FILE_BYTES)
            self._words = self._map.words
            self.flush: Callable[[], None] = self._map.sync  # all of it; raises SyncFailed
            self._reading = threading.Lock()
            self._known: dict[Name, int] = {}
            self._read, self._renamed_then = 0, self._words[_RENAMED]  # cells whose names are known, and since when
            self._nameless: list[int] = []
            self._swept_s = float("-inf")
            self._begin(boot, repair)

    def _begin(self, boot: tuple[int, int], repair: Callable[[ConsumerTable], None]) -> None:
        words = self._words
        if (words[_HEAD_MAGIC], words[_HEAD_VERSION]) != (_MAGIC, _VERSION) or not self._is_whole():
            words[_HEAD_MAGIC] = 0
            for at in range(_HEAD_BYTES // 8):
                words[at] = 0
            self._forget_members()
            words[_HEAD_VERSION], words[_HEAD_MAGIC] = _VERSION, _MAGIC
        if (words[BOOT], words[_BOOT_LOW]) != boot:
            self._forget_members()
            for cell in range(len(self)):
                words[self._at(cell) + _OWNER] = words[self._at(cell) + _SEEN_MONOTONIC_MS] = 0
            repair(self)
            words[BOOT], words[_BOOT_LOW] = boot
        elif boot == (0, 0):  # this system does not tell its boots: there may have been one
            repair(self)

    def _is_whole(self) -> bool:
        count = self._words[_COUNT]
        return count <= CELLS and all(
            self._words[self._at(cell) + _CRC] in (self._crc(cell), _NAMELESS) for cell in range(count)
        )

    def _forget_members(self) -> None:
        for member in range(MEMBERS):
            self._words[member_at(member) + _ID] = 0

    def close(self) -> None:
        self._map.close()
        self.lock.close()

    # Cells by name

    def __len__(self) -> int:
        return self._words[_COUNT]

    def name(self, cell: int) -> Name:
        """Whose cell it is."""
        at = self._at(cell)
        start = at * 8 + _NAME_AT
        group_end = start + self._words[at + _GROUP_SIZE]
        topic_end = group_end + self._words[at + _TOPIC_SIZE]
        view = self._map.view
        return (
            bytes(view[start:group_end]).decode(errors="replace"),  # another process may be changing it
            bytes(view[group_end:topic_end]).decode(errors="replace"),
            self._words[at + _QUEUE] - 1,
        )

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """The cell with this name, if it was ever made. A queue's stays; any other only under the lock."""
        if self._read != self._words[_COUNT] or self._renamed_then != self._words[_RENAMED]:
            self._read_names()
        return self._known.get((group, topic, queue_id))

    def _read_names(self) -> None:
        """What other processes made, and all again when a cell got another name."""
        with self._reading:
            renamed, count = self.renamed, len(self)
            known, read = (self._known, self._read) if renamed == self._renamed_then else ({}, 0)
            for cell in range(read, count):
                if self._words[self._at(cell) + _CRC] != _NAMELESS:
                    known[self.name(cell)] = cell
            self._known, self._read, self._renamed_then = known, count, renamed

    @property
    def renamed(self) -> int:
        """Grows whenever a cell is given back or gets another name."""
        return self._words[_RENAMED]

    def make(self, group: str, topic: str, queue_id: int, position: int = UNSET) -> int:
        """The cell with this name, made with a position when it is not there. Under the lock.

        Raises StoreFull, and StoreError when there is no room for another.
        """
        found = self.find(group, topic, queue_id)
        if found is not None:
            return found
        raw_group, raw_topic = group.encode(), topic.encode()
        if len(raw_group) + len(raw_topic) > _NAME_BYTES:
            raise StoreError(f"the names of group {group:.40} and topic {topic:.40} are too long together")
        count, words = len(self), self._words
        cell = self._given_back() if count >= CELLS else count
        if cell is None:
            raise StoreError(f"{self._map.path}: all {CELLS} queues of groups are taken: name a group after its work")
        if cell == count and cell % _AT_ONCE == 0:
            self.disk.reserve(self._map.path, _CELLS_AT + (cell + _AT_ONCE) * _CELL_BYTES)
        at = self._at(cell)
        values = (position, 0, 0, 0, queue_id + 1, len(raw_group), len(raw_topic), _NAMELESS, 0, 0)
        for word, value in enumerate(values):
            words[at + word] = value
        start = at * 8 + _NAME_AT
        self._map.view[start : start + len(raw_group) + len(raw_topic)] = raw_group + raw_topic
        words[at + _CRC] = self._crc(cell)
        if cell == count:
            words[_COUNT] = cell + 1
            return cell
        with self._reading:  # this process knows all other names: nobody else changes one now
            words[_RENAMED] += 1
            self._known[group, topic, queue_id] = cell
            self._renamed_then = words[_RENAMED]
        return cell

    def _given_back(self) -> int | None:
        """A cell that may get another name; None when there is none. Under the lock."""
        for look in (self._nameless_cells, self._sweep):
            while self._nameless:
                cell = self._nameless.pop()
                if self._words[self._at(cell) + _CRC] == _NAMELESS:  # else another process took it
                    return cell
            look()
        return self._nameless.pop() if self._nameless else None

    def _nameless_cells(self) -> None:
        start, step = self._at(0) + _CRC, _CELL_BYTES // 8
        crcs = self._words[start : start + (CELLS - 1) * step + 1 : step].tolist()
        self._nameless = [cell for cell, crc in enumerate(crcs) if crc == _NAMELESS]

    def _sweep(self) -> None:
        """Give back the cells of clients that left, and those of groups without a member."""
        if time.monotonic() - self._swept_s < _SWEEP_S:
            return
        groups = {self.member(place).group_cell for place in self.members()}
        cells = list(self.all())
        read = {(group, topic) for _, (group, topic, queue_id) in cells if queue_id >= 0}
        for cell, (group, topic, queue_id) in cells:
            is_left = queue_id < 0 and (group, topic) not in read and self._is_left(cell)
            if is_left if topic else cell not in groups:
                self._words[self._at(cell) + _CRC] = _NAMELESS
        self._nameless_cells()
        if self._nameless:
            self._words[_RENAMED] += 1
            self._read_names()
        else:
            self._swept_s = time.monotonic()

    def _is_left(self, cell: int) -> bool:
        idle_ms = self.idle_ms(cell, time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)
        is_gone = idle_ms is not None and idle_ms > _SILENT_MS
        return self.position(cell) == _LEFT or (self.position(cell) == UNSET and is_gone)

    # Cells that say where a server's clients are

    def subscribe(self, group: str, topic: str, now_ms: int, monotonic_ms: int) -> int:
        """The cell in which a server's clients of a group are seen at a topic. Under the lock. Raises as `make`.

        It may be given back when they left, or are silent for a minute: ask again when `renamed` grew.
        """
        cell = self.make(group, topic, -1)
        if self.position(cell) == _LEFT:
            self.put(cell, UNSET)
        self.see(cell, now_ms, monotonic_ms)
        return cell

    def unsubscribe(self, group: str, topic: str) -> None:
        """Say that the last of them left. Under the lock."""
        cell = self.find(group, topic, -1)
        if cell is not None and self.position(cell) == UNSET:
            self.put(cell, _LEFT)
            self._swept_s = float("-inf")

    def keep(self, group: str, topic: str) -> bool:
        """Whether a group is at a topic, or has a position there; then its cell is not given back. Under the lock."""
        cell = self.find(group, topic, -1)
        has_position = any(name[:2] == (group, topic) and name[2] >= 0 for name in self._known)
        if cell is not None and (has_position or self.position(cell) == UNSET):
            self.put(cell, 0)
        return cell is not None and self.position(cell) == 0

    def all(self) -> Iterator[tuple[int, Name]]:
        """Every cell with its name."""
        for cell in range(len(self)):
            if self._words[self._at(cell) + _CRC] != _NAMELESS:
                yield cell, self.name(cell)

    # Positions and leases

    def position(self, cell: int) -> int:
        """The queue offset of the lowest message that the group did not acknowledge; UNSET when there is none yet."""
        return self._words[self._at(cell) + _POSITION]

    def set_position(self, cell: int, position: int) -> None:
        """Put a position in place of another and make every lease of the queue void. Under the lock."""
        at = self._at(cell)
        self._words[at + _FENCE] += 1  # first: from here on its owner moves nothing
        self._words[at + _POSITION] = position
        self._words[at + _OWNER] = 0

    def put(self, cell: int, position: int) -> None:
        """Put a position in place of another; leases stand. Under the lock."""
        self._words[self._at(cell) + _POSITION] = position

    def advance(self, cell: int, fence: int, position: int) -> bool:
        """Move a position for the owner of a lease; False when the lease is no longer the one with this number."""
        at = self._at(cell)
        with self.lock:
            if self._words[at + _FENCE] != fence:
                return False
            self._words[at + _POSITION] = position
            return True

    def fence(self, cell: int) -> int:
        """Another number whenever the queue is leased, and whenever its position is put in place of another."""
        return self._words[self._at(cell) + _FENCE]

    def owner(self, cell: int) -> tuple[int, int]:
        """(number of the owner, its place among the members); (0, 0) for a queue that is free."""
        at = self._at(cell)
        number = self._words[at + _OWNER]
        return (number, self._words[at + _OWNER_MEMBER]) if number else (0, 0)

    def give(self, cell: int, number: int, member: int) -> int:
        """Lease a queue to a member, even if another one had it; returns the fencing number. Under the lock."""
        at = self._at(cell)
        fence = (self._words[at + _FENCE] + 1) & _MASK
        self._words[at + _FENCE] = fence
        self._words[at + _OWNER_MEMBER] = member
        self._words[at + _OWNER] = number
        return fence

    def free(self, cell: int, fence: int) -> None:
        """Give a lease back. Under the lock."""
        at = self._at(cell)
        if self._words[at + _FENCE] == fence:
            self._words[at + _OWNER] = 0

    # When a consumer of a group was last seen at a topic: in the cell of all its queues (queue id -1)

    def see(self, cell: int, now_ms: int, monotonic_ms: int) -> None:
        """Say that a consumer is there, by the wall clock and by the clock of this boot. Needs no lock."""
        at = self._at(cell)
        self._words[at + _SEEN_MS], self._words[at + _SEEN_MONOTONIC_MS] = now_ms, monotonic_ms

    def idle_ms(self, cell: int, now_ms: int, monotonic_ms: int) -> int | None:
        """For how long no consumer was there; None when none was ever seen.

        By the clock that says less: one that was set forward makes nobody look gone.
        """
        at = self._at(cell)
        seen_ms, seen_monotonic_ms = self._words[at + _SEEN_MS], self._words[at + _SEEN_MONOTONIC_MS]
        if not seen_ms:
            return None
        idle_ms = max(0, now_ms - seen_ms)
        return min(idle_ms, max(0, monotonic_ms - seen_monotonic_ms)) if seen_monotonic_ms else idle_ms

    # Members

    def join(self, member: int, group_cell: int, topics: int, now_ms: int, kind: MemberKind = MemberKind.LOCAL) -> int:
        """Put a member in its place; returns its number, which no other ever had. Under the lock."""
        words, at = self._words, member_at(member)
        number = words[_LAST_MEMBER] + 1
        words[_LAST_MEMBER] = number
        words[at + _BEAT_MS], words[at + _GROUP_CELL], words[at + _TOPICS] = now_ms, group_cell, topics
        words[at + _KIND] = kind
        words[at + _ID] = number
        words[_CHANGES] += 1
        return number

    def leave(self, member: int, number: int) -> None:
        """Take a member out. Under the lock."""
        if self._words[member_at(member) + _ID] == number:
            self._words[member_at(member) + _ID] = 0
            self._words[_CHANGES] += 1

    def set_topics(self, member: int, topics: int) -> None:
        """Say that a member is at other topics now. Under the lock."""
        self._words[member_at(member) + _TOPICS] = topics

    def announce(self) -> None:
        """Have all members look again at who is in their groups. Under the lock."""
        self._words[_CHANGES] += 1

    def member(self, member: int) -> MemberEntry:
        """What the table says of a member at a place."""
        at = member_at(member)
        words = self._words
        return MemberEntry(
            words[at + _ID], words[at + _BEAT_MS], words[at + _GROUP_CELL], words[at + _TOPICS], words[at + _KIND]
        )

    def members(self) -> list[int]:
        """The places that are taken, by the living and the dead."""
        step, start = MEMBER_BYTES // 8, member_at(0)
        numbers = self._words[start : start + MEMBERS * step : step].tolist()
        return [place for place, number in enumerate(numbers) if number]

    def beat(self, member: int, now_ms: int) -> None:
        """Say that a member lives."""
        self._words[member_at(member) + _BEAT_MS] = now_ms

    @property
    def changes(self) -> int:
        """Grows whenever a member joins or leaves, or the clients of a server do."""
        return self._words[_CHANGES]

    # What was exported

    def head(self, word: int) -> int:
        return self._words[word]

    def set_head(self, word: int, value: int) -> None:
        """Under the lock."""
        self._words[word] = value

    def _at(self, cell: int) -> int:
        return (_CELLS_AT + cell * _CELL_BYTES) // 8

    def _crc(self, cell: int) -> int:
        """Over what never changes in a cell: its name."""
        at, words = self._at(cell), self._words
        size = min(words[at + _GROUP_SIZE] + words[at + _TOPIC_SIZE], _NAME_BYTES)
        sizes = b"%d %d %d " % (words[at + _QUEUE], words[at + _GROUP_SIZE], words[at + _TOPIC_SIZE])
        start = at * 8 + _NAME_AT
        return crc32(sizes + bytes(self._map.view[start : start + size]))


def member_at(member: int) -> int:  # a word; its words are the fields of MemberEntry, in their order
    return (_HEAD_BYTES + member * MEMBER_BYTES) // 8
