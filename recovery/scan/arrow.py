"""Records as Arrow batches: a typed column for each field, decoded only when it is asked for.

The local engine, Spark, and programs that read a CommitLog with pyarrow, polars or DuckDB get the same columns by the
same code.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from broker.format import properties as names
from broker.format.commitlog import MAGIC_V2
from broker.format.sysflag import BORN_IPV6, STORE_IPV6
from broker.store.disk.files import Disk
from broker.store.disk.paths import given_path
from broker.store.read.segments import Listing
from broker.store.read.store import check_whole
from broker.store.recover.watermark import read_watermark
from broker.transaction.events import EventKind
from recovery.scan.framing import walk
from recovery.scan.kinds import Kinds
from recovery.scan.native.columns import Wants
from recovery.scan.records import Bytes, Records
from recovery.scan.scanner import Scan, is_doubtful
from recovery.scan.store_files import StoreFiles
from recovery.scan.strings import StringColumn, utf8

_KINDS = [kind.name.lower() for kind in EventKind]


def _number(name: str, kind: pa.DataType) -> Callable[[Records], pa.Array]:
    # A copy: a batch that is kept must not keep every column of its window.
    return lambda records: pa.array(records.field(name).copy()).cast(kind, safe=False)


def _text(name: str) -> Callable[[Records], pa.Array]:
    return lambda records: utf8(records.property(name))


def _host(side: str, flag: int) -> Callable[[Records], pa.Array]:
    def column(records: Records) -> pa.Array:
        addresses, ports = records.address(f"{side}_address"), records.field(f"{side}_port")
        rows = np.zeros((len(records), 24), np.uint8)
        raw = np.ascontiguousarray(addresses).view(np.uint8).reshape(len(records), -1)
        rows[:, : raw.shape[1]] = raw
        rows[:, 16] = (records.sys_flags & flag) != 0
        rows[:, 20:] = ports.astype(">i4").view(np.uint8).reshape(-1, 4)
        distinct, codes = np.unique(rows.view("V24").reshape(-1), return_inverse=True)
        texts = pa.array([_host_text(value.tobytes()) for value in distinct], pa.string())
        return texts.take(pa.array(codes.reshape(-1)))

    return column


def _host_text(raw: bytes) -> str:
    address = ipaddress.ip_address(raw[:16] if raw[16] else raw[:4])
    port = int.from_bytes(raw[20:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _kind(records: Records) -> pa.Array:
    return pa.DictionaryArray.from_arrays(Kinds(records).events.astype(np.int8), _KINDS).cast(pa.string())


def _crc_ok(records: Records) -> pa.Array:
    good = np.ones(len(records), np.bool_)
    good[records.bad_crcs()] = False
    return pa.array(good)


def _properties(records: Records) -> pa.Array:
    """All properties as a map; of a name that stands twice the last, as RocketMQ takes it."""
    rows, item_names, values = records.properties.all_properties()
    codes = StringColumn(item_names).codes()[0].astype(np.int64) if len(rows) else np.zeros(0, np.int64)
    together = rows * (int(codes.max(initial=0)) + 1) + codes
    _, last = np.unique(together[::-1], return_index=True)
    kept = np.sort(len(rows) - 1 - last)
    offsets = np.searchsorted(rows[kept], np.arange(len(records) + 1))
    taken = pa.array(kept)
    keys, items = utf8(item_names.take(taken)), utf8(values.take(taken))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items)


# Each column: its type, what it means (docs/format.md prints it), and how it is made.
COLUMNS: dict[str, tuple[pa.DataType, str, Callable[[Records], pa.Array]]] = {
    "commitlog_offset": (pa.int64(), "where the record begins", lambda records: pa.array(records.offsets.copy())),
    "size": (pa.int32(), "of the record, in bytes", _number("total_size", pa.int32())),
    "version": (
        pa.int8(),
        "1, or 2 where the topic is long",
        lambda records: pa.array(np.where(records.field("magic") == MAGIC_V2, 2, 1).astype(np.int8)),
    ),
    "topic": (pa.string(), "the record's own topic", lambda records: utf8(records.topics.array)),
    "queue_id": (pa.int32(), "", _number("queue_id", pa.int32())),
    "queue_offset": (
        pa.int64(),
        "place in the queue; of a 3.x prepared record its slot",
        _number("queue_offset", pa.int64()),
    ),
    "kind": (pa.string(), "what it says: plain, prepared, committed, rolled_back, half, op, parked", _kind),
    "sys_flag": (pa.int32(), "transaction type, compression, address families", _number("sys_flag", pa.int32())),
    "flag": (pa.int32(), "the application's", _number("flag", pa.int32())),
    "born_timestamp_ms": (pa.int64(), "the producer's clock", _number("born_timestamp_ms", pa.int64())),
    "born_host": (pa.string(), "the producer's address", _host("born", BORN_IPV6)),
    "store_timestamp_ms": (pa.int64(), "the broker's clock", _number("store_timestamp_ms", pa.int64())),
    "store_host": (pa.string(), "the broker's address", _host("store", STORE_IPV6)),
    "reconsume_times": (pa.int32(), "how often a consumer sent it back", _number("reconsume_times", pa.int32())),
    "prepared_transaction_offset": (
        pa.int64(),
        "of an end: the CommitLog offset of the half it names",
        _number("prepared_transaction_offset", pa.int64()),
    ),
    "producer_group": (pa.string(), "property PGROUP", _text(names.PGROUP)),
    "tag": (pa.string(), "property TAGS", _text(names.TAGS)),
    "keys": (pa.string(), "property KEYS, parts separated by a space", _text(names.KEYS)),
    "unique_key": (pa.string(), "property UNIQ_KEY", _text(names.UNIQ_KEY)),
    "real_topic": (
        pa.string(),
        "property REAL_TOPIC: where a half or delayed message is meant for",
        _text(names.REAL_TOPIC),
    ),
    "properties": (pa.map_(pa.string(), pa.string()), "all of them", _properties),
    "body_crc": (pa.int32(), "of the body as stored", _number("body_crc", pa.int32())),
    "body_length": (pa.int32(), "of the body as stored", _number("body_length", pa.int32())),
    "body": (pa.binary(), "as stored, maybe compressed", lambda records: records.bodies.array),
    "crc_ok": (pa.bool_(), "whether the body, and the record where it says, has the CRC it states", _crc_ok),
}

SCHEMA = pa.schema([pa.field(name, kind, metadata={"doc": doc}) for name, (kind, doc, _) in COLUMNS.items()])


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of some columns (None: all), in the order asked for. Raises KeyError for a column there is not."""
    for name in columns or ():
        if name not in COLUMNS:
            raise KeyError(f"a CommitLog has no column {name}; it has {', '.join(COLUMNS)}")
    return SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns])


