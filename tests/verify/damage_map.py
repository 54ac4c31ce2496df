"""What every byte of a small store is: the file it lies in, the field it belongs to, the record it is about.

Made from what the broker wrote, not by reading the files, and without code of the verification.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from broker.format import redolog
from broker.format.checkpoint import Checkpoint
from broker.format.commitlog import Record, encode, head_dtype
from broker.format.consumequeue import Unit
from broker.format.index import HEADER_SIZE, SLOT_SIZE, IndexHeader, IndexItem
from broker.format.statetable import Slot
from broker.format.sysflag import TransactionType
from tests.scan.small_broker import INDEX_SLOTS, SmallBroker

UNUSED = "unused"  # zeros that the next message may overwrite
BEHIND_BLANK = "behind the blank"
_COMPARED_CONFIGS = ("topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json")


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes start … stop - 1 of a file."""

    file: str  # path inside the store
    kind: str  # of file
    field: str
    start: int
    stop: int
    role: str = ""  # of a record
    record: int | None = None  # CommitLog offset of the record that this is about
    fixed: bool = True  # one value: its bits have numbers
    half: int | None = None  # CommitLog offset of the half message that the record ends or repeats

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def key(self) -> str:
        """How the table of unprotected bytes calls it."""
        return f"{self.kind}|{self.field}|{self.role}"


def places(broker: SmallBroker, store: Path) -> list[Place]:
    """All of the store, each byte once."""
    found = [*_commitlog(broker), *_derived(broker, store), *_index(broker, store), *_small(store)]
    covered: dict[str, int] = {}
    for place in found:
        covered[place.file] = covered.get(place.file, 0) + len(place)
    sizes = {str(path.relative_to(store)): path.stat().st_size for path in store.rglob("*") if path.is_file()}
    assert covered == {name: size for name, size in sizes.items() if size}, "each byte belongs to one field"
    return found


def _commitlog(broker: SmallBroker) -> Iterator[Place]:
    size, ends = broker.kind.segment_size, {0: 0}
    for record in broker.records:
        at = record.commitlog_offset
        for field, start, stop, fixed in _record_fields(record, broker.kind.record_crc):
            base = at // size * size
            name = f"commitlog/{base:020}"
            role = broker.roles[at]
            half = record.prepared_transaction_offset if record.transaction_type > TransactionType.PREPARED else None
            yield Place(name, "CommitLog record", field, at - base + start, at - base + stop, role, at, fixed, half)
            ends[base] = at - base + stop
    for at in broker.blanks:
        base = at // size * size
        name, start = f"commitlog/{base:020}", at - base
        yield Place(name, "CommitLog blank", "size", start, start + 4)
        yield Place(name, "CommitLog blank", "magic", start + 4, start + 8)
        yield Place(name, "CommitLog blank", BEHIND_BLANK, start + 8, size, fixed=False)
        ends[base] = size
    last = max(ends)
    if ends[last] < size:
        yield Place(f"commitlog/{last:020}", "CommitLog tail", UNUSED, ends[last], size, fixed=False)
    if broker.kind.state_table:  # the segment that a killed broker had allocated ahead
        yield Place(f"commitlog/{last + size:020}", "CommitLog tail", UNUSED, 0, size, fixed=False)


def _record_fields(record: Record, record_crc: bool) -> Iterator[tuple[str, int, int, bool]]:
    at = 0
    for name, kind in head_dtype(born_ipv6=False, store_ipv6=False):
        size = np.dtype(kind).itemsize
        yield name, at, at + size, True
        at += size
    raw = encode(record, record_crc=record_crc)
    length = len(record.topic.encode())
    parts = (("body", len(record.body)), ("topic_length", 1), ("topic", length), ("properties_length", 2))
    for name, size in parts:
        if size:
            yield name, at, at + size, name.endswith("length")
            at += size
    for item in raw[at:].split(b"\x02")[:-1]:
        name = item.partition(b"\x01")[0].decode()
        yield f"name of {name}", at, at + len(name.encode()) + 1, False
        yield f"value of {name}", at + len(name.encode()) + 1, at + len(item), False
        yield f"end of {name}", at + len(item), at + len(item) + 1, False
        at += len(item) + 1
    assert at == len(raw)


