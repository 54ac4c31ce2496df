"""Where each group of remote clients stands: the store's own table, which all its processes share.

RocketMQ: ConsumerOffsetManager (5.3.3).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from broker.consuming.group.consumer_table import CELLS, UNSET
from broker.consuming.group.members import MemberKind
from broker.consuming.group.membership import Membership, client_id
from broker.consuming.group.offset_export import SCHEDULE_GROUP
from broker.consuming.group.positions import Positions
from broker.errors import NotPermitted, StoreError
from broker.format.topics import CHECK_GROUP
from broker.server.clients import Peer
from broker.server.resets import Reset

if TYPE_CHECKING:
    from broker.live import LiveStore

Queue = tuple[str, str, int]  # group, topic, queue id
_RESET_S = 60.0  # for a reset that no client is known to be yet to learn
_LOOK_S = 0.5  # how soon a killed consumer or a reset is noticed; one that leaves or joins is at the next look
_FENCES_MAX = 2 * CELLS  # queues from which clients pull, with a position and before their first one


class GroupPositions:
    """The positions of all groups, and this server's membership in those of its clients. Threads share it."""

    def __init__(
        self,
        store: LiveStore,
        kind: MemberKind,
        peers_of: Callable[[str], Iterable[Peer]],
    ) -> None:
        """`peers_of` has the connected clients of a group that divide its queues."""
        self._store, self._kind, self._peers_of = store, kind, peers_of
        self.table = Positions(store)
        self._lock = threading.Lock()
        self._members: dict[str, Membership] = {}
        self._joining: frozenset[str] = frozenset()  # of a heartbeat that is being worked on
        self._consumers: dict[str, tuple[int, ...]] = {}  # by group, those in processes that have the store open
        self._changes, self._looked_s = -1, 0.0
        self._resets: dict[Queue, Reset] = {}  # what clients learn with their next pulls
        self._fences: dict[Queue, int] = {}  # of the queues from which clients pull, since they know where they stand
        self._seen: dict[Queue, WeakSet[Peer]] = {}  # who asked for a queue, or pulled from it: may have its messages
        self._resets_looked_s = 0.0

    def close(self) -> None:
        with self._lock:
            for member in self._members.values():
                member.leave()
            self._members.clear()
        self.table.exchange.export(at_once=True)
        self.table.close()

    # Membership: clients over the network and consumers in processes that have the store open divide a group's queues

    @contextmanager
    def joining(self, groups: Iterable[str]) -> Iterator[None]:
        """While a client is being registered in groups: the server stays in them. For one thread."""
        with self._lock:
            self._joining = frozenset(groups)
        try:
            yield
        finally:
            with self._lock:
                self._joining = frozenset()

    def join(self, group: str, topics: Iterable[str]) -> None:
        """Consume for a group's clients. Raises StoreError while consumers with the store open ask for other topics."""
        with self._lock:
            if group not in self._members:
                self._members[group] = Membership(
                    self.table.cells, group, sorted(topics), kind=self._kind, has_topic=self._has_topic
                )
            else:
                self._members[group].see(sorted(topics))

    def _has_topic(self, topic: str) -> bool:
        return self._store.topic(topic) is not None

    def consumer_ids(self, group: str) -> list[str]:
        """The client ids of a group's consumers in processes that have the store open."""
        member = self._members.get(group)
        return [] if member is None else [client_id(number) for number in member.numbers()]

    def changed_groups(self) -> set[str]:
        """The groups whose consumers in processes that have the store open are others than at the last call."""
        changes, now_s = self.table.cells.changes, time.monotonic()
        if changes == self._changes and now_s - self._looked_s < _LOOK_S:
            return set()
        self._changes, self._looked_s = changes, now_s
        with self._lock:
            members = dict(self._members)
        before, self._consumers = self._consumers, {group: tuple(one.numbers()) for group, one in members.items()}
        return {group for group, numbers in self._consumers.items() if before.get(group, ()) != numbers}

    def is_leased(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a consumer in a process that has the store open has the queue: nobody else consumes it now."""
        member = self._members.get(group)
        if member is None:  # no client divides the queues of the group
            return False
        cell = self.table.cells.find(group, topic, queue_id)
        if cell is None:
            return False
        owner, place = self.table.cells.owner(cell)
        return bool(owner) and member.lives(owner, place)

    def keep(self, connected: Callable[[], Iterable[str]]) -> None:
        """Say that the groups of connected clients are there, and leave those that have none.

        Notices the resets that other processes made. One of a queue from which clients pull waits for the next pull of
        each: one that has enough to do comes back after minutes. Any other is over in time, since it keeps off commits.
        """
        now_s = time.monotonic()
        with self._lock:
            living = self._joining.union(connected())  # now: who left `_joining` before is connected
            for group in [name for name in self._members if name not in living]:
                self._members.pop(group).leave()
            for member in self._members.values():
                member.beat()
            if now_s - self._resets_looked_s < _LOOK_S:  # each look is at all clients of each reset, and commits wait
                return
            self._resets_looked_s = now_s
            self._notice_resets(now_s)
            peers = {group: frozenset(self._peers_of(group)) for group in {place[0] for place in self._resets}}
            for place, reset in list(self._resets.items()):
                if reset.is_over(peers[place[0]], now_s, _RESET_S):
                    del self._resets[place]

    def _notice_resets(self, now_s: float) -> None:
        """Have clients learn where another process put their group: another server, or `checkback consumer --reset`.

        Without that they would go on, and with their next commit the reset would be gone. Under our lock.
        """
        for place in list(self._seen):
            if place[0] not in self._members:
                self._seen.pop(place, None)
        for place, fence in list(self._fences.items()):
            if place[0] not in self._members:
                del self._fences[place]
            elif self._fence(place) == fence:
                self._take_from_silent(place)
                continue
            elif self.is_leased(*place):
                del self._fences[place]  # its consumer notices by itself
            else:
                with self.table.cells.lock:  # the fence comes first, and then the position
                    self._fences[place] = self._fence(place)
                self._resets[place] = Reset(self._peers_at(place), now_s + _RESET_S)

    def _take_from_silent(self, place: Queue) -> None:
        """Make the lease void of a consumer that hung, or was killed, and whose queue clients have now.

        Else it would go on where it was, and put the group back to there. Under our lock.
        """
        cells, cell = self.table.cells, self.table.cells.find(*place)
        owner = (0, 0) if cell is None else cells.owner(cell)
        if cell is None or not owner[0] or self._members[place[0]].lives(*owner):
            return
        with cells.lock:
            if cells.owner(cell) == owner and self._is_known(place):
                cells.set_position(cell, cells.position(cell))
                self._fences[place] = self._fence(place)

    def _fence(self, place: Queue) -> int:
        """The fence of a queue; what a new cell has when there is none."""
        cell = self.table.cells.find(*place)
        return 0 if cell is None else self.table.cells.fence(cell)

    # Positions

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The queue offset from which a group goes on; None when it was never there."""
        cells = self.table.cells
        cell = cells.find(group, topic, queue_id)
        position = UNSET if cell is None else cells.position(cell)
        if position != UNSET:
            return position
        return self.table.exchange.offsets().positions.get((topic, group), {}).get(queue_id) if cell is None else None

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int, peer: Peer | None = None) -> None:
        """A group goes on from here: never beyond the queue, and not while another has the queue.

        Nor by a client that is yet to learn of a reset.

        Raises NotPermitted, as `reset` and `forget` do, for a group that is the store's own.
        """
        end = self._store.queue_end(topic, queue_id)
        cells = self.table.cells
        with self._lock:
            if not self._may_commit(group, topic, queue_id, queue_offset, peer):
                return
            cell = cells.find(group, topic, queue_id)
            with cells.lock:
                if cell is None:
                    cell = cells.make(group, topic, queue_id)
                if self._is_known((group, topic, queue_id)):
                    cells.put(cell, min(queue_offset, end))

    def commit_at_once(self, group: str, topic: str, queue_id: int, queue_offset: int, peer: Peer) -> bool:
        """The same without waiting for anybody; False when it could not be done so."""
        cells = self.table.cells
        cell = cells.find(group, topic, queue_id)
        if cell is None or not self._lock.acquire(blocking=False):
            return False
        try:
            if not self._may_commit(group, topic, queue_id, queue_offset, peer):
                return True
            if not cells.lock.try_acquire():
                return False
            try:
                if self._is_known((group, topic, queue_id)):
                    cells.put(cell, min(queue_offset, self._store.writer.queue_end(topic, queue_id)))
            finally:
                cells.lock.release()
        finally:
            self._lock.release()
        return True

    def _may_commit(self, group: str, topic: str, queue_id: int, queue_offset: int, peer: Peer | None) -> bool:
        _check_group(group)
        reset = self._resets.get((group, topic, queue_id))
        is_reset = reset is not None and reset.concerns(peer)
        return queue_offset >= 0 and not is_reset and not self.is_leased(group, topic, queue_id)

    def _is_known(self, place: Queue) -> bool:
        """Whether no other process put the group elsewhere since a client began to pull. Under the cells' lock."""
        fence = self._fence(place)
        return self._fences.get(place, fence) == fence

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int, *, is_online: bool) -> None:
        """Put a group elsewhere; clients that are connected hear of it with their next pull."""
        _check_group(group)
        place, cells = (group, topic, queue_id), self.table.cells
        with self._lock:
            is_leased = self.is_leased(*place)  # then its consumer notices by the fence
            with cells.lock:
                cells.set_position(cells.make(*place), queue_offset)
                if is_pulled := place in self._fences:
                    self._fences[place] = self._fence(place)
            if is_online and not is_leased:
                peers = self._peers_at(place) if is_pulled else ()
                self._resets[place] = Reset(peers, time.monotonic() + _RESET_S)

    def asked(self, group: str, topic: str, queue_id: int, peer: Peer) -> None:
        """A client is answered where its group stands."""
        self._see((group, topic, queue_id), peer)
        if (reset := self._resets.get((group, topic, queue_id))) is not None:
            reset.asked(peer)

    def _see(self, place: Queue, peer: Peer) -> None:
        if (seen := self._seen.get(place)) is None:
            if len(self._seen) >= _FENCES_MAX:
                return
            seen = self._seen.setdefault(place, WeakSet())
        seen.add(peer)

    def _peers_at(self, place: Queue) -> list[Peer]:
        """The clients of a group that may go on where they were in a queue: those that never had it go elsewhere."""
        seen = self._seen.get(place)
        return [peer for peer in self._peers_of(place[0]) if seen is None or peer in seen]

    def take_reset(self, group: str, topic: str, queue_id: int, peer: Peer, queue_offset: int) -> int | None:
        """Where a client must go on that pulls from `queue_offset`, once; None: from there.

        From now on resets of the queue by other processes are noticed. It goes on where the group stands now: a client
        of another server may have learned of the reset, and gone on.
        """
        place = group, topic, queue_id
        self._see(place, peer)
        if place not in self._fences and len(self._fences) < _FENCES_MAX:
            self._fences[place] = self._fence(place)
        reset = self._resets.get(place)  # the event loop does it: without the lock
        if reset is None:
            return None
        position = self._reset_to(place)
        return position if reset.take(peer, is_there=queue_offset == position) else None

    def pending_reset(self, group: str, topic: str, queue_id: int, peer: Peer) -> int | None:
        """The same, where a client is yet to take it."""
        reset = self._resets.get((group, topic, queue_id))
        return self._reset_to((group, topic, queue_id)) if reset is not None and reset.concerns(peer) else None

    def _reset_to(self, place: Queue) -> int | None:
        cell = self.table.cells.find(*place)
        position = UNSET if cell is None else self.table.cells.position(cell)
        return None if position == UNSET else position  # UNSET: the group was deleted

    @property
    def has_resets(self) -> bool:
        return bool(self._resets)

    def of_group(self, group: str) -> dict[tuple[str, int], int]:
        """(topic, queue id) → queue offset, of all that a group ever consumed."""
        found: dict[tuple[str, int], int] = {}
        for (topic, name), queues in self.table.exchange.offsets().positions.items():
            if name == group:
                found.update({(topic, queue_id): at for queue_id, at in queues.items()})
        for cell, (name, topic, queue_id) in self.table.cells.all():
            position = self.table.cells.position(cell)
            if name == group and queue_id >= 0 and position != UNSET:
                found[topic, queue_id] = position
        return found

    def groups_at(self, topic: str) -> set[str]:
        """The groups that have a position in a topic."""
        exported = {group for (name, group) in self.table.exchange.offsets().positions if name == topic}
        cells = self.table.cells
        own = {
            group
            for cell, (group, name, queue_id) in cells.all()
            if name == topic and queue_id >= 0 and cells.position(cell) != UNSET
        }
        return exported | own

    def forget(self, group: str) -> None:
        """A deleted group begins again when it comes back."""
        _check_group(group)
        cells = self.table.cells
        with cells.lock:
            for cell, (name, _, queue_id) in list(cells.all()):
                if name == group and queue_id >= 0:
                    cells.set_position(cell, UNSET)


def _check_group(group: str) -> None:
    """Who moved these would lose delayed messages of everyone, and hide half messages from a broker's check loop."""
    if group in (SCHEDULE_GROUP, CHECK_GROUP):
        raise NotPermitted(f"the group {group} is the store's own, and no client's to move: take another name")


def check_local(positions: GroupPositions, group: str, topics: Iterable[str]) -> str | None:
    """Why a group cannot be consumed here; None when it can."""
    try:
        positions.join(group, topics)
    except StoreError as error:
        return str(error)
    return None
