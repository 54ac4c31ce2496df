"""Every Arrow column against `broker.format.commitlog.decode`, on real stores and on any record that can be written."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BrokerError, CorruptRecord, MessageRejected, NotAStore
from broker.format.commitlog import BLANK_SIZE, BODY_AT, MAGIC_BLANK, MAGIC_V2, Record, decode, encode
from recovery.rebuild import rebuild
from recovery.repair.crash import survey
from recovery.scan import scan
from recovery.scan.arrow import COLUMNS, SCHEMA, batches
from recovery.verify import verify
from tests.format.strategies import records
from tests.scan.effort import tries
from tests.scan.logs import Log, Wanted, logs
from tests.scan.property_bytes import raw_properties

STORES = [
    "rocketmq-3.1.5-clean",
    "rocketmq-3.1.5-killed",
    "rocketmq-3.1.5-recovered",
    "rocketmq-5.3.3-clean",
    "rocketmq-5.3.3-killed",
]
SYSTEM = {
    "RMQ_SYS_TRANS_HALF_TOPIC": "half",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": "op",
    "TRANS_CHECK_MAX_TIME_TOPIC": "parked",
}
TYPES = ("plain", "prepared", "committed", "rolled_back")


def row_of(record: Record, raw: bytes, crc_ok: bool) -> dict[str, Any]:
    """What each column must hold for a record that one reader decoded."""
    found = record.property_map
    row = {
        "size": len(raw),
        "version": 2 if record.magic == MAGIC_V2 else 1,
        "kind": SYSTEM.get(record.topic) or TYPES[record.sys_flag >> 2 & 3],
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "producer_group": found.get("PGROUP"),
        "tag": found.get("TAGS"),
        "keys": found.get("KEYS"),
        "unique_key": found.get("UNIQ_KEY"),
        "real_topic": found.get("REAL_TOPIC"),
        "properties": found,
        "body_length": len(record.body),
        "crc_ok": crc_ok,
    }
    return {name: row[name] if name in row else getattr(record, name) for name in COLUMNS}


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = batch.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"])
    return rows


def decoded(raw: bytes, offset: int) -> dict[str, Any]:
    """The row of the record that fills `raw`."""
    record = decode(raw, commitlog_offset=offset, check_crc=False)
    try:
        decode(raw)
        crc_ok = True
    except CorruptRecord:
        crc_ok = False
    return row_of(record, raw, crc_ok)


def raw_records(store: Path) -> Iterator[tuple[int, bytes]]:
    """The records of a whole store, found by nothing but their lengths."""
    for path in sorted((store / "commitlog").iterdir()):
        held, at = path.read_bytes(), 0
        while at + BLANK_SIZE <= len(held):
            size, magic = struct.unpack_from(">ii", held, at)
            if size == 0 or magic == MAGIC_BLANK:
                break
            yield int(path.name) + at, held[at : at + size]
            at += size


@pytest.mark.parametrize("name", STORES)
def test_columns_of_real_stores(golden: Callable[[str], Path], name: str) -> None:
    store = golden(name)
    found = (row for batch in scan(store, rows=1000) for row in rows_of(batch))
    count = 0
    for row, (offset, raw) in zip(found, raw_records(store), strict=True):
        assert row == decoded(raw, offset)
        count += 1
    assert count > 2000


@st.composite
def hard_records(draw: st.DrawFn) -> bytes:
    """Any record, with any bytes for properties, sometimes with a CRC of the whole, sometimes with a flipped body."""
    record = draw(records())
    if draw(st.booleans()):
        record = replace(record, properties=draw(raw_properties))
    if draw(st.booleans()):
        record = replace(record, topic=draw(st.sampled_from([*SYSTEM, "SCHEDULE_TOPIC_XXXX"])))
    return _encoded(record, draw(st.booleans()))


def _encoded(record: Record, record_crc: bool) -> bytes:
    try:
        return encode(record, record_crc=record_crc)
    except MessageRejected:  # properties that look like a damaged record CRC
        return encode(replace(record, properties=b""))


def placed(raws: list[bytes], base: int) -> list[bytes]:
    """The records one after another, each with its true offset; CRCs made anew."""
    found, at = [], base
    for raw in raws:
        found.append(encode(replace(decode(raw, check_crc=False), commitlog_offset=at)))
        at += len(raw)
    return found


@tries(40)
@given(st.lists(hard_records(), max_size=6), st.sampled_from((0, 1 << 30, 5 << 40)), st.data())
def test_columns_of_any_records(raws: list[bytes], base: int, data: st.DataObject) -> None:
    held = placed(raws, base)
    if held and data.draw(st.booleans()):  # a changed body is still a record
        number = data.draw(st.integers(0, len(held) - 1))
        record = decode(held[number])
        if record.body:
            at = BODY_AT[record.born_host.is_ipv6, record.store_host.is_ipv6]
            held[number] = held[number][:at] + bytes([held[number][at] ^ 1]) + held[number][at + 1 :]
    whole = b"".join(held)
    rows = data.draw(st.integers(1, 4))
    found = list(batches(whole, base, base + len(whole) + BLANK_SIZE, rows=rows))
    assert all(batch.schema == SCHEMA and 0 < batch.num_rows <= rows for batch in found)
    wanted = [decoded(raw, base + sum(map(len, held[:number]))) for number, raw in enumerate(held)]
    assert [row for batch in found for row in rows_of(batch)] == wanted


@tries(20)
@given(logs(min_size=1), st.data())
def test_scan_gives_the_wanted_rows_and_columns(log: Log, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, log.end))
    end = data.draw(st.none() | st.integers(0, log.end + 10))
    columns = data.draw(st.none() | st.lists(st.sampled_from(list(COLUMNS)), unique=True, min_size=1))
    with tempfile.TemporaryDirectory() as directory:
        store = log.write(Path(directory) / "store")
        found = list(scan(store, start=start, end=end, columns=columns, rows=data.draw(st.integers(1, 9))))
    wanted = [
        {name: value for name, value in decoded(raw, offset).items() if columns is None or name in columns}
        for offset, raw in log.records.items()
        if offset >= start and (end is None or offset < end)
    ]
    rows = [
        {**row, **({"properties": dict(row["properties"])} if "properties" in row else {})}
        for b in found
        for row in b.to_pylist()
    ]
    assert rows == wanted
    assert all(batch.schema.names == (columns or SCHEMA.names) for batch in found)


def test_no_records_make_empty_columns() -> None:
    found = next(iter(batches(encode(decode(_one())), 0, 4096)))
    assert found.num_rows == 1
    assert list(batches(b"", 0, 4096)) == []
    assert list(batches(bytes(4096), 0, 4096)) == []


def test_a_column_there_is_not_and_a_store_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        next(iter(batches(_one(), 0, 4096, ["colour"])))
    with pytest.raises(NotAStore):
        next(iter(scan(tmp_path / "nothing")))


def _one() -> bytes:
    log = Log(4096)
    log.append(Wanted())
    return log.records[0]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"rows": 0}, "at least 1 row, not 0"),
        ({"rows": -1}, "at least 1 row, not -1"),
        ({"columns": []}, "a list of names"),
        ({"columns": "kind"}, "a list of names"),
        ({"columns": 5}, "a list of names"),
        ({"rows": None}, "rows is a whole number, not None"),
        ({"start": "0"}, "start is a whole number"),
        ({"end": 1.5}, "end is a whole number"),
        ({"columns": ["kind", "colour"]}, "no column colour; it has commitlog_offset"),
    ],
)
def test_what_would_give_too_few_rows_is_refused(asked: dict[str, Any], sentence: str) -> None:
    """A batch of -1 rows, or of no columns, was none: a sum of rows was 0, without a word. At the call, not later."""
    with pytest.raises((ValueError, KeyError, BrokerError), match=sentence):
        scan("shop.store", **asked)


def test_columns_that_can_be_iterated_over_once(tmp_path: Path) -> None:
    """They were checked, and then gone: there was one batch of no rows."""
    log = Log(4096)
    log.append(Wanted())
    found = list(scan(log.write(tmp_path / "store"), columns=(name for name in ["topic", "kind"])))
    assert [(batch.num_rows, batch.schema.names) for batch in found] == [(1, ["topic", "kind"])]


@pytest.mark.parametrize("path", [None, b"shop.store", "", 5])
@pytest.mark.parametrize("call", [scan, verify, rebuild, survey])
def test_what_is_no_path_is_told_in_a_sentence(call: Callable[[Any], object], path: object) -> None:
    with pytest.raises(BrokerError, match="the path of a store is a str or a "):
        call(path)
