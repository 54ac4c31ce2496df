"""The body of an op message: the half messages that have ended, by their *queue offset* in the half topic.

    4.3.0-5.0.0    12          one
    5.1.0 and on   4,7,10,     many; the order is that of arrival, and one may come twice

Quirk: upstream's design document says that it holds physical offsets; the code and the bytes hold queue offsets.
RocketMQ: TransactionalMessageServiceImpl.fillOpRemoveMap, TransactionalOpBatchService (5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.errors import CorruptRecord

SEPARATOR = ","
_OFFSET_MAX = (1 << 63) - 1


def decode(body: bytes) -> tuple[int, ...]:
    """The queue offsets, in the order written.

    Stricter than RocketMQ, which takes what it cannot read for -1 and so for an old message: that is damage here.
    """
    text = body.decode("ascii", "replace")
    numbers = text.removesuffix(SEPARATOR).split(SEPARATOR)
    if not all(number.isascii() and number.isdecimal() and len(number) < 20 for number in numbers):
        raise CorruptRecord(f"an op message holds decimal numbers with commas, not {body[:40]!r}")
    queue_offsets = tuple(int(number) for number in numbers)
    if max(queue_offsets) > _OFFSET_MAX:
        raise CorruptRecord(f"an op message names the queue offset {max(queue_offsets)}, which no queue has")
    return queue_offsets


def encode(queue_offsets: Iterable[int], *, batched: bool = True) -> bytes:
    """The body that names these half messages; `batched=False` gives the older form, which holds exactly one.

    Brokers before 5.1.0 cannot read the batched form.
    """
    numbers = list(queue_offsets)
    if not numbers or min(numbers) < 0 or (not batched and len(numbers) != 1):
        raise ValueError(f"no op message can name {numbers}")
    return "".join(f"{number}," for number in numbers).encode() if batched else str(numbers[0]).encode()
