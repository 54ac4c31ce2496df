"""The story of one transaction of RocketMQ 4.3 and later, whose ends are op messages: for the page in Airflow.

The index leads to what carries the same unique key: the half messages (one that was checked is written again), the
message that consumers got, the one that was given up. What the index does not reach is read from the log. A rollback
leaves nothing but an op message, which names the last half by its queue offset; ops are looked for behind the half, and
no further than `OPS_LOOKED_AT`. An op message ends a delivered transaction, too: what lies before it is looked through.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import broker
from broker.format import properties as names
from broker.format.record import opmessage
from broker.format.topics import HALF_TOPIC, OP_TAG, OP_TOPIC, OP_TOPIC_OF_ROCKSDB, PARK_TOPIC, SCHEDULE_TOPIC
from broker.message import ReceivedMessage
from broker.transaction.events import BY, PARKED_OFFSET, WHY, EventKind, checks, kind_of, target_topic
from broker.transaction.parking import GIVEN_UP, park_notes
from recovery.scan.ends import commits_between

if TYPE_CHECKING:
    from broker.format.commitlog import Record

OPS_LOOKED_AT = 20_000


def half_op_story(store: broker.Store, half: Record) -> list[dict[str, Any]]:
    """What is known of the transaction of a half message, in log order. An index without it leaves the half alone."""
    properties = half.property_map
    unique_key, topic = properties.get(names.UNIQ_KEY, ""), target_topic(half.topic, properties)
    carriers = with_unique_key(store, unique_key, (half.topic, PARK_TOPIC, topic, SCHEDULE_TOPIC))
    halves = {one.commitlog_offset: one for one in (half, *carriers) if one.topic == half.topic}
    given_up = [one for one in carriers if one.topic == PARK_TOPIC and PARKED_OFFSET not in one.property_map]
    first, *again = (halves[at] for at in sorted(halves))
    ends = [one for one in carriers if _ends(one, halves, topic)]
    op = None if ends else _op_of(store, [first, *again][-1])
    if not ends and (op is not None or not unique_key):  # it may be delivered for all that
        last = max(halves)
        behind = store.records(last) if op is None else commits_between(store, halves, last, op.commitlog_offset)
        ends = [one for one in behind if _ends(one, halves, topic)]
    steps = [prepared(first)]
    steps += [{**prepared(one), "what": f"written again, after check {checks(one.property_map)}"} for one in again]
    steps += [{"what": "parked", **when(one), "why": GIVEN_UP, "by": ""} for one in given_up]  # by RocketMQ's broker
    steps += parkings(store, halves)
    steps += [{"what": "committed", **when(one), **_decided(one), "delivered": delivered(one)} for one in ends]
    if op is not None and not ends:
        steps.append({"what": "rolled back", **when(op), **_decided(op)})
    return sorted(steps, key=lambda step: int(step["commitlog_offset"]))


def with_unique_key(store: broker.Store, unique_key: str, topics: Iterable[str]) -> list[Record]:
    """The records with a unique key in these topics, in log order; none for an empty key.

    Raises CorruptStore where the log is damaged behind what is indexed, unless a delivery is among them.
    """
    if not unique_key:
        return []
    offsets = {one.commitlog_offset for topic in set(topics) for one in store.by_unique_key(topic, unique_key)}
    found = {record.commitlog_offset: record for at in offsets if (record := store.record(at)) is not None}
    try:
        behind = (one for one in unindexed(store) if one.property_map.get(names.UNIQ_KEY) == unique_key)
        found |= {one.commitlog_offset: one for one in behind}
    except broker.CorruptStore:  # which hides no decision where the delivery is known
        if not any(kind_of(one.topic, one.transaction_type) is EventKind.COMMITTED for one in found.values()):
            raise
    return [found[at] for at in sorted(found)]


def unindexed(store: broker.Store) -> Iterator[Record]:
    """The records that the index does not reach: all where there is none, the last ones where its broker was killed."""
    reached = max((file.header.end_commitlog_offset for file in store.index.files()), default=store.begin_offset)
    with suppress(broker.CorruptRecord):  # of a header that is damaged
        store.record(reached)
        return store.records(reached)
    return store.records()


def _decided(record: Record) -> dict[str, str]:
    """Why it was decided so, and by whom, where checkback wrote the record."""
    properties = record.property_map
    return {"why": properties.get(WHY, ""), "by": properties.get(BY, "")}


def _ends(record: Record, halves: Container[int], topic: str) -> bool:
    """Whether a record delivers, at once or after a delay, what one of the half messages announced.

    What a consumer sent back keeps the COMMIT flag and names offset 0, but is for its retry topic.
    """
    kind = kind_of(record.topic, record.transaction_type)
    named = kind is EventKind.COMMITTED and record.prepared_transaction_offset in halves
    return named and target_topic(record.topic, record.property_map) == topic


def _op_of(store: broker.Store, half: Record) -> Record | None:
    """The first op message that names the half; none when it is still in doubt, or too far away."""
    topic = OP_TOPIC if half.topic == HALF_TOPIC else OP_TOPIC_OF_ROCKSDB
    least, end = store.queue_range(topic, half.queue_id)
    queue = store.every_queue.queue(topic, half.queue_id)

    def place(number: int) -> int:
        """Where an op message lies: its time may be of a clock that was set back, and what it says be damaged."""
        unit = None if queue is None else queue.get(number)
        return -1 if unit is None else unit.commitlog_offset

    begin = least + bisect_left(range(least, end), half.commitlog_offset, key=place)
    for number in range(begin, min(end, begin + OPS_LOOKED_AT)):
        op = store.message(topic, half.queue_id, number)
        if op is not None and op.tag == OP_TAG and _names(op, half):
            return store.record(op.commitlog_offset)
    # What is not indexed need not be in the queue either; without a queue nothing is.
    behind = unindexed(store) if end else store.records(half.commitlog_offset)
    ops = (one for one in behind if one.topic == topic and one.commitlog_offset > half.commitlog_offset)
    named = (op for op in ops if op.property_map.get(names.TAGS) == OP_TAG and _names(ReceivedMessage.of(op), half))
    return next(named, None)


def _names(op: ReceivedMessage, half: Record) -> bool:
    if op.topic == OP_TOPIC_OF_ROCKSDB:
        return op.properties.get(names.TRANS_OFFSET) == str(half.commitlog_offset)
    try:
        return half.queue_offset in opmessage.decode(op.body)
    except broker.CorruptRecord:
        return False


# One step of a story, of any generation


def prepared(half: Record) -> dict[str, Any]:
    """That a half message was stored, and what it says."""
    properties = half.property_map
    place = "slot" if kind_of(half.topic, half.transaction_type) is EventKind.PREPARED else "queue_offset"
    facts = {
        place: half.queue_offset,
        "producer_group": properties.get(names.PGROUP, ""),
        "topic": target_topic(half.topic, properties),
        "keys": names.keys(properties),
        "unique_key": properties.get(names.UNIQ_KEY),
        "bytes": len(half.delivered_body),
    }
    return {"what": "prepared", **when(half), **facts}


def parkings(store: broker.Store, halves: Container[int]) -> Iterator[dict[str, Any]]:
    """What checkback wrote to the park topic of half messages, by their CommitLog offsets."""
    for note in park_notes(store):
        if note.half_offset in halves:
            yield {
                "what": "parked" if note.parks else "taken back",
                "commitlog_offset": note.commitlog_offset,
                "stored_ms": note.stored_ms,
                "why": note.why,
                "by": note.by,
            }


def delivered(end: Record) -> str:
    """Where consumers find the message of a commit."""
    return f"{end.topic}/{end.queue_id} at {end.queue_offset}"


def when(record: Record) -> dict[str, Any]:
    """Where a record lies, and when it was stored."""
    return {"commitlog_offset": record.commitlog_offset, "stored_ms": record.store_timestamp_ms}
