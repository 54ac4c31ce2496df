"""How far check-back is, as RocketMQ's check loop keeps it: two positions of the group CID_RMQ_SYS_TRANS.

    half topic    the first half message that is neither ended nor parked: the loop reads none below it
    op topic      the first op message after it in the CommitLog: those before it name half messages below it only

Old positions do no harm, since each half message that ended is named by an op message: they only let a broker read
more. They are written when a store is closed and after a round of check-back.
RocketMQ: TransactionalMessageServiceImpl.check, TransactionalMessageBridge.updateConsumeOffset (5.3.3).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from broker.format.topics import HALF_TOPIC, OP_TOPIC
from broker.store.disk.files import Missing
from broker.store.read.consumequeue import ConsumeQueues

_QUEUE = 0


def check_positions(
    queues: ConsumeQueues, queue_end: Callable[[str, int], int], pending_slots: Sequence[int]
) -> dict[str, int]:
    """Both positions by topic, in its queue 0, given the slots that a broker is to check, in order.

    `queue_end` is the next queue offset by topic and queue id. Raises CorruptRecord.
    """
    half_end = queue_end(HALF_TOPIC, _QUEUE)
    half = pending_slots[0] if pending_slots else half_end
    op_end = queue_end(OP_TOPIC, _QUEUE)
    return {HALF_TOPIC: half, OP_TOPIC: op_end if half >= half_end else _op_position(queues, op_end, half)}


def _op_position(queues: ConsumeQueues, end: int, half_position: int) -> int:
    """An op message comes after the half messages that it names."""
    halves, ops = (queues.queue(topic, _QUEUE) for topic in (HALF_TOPIC, OP_TOPIC))
    if ops is None or halves is None:
        return 0
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