# The columns that are one property.
_PROPERTY_OF = {
    "producer_group": names.PGROUP,
    "tag": names.TAGS,
    "keys": names.KEYS,
    "unique_key": names.UNIQ_KEY,
    "real_topic": names.REAL_TOPIC,
}


def wants_of(columns: Sequence[str] | None) -> Wants:
    """What a scan makes in its pass, so that these columns (None: all) are there."""
    asked = COLUMNS.keys() if columns is None else set(columns)
    found = tuple(name for column, name in _PROPERTY_OF.items() if column in asked)
    return Wants("crc_ok" in asked, texts=bool(found), properties=found)


def record_batch(records: Records, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """These records as one batch with the wanted columns (None: all). Raises KeyError for a column there is not."""
    schema = schema_of(columns)
    arrays = [COLUMNS[name][2](records) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batches(
    buffer: Any, base: int, segment_end: int, columns: Sequence[str] | None = None, *, rows: int = 4096
) -> Iterator[pa.RecordBatch]:
    """The records of any bytes that begin with a record at CommitLog offset `base`, as batches of at most `rows`.

    `columns` None: all. Ends where the records do; `recovery.scan.scanner` reads past damage. `segment_end` is the
    CommitLog offset where the segment ends. Raises KeyError for a column there is not.
    """
    window: Bytes = np.frombuffer(buffer, np.uint8)
    step = walk(window, base, segment_end)
    for first in range(0, len(step.records), rows):
        yield record_batch(step.records.take(slice(first, first + rows)), columns)


def scan(
    path: str | os.PathLike[str],
    *,
    start: int = 0,
    end: int | None = None,
    columns: Sequence[str] | None = None,
    rows: int = 4096,
) -> Iterator[pa.RecordBatch]:
    """The records of a store whose CommitLog offset lies in [start, end), as Arrow batches of at most `rows`.

    `start` may lie anywhere: the scan begins at the first true record at or after it. `end` None: to the end that the
    log has now, of a store of ours what is published; `columns` None: all, in the order of COLUMNS. Damage is passed
    over; `Scan` says what it was.

    Raises ValueError for `rows` below 1 and for no column at all, KeyError for a column there is not, BrokerError for a
    number or a path that is none; at the first batch NotAStore where there is none, StoreError for files that this user
    may not read.
    """
    given_path(path)
    for name, number in (("start", start), ("end", 0 if end is None else end), ("rows", rows)):
        check_whole(name, number)
    if rows < 1:
        raise ValueError(f"a batch has at least 1 row, not {rows}")
    if columns is not None:
        columns = _names_of(columns)
    schema_of(columns)
    return _scanned(path, start, end, columns, rows)


def _names_of(columns: object) -> tuple[str, ...]:
    """The names of columns, also from what can be iterated over only once."""
    names_given = tuple(columns) if isinstance(columns, Iterable) and not isinstance(columns, str | bytes) else ()
    if not names_given:
        raise ValueError(f'columns is a list of names, as ["kind"], or None for all columns, not {columns!r:.200}')
    return names_given


def _scanned(
    path: str | os.PathLike[str], start: int, end: int | None, columns: Sequence[str] | None, rows: int
) -> Iterator[pa.RecordBatch]:
    files = StoreFiles.open(path, read_watermark(given_path(path), Disk()))
    for records in _records_from(files.compared, start, end, wants_of(columns)):
        for first in range(0, len(records), rows):
            yield record_batch(records.take(slice(first, first + rows)), columns)


def _records_from(listing: Listing, start: int, end: int | None, wants: Wants) -> Iterator[Records]:
    """The records whose offset lies in [start, end), where `start` lies anywhere."""
    segment = listing.at(start)
    found = iter(Scan(listing, start, end, resync=True, wants=wants))
    first = next(found, None)
    if first is None:
        return
    place = int(first.offsets[0])
    is_inside = segment is not None and segment.base < start <= place < segment.base + segment.size
    if segment is None or not is_inside or not is_doubtful(segment, place, listing.segment_size):
        yield first
        yield from found
        return
    for records in Scan(listing, segment.base, end, wants=wants):
        own = records.take(slice(int(np.searchsorted(records.offsets, start)), None))
        if len(own):
            yield own
