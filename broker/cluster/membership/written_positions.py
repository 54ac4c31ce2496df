"""The positions of a member as its brokers know them: written each second, and doubted when a connection was lost."""

from __future__ import annotations

import contextlib

from broker.cluster.membership.group_calls import GroupCalls
from broker.cluster.membership.holdings import HeldQueue, Holdings
from broker.errors import BrokerError


class WrittenPositions:
    """Writes positions of a consumer's queues, and learns them. Runs in the event loop."""

    def __init__(self, calls: GroupCalls, holdings: Holdings) -> None:
        self._calls, self._holdings = calls, holdings

    async def write(self, held: HeldQueue) -> None:
        """Write the position of a queue if its broker knows another one; what fails is tried again in a second."""
        with contextlib.suppress(BrokerError):
            await self.catch_up(held)
            await self._look_after(held)
            if held.is_dropped:  # meanwhile: another member's is farther by now
                return
            position = held.window.position
            if position != held.committed:
                await self._calls.commit(held.queue, position)
                held.committed = position

    async def write_last(self, held: HeldQueue, position: int) -> None:
        """Write the position of a queue that was given up at it, unless another member is farther.

        Raises BrokerError.
        """
        if await self._known_of_others(held) > max(position, held.committed):
            return
        await self._look_after(held)
        if position != held.committed:
            await self._calls.commit(held.queue, position)

    @staticmethod
    def doubt(held: HeldQueue) -> None:
        """While the connection is lost, other members may have a queue. And a broker that was killed forgets the
        positions of its last five seconds, which it had answered.

        Those are looked after when it has answered a pull: where it lost messages, too, its positions are right. Java
        writes all of its positions every 5 s. RocketMQ: flushConsumerOffsetInterval (5.3.3).
        """
        held.may_be_behind = held.may_be_forgotten = True
        held.is_pulled_since = False

    async def catch_up(self, held: HeldQueue) -> None:
        """Go on where another member stopped that had the queue meanwhile; before a pull, a position or a lock.

        Else all that it did came again here, and its position was put back. Raises BrokerError.
        """
        known = await self._known_of_others(held)
        if held.is_dropped:  # meanwhile: `write_last` looks for itself
            return
        if known > max(held.window.position, held.committed):
            self._holdings.move(held, known)
            held.committed = known
        held.may_be_behind = False

    async def _known_of_others(self, held: HeldQueue) -> int:
        """Where a queue's broker knows the group, where another member may have written that; else -1."""
        known = await self._calls.position(held.queue) if held.may_be_behind else None
        return -1 if known is None else known

    async def _look_after(self, held: HeldQueue) -> None:
        """Have a position written once more that its broker forgot. One that is farther is another member's."""
        if not (held.may_be_forgotten and held.is_pulled_since):
            return
        known = await self._calls.position(held.queue)
        if known is None or known < held.committed:
            held.committed = -1
        held.may_be_forgotten = False
