"""Columns of strings against the functions that read one string: whatever the bytes, the same answer."""

from __future__ import annotations

import hashlib
from itertools import accumulate

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from broker.format import properties
from broker.format.java import string_hash
from recovery.scan.strings import (
    StringColumn,
    StringViews,
    gather,
    java_hashes,
    java_hashes_joined,
    text_at,
    unaligned,
)
from recovery.transactions.digest import identities_of_unique_keys
from recovery.verify.index_items import split_keys
from tests.scan.effort import tries
from tests.scan.property_bytes import NAMES, raw_properties

texts = (
    st.binary(max_size=20) | st.text(max_size=20).map(str.encode) | st.sampled_from((b"", "a😀b".encode(), b"\xff\xc3"))
)


def strings(values: list[bytes]) -> StringColumn:
    """The values as the engine has them: gathered from a window in which other bytes stand between them."""
    window = np.frombuffer(b"\x02#\x01".join([b"K\x01v\x02", *values]), np.uint8)
    starts = list(accumulate([7, *(len(value) + 3 for value in values)]))[: len(values)]
    return StringColumn.gather(window, np.array(starts, np.int64), np.array([len(value) for value in values], np.int64))


@tries(150)
@given(st.lists(raw_properties, max_size=8))
@example([b"KEYS\x01a\x02KEYS\x01\x02", b"", b"K\x01\x01b", b"\x01x\x02K\x01y"])
def test_properties_are_those_that_one_reader_finds(rows: list[bytes]) -> None:
    column = strings(rows)
    for name in NAMES:
        found = column.property_slices(name).array().to_pylist()
        wanted = [properties.decode(row).get(name) for row in rows]
        assert [value if value is None else value.decode("utf-8", "replace") for value in found] == wanted
    everything: list[dict[str, str]] = [{} for _ in rows]
    numbers, item_names, values = column.all_properties()
    for number, name, value in zip(numbers.tolist(), item_names.to_pylist(), values.to_pylist(), strict=True):
        everything[number][name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    assert everything == [properties.decode(row) for row in rows]


@tries(50)
@given(st.lists(raw_properties | st.none(), min_size=1, max_size=8), st.data())
def test_a_part_of_an_array_is_read_as_the_part(rows: list[bytes | None], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows)))
    size = data.draw(st.integers(0, len(rows) - first))
    part = rows[first : first + size]
    column = StringColumn(pa.array(rows, pa.binary()).slice(first, size))
    assert column.lengths.tolist() == [len(row or b"") for row in part]
    wanted = [properties.decode(row or b"").get("KEYS") for row in part]
    found = column.property_slices("KEYS").array().to_pylist()
    assert [value if value is None else value.decode("utf-8", "replace") for value in found] == wanted


@tries(100)
@given(st.lists(texts, max_size=10), st.data())
@example(["\U0001f600".encode() * 2, b"", b"\xf0\x9f\x98", b"polygenelubricants"], None)
def test_hashes_are_javas(values: list[bytes], data: st.DataObject | None) -> None:
    column = strings(values)
    decoded = [value.decode("utf-8", "replace") for value in values]
    assert java_hashes(column).tolist() == [string_hash(text) for text in decoded]
    words = st.sampled_from(["", "Topic#", "%RETRY%g😀#"])
    prefixes = [data.draw(words) if data else "Topic#" for _ in values]
    joined = java_hashes_joined(np.array([string_hash(prefix) for prefix in prefixes], np.int32), column)
    assert joined.tolist() == [string_hash(prefix + text) for prefix, text in zip(prefixes, decoded, strict=True)]


@tries(100)
@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8))
@example(b"abc", [(0, 3), (3, 0), (2, 1)])
def test_gathered_strings_are_slices(window: bytes, spans: list[tuple[int, int]]) -> None:
    starts = [min(start, len(window)) for start, _ in spans]
    lengths = [min(length, len(window) - start) for start, (_, length) in zip(starts, spans, strict=True)]
    raw = np.frombuffer(window, np.uint8)
    found = gather(raw, np.array(starts, np.int64), np.array(lengths, np.int64)).to_pylist()
    assert found == [window[start : start + length] for start, length in zip(starts, lengths, strict=True)]


@tries(100)
@given(st.binary(min_size=1, max_size=40), st.lists(st.integers(0, 39), max_size=6), st.binary(min_size=1, max_size=20))
def test_bytes_at_any_place(window: bytes, places: list[int], text: bytes) -> None:
    """`unaligned` reads whole values only; `text_at` may be asked beyond the end, where nothing stands."""
    raw = np.frombuffer(window, np.uint8)
    text = window[places[0] :][:12] or text if places else text
    at = np.array(places, np.int64)
    assert text_at(raw, at, text).tolist() == [window[place : place + len(text)] == text for place in places]
    whole = [place for place in places if place + 4 <= len(window)]
    found = unaligned(raw, ">i4", np.array(whole, np.int64)).tolist()
    assert found == [int.from_bytes(window[place : place + 4], "big", signed=True) for place in whole]


hexadecimal = st.binary(min_size=16, max_size=16).map(lambda raw: raw.hex().upper().encode())
keys = hexadecimal | hexadecimal.map(bytes.lower) | hexadecimal.map(lambda key: key[:31]) | st.binary(max_size=40)


@tries(50)
@given(st.lists(keys, max_size=8))
@example([b"0" * 32, b"F" * 32, b"g" * 32, b"", b"7F000001ABCD18B4AAC2000000000001" * 2])
def test_identities_of_unique_keys(values: list[bytes]) -> None:
    """Spelled by 32 upper-case digits, or hashed; alone or in a column."""
    column = strings(values)
    high, low = identities_of_unique_keys(column.data, column.starts, column.lengths)
    for number, key in enumerate(values):
        spelled = len(key) == 32 and not key.translate(None, b"0123456789ABCDEF")
        raw = bytes.fromhex(key.decode()) if spelled else hashlib.sha256(key).digest()[:16]
        wanted = int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:], "big")
        assert wanted == (int(high[number]), int(low[number]))


def test_a_null_is_no_string() -> None:
    column = StringColumn(pa.array([b"a", None], pa.binary()))
    assert column.array.to_pylist() == [b"a", b""]


@tries(100)
@given(st.lists(st.sampled_from([b"", b"a", b"b" * 8, b"b" * 9, b"c" * 64, b"c" * 65]) | texts, max_size=60))
@example([b"%d" % number for number in range(100)])
@example([b"x" * 8 + b"y", b"x" * 8 + b"z", b"x" * 8, b"x" * 7 + b"\0"])
def test_strings_that_recur_get_one_number_each(values: list[bytes]) -> None:
    column = strings(values)
    numbers, found = StringViews(column.data, column.starts, column.lengths).codes()
    assert [found[number] for number in numbers.tolist()] == values
    assert len(found) == len(set(values))


@tries(50)
@given(st.lists(st.text("ab é", max_size=12).map(str.encode) | st.binary(max_size=8), max_size=12), st.data())
def test_keys_are_split_at_blanks(values: list[bytes], data: st.DataObject) -> None:
    """As RocketMQ does; also where only some of the records are asked for, in any order."""
    column = strings(values)
    which = data.draw(st.lists(st.integers(0, max(len(values) - 1, 0)), unique=True, max_size=len(values)))
    part = StringViews(column.data, column.starts, column.lengths).take(np.array(which, np.int64))
    rows, keys = split_keys(part)
    wanted = [(row, key) for row, number in enumerate(which) for key in values[number].split(b" ") if key]
    assert list(zip(rows.tolist(), keys.array().to_pylist(), strict=True)) == wanted
