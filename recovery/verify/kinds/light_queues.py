"""The further queues that a record is delivered from: light messages (LMQ) and other multi-dispatch.

A broker that dispatches to several queues writes into the record which they are and the queue offset in each, so their
units follow from the CommitLog. A record without those offsets was written by a broker that does not, or by us.

RocketMQ: MultiDispatchUtils.checkMultiDispatchQueue, ConsumeQueue.multiDispatchLmqQueue (5.5.0; 4.9.7). Quirk: the half
topic is not left out, so that half messages are in those queues before they are committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from broker.format import properties as names
from broker.format.topics import LMQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.units import Ints

_LEFT_OUT = (RETRY_PREFIX.encode(), SYSTEM_PREFIX.encode())
_LMQ = LMQ_PREFIX.encode()
_BETWEEN = b","
_LONGEST_NUMBER = 18


class FurtherQueue(NamedTuple):
    """The records that one further queue delivers as well."""

    topic: bytes
    queue_id: int
    which: Ints  # the indices of the records
    queue_offsets: Ints


def further_queues(records: Records, kinds: Kinds) -> Iterator[FurtherQueue]:
    """Each further queue of some records with its units, in log order; `records` are all delivered.

    `kinds` are those of the same records. This is a loop in Python over the records of several queues, and only those.
    """
    offsets = records.values(names.INNER_MULTI_QUEUE_OFFSET)
    which = np.flatnonzero(offsets.lengths)
    if not len(which):
        return
    part = records.take(which)
    queues = part.property(names.INNER_MULTI_DISPATCH).to_pylist()
    numbers = part.property(names.INNER_MULTI_QUEUE_OFFSET).to_pylist()
    topics, queue_ids = kinds.codes[which].tolist(), part.field("queue_id").tolist()
    found: dict[tuple[bytes, int], list[tuple[int, int]]] = defaultdict(list)
    for index, topic, queue_id, queue, number in zip(which.tolist(), topics, queue_ids, queues, numbers, strict=True):
        for name, queue_offset in _named(kinds.topics[topic], queue or b"", number or b""):
            found[name, 0 if name.startswith(_LMQ) else queue_id].append((index, queue_offset))
    for (name, queue_id), units in found.items():
        rows = np.array(units, np.int64)
        yield FurtherQueue(name, queue_id, rows[:, 0], rows[:, 1])


def _named(topic: bytes, queues: bytes, numbers: bytes) -> Iterator[tuple[bytes, int]]:
    """The queues that a record of a topic names, each with the queue offset."""
    if topic.startswith(_LEFT_OUT) or topic == SCHEDULE_TOPIC.encode():
        return
    listed, at = queues.split(_BETWEEN), numbers.split(_BETWEEN)
    if len(listed) != len(at):
        return
    for name, number in zip(listed, at, strict=True):
        if name and b"/" not in name and number.isdigit() and len(number) <= _LONGEST_NUMBER:
            yield name, int(number)
