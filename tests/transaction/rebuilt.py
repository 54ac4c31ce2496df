"""What the derived files must hold, made again by hand from bytes: it judges the writer and shares no code with it.

decision 0004: the state table equals f(redo log) and f(CommitLog). The redo log's units choose the records, the records
supply verdict, time and group; f(CommitLog) never opens the redo log.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

BLANK = 0xCBD43194
PREPARED, COMMIT, ROLLBACK = 4, 8, 12


@dataclass(frozen=True)
class Seen:
    """One record, as far as the judge looks."""

    offset: int
    size: int
    kind: int
    queue_id: int
    queue_offset: int
    seconds: int
    names: int  # of an end: the offset of its half
    body: bytes
    topic: str
    properties: dict[str, str]


def joined(folder: Path) -> bytes:
    """The files of a queue, one behind the other."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("[0-9]*")))


def records(store: Path) -> list[Seen]:
    """Every record of the CommitLog, in log order, up to the first bytes that are none."""
    found = []
    for path in sorted((store / "commitlog").glob("[0-9]*")):
        raw, at = path.read_bytes(), 0
        while at + 8 <= len(raw):
            size, magic = struct.unpack_from(">iI", raw, at)
            if magic == BLANK or size <= 0:
                break
            found.append(seen(raw[at : at + size], int(path.name) + at))
            at += size
    return found


def seen(raw: bytes, offset: int) -> Seen:
    queue_id, _, queue_offset, said, flags = struct.unpack_from(">iiqqi", raw, 12)
    assert said == offset
    (stored,) = struct.unpack_from(">q", raw, 56)
    names, length = struct.unpack_from(">qi", raw, 76)
    body, rest = raw[88 : 88 + length], raw[88 + length :]
    topic, texts = rest[1 : 1 + rest[0]].decode(), rest[3 + rest[0] :].decode()
    properties = dict(item.split("\x01", 1) for item in texts.split("\x02") if item)
    return Seen(offset, len(raw), flags & 0xC, queue_id, queue_offset, stored // 1000, names, body, topic, properties)


def java_hash(text: str) -> int:
    code = 0
    for letter in text:
        code = (code * 31 + ord(letter)) % 2**32
    return code - 2**32 if code >= 2**31 else code


def table_from_log(log: list[Seen]) -> bytes:
    """f(CommitLog): each prepared record at its slot, with the first end that names it."""
    slots: dict[int, tuple[Seen, int]] = {}
    for one in log:
        if one.kind == PREPARED:
            slots[one.queue_offset] = (one, PREPARED)
        elif one.kind in (COMMIT, ROLLBACK):
            for slot, (half, state) in slots.items():
                if half.offset == one.names and state == PREPARED:
                    slots[slot] = (half, one.kind)
    assert sorted(slots) == list(range(len(slots)))
    return b"".join(slot_bytes(*slots[number]) for number in range(len(slots)))


def table_from_half_topic(log: list[Seen]) -> bytes:
    """f(CommitLog) of the engine half-op: a half at its queue offset; a delivery that names it, else an op message."""
    halves = {one.queue_offset: one for one in log if one.topic == HALF_TOPIC}
    delivered = {one.names for one in log if one.kind == COMMIT}
    ended = {int(number) for one in log if one.topic == OP_TOPIC for number in one.body.split(b",") if number}
    assert sorted(halves) == list(range(len(halves)))
    states = {
        number: COMMIT if half.offset in delivered else ROLLBACK if number in ended else PREPARED
        for number, half in halves.items()
    }
    assert ended == {number for number, state in states.items() if state != PREPARED}
    return b"".join(slot_bytes(half, states[number]) for number, half in sorted(halves.items()))


def table_from_redo(store: Path, log: list[Seen]) -> bytes:
    """f(redo log): its units in order; what they name is read in the log."""
    by_offset = {one.offset: one for one in log}
    states: dict[int, int] = {}
    halves: list[Seen] = []
    for at, size, tag in struct.iter_unpack(">qiq", joined(store / "transaction" / "redolog" / REDO_TOPIC / "0")):
        if size == 0:
            break
        one = by_offset[at]
        assert size == one.size
        if tag == -1:
            halves.append(one)
            states[at] = PREPARED
        elif states.get(tag) == PREPARED:
            states[tag] = one.kind
    return b"".join(slot_bytes(half, states[half.offset]) for half in halves)


HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
REDO_TOPIC = "TRANSACTION_REDOLOG_TOPIC_" + "X" * 4


def slot_bytes(half: Seen, state: int) -> bytes:
    return struct.pack(">qiiii", half.offset, half.size, half.seconds, java_hash(half.properties["PGROUP"]), state)


def queues(log: list[Seen]) -> dict[tuple[str, int], list[Seen]]:
    """What consumers get: queue offsets without a gap, none twice."""
    found: dict[tuple[str, int], list[Seen]] = {}
    for one in log:
        if one.kind in (0, COMMIT):
            queue = found.setdefault((one.topic, one.queue_id), [])
            assert one.queue_offset == len(queue), (one, len(queue))
            queue.append(one)
    return found


def is_half_op(store: Path) -> bool:
    """Which engine the store has."""
    return json.loads((store / "checkback" / "store.json").read_text()).get("transactions") == "half-op"


def records_of(store: Path, *, committed: int, rolled_back: int, in_doubt: int = 0) -> int:
    """How many records so many transactions take: an op message ends one besides its delivery, or alone."""
    halves = committed + rolled_back + in_doubt
    return halves + rolled_back + committed * (2 if is_half_op(store) else 1)


def assert_one_truth(store: Path) -> list[Seen]:
    """The live table is both rebuilds, byte for byte; and the ConsumeQueues name the records. Returns the log."""
    log = records(store)
    if is_half_op(store):
        table, live = table_from_half_topic(log), joined(store / "checkback" / "halfstates")
    else:
        table, live = table_from_log(log), joined(store / "transaction" / "statetable")
        assert table_from_redo(store, log) == table
    assert live == table.ljust(len(live), b"\0")
    for (topic, queue_id), expected in queues(log).items():
        units = list(struct.iter_unpack(">qiq", joined(store / "consumequeue" / topic / str(queue_id))))
        told = [(at, size) for at, size, _ in units if size]
        assert told == [(one.offset, one.size) for one in expected]
    return log
