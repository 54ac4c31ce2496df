"""The files beside the CommitLog, value by value: ConsumeQueue, redo log, state table, index, checkpoint, config.

Each function yields entries as `recovery.views.dump_commitlog` does. What a file says is shown as it stands there;
whether it is right is for `recovery.verify.verifier`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from broker.errors import CorruptRecord, StoreError
from broker.format import checkpoint, config, consumequeue
from broker.format.checkpoint import Checkpoint
from broker.format.consumequeue import BatchUnit, Unit
from broker.format.index import IndexHeader, IndexItem, key_hash, key_hash_3_0
from broker.format.kinds.rocksdb_queue import QueueValue
from broker.format.layout import Layout
from broker.format.properties import decimal
from broker.format.redolog import is_prepared
from broker.format.statetable import STATES, Slot
from broker.format.sysflag import TransactionType
from broker.format.topics import SCHEDULE_TOPIC
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths
from broker.store.read.kinds.rocksdb_config import TABLES, read_config_database
from broker.store.read.segments import Segment
from recovery.findings import Findings
from recovery.humanize import moment, printable
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import NumberedUnits, UnitFile
from recovery.verify.index_files import IndexFileView, open_index
from recovery.verify.kinds.rocksdb_queues import RocksDBUnits
from recovery.views.dump_commitlog import DumpEntry, DumpSelection, no_such
from recovery.views.hexdump import Field, layout_fields, plain_fields

_ITEMS_AT_ONCE = 1 << 14


def dump_queue(path: str, name: str, selection: DumpSelection) -> Iterator[DumpEntry]:
    """The units of a queue, `name` is TOPIC/QUEUE; `selection` counts in units: queue offsets, but for batches."""
    files = StoreFiles.open(path)
    topic, _, queue = name.rpartition("/")
    in_rocksdb = files.rocksdb_queues.ends.keys() if files.rocksdb_queues is not None else ()
    queues = sorted({*files.queues(), *files.batch_queues(), *in_rocksdb})
    if (queue_id := decimal(queue)) is None or (topic, queue_id) not in queues:
        of_topic = [f"{one}/{number}" for one, number in queues if one == (topic or name)]
        others = of_topic or [f"{one}/{number}" for one, number in queues]
        raise no_such(f"ConsumeQueue {name!r:.80}: give TOPIC/QUEUE", path, others)
    in_files = UnitFile(files.queue(topic, queue_id), Unit.DTYPE)
    units: NumberedUnits = in_files
    layout: type[Layout] = Unit
    if (topic, queue_id) in files.batch_queues():
        units, layout = files.batch_units(topic, queue_id), BatchUnit
    elif files.rocksdb_queues is not None and not in_files:
        units, layout = RocksDBUnits(files.rocksdb_queues, topic, queue_id), QueueValue
    return selection.first(_values(units, layout, selection, lambda unit: _say_unit(topic, unit)))


def dump_redo_log(path: str, selection: DumpSelection) -> Iterator[DumpEntry]:
    """The units of the transaction redo log of 3.0."""
    files = StoreFiles.open(path)
    if not files.has_redo_log:
        raise StoreError(f"{path} has no redo log: only RocketMQ 3.0.0 to 3.1.4, and checkback, write one", path=path)
    units = UnitFile(files.redo_log, Unit.DTYPE)
    return selection.first(_values(units, Unit, selection, _say_redo))


def dump_state_table(path: str, selection: DumpSelection) -> Iterator[DumpEntry]:
    """The slots of the transaction state table of 3.0."""
    files = StoreFiles.open(path)
    if not files.has_state_table:
        text = f"{path} has no state table: only RocketMQ 3.0.0 to 3.1.4, and checkback, write one"
        raise StoreError(text, path=path)
    units = UnitFile(files.state_table, Slot.DTYPE)
    return selection.first(_values(units, Slot, selection, _say_slot))


def dump_index(path: str, name: str | None, selection: DumpSelection) -> Iterator[DumpEntry]:
    """The items of the index, or of one file of it; with topic and key those that may be of that key."""
    files = StoreFiles.open(path)
    segments = [segment for segment in files.index if name in (None, segment.name)]
    if not segments:
        raise no_such(f"index file {name}" if name else "index", path, [segment.name for segment in files.index])
    if selection.key is not None and selection.topic is None:
        raise StoreError("The index holds hashes of TOPIC#KEY: give --topic together with --key", path=path)
    return selection.first(_index(segments, files.index_counts, selection))


def dump_checkpoint(path: str) -> Iterator[DumpEntry]:
    """The numbers of the file `checkpoint`."""
    file = Paths(StoreFiles.open(path).path).checkpoint
    raw = _read(file)
    try:
        value = checkpoint.decode(raw)
    except CorruptRecord as error:
        raise CorruptRecord(error.reason, path=file) from None
    for field in layout_fields(Checkpoint, raw, 0):
        number = getattr(value, field.name)
        shown = moment(number) if field.name.endswith("_ms") and number > 0 else ""
        line = f"{field.name:<26}  {number:>20}  {shown}".rstrip()
        yield DumpEntry({field.name: number}, line, partial(_one, field), field.raw)


def _one(field: Field) -> Iterator[Field]:
    yield field


def dump_config(path: str, name: str | None) -> tuple[str, Any]:
    """The path and the values of a file under config/; without a name, the names that are there."""
    paths = Paths(StoreFiles.open(path).path)
    directory = paths.config("")
    in_rocksdb = {file: raw for file in TABLES if (raw := read_config_database(file, paths, Disk())) is not None}
    try:
        entries = [entry.name for entry in Disk().entries(directory) if entry.is_file]
    except Missing:
        entries = []
    entries = sorted({*entries, *in_rocksdb})
    if name is None:
        return directory, entries
    found = next((one for one in (name, f"{name}.json") if one in entries), None)
    if found is None:
        raise no_such(f"config/{name}", path, entries)
    file = os.path.join(directory, found)
    try:
        return file, config.loads(in_rocksdb.get(found) or _read(file))
    except CorruptRecord as error:
        raise CorruptRecord(error.reason, at=error.at, path=file) from None


def _read(file: str) -> bytes:
    return Disk().read(file)


def _values(units: NumberedUnits, layout: type[Layout], selection: DumpSelection, say: Any) -> Iterator[DumpEntry]:
    """The values in use with their numbers; a note where some between them are not, or a file is damaged."""
    for damage in units.damages:
        values = {"kind": damage.kind, "position": damage.start, "reason": damage.reason, "file": damage.path}
        line = f"!! {damage.kind}: {printable(damage.path)}: {printable(damage.reason)}"
        yield DumpEntry(values, line, lambda: plain_fields(b"", 0, ""), counts=False, is_damage=True)
    start = units.begin if selection.start is None else max(selection.start, units.begin)
    stop = units.end if selection.end is None else min(selection.end, units.end)
    expected = start
    for first, rows in units.filled(start, stop):
        raw = rows.view(np.uint8).reshape(len(rows), -1)
        for row in np.flatnonzero(raw.any(axis=1)).tolist():
            number = first + row
            if number > expected:
                text = f"{expected:>12}  !! {number - expected} unused values, to {number - 1}"
                values = {"kind": "unused", "first": expected, "count": number - expected}
                yield DumpEntry(values, text, lambda: plain_fields(b"", 0, ""), counts=False, is_damage=True)
            expected = number + 1
            yield _value(layout, number, raw[row].tobytes(), say)


def _value(layout: type[Layout], number: int, raw: bytes, say: Any) -> DumpEntry:
    value: Any = layout.unpack_from(raw)
    kind, sentence = say(value)
    fields = {name: getattr(value, name) for name in layout.OFFSET}
    line = f"{number:>12}  {sentence}"
    return DumpEntry(
        {"kind": kind, "number": number, **fields},
        line,
        lambda: layout_fields(layout, raw, number * layout.SIZE),
        raw,
        is_damage=kind == "damaged",
    )


def _say_unit(topic: str, unit: Unit | QueueValue | BatchUnit) -> tuple[str, str]:
    if isinstance(unit, QueueValue | BatchUnit):
        stored = f"  stored {moment(unit.store_timestamp_ms)}"
        if isinstance(unit, BatchUnit):
            stored += f"  queue offset {unit.queue_offset}, {unit.count} messages"
        kind, text = _say_unit(topic, Unit(unit.commitlog_offset, unit.size, unit.tags_code))
        return kind, text + stored
    if unit.is_filler:
        return "filler", "filler: no message was here when the queue was made"
    if unit.is_end:
        return (
            "damaged",
            f"!! names CommitLog offset {unit.commitlog_offset} and {unit.size} bytes: no record has these",
        )
    place = f"record at {unit.commitlog_offset:>12}  {unit.size:>8} B"
    if consumequeue.is_ext_address(unit.tags_code):
        return "unit", f"{place}  in consumequeue_ext at {consumequeue.ext_position(unit.tags_code)}"
    if topic == SCHEDULE_TOPIC:
        return "unit", f"{place}  due {moment(unit.tags_code)}"
    return "unit", f"{place}  tags {unit.tags_code}"


def _say_redo(unit: Unit) -> tuple[str, str]:
    place = f"record at {unit.commitlog_offset:>12}  {unit.size:>8} B"
    if unit.is_end:
        return "damaged", f"!! {place}: no record has these"
    if is_prepared(unit):
        return "prepared", f"{place}  half message"
    return "end", f"{place}  ends the half message at {unit.tags_code}"


def _say_slot(slot: Slot) -> tuple[str, str]:
    place = f"half message at {slot.commitlog_offset:>12}  {slot.size:>8} B  {moment(slot.store_time_s * 1000)[:-4]}"
    if slot.state not in STATES:
        return "damaged", f"!! {place}  state {slot.state}: there is no such state"
    state = {4: "prepared", 8: "committed", 12: "rolled back"}[TransactionType(slot.state)]
    return "slot", f"{place}  {state:<11}  group hash {slot.group_hash}"


def _index(segments: list[Segment], capacity: tuple[int, int] | None, selection: DumpSelection) -> Iterator[DumpEntry]:
    for segment in segments:
        findings = Findings()
        opened = open_index([segment], findings, capacity=capacity)
        for finding in findings:
            values = {"kind": "damaged", "file": finding.file, "reason": finding.text}
            line = f"!! {printable(finding.file)}: {printable(finding.text)}"
            yield DumpEntry(values, line, lambda: plain_fields(b"", 0, ""), counts=False, is_damage=True)
        for file in opened:
            yield _index_header(file)
            yield from _items(file, selection)


def _index_header(file: IndexFileView) -> DumpEntry:
    header, raw = file.header, file.header.pack()
    values = {"kind": "header", "file": file.segment.path, "slots": file.slots, "items": file.items}
    stored = f"{moment(header.begin_timestamp_ms)} to {moment(header.end_timestamp_ms)}"
    line = f"{file.segment.name}  {file.used:,} of {file.items:,} items, {file.slots:,} slots  {stored}"
    values |= {name: getattr(header, name) for name in IndexHeader.OFFSET}
    return DumpEntry(values, line, lambda: layout_fields(IndexHeader, raw, 0), raw, counts=False)


def _items(file: IndexFileView, selection: DumpSelection) -> Iterator[DumpEntry]:
    codes: set[int] = set()
    if selection.topic is not None and selection.key is not None:
        codes = {key_hash(selection.topic, selection.key), key_hash_3_0(selection.topic, selection.key)}
    start, end = selection.start or 0, selection.end
    for first in range(1, file.used + 1, _ITEMS_AT_ONCE):
        rows = file.read(first, min(_ITEMS_AT_ONCE, file.used + 1 - first))
        wanted = rows["commitlog_offset"] >= start
        if end is not None:
            wanted &= rows["commitlog_offset"] < end
        if codes:
            wanted &= np.isin(rows["key_hash"], list(codes))
        for row in np.flatnonzero(wanted).tolist():
            yield _item(file, first + row, rows[row].tobytes())


def _item(file: IndexFileView, number: int, raw: bytes) -> DumpEntry:
    item = IndexItem.unpack_from(raw)
    stored = moment(file.header.begin_timestamp_ms + 1000 * item.time_diff_s)[:-4]
    line = (
        f"{number:>12}  record at {item.commitlog_offset:>12}  hash {item.key_hash:>11}  stored about {stored}"
        f"  next in its slot {item.previous}"
    )
    values = {"kind": "item", "number": number, **{name: getattr(item, name) for name in IndexItem.OFFSET}}
    return DumpEntry(values, line, lambda: layout_fields(IndexItem, raw, 0), raw)
