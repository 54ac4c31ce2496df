"""The queues that one consumer has, and the messages of them that are in hand.

A lease says: this queue is read by this consumer, under this fencing number. A consumer that lost it, because it hung,
because others joined, or because a position was reset, moves nothing any more. What it had in hand comes again to
another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from broker.consuming.group.membership import ClientsOfGroup, Membership, monotonic_ms, share, share_with_clients
from broker.consuming.group.positions import Positions
from broker.consuming.reading import fetch
from broker.consuming.redelivery import as_sent
from broker.consuming.tags import Selection
from broker.consuming.window import Window
from broker.format.topics import RETRY_PREFIX
from broker.message import ReceivedMessage

if TYPE_CHECKING:
    from broker.writable_store import WritableStore

PREFETCH = 32  # RocketMQ: pullBatchSize
IN_HAND_MAX = 1000  # of one queue. RocketMQ: pullThresholdForQueue
_DRAIN_MS = 30_000  # how long a queue that falls to another waits for what is in hand
_HAND_OVER_MS = 1000  # how long a client over the network may take to give a queue up. RocketMQ: RebalanceService


@dataclass(slots=True)
class Lease:
    """One queue that is ours."""

    topic: str
    queue_id: int
    cell: int
    fence: int
    window: Window
    ready: deque[tuple[int, ReceivedMessage]] = field(default_factory=deque)  # read, not handed out
    in_hand: int = 0
    not_before_ms: int = 0  # ordered: the pause before the same message again
    drain_until_ms: int = 0  # falls to another member: nothing more is handed out
    seen_end: int = -1  # where the readable log ended when nothing more was found


@dataclass(slots=True)
class InHand:
    """A message that was handed out and not acknowledged."""

    lease: Lease
    queue_offset: int
    message: ReceivedMessage
    since_ms: int
    leaves: bool = False  # it is being sent back


class Leases:
    """All queues of one consumer. Threads share it: `mutex` is held for every change."""

    def __init__(
        self, store: WritableStore, positions: Positions, member: Membership, group: str, topics: Sequence[str], *,
        selection: Selection, ordered: bool, retries_first: bool = False,
    ) -> None:  # fmt: skip
        self._store, self._positions, self._member = store, positions, member
        self._cells = positions.cells
        self._group, self._topics = group, tuple(topics)
        self._selection, self._ordered, self._retries_first = selection, ordered, retries_first
        self.mutex = threading.RLock()
        self._clients = ClientsOfGroup(store.writer.disk, store.writer.paths, member)
        self._since_ms: dict[int, int] = {}  # by cell: since when a queue falls to us that we do not have
        self._held: dict[int, Lease] = {}  # by cell
        self._hands: dict[int, InHand] = {}  # by CommitLog offset
        self._turn: list[Lease] = []
        self._before: list[Lease] = []  # asked first, whosever turn it is
        self._next = 0
        self.paused = False  # nothing more is handed out

    # Which queues are ours

    def rebalance(self) -> None:
        """Take what falls to us and is free, give back what falls to others."""
        clients, now_ms = self._clients.ids(), monotonic_ms()
        wanted = self._wanted(clients or ())
        with self.mutex:
            for cell, lease in list(self._held.items()):
                if self._cells.fence(cell) != lease.fence:
                    self._drop(lease)
                elif cell in wanted:
                    lease.drain_until_ms = 0
                elif not lease.drain_until_ms:
                    lease.drain_until_ms = now_ms + _DRAIN_MS
            self._give_back(now_ms)
            self._since_ms = {cell: self._since_ms.get(cell, now_ms) for cell in wanted if cell not in self._held}
            for cell, since_ms in self._since_ms.items():
                if clients is None or now_ms - since_ms >= _HAND_OVER_MS:
                    self._take(cell, *wanted[cell], has_clients=clients is not None)
            self._turn = list(self._held.values())
            retried = [lease for lease in self._turn if lease.topic.startswith(RETRY_PREFIX)]
            self._before = retried if self._retries_first else []

    def _wanted(self, clients: Sequence[str]) -> dict[int, tuple[str, int]]:
        """By cell, topic and queue id of the queues that fall to us."""
        members, own = self._member.numbers(), self._member.number
        wanted: dict[int, tuple[str, int]] = {}
        for topic in self._topics:
            queues = self._positions.queues(topic)
            if clients:
                known = self._store.topic(topic)
                mine = share_with_clients(queues, known.read_queue_count if known else 0, clients, members, own)
            else:
                mine = share(queues, members, own, crc32(topic.encode()))
            wanted.update({self._positions.cell(self._group, topic, queue): (topic, queue) for queue in mine})
        return wanted

    def _take(self, cell: int, topic: str, queue_id: int, *, has_clients: bool) -> None:
        owner, place = self._cells.owner(cell)
        if owner and owner != self._member.number and self._member.lives(owner, place):
            return
        with self._cells.lock:
            if self._cells.owner(cell)[0] not in (0, owner):  # another was quicker
                return
            if has_clients and self._clients.have_locked(topic, queue_id):
                return
            fence = self._cells.give(cell, self._member.number, self._member.place)
            position = self._cells.position(cell)
        self._held[cell] = Lease(topic, queue_id, cell, fence, Window(position))

    def _give_back(self, now_ms: int) -> None:
        for lease in list(self._held.values()):
            if lease.drain_until_ms and (not lease.in_hand or now_ms >= lease.drain_until_ms):
                with self._cells.lock:
                    self._cells.free(lease.cell, lease.fence)
                self._drop(lease)

    def _drop(self, lease: Lease) -> None:
        self._held.pop(lease.cell, None)
        self._hands = {at: hand for at, hand in self._hands.items() if hand.lease is not lease}
        self._turn = list(self._held.values())
        self._before = [kept for kept in self._before if kept is not lease]

    def release(self) -> None:
        """Give every queue back: what is in hand is delivered again, by the next owner."""
        with self.mutex:
            for lease in list(self._held.values()):
                with self._cells.lock:
                    self._cells.free(lease.cell, lease.fence)
                self._drop(lease)

    @property
    def queues(self) -> list[tuple[str, int]]:
        """The queues that are ours now."""
        with self.mutex:
            return sorted((lease.topic, lease.queue_id) for lease in self._held.values())

    # Which message is next

    def take(self, readable_end: int) -> ReceivedMessage | None:
        """The next message of any of our queues, by turns; None when there is none below the end, or while paused."""
        if self.paused:
            return None
        with self.mutex:
            now_ms = monotonic_ms()
            for lease in self._before:
                if (found := self._from(lease, readable_end, now_ms)) is not None:
                    return found
            turn = self._turn  # a lease that is found to be lost makes another list
            for step in range(len(turn)):
                lease = turn[(self._next + step) % len(turn)]
                found = self._from(lease, readable_end, now_ms)
                if found is not None:
                    self._next = (self._next + step + 1) % len(turn)
                    return found
        return None

    def _from(self, lease: Lease, readable_end: int, now_ms: int) -> ReceivedMessage | None:
        if lease.drain_until_ms or lease.in_hand >= (1 if self._ordered else IN_HAND_MAX):
            return None
        if now_ms < lease.not_before_ms:
            return None
        if not lease.ready and (lease.seen_end == readable_end or not self._fill(lease, readable_end)):
            return None
        if self._cells.fence(lease.cell) != lease.fence:  # while we hung another member had the queue, or it was reset
            self._drop(lease)
            return None
        queue_offset, message = lease.ready.popleft()
        lease.in_hand += 1
        self._hands[message.commitlog_offset] = InHand(lease, queue_offset, message, now_ms)
        return message

    def _fill(self, lease: Lease, readable_end: int) -> bool:
        """Read on. What was passed over moves the position too, when nothing before it is open."""
        retried = lease.topic.startswith(RETRY_PREFIX)
        before = lease.window.next
        selection = Selection() if retried else self._selection
        found = fetch(self._store, lease.topic, lease.queue_id, lease.window, selection, PREFETCH)
        if found:
            lease.ready.extend((at, as_sent(message) if retried else message) for at, message in found)
            return True
        if lease.window.next == before:
            lease.seen_end = readable_end
        elif not len(lease.window):
            self._advance(lease, lease.window.position)
        return False

    # What became of it

    @contextlib.contextmanager
    def sending_back(self, commitlog_offset: int) -> Iterator[bool]:
        """Whether a message is ours to be sent back: not lost, and no other thread is at it."""
        with self.mutex:
            hand = self._hands.get(commitlog_offset)
            is_ours = hand is not None and not hand.leaves and self._cells.fence(hand.lease.cell) == hand.lease.fence
            if hand is not None and is_ours:
                hand.leaves = True
        try:
            yield is_ours
        except BaseException:
            if hand is not None and is_ours:
                hand.leaves = False
            raise

    def acknowledge(self, commitlog_offset: int, *, was_sent_back: bool = False) -> bool:
        """Take a message out of our hands for good; False when it is not ours any more.

        While a thread sends it back, only that thread does: the message comes again, whatever others say of it.
        """
        with self.mutex:
            hand = self._hands.get(commitlog_offset)
            if hand is None or (hand.leaves and not was_sent_back):
                return False
            del self._hands[commitlog_offset]
            lease = hand.lease
            lease.in_hand -= 1
            before = lease.window.position
            position = lease.window.acknowledge(hand.queue_offset)
            if position == before:
                return self._cells.fence(lease.cell) == lease.fence
            return self._advance(lease, position)

    def _advance(self, lease: Lease, position: int) -> bool:
        if self._cells.advance(lease.cell, lease.fence, position):
            return True
        self._drop(lease)
        return False

    def again(self, commitlog_offset: int, pause_ms: int) -> bool:
        """Ordered: hand the same message out once more after a pause, before all that follow it."""
        with self.mutex:
            hand = self._hands.pop(commitlog_offset, None)
            if hand is None or self._cells.fence(hand.lease.cell) != hand.lease.fence:
                return False
            lease = hand.lease
            lease.in_hand -= 1
            times = hand.message.reconsume_times + 1
            lease.ready.appendleft((hand.queue_offset, dataclasses.replace(hand.message, reconsume_times=times)))
            lease.not_before_ms = monotonic_ms() + pause_ms
            return True

    def overdue(self, before_ms: int) -> list[ReceivedMessage]:
        """What was handed out before a time and not acknowledged."""
        with self.mutex:
            late = itertools.takewhile(lambda hand: hand.since_ms < before_ms, self._hands.values())
            return [hand.message for hand in late]
