"""Every byte that real brokers wrote: decoded, understood, and encoded to the same bytes again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.format import checkpoint, commitlog, index, properties
from broker.format.commitlog import Record
from broker.format.consumequeue import Unit
from broker.format.record import opmessage
from broker.format.statetable import Slot
from broker.format.sysflag import TransactionType
from broker.format.topics import OP_TOPIC
from tests.format.strategies import CODECS

STORES = {
    "rocketmq-3.1.5-clean": 2130,
    "rocketmq-3.1.5-killed": 2870,
    "rocketmq-3.1.5-recovered": 2870,
    "rocketmq-5.3.3-clean": 2397,
    "rocketmq-5.3.3-killed": 3154,
}
by_store = pytest.mark.parametrize("name", STORES)
BATCH_TOPIC = "BatchTopic"
Golden = Callable[[str], Path]


def records(store: Path) -> Iterator[tuple[Record, bytes]]:
    """Each record with its bytes, up to the zeros after the last."""
    for path in sorted((store / "commitlog").iterdir()):
        segment, at = path.read_bytes(), 0
        while not commitlog.read_blank(segment, at, len(segment) - at) and any(segment[at : at + 8]):
            record = commitlog.decode(segment, at, commitlog_offset=int(path.name) + at)
            yield record, segment[at : at + record.total_size]
            at += record.total_size


@by_store
def test_every_record_is_the_same_bytes_again(golden: Golden, name: str) -> None:
    count = 0
    for record, raw in records(golden(name)):
        assert commitlog.encode(record) == raw
        count += 1
    assert count == STORES[name]


@by_store
def test_properties_stand_in_javas_order(golden: Golden, name: str) -> None:
    """5.3.3 writes what it parsed, except that its op messages come from a map of capacity 16. 3.1.5 keeps the text."""
    for record, _ in records(golden(name)):
        mapping = record.property_map
        assert properties.decode_3_0(record.properties) == mapping
        if record.topic == OP_TOPIC:
            assert opmessage.encode(opmessage.decode(record.body)) == record.body
        if record.topic == BATCH_TOPIC:  # the message's own properties, then those of its batch
            assert record.properties.count(b"UNIQ_KEY\x01") == 2
            continue
        assert properties.encode(mapping, java_order_capacity=None) == record.properties
        if name.startswith("rocketmq-5"):
            capacity = 16 if record.topic == OP_TOPIC else 128
            assert properties.encode(mapping, java_order_capacity=capacity) == record.properties


@by_store
def test_bodies_are_what_the_producers_sent(
    golden: Golden, truth: Callable[[str], list[dict[str, Any]]], name: str
) -> None:
    """Length and CRC of each plain body that the truth names are among those of the store."""
    found = {
        (len(plain), commitlog.crc32(plain))
        for record, _ in records(golden(name))
        if record.transaction_type is not TransactionType.ROLLBACK
        for plain in [record.plain_body]
    }
    named = [line for line in truth(name) if "body_crc" in line]
    for line in named:
        assert (line["body_len"], line["body_crc"] & 0x7FFFFFFF) in found
    assert named


@by_store
def test_derived_files_agree_with_the_records(golden: Golden, name: str) -> None:
    """Units, slots and index items point at records of their size, group and key; a taste, not the verification."""
    store = golden(name)
    by_offset = {record.commitlog_offset: record for record, _ in records(store)}
    for path in store.glob("consumequeue/*/*/*"):
        for unit in Unit.iter_unpack(path.read_bytes()):
            if unit.is_end:
                break
            assert by_offset[unit.commitlog_offset].total_size == unit.size
    for path in store.glob("transaction/statetable/*"):
        for slot in Slot.iter_unpack(path.read_bytes()):
            if slot.is_end:
                break
            half = by_offset[slot.commitlog_offset]
            assert (half.total_size, half.store_timestamp_ms // 1000) == (slot.size, slot.store_time_s)
    for path in store.glob("index/*"):
        _check_index(path.read_bytes(), by_offset, index.key_hash if "5.3.3" in name else index.key_hash_3_0)


def _check_index(raw: bytes, by_offset: dict[int, Record], key_hash: Callable[[str, str], int]) -> None:
    header = index.IndexHeader.unpack_from(raw)
    slots, items = index.find_counts(len(raw), header.next_item, len(raw.rstrip(b"\0")))
    assert (slots, items) == (1000, 4000)
    for number in range(1, header.next_item):
        item = index.IndexItem.unpack_from(raw, index.item_at(number, slots))
        record = by_offset[item.commitlog_offset]
        mapping = record.property_map
        keys = [*properties.keys(mapping), *filter(None, [mapping.get(properties.UNIQ_KEY)])]
        assert item.key_hash in {key_hash(record.topic, key) for key in keys}
        assert item.time_diff_s == index.time_diff_s(record.store_timestamp_ms, header.begin_timestamp_ms)
        assert (number, item) in index.chain(raw, item.key_hash, slots, items)


@by_store
def test_small_files(golden: Golden, name: str) -> None:
    """The checkpoint and each known config file; 5.3.3's are the same bytes again where their order is not chance."""
    store = golden(name)
    raw = (store / "checkpoint").read_bytes()
    assert checkpoint.encode(checkpoint.decode(raw)) == raw
    for path in store.glob("config/*.json"):
        if path.name in CODECS:
            decode, encode = CODECS[path.name]
            value = decode(path.read_bytes())
            assert decode(encode(value)) == value
            if "5.3.3" in name and path.name != "consumerOffset.json":
                assert encode(value) == path.read_bytes(), hashlib.sha256(path.read_bytes()).hexdigest()
