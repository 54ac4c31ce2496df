"""The queues that a consumer of a cluster has: what was pulled, what is in hand, and where each queue stands.

The event loop adds and removes queues and puts messages in; the application's threads take and acknowledge them.
RocketMQ: ProcessQueue, ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService (5.3.3).
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.consuming.reading import BODY_BYTES_MAX
from broker.consuming.window import Window, name_in_hand
from broker.format.topics import RETRY_PREFIX
from broker.message import ReceivedMessage
from broker.remoting.bodies import MessageQueue

READY_MAX = 64  # of one queue, pulled and not handed out
READY_BYTES_MAX = BODY_BYTES_MAX  # of their bodies: no more is pulled. RocketMQ: pullThresholdSizeForQueue, 100 MiB
OPEN_MAX = 1000  # of one queue, not acknowledged. RocketMQ: pullThresholdForQueue


@dataclass(eq=False)
class HeldQueue:
    """One queue that is ours now."""

    queue: MessageQueue
    window: Window
    ready: deque[tuple[int, ReceivedMessage]] = field(default_factory=deque)
    ready_bytes: int = 0
    in_hand: int = 0
    not_before_s: float = 0.0  # an ordered queue pauses after a failure
    locked_until_s: float = math.inf  # of an ordered queue: its lock at the broker
    committed: int = -1  # what the broker knows as its position
    may_be_behind: bool = False  # another member may have had it since
    may_be_forgotten: bool = False  # the broker may have been started again since
    is_pulled_since: bool = False  # then it has what was acknowledged
    pulled_ms: int = 0  # when the broker last answered a pull, and when a message was last handed out
    handed_out_ms: int = 0
    is_draining: bool = False  # another member waits for it: nothing more is handed out
    is_dropped: bool = False

    @property
    def is_full(self) -> bool:
        is_much = len(self.ready) >= READY_MAX or self.ready_bytes >= READY_BYTES_MAX
        return is_much or len(self.window) >= OPEN_MAX


@dataclass(eq=False)
class _Hand:
    """A message in the application's hands."""

    held: HeldQueue
    queue_offset: int
    message: ReceivedMessage
    since_s: float


class Holdings:
    """All queues of one consumer; thread-safe."""

    def __init__(self, *, ordered: bool, retries_first: bool = False) -> None:
        self._ordered, self._retries_first = ordered, retries_first
        self._changed = threading.Condition()
        self._held: dict[MessageQueue, HeldQueue] = {}
        self._hands: dict[tuple[str, int], _Hand] = {}
        self._next = 0

    @property
    def held(self) -> list[HeldQueue]:
        with self._changed:
            return list(self._held.values())

    def wait(self, seconds: float) -> None:
        """Until something may be there to be handed out, at most so long."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # By the event loop

    def add(self, queue: MessageQueue, queue_offset: int) -> HeldQueue:
        with self._changed:
            made = self._held[queue] = HeldQueue(queue, Window(queue_offset))
            return made

    def drop(self, held: HeldQueue) -> None:
        """The queue is another member's: what is in hand is not ours any more."""
        with self._changed:
            held.is_dropped = True
            self._held.pop(held.queue, None)
            self._forget(held)

    def put(self, held: HeldQueue, messages: Sequence[tuple[int, ReceivedMessage]], next_offset: int) -> None:
        """What a pull brought, and where the next one begins."""
        with self._changed:
            if held.is_dropped:
                return
            held.pulled_ms = _now_ms()
            for queue_offset, message in messages:
                held.window.fetched(queue_offset)
                held.ready.append((queue_offset, message))
                held.ready_bytes += len(message.body)
            held.window.passed(next_offset)
            if messages:
                self._changed.notify_all()

    def move(self, held: HeldQueue, queue_offset: int) -> None:
        """The broker put the group elsewhere: what was pulled before counts no more."""
        with self._changed:
            held.window = Window(queue_offset)
            self._forget(held)

    def _forget(self, held: HeldQueue) -> None:
        held.ready.clear()
        held.ready_bytes = held.in_hand = 0
        self._hands = {name: hand for name, hand in self._hands.items() if hand.held is not held}

    def overdue(self, before_s: float) -> list[ReceivedMessage]:
        """What was handed out before a time and not acknowledged."""
        with self._changed:
            return [hand.message for hand in self._hands.values() if hand.since_s < before_s]

    # By the application

    def take(self) -> ReceivedMessage | None:
        """The next message of any of our queues, by turns."""
        now_s = time.monotonic()
        with self._changed:
            queues = list(self._held.values())
            if self._retries_first:
                for held in queues:
                    if held.queue.topic.startswith(RETRY_PREFIX) and self._may_hand_out(held, now_s):
                        return self._hand_out(held, now_s)
            for step in range(len(queues)):
                held = queues[(self._next + step) % len(queues)]
                if self._may_hand_out(held, now_s):
                    self._next = (self._next + step + 1) % len(queues)
                    return self._hand_out(held, now_s)
        return None

    def _hand_out(self, held: HeldQueue, now_s: float) -> ReceivedMessage:
        queue_offset, message = held.ready.popleft()
        held.ready_bytes -= len(message.body)
        held.in_hand += 1
        held.handed_out_ms = _now_ms()
        self._hands[name_in_hand(message)] = _Hand(held, queue_offset, message, now_s)
        return message

    def _may_hand_out(self, held: HeldQueue, now_s: float) -> bool:
        if not held.ready or held.is_draining or now_s < held.not_before_s:
            return False
        return not self._ordered or (held.in_hand == 0 and now_s < held.locked_until_s)

    def queue_of(self, message: ReceivedMessage) -> MessageQueue | None:
        """The queue that a message in hand is of; None for one that is not in our hands."""
        with self._changed:
            hand = self._hands.get(name_in_hand(message))
            return None if hand is None else hand.held.queue

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Take a message out of our hands for good; False when it is not ours any more."""
        with self._changed:
            hand = self._hands.pop(name_in_hand(message), None)
            if hand is None:
                return False
            hand.held.in_hand -= 1
            hand.held.window.acknowledge(hand.queue_offset)
            if self._ordered:
                self._changed.notify_all()
            return True

    def again(self, message: ReceivedMessage, pause_s: float) -> bool:
        """Hand the same message out once more after a pause, before all that follow it in its queue."""
        with self._changed:
            hand = self._hands.pop(name_in_hand(message), None)
            if hand is None:
                return False
            hand.held.in_hand -= 1
            times = hand.message.reconsume_times + 1
            hand.held.ready.appendleft((hand.queue_offset, dataclasses.replace(hand.message, reconsume_times=times)))
            hand.held.ready_bytes += len(hand.message.body)
            hand.held.not_before_s = time.monotonic() + pause_s
            return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
