"""How far check-back is, as RocketMQ's check loop keeps it: two positions of the group CID_RMQ_SYS_TRANS.

    half topic    the first half message that is neither ended nor parked: the loop looks at none below it
    op topic      the first op message behind it in the CommitLog: what lies before names halves below it only

Old positions do no harm, since each half message that ended is named by an op message: they only let a broker read
more. They are written when a store is closed and after a round of check-back.
RocketMQ: TransactionalMessageServiceImpl.check, TransactionalMessageBridge.updateConsumeOffset (5.3.3).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.consuming.positions import Positions
from broker.format.topics import CHECK_GROUP, HALF_TOPIC, OP_TOPIC
from broker.store.disk.files import Missing
from broker.store.read.consumequeue import ConsumeQueues

_QUEUE = 0


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """Works out both positions and writes them."""

    queues: ConsumeQueues
    queue_end: Callable[[str, int], int]  # by topic and queue id
    sync_now: Callable[[], None]

    def write(self, positions: Positions, pending_slots: Sequence[int]) -> None:
        """Write both positions, given the slots that a broker is to ask about, in order; nothing when they stand there.

        The log is durable afterwards up to what they speak of. Raises StoreFull, SyncFailed, CorruptRecord.
        """
        half = pending_slots[0] if pending_slots else self.queue_end(HALF_TOPIC, _QUEUE)
        wanted = {HALF_TOPIC: half, OP_TOPIC: self._op_position(half)}
        held = positions.exchange.offsets().positions
        if all(held.get((topic, CHECK_GROUP), {}).get(_QUEUE) == at for topic, at in wanted.items()):
            return
        self.sync_now()  # nothing that a power cut may take back
        for topic, at in wanted.items():
            cell = positions.cell(CHECK_GROUP, topic, _QUEUE)
            with positions.cells.lock:
                positions.cells.set_position(cell, at)
        positions.exchange.export(at_once=True)

    def _op_position(self, half_position: int) -> int:
        """An op message lies behind the half messages that it names."""
        end = self.queue_end(OP_TOPIC, _QUEUE)
        halves, ops = (self.queues.queue(topic, _QUEUE) for topic in (HALF_TOPIC, OP_TOPIC))
        if ops is None or halves is None:
            return 0
        if half_position >= self.queue_end(HALF_TOPIC, _QUEUE):
            return end
        try:
            half = halves.get(half_position)
        except Missing:
            half = None
        if half is None:
            return 0
        first = min(ops.units.first, end)

        def place(number: int) -> int:
            unit = ops.get(first + number)
            return -1 if unit is None else unit.commitlog_offset

        return first + bisect_right(range(end - first), half.commitlog_offset, key=place)
