"""Small stores for the tests of this room, written by hand: no code of the room under test has a part in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from broker.format import index, properties
from broker.format.commitlog import BLANK_SIZE, Record, encode, encode_blank, make_record
from broker.format.consumequeue import Unit
from broker.format.index import IndexHeader, IndexItem
from broker.format.java import Host

HOST = Host.parse("127.0.0.1:10911")
SEGMENT_SIZE = 4096
START_MS = 1_700_000_000_000


def record(number: int, commitlog_offset: int, *, topic: str = "orders", body: bytes | None = None) -> Record:
    """The record of message `number`, stored `number` seconds after START_MS."""
    return make_record(
        topic,
        b"body %d" % number if body is None else body,
        properties.encode({"KEYS": f"key-{number}", "UNIQ_KEY": f"UNIQUE{number}"}),
        born_host=HOST,
        store_host=HOST,
        born_timestamp_ms=START_MS + 1000 * number,
        store_timestamp_ms=START_MS + 1000 * number,
        queue_offset=number,
        commitlog_offset=commitlog_offset,
    )


class Log:
    """A CommitLog in memory: a run of segments."""

    def __init__(self, base: int = 0, segment_size: int = SEGMENT_SIZE) -> None:
        self.base, self.segment_size = base, segment_size
        self.data = bytearray()
        self.records: list[Record] = []

    def append(self, count: int = 1, *, body: bytes | None = None, topic: str = "orders") -> list[Record]:
        """Append messages as RocketMQ does: what does not fit goes into the next segment."""
        for _ in range(count):
            number = len(self.records)
            raw = encode(record(number, self.base + len(self.data), body=body, topic=topic))
            room = self.segment_size - len(self.data) % self.segment_size
            if len(raw) + BLANK_SIZE > room:
                self.data += encode_blank(room).ljust(room, b"\0")
            made = record(number, self.base + len(self.data), body=body, topic=topic)
            self.data += encode(made)
            self.records.append(made)
        return self.records[-count:]

    @property
    def end(self) -> int:
        return self.base + len(self.data)

    def write(self, store: Path, *, spare: bool = False) -> Path:
        """Write the segments, full size; `spare` adds one that is allocated ahead."""
        directory = store / "commitlog"
        directory.mkdir(parents=True, exist_ok=True)
        count = -(-len(self.data) // self.segment_size) or 1
        for number in range(count + spare):
            piece = self.data[number * self.segment_size : (number + 1) * self.segment_size]
            path = directory / f"{self.base + number * self.segment_size:020}"
            path.touch()
            with path.open("r+b") as file:  # in place: a broker never makes a segment shorter
                file.write(piece.ljust(self.segment_size, b"\0"))
        return store


def write_queue(
    store: Path, units: Sequence[Unit], *, topic: str = "orders", queue_id: int = 0, per_file: int = 8
) -> None:
    """A ConsumeQueue from queue offset 0 on."""
    directory = store / "consumequeue" / topic / str(queue_id)
    directory.mkdir(parents=True, exist_ok=True)
    for first in range(0, max(len(units), 1), per_file):
        raw = b"".join(unit.pack() for unit in units[first : first + per_file])
        (directory / f"{first * Unit.SIZE:020}").write_bytes(raw.ljust(per_file * Unit.SIZE, b"\0"))


def units_of(records: Iterable[Record]) -> list[Unit]:
    return [Unit(record.commitlog_offset, len(encode(record)), 0) for record in records]


def write_index(
    store: Path, records: Sequence[Record], *, slots: int, items: int, name: str = "20231114221320000"
) -> Path:
    """An index file of 5.x over the KEYS of some records."""
    raw = bytearray(index.file_size(slots, items))
    begin_ms = records[0].store_timestamp_ms if records else 0
    number = 1
    for entry in records:
        for key in properties.keys(entry.property_map):
            code = index.key_hash(entry.topic, key)
            slot = index.slot_at(code % slots)
            previous = int.from_bytes(raw[slot : slot + 4], "big")
            diff_s = (entry.store_timestamp_ms - begin_ms) // 1000
            at = index.item_at(number, slots)
            raw[at : at + 20] = IndexItem(code, entry.commitlog_offset, diff_s, previous).pack()
            raw[slot : slot + 4] = number.to_bytes(4, "big")
            number += 1
    if records:
        last = records[-1]
        header = IndexHeader(
            begin_ms, last.store_timestamp_ms, records[0].commitlog_offset, last.commitlog_offset, 1, number
        )
        raw[:40] = header.pack()
    path = store / "index" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)
    return path
