"""The index file: hashes, chains, and how many slots and items a file has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import CorruptRecord
from broker.format import index, java
from broker.format.index import IndexHeader, IndexItem
from tests.format.strategies import integers


def an_index(slots: int, items: int, keys: list[str]) -> bytes:
    """An index file as RocketMQ 5.3.3 would write it: IndexFile.putKey."""
    raw = bytearray(index.file_size(slots, items))
    used = 0
    for number, key in enumerate(keys, 1):
        code = index.key_hash("T", key)
        slot_at = index.slot_at(index.slot_of(code, slots))
        previous = int.from_bytes(raw[slot_at : slot_at + 4], "big")
        used += not previous
        raw[slot_at : slot_at + 4] = number.to_bytes(4, "big")
        at = index.item_at(number, slots)
        raw[at : at + 20] = IndexItem(code, 100 * number, number, previous).pack()
    count = len(keys) + 1 if keys else 0
    raw[:40] = IndexHeader(1000, 9000, 100, 100 * len(keys), used, count).pack()
    return bytes(raw)


def test_default_size() -> None:
    assert index.file_size() == 420_000_040


def test_hashes_of_both_generations() -> None:
    """5.x keeps the hash without its sign, 3.0 with it; both make 0 of the one that has no positive."""
    signed = index.key_hash_3_0("OrderTopic", "key-1")
    assert signed == java.string_hash("OrderTopic#key-1")
    assert index.key_hash("OrderTopic", "key-1") == abs(signed)
    assert java.string_hash("T#jllgvmc") == -(1 << 31)
    assert index.key_hash("T", "jllgvmc") == index.key_hash_3_0("T", "jllgvmc") == 0
    assert index.slot_of(-7, 5) == index.slot_of(7, 5) == 2


def counts_of(raw: bytes) -> tuple[int, int]:
    header = index.IndexHeader.unpack_from(raw)
    return index.find_counts(len(raw), header.next_item, len(raw.rstrip(b"\0")))


@given(st.integers(1, 30), st.integers(2, 40), st.lists(st.text("abcdef", max_size=3), max_size=39))
def test_chains_and_counts(slots: int, items: int, keys: list[str]) -> None:
    """Each key finds its items, newest first; the counts are found from the file alone."""
    keys = keys[: items - 1]
    raw = an_index(slots, items, keys)
    for key in keys:
        code = index.key_hash("T", key)
        found = [number for number, item in index.chain(raw, code, slots, items) if item.key_hash == code]
        assert found == [number for number in range(len(keys), 0, -1) if index.key_hash("T", keys[number - 1]) == code]
    assert index.solve_counts(len(raw), (slots, items)) == (slots, items)
    if keys:
        assert counts_of(raw) == (slots, items)
    else:
        assert index.file_size(*counts_of(raw)) == len(raw)


@given(st.binary(max_size=400), integers("i32"), st.integers(0, 20), st.integers(0, 20))
def test_any_bytes_are_an_index_or_corrupt(raw: bytes, code: int, slots: int, items: int) -> None:
    try:
        counts = counts_of(raw)
        assert index.file_size(*counts) == len(raw)
        list(index.chain(raw, code, *counts))
    except CorruptRecord:
        pass
    try:
        list(index.chain(raw, code, slots, items))
    except CorruptRecord:
        pass


def test_a_chain_that_goes_forward_is_damage() -> None:
    raw = bytearray(an_index(1, 5, ["a", "b"]))
    at = index.item_at(2, 1)
    raw[at : at + 20] = IndexItem(1, 2, 3, 4).pack()
    with pytest.raises(CorruptRecord, match="says that item 4 is older"):
        list(index.chain(raw, 0, 1, 5))


def test_counts_by_size() -> None:
    assert index.solve_counts(420_000_040) == (5_000_000, 20_000_000)
    assert index.solve_counts(84_040) is None
    assert index.solve_counts(84_040, (1000, 4000)) == (1000, 4000)


@pytest.mark.parametrize(
    ("store_ms", "begin_ms", "seconds"), [(5999, 1000, 4), (500, 1000, 0), (5, 0, 0), (1 << 62, 1, (1 << 31) - 1)]
)
def test_time_diff(store_ms: int, begin_ms: int, seconds: int) -> None:
    assert index.time_diff_s(store_ms, begin_ms) == seconds
