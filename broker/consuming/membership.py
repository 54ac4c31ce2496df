"""Who takes part in a consumer group, and which queues fall to whom.

    STORE/checkback/members/17       the lock file of place 17: held as long as its member lives

The system releases the lock when the process dies, however it dies: other members get its queues at once. A member
that hangs stops its heartbeat and loses its queues after a minute; what it acknowledges later is refused by the fence.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Iterable, Sequence
from zlib import crc32

from broker.consuming.consumer_table import MEMBERS, ConsumerTable
from broker.errors import StoreError
from broker.store.disk.files import Missing

SEEN_EVERY_MS = 1000  # how often a member says for retention that its group is there
REMOTE = crc32(b"remote clients")  # in place of the hash of its topics: a server consumes for clients of its own
SILENT_MS = 60_000  # RocketMQ gives a queue's lock 60 s, too: RebalanceLockManager (5.3.3)


def monotonic_ms() -> int:
    """A clock that all processes of a boot share and that nobody sets."""
    return time.monotonic_ns() // 1_000_000


class Membership:
    """One consumer's place in its group, from join to leave."""

    def __init__(self, cells: ConsumerTable, group: str, topics: Sequence[str], *, remote: bool = False) -> None:
        """Raises StoreError when a living member of the group consumes other topics.

        `remote` says that a server consumes for clients elsewhere, which divide the queues among themselves: such a
        group has no other members than servers.
        """
        self._cells, self.group = cells, group
        self._directory = os.path.join(cells.directory, "members")
        if cells.disk.entry(self._directory) is None:
            cells.disk.create_directory(self._directory)
        with cells.lock:
            self._group = cells.make(group, "", -1, 0)
            self._topics = REMOTE if remote else crc32("\n".join(sorted(topics)).encode())
            self._subscribed = [cells.make(group, topic, -1, 0) for topic in topics]
            if others := self._others(same_topics=False):
                if remote or REMOTE in (self._cells.member(place)[3] for place in others.values()):
                    text = f"group {group} is consumed both over the network and by processes that have the store open"
                    raise StoreError(f"{text}: give one of the two another group", path=cells.directory)
                text = f"group {group} consumes other topics elsewhere: all its members must ask for the same topics"
                raise StoreError(f"{text}, else one would get what another asked for", path=cells.directory)
            self.place, self._descriptor = self._take_place()
            self.number = cells.join(self.place, self._group, self._topics, monotonic_ms())
        self._seen_ms = -SEEN_EVERY_MS
        self.beat()
        _forked.add(self)

    def _take_place(self) -> tuple[int, int]:
        for place in range(MEMBERS):
            descriptor = self._try_lock(place)
            if descriptor is not None:
                return place, descriptor
        raise StoreError(f"{self._directory}: {MEMBERS} consumers are at work, and there is no room for more")

    def _try_lock(self, place: int) -> int | None:
        descriptor = self._cells.disk.open_lock(os.path.join(self._directory, str(place)))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def beat(self) -> None:
        """Say that this member lives."""
        now_ms = monotonic_ms()
        self._cells.beat(self.place, now_ms)
        if now_ms - self._seen_ms >= SEEN_EVERY_MS:
            self._seen_ms, wall_ms = now_ms, time.time_ns() // 1_000_000
            for cell in self._subscribed:
                self._cells.see(cell, wall_ms, now_ms)

    def lives(self, number: int, place: int) -> bool:
        """Whether the member that had this number still has its place, its process lives, and it is not silent."""
        held, _, _, _ = self._cells.member(place)
        if number != held:
            return False
        return number == self.number or self._is_there(place)

    def _is_locked(self, place: int) -> bool:
        """Two that ask at one moment may both get yes; the next time they get the right answer."""
        try:
            descriptor = self._cells.disk.open_lock(os.path.join(self._directory, str(place)), write=False)
        except Missing:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def numbers(self) -> list[int]:
        """The numbers of all living members of the group, in order of age."""
        return sorted([self.number, *self._others(same_topics=True)])

    def see(self, topics: Iterable[str]) -> None:
        """Say for retention that the group is at these topics, too."""
        with self._cells.lock:
            self._subscribed = [self._cells.make(self.group, topic, -1, 0) for topic in topics]

    def _others(self, *, same_topics: bool) -> dict[int, int]:
        """The number of each living member of the group but this one, and its place."""
        found = {}
        own = self.__dict__.get("number")
        for place in self._cells.members():
            number, _, group, topics = self._cells.member(place)
            asked = number and number != own and group == self._group and (topics == self._topics) == same_topics
            if asked and self._is_there(place):
                found[number] = place
        return found

    def _is_there(self, place: int) -> bool:
        _, beat_ms, _, _ = self._cells.member(place)
        return monotonic_ms() - beat_ms < SILENT_MS and self._is_locked(place)

    def leave(self) -> None:
        """Give the place back."""
        if self._descriptor >= 0:
            with self._cells.lock:
                self._cells.leave(self.place, self.number)
            self._let_go()

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def share(queues: Sequence[int], members: Sequence[int], own: int, turn: int = 0) -> list[int]:
    """The queues of one topic that fall to a member: neighbours together, no share larger by more than one.

    `turn` moves the larger shares on, so that of many topics with one queue each they do not all fall to one member.
    RocketMQ: AllocateMessageQueueAveragely.allocate (5.3.3).
    """
    index = (list(members).index(own) + turn) % len(members)
    size, rest = divmod(len(queues), len(members))
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


_forked: weakref.WeakSet[Membership] = weakref.WeakSet()


def _after_fork() -> None:
    """A child is not a member: it must not keep its parent's place after the parent's death."""
    for membership in list(_forked):
        with contextlib.suppress(OSError):
            membership._let_go()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_after_fork)
