"""The CommitLog record by record: what each says, and where what is not a record stands between them.

    for entry in dump_commitlog("shop.store", Selection(topic="orders")):
        entry.line, entry.values, entry.fields()

A dump never stops at damage: it shows it in its place and goes on behind it. Nothing on disk is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from broker.errors import CorruptRecord, StoreError
from broker.format import properties as names
from broker.format.commitlog import Record, crc_fault, decode
from broker.format.record import opmessage
from broker.format.sysflag import TransactionType
from broker.store.disk.files import Missing
from broker.transaction.events import PARKED_OFFSET, EventKind, Identity, checks, kind_of, names_half, target_topic
from recovery.humanize import count, moment, printable
from recovery.scan.records import Records
from recovery.scan.scanner import Damage, Scan
from recovery.scan.store_files import StoreFiles
from recovery.views.hexdump import Field, plain_fields, record_fields

DAMAGE_BYTES = 64  # of what is not a record, with --hex
_OPS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class DumpSelection:
    """What to show: from one place to another, at most so many, of a topic (or meant for it), with a key."""

    start: int | None = None
    end: int | None = None
    limit: int | None = None
    topic: str | None = None
    key: str | None = None

    def first(self, entries: Iterator[DumpEntry]) -> Iterator[DumpEntry]:
        """The entries up to the limit, which counts what holds a value and not the notes between."""
        shown = 0
        if self.limit == 0:
            return
        for entry in entries:
            yield entry
            shown += entry.counts
            if shown == self.limit:
                return


@dataclass(frozen=True, slots=True)
class DumpEntry:
    """One thing that stands in a file: as JSON values, as a line, and on request byte by byte."""

    values: dict[str, Any]
    line: str
    fields: Callable[[], Iterator[Field]]
    raw: bytes = b""
    counts: bool = True  # False: a note between the values, as of damage
    is_damage: bool = False


def dump_commitlog(
    path: str | os.PathLike[str], selection: DumpSelection, progress: Callable[[int, int], None] | None = None
) -> Iterator[DumpEntry]:
    """Every record from `selection.start` on (or the first true one behind it), damage and blanks in their places.

    `progress` gets the bytes read, and the bytes in all.
    """
    return selection.first(_LogDump(StoreFiles.open(path), selection, progress).entries())


class _LogDump:
    """One pass over the CommitLog."""

    def __init__(
        self, files: StoreFiles, selection: DumpSelection, progress: Callable[[int, int], None] | None
    ) -> None:
        self._files, self._selection = files, selection
        start = files.commitlog.begin if selection.start is None else selection.start
        resync = selection.start is not None
        self._scan = Scan(files.commitlog, start=start, end=selection.end, resync=resync)
        if progress is not None:
            self._scan.progress = lambda done: progress(done, files.commitlog_bytes)
        self._shown: set[Damage] = set()
        self._first: Record | None = None  # the record at CommitLog offset 0, to tell redeliveries from its ends
        self._is_first_read = False

    def entries(self) -> Iterator[DumpEntry]:
        at: int | None = None
        for records in self._scan:
            which = _candidates(records, self._selection)
            for position, commitlog_offset, size in zip(
                records.at[which].tolist(), records.offsets[which].tolist(), records.sizes[which].tolist(), strict=True
            ):
                yield from self._damages(commitlog_offset)
                if at is not None and at < commitlog_offset and not self._selection.topic and not self._selection.key:
                    yield from self._blank(at, commitlog_offset)
                at = commitlog_offset + size
                entry = self._record(records.window[position : position + size].tobytes(), commitlog_offset)
                if entry is not None:
                    yield entry
        yield from self._damages(None)

    def _damages(self, before: int | None) -> Iterator[DumpEntry]:
        """What was found damaged below an offset and was not shown yet."""
        low, high = self._scan.start, self._selection.end
        for damage in sorted(self._scan.damages, key=lambda damage: damage.commitlog_offset):
            at = damage.commitlog_offset
            is_due = (before is None or at < before) and at + damage.size > low and (high is None or at < high)
            if is_due and damage not in self._shown:
                self._shown.add(damage)
                yield self._damage(damage)

    def _damage(self, damage: Damage) -> DumpEntry:
        at = damage.commitlog_offset
        values = {"kind": damage.kind, "commitlog_offset": at, "size": damage.size}
        values |= {"reason": damage.reason, "file": damage.file}
        text = f"{at:>12}  !! {damage.kind}: {printable(damage.reason)} ({damage.size} bytes, {printable(damage.file)})"
        raw = self._bytes(at, min(damage.size, DAMAGE_BYTES))
        return DumpEntry(values, text, lambda: plain_fields(raw, at, "no record"), raw, counts=False, is_damage=True)

    def _blank(self, at: int, following: int) -> Iterator[DumpEntry]:
        """The blank between the last record of a segment and the first of the next one."""
        segment = self._files.commitlog.at(at)
        end = following if segment is None else segment.base + self._files.commitlog.segment_size
        if segment is None or end != following or any(at <= damage.commitlog_offset < end for damage in self._shown):
            return
        raw = self._bytes(at, 8)
        text = f"{at:>12}  {end - at:>8} B  the segment ends here: a blank"
        values = {"kind": "blank", "commitlog_offset": at, "size": end - at}
        yield DumpEntry(values, text, lambda: plain_fields(raw, at, "blank"), raw, counts=False)

    def _bytes(self, at: int, size: int) -> bytes:
        segment = self._files.commitlog.at(at)
        try:
            return b"" if segment is None else self._files.read(segment, at - segment.base, size).tobytes()
        except Missing:
            return b""

    def _record(self, raw: bytes, commitlog_offset: int) -> DumpEntry | None:
        """The record, unless the selection leaves it out."""
        try:
            record = decode(raw, commitlog_offset=commitlog_offset, check_crc=False)
        except CorruptRecord as error:  # its topic is not UTF-8: no name would show what stands there
            reason = f"the record cannot be read: {error.reason}"
            return self._damage(
                Damage("corrupt-region", commitlog_offset, len(raw), reason, self._file(commitlog_offset))
            )
        properties = record.property_map
        if not _is_wanted(record, properties, self._selection):
            return None
        says, what = self._says(record, properties)
        fault = crc_fault(record, raw)
        values = {**_values(record, properties), "says": says, **what}
        if fault:
            values["damage"] = fault
        text = _line(record, properties, _sentence(record, properties, says, what)) + (f"  !! {fault}" if fault else "")
        return DumpEntry(values, text, lambda: record_fields(raw, commitlog_offset), raw, is_damage=fault is not None)

    def _file(self, commitlog_offset: int) -> str:
        return self._files.commitlog_file(commitlog_offset)

    def _says(self, record: Record, properties: dict[str, str]) -> tuple[str, dict[str, Any]]:
        """What the record says about a transaction, and which half message it means."""
        kind = kind_of(record.topic, record.transaction_type)
        if kind is EventKind.COMMITTED and self._is_redelivery(record):
            return "redelivered", {}
        what: dict[str, Any] = {}
        if kind is EventKind.PREPARED:
            what = {"slot": record.queue_offset}
        elif kind in (EventKind.COMMITTED, EventKind.ROLLED_BACK):
            what = {"half_offset": record.prepared_transaction_offset}
        elif kind is EventKind.HALF:
            what = {"checks": checks(properties)}
        elif kind is EventKind.OP:
            try:
                what = {"half_queue_offsets": list(opmessage.decode(record.body))}
            except CorruptRecord as error:
                what = {"damage": error.reason}
        elif kind is EventKind.PARKED:
            half_offset = names.decimal(properties.get(PARKED_OFFSET, ""))
            what = {} if half_offset is None else {"half_offset": half_offset}
        return kind.name.lower(), what

    def _is_redelivery(self, record: Record) -> bool:
        """Whether a COMMIT that names offset 0 only repeats a message, as retries and delays do."""
        if record.prepared_transaction_offset != 0:
            return False
        if not self._is_first_read:
            self._is_first_read = True
            raw = self._bytes(0, 1 << 20)
            try:
                self._first = decode(raw, commitlog_offset=0, check_crc=False)
            except CorruptRecord:
                self._first = None
        if self._first is None or kind_of(self._first.topic, self._first.transaction_type) not in _HALVES:
            return True
        return not names_half(_identity(self._first), _identity(record), rolls_back=False)


_HALVES = (EventKind.PREPARED, EventKind.HALF)


def _identity(record: Record) -> Identity:
    properties = record.property_map
    target = target_topic(record.topic, properties)
    return Identity(properties.get(names.PGROUP, ""), target, record.body_crc, record.born_timestamp_ms)


def _candidates(records: Records, selection: DumpSelection) -> Any:
    """The records that may be wanted, by their bytes: a scan for one key decodes only what has it."""
    mask = np.ones(len(records), np.bool_)
    for text in filter(None, (selection.topic, selection.key)):
        found = np.asarray(pc.match_substring(records.properties.array, text))
        if text is selection.topic:
            found = found | np.asarray(pc.equal(records.topics.array, text.encode()))
        mask &= found
    return np.flatnonzero(mask)


def _is_wanted(record: Record, properties: dict[str, str], selection: DumpSelection) -> bool:
    topic, key = selection.topic, selection.key
    if topic is not None and topic not in (record.topic, target_topic(record.topic, properties)):
        return False
    return key is None or key in names.keys(properties) or key == properties.get(names.UNIQ_KEY)


def _values(record: Record, properties: dict[str, str]) -> dict[str, Any]:
    return {
        "kind": "record",
        "commitlog_offset": record.commitlog_offset,
        "size": record.total_size,
        "version": record.version,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "target_topic": target_topic(record.topic, properties),
        "producer_group": properties.get(names.PGROUP, ""),
        "keys": names.keys(properties),
        "unique_key": properties.get(names.UNIQ_KEY),
        "born_timestamp_ms": record.born_timestamp_ms,
        "store_timestamp_ms": record.store_timestamp_ms,
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "sys_flag": record.sys_flag,
        "flag": record.flag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_length": len(record.body),
        "body_crc": record.body_crc,
        "properties": properties,
    }


def _sentence(record: Record, properties: dict[str, str], says: str, what: dict[str, Any]) -> str:
    """What the record says, for people."""
    half = what.get("half_offset")
    if says == "prepared":
        return f"half message, slot {record.queue_offset}"
    if says == "half":
        asked = f", asked {count(what['checks'], 'time')}" if what["checks"] else ""
        return f"half message for {target_topic(record.topic, properties)}{asked}"
    if says == "op":
        numbers = what.get("half_queue_offsets")
        if numbers is None:
            return f"op message: {what['damage']}"
        more = f" and {len(numbers) - _OPS_SHOWN} more" if len(numbers) > _OPS_SHOWN else ""
        return f"op message, ends half messages {', '.join(map(str, numbers[:_OPS_SHOWN]))}{more}"
    if says == "parked":
        return "parks a half message" if half is None else f"parks the half message at {half}"
    sentences = {
        "committed": f"commits the half message at {half}",
        "rolled_back": f"rolls back the half message at {half}",
        "redelivered": "message, delivered again",
    }
    return sentences.get(says, "message")


def _line(record: Record, properties: dict[str, str], sentence: str) -> str:
    details = {
        "group": properties.get(names.PGROUP, ""),
        "tag": properties.get(names.TAGS, ""),
        "keys": " ".join(names.keys(properties)),
        "id": properties.get(names.UNIQ_KEY, ""),
    }
    numbered = record.transaction_type in (TransactionType.NONE, TransactionType.COMMIT)
    place = f"{record.topic}/{record.queue_id}" + (f"@{record.queue_offset}" if numbered else "")
    line = "  ".join(f"{name}={value}" for name, value in details.items() if value)
    head = f"{record.commitlog_offset:>12}  {record.total_size:>8} B  {moment(record.store_timestamp_ms)}"
    return f"{head}  {printable(place)}  {printable(sentence)}  {printable(line)}".rstrip()


def no_such(what: str, path: str, others: list[str]) -> StoreError:
    """An error that names what there is instead."""
    shown = ", ".join(others[:10]) + (f" and {len(others) - 10} more" if len(others) > 10 else "")
    next_step = f"There {'is' if len(others) == 1 else 'are'}: {shown}" if others else "There is none"
    return StoreError(f"{path} has no {what}. {next_step}", path=path)
