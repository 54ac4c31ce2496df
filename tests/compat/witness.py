"""A second, slow reading of a store, written from RocketMQ's format alone: it shares no code with what the tests judge.

It walks the CommitLog record by record and says for each transaction what the records prove. The rules are those that
the project has decided: see `state_table` and `half_op`.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

MAGICS = (0xDAA320A7, 0xDAA320AB)
BLANK = 0xCBD43194
HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PARK = "TRANS_CHECK_MAX_TIME_TOPIC"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
TIMER = "rmq_sys_wheel_timer"
COMPRESSIONS = {0x000: "zlib", 0x100: "lz4", 0x200: "zstd", 0x300: "zlib"}


@dataclass(frozen=True)
class Record:
    """One CommitLog record."""

    commitlog_offset: int
    topic: str
    queue_offset: int
    sysflag: int
    born: int
    names: int
    stored: bytes
    properties: dict[str, str]

    @property
    def kind(self) -> int:
        return self.sysflag & 0xC

    @property
    def key(self) -> str:
        return self.properties.get("KEYS", "").split(" ")[0]

    @property
    def target(self) -> str:
        """The topic that the sender meant."""
        waiting = self.topic in (HALF, PARK, SCHEDULE, TIMER)
        return self.properties.get("REAL_TOPIC", self.topic) if waiting else self.topic

    @property
    def body(self) -> bytes:
        if not self.sysflag & 1:
            return self.stored
        how = COMPRESSIONS[self.sysflag & 0x700]
        if how == "zlib":
            return zlib.decompress(self.stored)
        return bytes(pa.CompressedInputStream(pa.BufferReader(self.stored), how).read())


def records(store: Path) -> Iterator[Record]:
    """Every record of the CommitLog in order, up to the first bytes that are none."""
    for segment in sorted((store / "commitlog").iterdir()):
        data = segment.read_bytes()
        start = int(segment.name)
        position = 0
        while position + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, position)
            if magic == BLANK:
                break
            if magic not in MAGICS:
                return
            yield _record(data[position : position + size], start + position)
            position += size


def _record(data: bytes, at: int) -> Record:
    head = HEAD.unpack_from(data)
    (_, magic, crc, _, _, queue_offset, commitlog_offset, sysflag, born, _, _, _, _, names, body_size) = head
    assert commitlog_offset == at, f"a record says {commitlog_offset} and stands at {at}"
    here = HEAD.size + body_size
    stored = data[HEAD.size : here]
    assert crc == zlib.crc32(stored) & 0x7FFFFFFF, f"the body of the record at {at} is not what was written"
    width = 1 if magic == MAGICS[0] else 2
    topic_size = int.from_bytes(data[here : here + width], "big")
    here += width
    topic = data[here : here + topic_size].decode()
    here += topic_size + 2
    properties = {}
    for item in data[here:].decode().split("\x02"):
        name, _, value = item.partition("\x01")
        properties[name] = value
    return Record(at, topic, queue_offset, sysflag, born, names, stored, properties)


@dataclass
class Transaction:
    """What the records prove about one transaction."""

    key: str
    state: str = "in_doubt"
    halves: list[Record] = field(default_factory=list)
    delivered: list[int] = field(default_factory=list)
    ends: int = 0
    named_by_op: bool = False
    parked: bool = False


@dataclass
class Account:
    """The whole store: its transactions and, for each message key, where its message was found."""

    transactions: list[Transaction] = field(default_factory=list)
    messages: dict[str, set[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(set))
    topics: Counter[str] = field(default_factory=Counter)
    records: int = 0
    copies: int = 0  # committed messages that a consumer sent back
    diverted: int = 0  # half messages that a delay led out of the half topic

    def totals(self) -> dict[str, int]:
        states = Counter(transaction.state for transaction in self.transactions)
        names = ("committed", "rolled_back", "in_doubt", "parked")
        return {"total": len(self.transactions), **{name: states[name] for name in names}}


def take_account(store: Path, version: str) -> Account:
    """Read the whole store."""
    everything = list(records(store))
    account = Account()
    for record in everything:
        account.topics[record.topic] += 1
        if record.kind == 8 and record.names == 0 and record.topic.startswith((SCHEDULE, "%RETRY%", "%DLQ%")):
            account.copies += 1
        account.records += 1
        account.diverted += record.topic in (SCHEDULE, TIMER) and record.properties.get("REAL_TOPIC") == HALF
        if record.key and record.kind != 12:
            body = record.body
            account.messages[record.key].add((record.target, len(body), zlib.crc32(body)))
    account.transactions = state_table(everything) if version == "3.1.4" else half_op(everything)
    return account


def _same(half: Record, end: Record) -> bool:
    """Whether an end that names this half is really its end: one group, one topic, and for a commit one message."""
    same = half.target == end.topic and half.properties.get("PGROUP") == end.properties.get("PGROUP")
    return same and (end.kind == 12 or (half.stored == end.stored and half.born == end.born))


def state_table(everything: list[Record]) -> list[Transaction]:
    """3.x: a prepared record begins a transaction, the first commit or rollback record that names it ends it."""
    found: dict[int, Transaction] = {}
    for record in everything:
        if record.kind == 4:
            found[record.commitlog_offset] = Transaction(record.key, halves=[record])
        elif record.kind and record.names in found and _same(found[record.names].halves[0], record):
            transaction = found[record.names]
            transaction.ends += 1
            if record.kind == 8:
                transaction.delivered.append(record.commitlog_offset)
            if transaction.ends == 1:
                transaction.state = "committed" if record.kind == 8 else "rolled_back"
    return list(found.values())


def half_op(everything: list[Record]) -> list[Transaction]:
    """5.x: all halves of one unique key are a transaction; delivered, else its last half is in an op, else parked."""
    found: dict[str, Transaction] = {}
    owner: dict[int, Transaction] = {}
    ended: set[int] = set()
    for record in everything:
        unique = record.properties.get("UNIQ_KEY", "")
        if record.topic == HALF:
            transaction = found.setdefault(unique, Transaction(record.key))
            transaction.halves.append(record)
            owner[record.commitlog_offset] = transaction
        elif record.topic == OP:
            ended.update(int(number) for number in record.stored.decode().split(",") if number)
        elif record.topic == PARK and unique in found:
            found[unique].parked = True
        elif record.kind == 8 and record.names in owner and _same(owner[record.names].halves[-1], record):
            owner[record.names].delivered.append(record.commitlog_offset)
    for transaction in found.values():
        transaction.ends = len(transaction.delivered)
        transaction.named_by_op = any(half.queue_offset in ended for half in transaction.halves)
        if transaction.delivered:
            transaction.state = "committed"
        elif transaction.halves[-1].queue_offset in ended:
            transaction.state = "rolled_back"
        elif transaction.parked:
            transaction.state = "parked"
    return list(found.values())
