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
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from zlib import crc32

from broker.consuming.group.consumer_table import MEMBERS, ConsumerTable
from broker.consuming.group.members import MemberEntry, MemberKind
from broker.errors import StoreError
from broker.store.disk.files import Disk, Missing
from broker.store.disk.lock_calls import is_flocked
from broker.store.disk.paths import Paths
from broker.store.shared.published_clients import PublishedClients
from broker.store.shared.queue_lock_file import holder, read_locks

_Queue = TypeVar("_Queue")
SEEN_EVERY_MS = 1000  # how often a member says for retention that its group is there
SILENT_MS = 60_000  # RocketMQ gives a queue's lock 60 s, too: RebalanceLockManager (5.3.3)


def monotonic_ms() -> int:
    """A clock that all processes of a boot share and that nobody sets."""
    return time.monotonic_ns() // 1_000_000


def is_locked(disk: Disk, directory: str, place: int) -> bool:
    """Whether the process of a member lives."""
    try:
        return is_flocked(disk, os.path.join(directory, str(place)))
    except Missing:
        return False


class Membership:
    """One consumer's place in its group, from join to leave."""

    def __init__(
        self, cells: ConsumerTable, group: str, topics: Sequence[str], *, kind: MemberKind = MemberKind.LOCAL,
        has_topic: Callable[[str], bool] = lambda _: True,
    ) -> None:  # fmt: skip
        """Raises StoreError when a living member of the group consumes other topics.

        A server is a member for all its clients of the group; they and consumers of this machine divide the queues.
        It is seen at the topics that `has_topic` knows: clients may ask for any number of others.
        """
        self._cells, self.group, self._kind, self._has_topic = cells, group, kind, has_topic
        self._directory = os.path.join(cells.directory, "members")
        if cells.disk.entry(self._directory) is None:
            cells.disk.create_directory(self._directory)
        self._topics, self._subscribed, self._renamed = list[str](), list[int](), 0
        known = list(filter(has_topic, topics))
        with cells.lock:
            self._group = cells.find(group, "", -1)
            self._check_topics(topics)
            self._be_at(known)
            try:
                self._group = cells.make(group, "", -1, 0)  # last: without a member it may be given back
                self.place, self._descriptor = self._take_place()
            except BaseException:
                self._be_at(())
                raise
            self.number = cells.join(self.place, self._group, _hash_of(topics), monotonic_ms(), kind)
        self._seen_ms = -SEEN_EVERY_MS
        self.beat()
        _forked.add(self)

    def _check_topics(self, topics: Iterable[str]) -> None:
        """Raises StoreError for topics with which the group cannot be divided. Under the lock."""
        is_local, own = self._kind is MemberKind.LOCAL, _hash_of(topics)
        for other in self._others():
            if not is_local and other.kind != MemberKind.LOCAL:  # clients of two servers, which divide by themselves
                continue
            if MemberKind.REGISTERED in (self._kind, other.kind):
                text = f"group {self.group} is consumed by processes that have the store open, and over the network by"
                text += " clients that know other brokers, too: they cannot divide their queues"
                raise StoreError(f"{text}. Give one of the two another group", path=self._cells.directory)
            if other.topics != own:
                text = f"group {self.group} consumes other topics elsewhere: all its members must ask for the same"
                text += " topics, else one would get what another asked for"
                step = "End the other version's processes first, or give what is new a group of its own"
                raise StoreError(f"{text}. {step}", path=self._cells.directory)

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

    def _be_at(self, topics: Sequence[str]) -> None:
        """Take the cells of topics, and give back those of others. Under the lock. Raises StoreError, StoreFull."""
        cells, now_ms, wall_ms = self._cells, monotonic_ms(), time.time_ns() // 1_000_000
        before, taken = self._topics, list[int]()
        if self._kind is MemberKind.LOCAL:
            taken = [cells.make(self.group, topic, -1, 0) for topic in topics]
        else:
            try:
                for topic in topics:
                    taken.append(cells.subscribe(self.group, topic, wall_ms, now_ms))
            except StoreError:
                self._leave_topics(set(topics) - set(before))
                raise
            self._leave_topics(set(before) - set(topics))
        self._topics, self._subscribed, self._renamed = list(topics), taken, cells.renamed

    def _leave_topics(self, topics: Iterable[str]) -> None:
        if topics and self._kind is not MemberKind.LOCAL and not self._others():
            for topic in topics:
                self._cells.unsubscribe(self.group, topic)

    def beat(self) -> None:
        """Say that this member lives."""
        now_ms = monotonic_ms()
        self._cells.beat(self.place, now_ms)
        if self._cells.renamed != self._renamed and self._kind is not MemberKind.LOCAL:
            with self._cells.lock, contextlib.suppress(StoreError):  # one may have been given back; tried again
                found = [self._cells.find(self.group, topic, -1) for topic in self._topics]
                self._subscribed = [cell for cell in found if cell is not None]
                self._be_at(self._topics)
        if now_ms - self._seen_ms >= SEEN_EVERY_MS:
            self._seen_ms, wall_ms = now_ms, time.time_ns() // 1_000_000
            for cell in self._subscribed:
                self._cells.see(cell, wall_ms, now_ms)

    def lives(self, number: int, place: int) -> bool:
        """Whether the member that had this number still has its place, its process lives, and it is not silent."""
        if number != self._cells.member(place).number:
            return False
        return number == self.number or self._is_there(place)

    def numbers(self) -> list[int]:
        """The numbers of all living consumers of the group in processes that have the store open, in order of age."""
        own = [self.number] if self._kind is MemberKind.LOCAL else []
        return sorted(own + [other.number for other in self._others() if other.kind == MemberKind.LOCAL])

    def has_servers(self) -> bool:
        """Whether a server that lives has clients of the group."""
        return any(other.kind != MemberKind.LOCAL for other in self._others())

    def see(self, topics: Sequence[str]) -> None:
        """Be at these topics, of which a server's clients may change. Raises StoreError as a join."""
        known = list(filter(self._has_topic, topics))
        with self._cells.lock:
            self._check_topics(topics)
            self._be_at(known)
            self._cells.set_topics(self.place, _hash_of(topics))

    def announce(self) -> None:
        """Have all members look again at who is in their groups."""
        with self._cells.lock:
            self._cells.announce()

    def _others(self) -> list[MemberEntry]:
        """All living members of the group but this one."""
        found = []
        own = self.__dict__.get("number")
        for place in self._cells.members():
            other = self._cells.member(place)
            if other.number not in (0, own) and other.group_cell == self._group and self._is_there(place):
                found.append(other)
        return found

    def _is_there(self, place: int) -> bool:
        beat_ms = self._cells.member(place).beat_ms
        return monotonic_ms() - beat_ms < SILENT_MS and is_locked(self._cells.disk, self._directory, place)

    def leave(self) -> None:
        """Give the place back."""
        if self._descriptor >= 0:
            with self._cells.lock:
                self._cells.leave(self.place, self.number)
                self._leave_topics(self._topics)
            self._let_go()

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class ClientsOfGroup:
    """For one consumer of this process: the clients over the network with which its group divides the queues."""

    def __init__(self, disk: Disk, paths: Paths, member: Membership) -> None:
        self._disk, self._paths, self._member = disk, paths, member
        self._published = PublishedClients(disk, paths.servers, member.place, member.lives)

    def ids(self) -> list[str] | None:
        """Their client ids; None where no server has clients of the group. Raises StoreError."""
        if not self._member.has_servers():
            return None
        self._published.refresh()
        return self._published.client_ids(self._member.group)

    def have_locked(self, topic: str, queue_id: int) -> bool:
        """Whether one of them holds a queue for orderly consumption. Under the lock of the consumers' table."""
        locks = read_locks(self._disk, self._paths.queue_locks)
        owner = holder(locks, self._member.group, topic, queue_id, monotonic_ms())
        return owner in self._published.client_ids(self._member.group)


