"""An end is a copy of the half message that it names: flag, addresses, properties and most other fields are the same.

`fingerprints` makes a number of each record's copied part. Equal parts have equal numbers, in whatever order the
properties are written; parts that differ in one bit never do. Only where numbers differ are both records read again and
compared by what they mean (`difference`), so that a spelling that differs is not a finding.

A half message of 4.3 and later keeps its topic and queue in properties. Its end has them too until 5.3, and lacks them
since 5.4; then what they would say is taken from the end's own topic and queue.

RocketMQ: EndTransactionProcessor.endMessageTransaction (5.5.0; 5.3.3; 3.1.4).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from broker.format import properties as names
from broker.format.sysflag import TRANSACTION_MASK
from broker.format.topics import HALF_TOPIC, HALF_TOPIC_OF_ROCKSDB, SCHEDULE_TOPIC
from broker.store.engines.half_op import HALF_DELAY
from broker.transaction.events import BY, WHY, EventKind
from recovery.scan.records import Records
from recovery.transactions.events import numbers_in

Numbers = npt.NDArray[np.uint64]

_COPIED = ("flag", "born_timestamp_ms", "born_port", "store_port", "reconsume_times")
_ADDRESSES = ("born_address", "store_address")
# Topics whose records are meant for another.
_ELSEWHERE = (HALF_TOPIC.encode(), HALF_TOPIC_OF_ROCKSDB.encode(), SCHEDULE_TOPIC.encode())
_OF_ITS_OWN = frozenset((names.CRC32, WHY, BY))  # what a record may say that the other does not
_CHECKS = f"property {names.TRANSACTION_CHECK_TIMES}"  # an end may state it where its half message does not
# A message of several queues is written with new properties when it is committed: CommitLog.asyncPutMessage (5.3.3).
_OF_SEVERAL_QUEUES = frozenset((names.TRAN_MSG, names.INNER_MULTI_QUEUE_OFFSET))
_TARGET = (f"property {names.REAL_TOPIC}", f"property {names.REAL_QID}")
_QUEUES_COUNTED = 1024
_SEPARATOR = 2  # ends a property; `Records.property_sums` counts each byte less this
# Odd, so that a single bit that differs in one field changes the sum, whatever the others are.
_ODD = tuple(0x9E3779B97F4A7C15 * (2 * number + 1) & 0xFFFFFFFFFFFFFFFF | 1 for number in range(64))
ODD_NUMBERS = np.array(_ODD, np.uint64).tobytes()
"""The same, for the pass of the C module."""


def fingerprints(part: Records, events: npt.NDArray[np.uint8]) -> Numbers:
    """A number for what each half message and each end of one has in common; `events` are their kinds."""
    sums = _copied_sums(part)
    whole, numbers = part.whole_and_numbers
    further = (_target_queues(part, events), whole.property_sums[numbers].astype(np.int64) + _unsaid_targets(part))
    for odd, column in zip(_ODD[len(_COPIED) + 1 :], further, strict=False):
        sums += column.astype(np.uint64) * np.uint64(odd)
    return sums


def _copied_sums(part: Records) -> Numbers:
    """What the heads add."""
    whole, numbers = part.whole_and_numbers
    if whole.columns is not None and whole.columns.wants.copied:
        return whole.columns["copied_sum"].view(np.uint64)[numbers]
    sums = np.zeros(len(part), np.uint64)
    fields = (*(part.field(name) for name in _COPIED), part.sys_flags & ~TRANSACTION_MASK)
    for odd, column in zip(_ODD, fields, strict=False):
        sums += column.astype(np.uint64) * np.uint64(odd)
    for first, name in zip((16, 32), _ADDRESSES, strict=True):
        raw = part.address(name)
        rows = np.ascontiguousarray(raw).view("<u4").reshape(len(part), -1).astype(np.uint64)
        for number in range(rows.shape[1]):
            sums += rows[:, number] * np.uint64(_ODD[first + number])
    return sums


def _target_queues(part: Records, events: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The queue that consumers will read it from. A half message keeps it in a property, and so does what waits."""
    queue_ids = part.field("queue_id")
    elsewhere = (events == EventKind.HALF) | part.in_topic(SCHEDULE_TOPIC.encode())
    if elsewhere.any():
        queue_ids = np.where(elsewhere, numbers_in(part.values(names.REAL_QID)), queue_ids)
    return queue_ids


def _unsaid_targets(part: Records) -> npt.NDArray[np.int64]:
    """What REAL_TOPIC and REAL_QID would add to the sum of the properties, for each record that lacks them."""
    lacking = part.values(names.REAL_QID).lengths == 0
    sums = np.zeros(len(part), np.int64)
    if not lacking.any():
        return sums
    codes, topics = part.topic_codes
    of_topic = np.array([_property_sum(names.REAL_TOPIC, topic) for topic in topics], np.int64)
    queues, which = _distinct(part.field("queue_id"))
    of_queue = np.array([_property_sum(names.REAL_QID, b"%d" % queue) for queue in queues.tolist()], np.int64)
    return np.where(lacking, of_topic[codes] + of_queue[which], 0)


def _distinct(queue_ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The distinct ones, and which of them each is; the few small numbers that they mostly are need no sorting."""
    if int(queue_ids.min()) < 0 or int(queue_ids.max()) > _QUEUES_COUNTED:
        return np.unique(queue_ids, return_inverse=True)
    return np.arange(int(queue_ids.max()) + 1), queue_ids


def _property_sum(name: str, value: bytes) -> int:
    raw = b"%s\x01%s" % (name.encode(), value)
    return sum((byte - _SEPARATOR) % 256 for byte in raw)


def difference(half: Records | None, end: Records | None) -> str:
    """What a half message and its end do not have in common though one is a copy of the other; empty when nothing."""
    if half is None or end is None:
        return ""
    stored, meant = _meaning(half), _meaning(end)
    if _CHECKS not in stored:
        meant.pop(_CHECKS, None)
    if f"property {names.INNER_MULTI_DISPATCH}" in stored:
        for name in _OF_SEVERAL_QUEUES:
            stored.pop(f"property {name}", None)
            meant.pop(f"property {name}", None)
    actual = (end.topics.array[0].as_py().decode("utf-8", "replace"), str(int(end.field("queue_id")[0])))
    if meant.keys().isdisjoint(_TARGET) and actual == tuple(stored.get(name) for name in _TARGET):
        for name in _TARGET:  # from 5.4 on an end lacks both; one alone is damage
            del stored[name]
    differ = [name for name in dict.fromkeys([*stored, *meant]) if stored.get(name) != meant.get(name)]
    return ", ".join(differ)


def _meaning(record: Records) -> dict[str, Any]:
    fields: dict[str, Any] = {name: int(record.field(name)[0]) for name in _COPIED}
    fields |= {name: bytes(record.address(name)[0]).rstrip(b"\0") for name in _ADDRESSES}
    fields["sys_flag"] = int(record.sys_flags[0]) & ~TRANSACTION_MASK
    properties = names.decode(record.properties.array[0].as_py())
    elsewhere = record.topics.array[0].as_py() in _ELSEWHERE
    fields["queue_id"] = properties.get(names.REAL_QID, "0") if elsewhere else str(int(record.field("queue_id")[0]))
    if HALF_DELAY in properties:  # its commit has the delay under RocketMQ's name as well
        properties.pop(names.DELAY, None)
    return fields | {f"property {name}": value for name, value in properties.items() if name not in _OF_ITS_OWN}
