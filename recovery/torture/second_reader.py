"""A second reading of a store, from bytes: what the derived files must hold. It shares no code with what it verifies.

Decision 0004: the state table equals f(redo log) and f(CommitLog). The redo log's units choose the records, the records
supply outcome, time and group; f(CommitLog) never opens the redo log.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recovery.torture.promises import require

BLANK = 0xCBD43194
_LONG_TOPIC = bytes.fromhex("DAA320AB")  # the magic of records with two bytes for the topic's length (RocketMQ 5)
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
REDO_TOPIC = "TRANSACTION_REDOLOG_TOPIC_" + "X" * 4


@dataclass(frozen=True)
class Seen:
    """One record of the CommitLog, as far as this reader decodes it."""

    commitlog_offset: int
    size: int
    kind: int
    queue_id: int
    queue_offset: int
    seconds: int
    names: int  # of an end: the offset of its half
    body: bytes
    topic: str
    properties: dict[str, str]

    @property
    def key(self) -> str:
        """The first of the message's keys."""
        return self.properties.get("KEYS", "").split(" ")[0]


def joined(directory: Path) -> bytes:
    """The files of a queue, concatenated."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("[0-9]*")))


def records(store: Path) -> list[Seen]:
    """Every record of the CommitLog, in log order, up to the first bytes that are none."""
    return list(walk(store))


def walk(store: Path) -> Iterator[Seen]:
    """The same, one by one: a log may be larger than memory."""
    for path in sorted((store / "commitlog").glob("[0-9]*")):
        if not path.stat().st_size:  # a process was killed while it made the file
            continue
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            at = 0
            while at + 8 <= len(raw):
                size, magic = struct.unpack_from(">iI", raw, at)
                if magic == BLANK or size <= 0:
                    break
                yield seen(raw[at : at + size], int(path.name) + at)
                at += size


def seen(raw: bytes, commitlog_offset: int) -> Seen:
    """Decode one record."""
    body_crc, queue_id, _, queue_offset, stated, flags = struct.unpack_from(">Iiiqqi", raw, 8)
    require(
        stated == commitlog_offset, f"the record at CommitLog offset {commitlog_offset} states that it is at {stated}"
    )
    (stored,) = struct.unpack_from(">q", raw, 56)
    names, length = struct.unpack_from(">qi", raw, 76)
    body, rest = raw[88 : 88 + length], raw[88 + length :]
    right = body_crc == zlib.crc32(body) & 0x7FFFFFFF
    require(right, f"the body of the record at CommitLog offset {commitlog_offset} is not what was written")
    width = 2 if raw[4:8] == _LONG_TOPIC else 1
    end = width + int.from_bytes(rest[:width], "big")
    topic, texts = rest[width:end].decode(), rest[end + 2 :].decode()
    properties = dict(item.split("\x01", 1) for item in texts.split("\x02") if item)
    return Seen(
        commitlog_offset, len(raw), flags & 0xC, queue_id, queue_offset, stored // 1000, names, body, topic, properties
    )


def java_hash(text: str) -> int:
    """`String.hashCode()` of ASCII text."""
    code = 0
    for character in text:
        code = (code * 31 + ord(character)) % 2**32
    return code - 2**32 if code >= 2**31 else code


def table_from_log(log: list[Seen]) -> bytes:
    """f(CommitLog): each prepared record at its slot, with the first end that names it."""
    slots: dict[int, tuple[Seen, int]] = {}
    slot_of: dict[int, int] = {}  # of a half message, by its offset
    for one in log:
        if one.kind == PREPARED:
            slots[one.queue_offset] = (one, PREPARED)
            slot_of[one.commitlog_offset] = one.queue_offset
        elif one.kind in (COMMIT, ROLLBACK) and one.names in slot_of:
            slot = slot_of[one.names]
            half, state = slots[slot]
            if state == PREPARED:
                slots[slot] = (half, one.kind)
    require(sorted(slots) == list(range(len(slots))), "the half messages do not number the slots 0, 1, 2 and so on")
    return b"".join(slot_bytes(*slots[number]) for number in range(len(slots)))


def table_from_half_topic(log: list[Seen]) -> bytes:
    """f(CommitLog) of the engine half-op: a half at its queue offset; a delivery that names it, else an op message."""
    halves = {one.queue_offset: one for one in log if one.topic == HALF_TOPIC}
    delivered = {one.names for one in log if one.kind == COMMIT}
    ended = {int(number) for one in log if one.topic == OP_TOPIC for number in one.body.split(b",") if number}
    require(sorted(halves) == list(range(len(halves))), "the half topic skips or repeats a queue offset")
    states = {
        number: COMMIT if half.commitlog_offset in delivered else ROLLBACK if number in ended else PREPARED
        for number, half in halves.items()
    }
    settled = {number for number, state in states.items() if state != PREPARED}
    require(ended == settled, f"deliveries and op messages disagree about the half messages {sorted(ended ^ settled)}")
    return b"".join(slot_bytes(half, states[number]) for number, half in sorted(halves.items()))


def table_from_redo(store: Path, log: list[Seen]) -> bytes:
    """f(redo log): its units in order; what they name is read in the log."""
    by_offset = {one.commitlog_offset: one for one in log}
    states: dict[int, int] = {}
    halves: list[Seen] = []
    for at, size, tag in struct.iter_unpack(">qiq", joined(store / "transaction" / "redolog" / REDO_TOPIC / "0")):
        if size == 0:
            break
        require(at in by_offset, f"the redo log names CommitLog offset {at}, where no record begins")
        one = by_offset[at]
        require(size == one.size, f"the redo log states {size} bytes of the record at CommitLog offset {at}")
        if tag == -1:
            halves.append(one)
            states[at] = PREPARED
        elif states.get(tag) == PREPARED:
            states[tag] = one.kind
    return b"".join(slot_bytes(half, states[half.commitlog_offset]) for half in halves)


def slot_bytes(half: Seen, state: int) -> bytes:
    """A slot of the state table."""
    return struct.pack(
        ">qiiii", half.commitlog_offset, half.size, half.seconds, java_hash(half.properties["PGROUP"]), state
    )


def queues(log: list[Seen]) -> dict[tuple[str, int], list[Seen]]:
    """What consumers get: queue offsets without a gap, none twice. Raises PromiseBroken."""
    require_no_gap(log)
    lists: dict[tuple[str, int], list[Seen]] = {}
    for one in log:
        if one.kind in (0, COMMIT):
            lists.setdefault((one.topic, one.queue_id), []).append(one)
    return lists


def require_no_gap(log: Iterable[Seen]) -> None:
    """Each queue numbers its messages 0, 1, 2 and so on. Raises PromiseBroken."""
    following: Counter[tuple[str, int]] = Counter()
    for one in log:
        if one.kind in (0, COMMIT):
            queue = (one.topic, one.queue_id)
            count = following[queue]
            text = f"queue {one.queue_id} of {one.topic}: queue offset {one.queue_offset} follows {count} messages"
            require(one.queue_offset == count, text)
            following[queue] += 1


def is_half_op(store: Path) -> bool:
    """Which engine the store has."""
    stated: dict[str, object] = json.loads((store / "checkback" / "store.json").read_text())
    return stated.get("transactions") == "half-op"


def records_of(store: Path, *, committed: int, rolled_back: int, in_doubt: int = 0) -> int:
    """How many records so many transactions take: an op message ends one besides its delivery, or alone."""
    halves = committed + rolled_back + in_doubt
    return halves + rolled_back + committed * (2 if is_half_op(store) else 1)


def assert_one_truth(store: Path) -> list[Seen]:
    """The live table is both rebuilds, byte for byte; and the ConsumeQueues name the records. Returns the log.

    Raises PromiseBroken.
    """
    log = records(store)
    if is_half_op(store):
        table, live = table_from_half_topic(log), joined(store / "checkback" / "halfstates")
    else:
        table, live = table_from_log(log), joined(store / "transaction" / "statetable")
        require(table_from_redo(store, log) == table, "the redo log and the CommitLog give different state tables")
    require(live == table.ljust(len(live), b"\0"), "the state table on disk is not the one that the CommitLog gives")
    for (topic, queue_id), expected in queues(log).items():
        units = list(struct.iter_unpack(">qiq", joined(store / "consumequeue" / topic / str(queue_id))))
        named = [(at, size) for at, size, _ in units if size]
        agrees = named == [(one.commitlog_offset, one.size) for one in expected]
        require(agrees, f"the ConsumeQueue {topic}/{queue_id} does not name the records of the CommitLog")
    return log