def _hash_of(topics: Iterable[str]) -> int:
    return crc32("\n".join(sorted(topics)).encode())


def client_id(number: int) -> str:
    """The name under which clients over the network know a consumer of this machine."""
    return f"store@{number}"


def share(queues: Sequence[_Queue], members: Sequence[object], own: object, turn: int = 0) -> list[_Queue]:
    """The queues of one topic that fall to a member: neighbours together, no share larger by more than one.

    `turn` moves the larger shares on, so that of many topics with one queue each they do not all fall to one member.
    RocketMQ: AllocateMessageQueueAveragely.allocate (5.3.3).
    """
    index = (list(members).index(own) + turn) % len(members)
    size, rest = divmod(len(queues), len(members))
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


def share_with_clients(
    queues: Sequence[int], read_queue_count: int, clients: Sequence[str], members: Sequence[int], own: int
) -> list[int]:
    """The queues of one topic that fall to a member whose group has clients over the network, too.

    They know the queues that the topic's configuration counts, and take their neighbours by the order of the client
    ids. RocketMQ: RebalanceImpl.rebalanceByTopic, AllocateMessageQueueAveragely.allocate (5.3.3). Other queues, of a
    topic that was made smaller, are for members only.
    """
    known = [queue for queue in queues if queue < read_queue_count]
    names = sorted([*clients, *map(client_id, members)])
    return share(known, names, client_id(own)) + share(queues[len(known) :], members, own)


_forked: weakref.WeakSet[Membership] = weakref.WeakSet()


def _after_fork() -> None:
    """A child is not a member: it must not keep its parent's place after the parent's death."""
    for membership in list(_forked):
        with contextlib.suppress(OSError):
            membership._let_go()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_after_fork)