def _derived(broker: SmallBroker, store: Path) -> Iterator[Place]:
    kind = broker.kind
    for (topic, queue_id), units in broker.queues.items():
        directory = store / "consumequeue" / topic / str(queue_id)
        yield from _units(store, directory, "ConsumeQueue unit", units, kind.units)
    if kind.state_table:
        directory = store / "transaction" / "redolog" / redolog.TOPIC / "0"
        yield from _units(store, directory, "redo log unit", broker.redo_log, kind.redo_units)
        yield from _units(store, store / "transaction" / "statetable", "state table slot", broker.table, kind.slots)


def _units(store: Path, directory: Path, kind: str, units: Iterable[Unit | Slot], per_file: int) -> Iterator[Place]:
    units = list(units)
    layout: Any = type(units[0])
    for number, unit in enumerate(units):
        at = number % per_file * layout.SIZE
        name = str((directory / f"{(number - number % per_file) * layout.SIZE:020}").relative_to(store))
        yield from _layout(name, kind, layout, at, unit.commitlog_offset)
    rest = -len(units) % per_file
    if rest:
        name = str((directory / f"{len(units) // per_file * per_file * layout.SIZE:020}").relative_to(store))
        end = per_file * layout.SIZE
        yield Place(name, f"{kind.rsplit(' ', 1)[0]} tail", UNUSED, end - rest * layout.SIZE, end, fixed=False)


def _layout(file: str, kind: str, layout: Any, at: int, record: int | None = None) -> Iterator[Place]:
    names = [*layout.OFFSET, None]
    edges = [*layout.OFFSET.values(), layout.SIZE]
    for name, start, stop in zip(names[:-1], edges[:-1], edges[1:], strict=True):
        yield Place(file, kind, str(name), at + start, at + stop, record=record)


def _index(broker: SmallBroker, store: Path) -> Iterator[Place]:
    fit = broker.kind.index_items - 1
    for number, path in enumerate(sorted((store / "index").iterdir())):
        file, part = str(path.relative_to(store)), broker.indexed[number * fit : (number + 1) * fit]
        yield from _layout(file, "index header", IndexHeader, 0)
        for slot in range(INDEX_SLOTS):
            at = HEADER_SIZE + SLOT_SIZE * slot
            yield Place(file, "index slot", "newest item", at, at + SLOT_SIZE)
        at = HEADER_SIZE + SLOT_SIZE * INDEX_SLOTS
        yield Place(file, "index tail", "item 0", at, at + IndexItem.SIZE, fixed=False)
        for _, record, _ in part:
            at += IndexItem.SIZE
            yield from _layout(file, "index item", IndexItem, at, record)
        at += IndexItem.SIZE
        if at < path.stat().st_size:
            yield Place(file, "index tail", UNUSED, at, path.stat().st_size, fixed=False)


def _small(store: Path) -> Iterator[Place]:
    yield from _layout("checkpoint", "checkpoint", Checkpoint, 0)
    yield Place("checkpoint", "checkpoint", "rest", Checkpoint.SIZE, 4096, fixed=False)
    for path in sorted((store / "config").iterdir()):
        name = f"config/{path.name}"
        if path.name in _COMPARED_CONFIGS:
            yield from _json(name, path.name, path.read_text(encoding="utf-8"))
        else:
            yield Place(name, path.name, "any byte", 0, path.stat().st_size, fixed=False)
    for name in ("lock", "abort"):
        path = store / name
        if path.is_file() and path.stat().st_size:
            yield Place(name, name, "any byte", 0, path.stat().st_size, fixed=False)


def _json(file: str, kind: str, text: str) -> Iterator[Place]:
    """Runs of one kind of character; `text` is ASCII."""
    start, inside = 0, False
    kinds = []
    for at, sign in enumerate(text):
        inside = inside != (sign == '"')
        if sign == '"' or (not inside and sign in "{}[],:"):
            kinds.append("punctuation")
        elif inside:
            kinds.append("text")
        else:
            kinds.append("white space" if sign.isspace() else "number" if sign in "-0123456789" else "true or false")
        if at and kinds[at] != kinds[at - 1]:
            yield Place(file, kind, kinds[at - 1], start, at, fixed=False)
            start = at
    yield Place(file, kind, kinds[-1], start, len(text), fixed=False)
