"""The story of one transaction of RocketMQ 4.3 and later, whose ends are op messages: for the page in Airflow.

The index leads to what carries the same unique key: the half messages (one that was checked is written again), the
message that consumers got, the one that was given up. Only a rollback leaves nothing but an op message, which names the
last half by its queue offset; ops are looked for behind the half, and no further than `OPS_LOOKED_AT`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any

import broker
from broker.format import properties as names
from broker.format.record import opmessage
from broker.format.topics import HALF_TOPIC, OP_TAG, OP_TOPIC, OP_TOPIC_OF_ROCKSDB, PARK_TOPIC
from broker.transaction.events import BY, PARKED_OFFSET, WHY, EventKind, checks, kind_of, target_topic
from broker.transaction.parking import GIVEN_UP, park_notes

if TYPE_CHECKING:
    from broker.format.commitlog import Record
    from broker.message import ReceivedMessage

OPS_LOOKED_AT = 20_000


def half_op_story(store: broker.Store, half: Record) -> list[dict[str, Any]]:
    """What is known of the transaction of a half message, in log order. An index without it leaves the half alone."""
    properties = half.property_map
    unique_key, topic = properties.get(names.UNIQ_KEY, ""), target_topic(half.topic, properties)
    halves = {half.commitlog_offset: half}
    halves |= {one.commitlog_offset: one for one in _records(store, store.by_unique_key(half.topic, unique_key))}
    copies = _records(store, store.by_unique_key(PARK_TOPIC, unique_key))
    given_up = [copy for copy in copies if PARKED_OFFSET not in copy.property_map]  # by RocketMQ's broker
    ends = [one for one in _records(store, store.by_unique_key(topic, unique_key)) if _ends(one, set(halves))]
    first, *again = (halves[at] for at in sorted(halves))
    steps = [prepared(first)]
    steps += [{**prepared(one), "what": f"written again, after check {checks(one.property_map)}"} for one in again]
    steps += [{"what": "parked", **when(one), "why": GIVEN_UP, "by": ""} for one in given_up]
    steps += parkings(store, halves)
    steps += [{"what": "committed", **when(one), **_decided(one), "delivered": delivered(one)} for one in ends]
    if not ends:
        steps += [{"what": "rolled back", **when(op), **_decided(op)} for op in _op_of(store, [first, *again][-1])]
    return sorted(steps, key=lambda step: int(step["commitlog_offset"]))


def _decided(record: Record) -> dict[str, str]:
    """Why it was decided so, and by whom, where checkback wrote the record."""
    properties = record.property_map
    return {"why": properties.get(WHY, ""), "by": properties.get(BY, "")}


def _records(store: broker.Store, messages: list[ReceivedMessage]) -> Iterator[Record]:
    for message in messages:
        record = store.record(message.commitlog_offset)
        if record is not None:
            yield record


def _ends(record: Record, halves: set[int]) -> bool:
    """Whether a record delivers what one of the half messages announced."""
    kind = kind_of(record.topic, record.transaction_type)
    return kind is EventKind.COMMITTED and record.prepared_transaction_offset in halves


def _op_of(store: broker.Store, half: Record) -> Iterator[Record]:
    """The first op message that names the half; none when it is still in doubt, or too far away."""
    topic = OP_TOPIC if half.topic == HALF_TOPIC else OP_TOPIC_OF_ROCKSDB
    begin, end = store.queue_range(topic, half.queue_id)
    begin = max(begin, store.offset_at_time(topic, half.queue_id, half.store_timestamp_ms))
    for number in range(begin, min(end, begin + OPS_LOOKED_AT)):
        op = store.message(topic, half.queue_id, number)
        if op is not None and op.tag == OP_TAG and _names(op, half):
            yield from _records(store, [op])
            return


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
