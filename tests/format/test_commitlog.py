"""CommitLog records: golden bytes, round trips, every flipped bit, every truncation, anything at all."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from broker.errors import CorruptRecord, MessageRejected
from broker.format import commitlog, properties
from broker.format.commitlog import (
    BODY_AT,
    MAGIC_V1,
    MAGIC_V2,
    OFFSET_IPV4,
    Record,
    decode,
    encode,
    head_dtype,
    make_record,
)
from broker.format.java import Host
from broker.format.record import body
from broker.format.record.innerbatch import InnerHead, InnerTail, inner_records
from broker.format.sysflag import BORN_IPV6, INNER_BATCH, Compression, TransactionType, with_compression
from tests.format.strategies import records

LOOPBACK = b"\x7f\0\0\1"

NORMAL = bytes.fromhex(
    "00000083daa320a7516fa58a000000000000000700000000000000000000000000000000000000000000018bcfe568007f000001000004d2"
    "000001a1fbf602fa7f00000100002a9f00000000000000000000000000000005626f647930015400224b455953016b31206b3202554e4951"
    "5f4b4559014142430254414753015461674102"
)
WITH_RECORD_CRC = bytes.fromhex(
    "00000097daa320a7516fa58a000000000000000700000000000000000000000000000000000000000000018bcfe568007f000001000004d2"
    "000001a1fbf616c57f00000100002a9f00000000000000000000000000000005626f647930015400364b455953016b31206b3202554e4951"
    "5f4b45590141424302544147530154616741025f5f435243333223013734353030353735373102"
)
OP = bytes.fromhex(
    "0000008edaa320a700fc3ad5000000000000000000000000000000000000000000001e5f00000000000001a1fbf7dcb87f00000100009fcf"
    "000001a1fbf7dcba7f00000100009fcf00000000000000000000000000000007342c372c31302c1b524d515f5359535f5452414e535f4f50"
    "5f48414c465f544f50494300115741495401747275650254414753016402"
)
ROLLBACK_3_0 = bytes.fromhex(
    "000000b1daa320a7000000000000000000000000000000000000000000000000000002660000000c000001a1fbed49027f0000010000d7f8"
    "000001a1fbed49687f000001000051af0000000000000000000000000000000008506179546f706963004e6f726465724964016f30024b45"
    "5953016b65792d30025452414e5f4d5347017472756502574149540174727565025047524f5550016f726465725f70726f64756365720254"
    "414753015461674102"
)
GOLDEN = {"normal": NORMAL, "record-crc": WITH_RECORD_CRC, "op": OP, "rollback-3.0": ROLLBACK_3_0}


def a_record(topic: str = "T", stored: bytes = b"body", raw_properties: bytes = b"") -> Record:
    host = Host(LOOPBACK, 1234)
    return make_record(
        topic, stored, raw_properties, born_host=host, store_host=host, born_timestamp_ms=1, store_timestamp_ms=2
    )


@pytest.mark.parametrize("raw", GOLDEN.values(), ids=GOLDEN)
def test_golden_records_round_trip(raw: bytes) -> None:
    """Appendix A.1-A.4 of the facts: bytes that real brokers wrote."""
    record = decode(raw)
    assert record.total_size == len(raw)
    assert encode(record) == raw


def test_golden_normal_record() -> None:
    assert decode(NORMAL, commitlog_offset=0) == Record(
        magic=MAGIC_V1,
        queue_id=0,
        flag=7,
        queue_offset=0,
        commitlog_offset=0,
        sys_flag=0,
        born_timestamp_ms=1700000000000,
        born_host=Host(LOOPBACK, 1234),
        store_timestamp_ms=0x1A1FBF602FA,
        store_host=Host(LOOPBACK, 10911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"body0",
        topic="T",
        properties=b"KEYS\x01k1 k2\x02UNIQ_KEY\x01ABC\x02TAGS\x01TagA\x02",
        body_crc=0x516FA58A,
    )


def test_golden_record_crc() -> None:
    """A.2 is A.1 with another store timestamp and the CRC of everything before the last 20 bytes."""
    assert commitlog.stated_record_crc(decode(WITH_RECORD_CRC).properties) == 1757500547
    assert commitlog.record_crc_item(1757500547) == b"__CRC32#\x017450057571\x02"
    later = replace(decode(NORMAL), store_timestamp_ms=0x1A1FBF616C5)
    assert encode(later, record_crc=True) == WITH_RECORD_CRC
    assert encode(decode(WITH_RECORD_CRC), record_crc=True) == WITH_RECORD_CRC


def test_golden_op_and_rollback() -> None:
    op = decode(OP, commitlog_offset=0x1E5F)
    assert (op.body, op.body_crc, op.property_map) == (b"4,7,10,", 0x00FC3AD5, {"WAIT": "true", "TAGS": "d"})
    rollback = decode(ROLLBACK_3_0, commitlog_offset=0x266)
    assert (rollback.transaction_type, rollback.body, rollback.body_crc) == (TransactionType.ROLLBACK, b"", 0)
    assert rollback.property_map["PGROUP"] == "order_producer"


def test_golden_blank() -> None:
    segment = bytes(65308) + bytes.fromhex("000000e4cbd43194") + bytes(220)
    assert commitlog.read_blank(segment, 65308, 228)
    assert commitlog.encode_blank(228) == segment[65308:65316]
    assert not commitlog.read_blank(segment, 0, 65536)
    assert not commitlog.read_blank(segment, 65532, 4)
    with pytest.raises(CorruptRecord, match="says 228 bytes, 229 remain"):
        commitlog.read_blank(segment, 65308, 229)
    with pytest.raises(CorruptRecord, match="this is a blank"):
        decode(segment, 65308)


@given(records(), st.booleans())
def test_records_round_trip(record: Record, record_crc: bool) -> None:
    """Any record comes back from its bytes, and the bytes from the record."""
    assume(not record_crc or b"__CRC32#" not in record.properties)  # a record that carries one: the next test
    raw = encode(record, record_crc=record_crc)
    again = decode(b"before" + raw + b"after", 6, commitlog_offset=record.commitlog_offset)
    assert replace(again, properties=record.properties) == record
    assert again.properties.startswith(record.properties)
    assert len(raw) == again.total_size == record.total_size + 20 * record_crc
    assert encode(again) == encode(again, record_crc=record_crc) == raw
    assert again.version == (2 if record.magic == MAGIC_V2 else 1)
    assert again.plain_body == body.decompress(record.body, Compression(0)) or again.sys_flag & 1


@pytest.mark.parametrize("older", [b"__CRC32#\x010\x02", b"__CRC32#\x010123456789\x02"])
def test_an_older_record_crc_is_renewed(older: bytes) -> None:
    record = replace(decode(NORMAL), properties=b"A\x01b\x02" + older)
    again = decode(encode(record, record_crc=True))
    assert again.properties[:-20] == b"A\x01b\x02"
    assert again.properties.count(b"__CRC32#") == 1


@given(records())
def test_head_dtype_is_the_head(record: Record) -> None:
    """NumPy reads the same fixed part, to the byte where the body begins."""
    shape = (record.born_host.is_ipv6, record.store_host.is_ipv6)
    dtype = np.dtype(head_dtype(*shape))
    raw = encode(record)
    assert dtype.itemsize == BODY_AT[shape] == {0: 88, 1: 100, 2: 112}[sum(shape)]
    row = np.frombuffer(raw, dtype, 1)[0]
    for name in ("queue_id", "flag", "queue_offset", "sys_flag", "born_timestamp_ms", "store_timestamp_ms"):
        assert row[name] == getattr(record, name)
    assert row["prepared_transaction_offset"] == record.prepared_transaction_offset
    assert row["born_address"].tobytes() == record.born_host.address
    assert (row["born_port"], row["store_port"]) == (record.born_host.port, record.store_host.port)
    assert (row["total_size"], row["body_length"]) == (len(raw), len(record.body))


def test_the_places_of_fields_are_those_of_the_head() -> None:
    fields = np.dtype(head_dtype(False, False)).fields or {}
    parts = ("born_address", "store_address", "store_port")  # of which nobody asks for the place
    assert {name: place for name, (_, place, *_) in fields.items() if name not in parts} == OFFSET_IPV4


@pytest.mark.parametrize("kind", Compression)
def test_bodies_decompress(kind: Compression) -> None:
    plain = b"the same again, " * 400
    stored = body.compress(plain, kind)
    record = replace(a_record(stored=stored), sys_flag=with_compression(0, kind))
    assert decode(encode(record)).plain_body == plain
    if kind is not Compression.NONE:
        for damaged in (stored[: len(stored) // 2], b"\xff" + stored[1:]):
            with pytest.raises(CorruptRecord):
                body.decompress(damaged, kind)
        with pytest.raises(CorruptRecord, match="more than 100 bytes"):
            body.decompress(stored, kind, 100)


def test_an_old_zlib_body_and_an_empty_one() -> None:
    """Before 4.9.4 the type bits are 0; a 3.0 rollback keeps the COMPRESSED bit of a body that it does not have."""
    assert replace(a_record(stored=body.compress(b"plain", Compression.ZLIB)), sys_flag=1).plain_body == b"plain"
    assert replace(a_record(stored=b""), sys_flag=1).plain_body == b""
    with pytest.raises(CorruptRecord, match="compression type 5 is unknown"):
        _ = replace(a_record(), sys_flag=0x501).plain_body


@pytest.mark.parametrize(
    ("base", "first"),
    [("40", 40), ("\u00b2", 7), ("", 7), ("-1", 7), ("9" * 5000, 7)],
    ids=["a number", "superscript", "none", "negative", "long"],
)
def test_a_batch_whose_numbers_are_none_begins_where_its_record_does(base: str, first: int) -> None:
    """A superscript two is a digit to str.isdigit, and not to int: a client may state any text."""
    inner = InnerHead(23, 0, 0, 0, 1).pack() + b"a" + InnerTail(0).pack()
    numbers = {properties.INNER_BASE: base, properties.INNER_NUM: "2"}
    text = properties.encode({name: value for name, value in numbers.items() if value})
    batch = replace(a_record(stored=inner * 2), properties=text, sys_flag=INNER_BATCH, queue_offset=7)
    assert [(one.queue_offset, one.body) for one in inner_records(batch)] == [(first, b"a"), (first + 1, b"a")]


def test_every_flipped_bit_of_a_record_with_crc_is_found() -> None:
    """What our own writer promises (the property's own name and digits included)."""
    items = b"KEYS\x01k\x02"
    wide = replace(a_record("%RETRY%" + "g" * 130, raw_properties=items), store_host=Host(b"\0" * 16, 1), sys_flag=0x20)
    for record in (a_record(raw_properties=items), wide, a_record(stored=b"")):
        raw = encode(record, record_crc=True)
        for bit in range(len(raw) * 8):
            damaged = bytearray(raw)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptRecord):
                decode(bytes(damaged))


def test_flips_that_rocketmq_leaves_unprotected_still_decode() -> None:
    """Without the record CRC some bytes are covered by nothing; what decodes encodes to the same damaged bytes."""
    escaped = set()
    for position in range(len(NORMAL)):
        damaged = bytearray(NORMAL)
        damaged[position] ^= 4
        try:
            record = decode(bytes(damaged), commitlog_offset=0)
        except CorruptRecord:
            continue
        assert encode(record) == damaged
        escaped.add(position)
    assert escaped.isdisjoint([*range(12), *range(28, 36), *range(84, 94)])
    assert set(range(12, 28)) < escaped


@pytest.mark.parametrize("raw", GOLDEN.values(), ids=GOLDEN)
def test_every_truncation_is_found(raw: bytes) -> None:
    for size in range(len(raw)):
        with pytest.raises(CorruptRecord):
            decode(raw[:size])


def test_mutations_decode_or_are_corrupt() -> None:
    """Flipped, cut, repeated, overwritten: a value, or CorruptRecord, and nothing else."""
    chance = random.Random(1)
    sources = [*GOLDEN.values(), encode(replace(decode(NORMAL), magic=MAGIC_V2), record_crc=True)]
    for _ in range(30_000):
        raw = bytearray(chance.choice(sources))
        for _ in range(chance.randint(1, 3)):
            at, what = chance.randrange(len(raw) + 1), chance.randrange(4)
            if what == 0 and at < len(raw):
                raw[at] ^= 1 << chance.randrange(8)
            elif what == 1:
                del raw[at : at + chance.randint(1, 8)]
            elif what == 2:
                raw[at:at] = chance.randbytes(chance.randint(1, 8))
            else:
                raw[at : at + 4] = chance.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"))
        _decode_like_a_reader(bytes(raw))


@given(st.binary(max_size=300), st.integers(-5, 300), st.booleans())
@example(b"", 0, True)
def test_any_bytes_decode_or_are_corrupt(raw: bytes, at: int, as_record: bool) -> None:
    if as_record:  # get past the first two checks
        raw = struct.pack(">ii", len(raw) + 8, MAGIC_V1 if len(raw) % 2 else MAGIC_V2) + raw
        at = 0
    _decode_like_a_reader(raw, at)


def _decode_like_a_reader(raw: bytes, at: int = 0) -> None:
    for check_crc in (True, False):
        try:
            record = decode(memoryview(raw), at, check_crc=check_crc)
        except CorruptRecord:
            continue
        assert isinstance(record.property_map, dict)
        assert isinstance(record.transaction_type, TransactionType)
        try:
            _ = record.plain_body
            commitlog.stated_record_crc(record.properties)
        except CorruptRecord:
            pass
        if check_crc:
            assert encode(record) == raw[at : at + record.total_size]


def test_damage_is_named_with_its_place() -> None:
    wrong_place = "at CommitLog offset 5: the record says that it begins at CommitLog offset 0"
    for raw, offset, sentence in (
        (NORMAL, 5, wrong_place),
        (b"\0" * 100, None, "at 0: no record begins here: the magic is 0x00000000"),
        (NORMAL.replace(b"body0", b"body1"), 0, "the body's CRC is"),
        (NORMAL[:84] + b"\xff\xff\xff\xff" + NORMAL[88:], 0, "a body of -1 bytes"),
        (NORMAL[:93] + b"\x80" + NORMAL[94:], 0, "a topic of -128 bytes"),
        (NORMAL[:94] + b"\xc3" + NORMAL[95:], 0, "the topic is not UTF-8"),
        (NORMAL[:95] + b"\xff\xff" + NORMAL[97:], 0, "the lengths add up to"),
        (struct.pack(">i", 1 << 30) + NORMAL[4:], 0, "this one says 1073741824"),
        (WITH_RECORD_CRC.replace(b"TagA", b"TagB"), 0, "the record's CRC is"),
        (WITH_RECORD_CRC.replace(b"__CRC32#", b"__CRC33#"), 0, "the property that holds the record's CRC is damaged"),
    ):
        with pytest.raises(CorruptRecord) as caught:
            decode(raw, commitlog_offset=offset)
        assert sentence in str(caught.value)
        assert caught.value.commitlog_offset == offset


def test_a_crc_fault_can_be_asked_for_later() -> None:
    damaged = NORMAL.replace(b"body0", b"body1")
    record = decode(damaged, check_crc=False)
    assert "the body's CRC is" in (commitlog.crc_fault(record, damaged) or "")
    assert commitlog.crc_fault(decode(NORMAL), NORMAL) is None


@pytest.mark.parametrize(
    "record",
    [
        replace(a_record(), magic=commitlog.MAGIC_BLANK),
        replace(a_record("x" * 128), magic=MAGIC_V1),
        a_record("x" * 32768),
        a_record("\ud800"),
        a_record(raw_properties=b"a\x01" * 16384),
        replace(a_record(), queue_id=1 << 31),
        replace(a_record(), sys_flag=BORN_IPV6),
        a_record(stored=bytes(commitlog.RECORD_SIZE_MAX)),
        a_record(raw_properties=b"__CRC32$\x010000000000\x02"),
    ],
    ids=["magic", "topic-v1", "topic-v2", "surrogate", "properties", "i32", "address", "size", "like-a-crc"],
)
def test_what_could_not_be_read_back_is_not_written(record: Record) -> None:
    with pytest.raises(MessageRejected):
        encode(record)


def test_a_record_crc_replaces_an_older_one() -> None:
    """RocketMQ takes any such property out before it adds its own as the last."""
    old = b"__CRC32#\x011234567890\x02TAGS\x01a"
    record = decode(encode(a_record(raw_properties=old), record_crc=True))
    assert record.properties[:-20] == b"TAGS\x01a\x02"
    assert encode(replace(record, store_timestamp_ms=9)) != encode(record)
    assert decode(encode(replace(record, store_timestamp_ms=9))).store_timestamp_ms == 9


def test_properties_with_room_for_a_crc_but_no_more() -> None:
    fits = b"a\x01" + b"x" * (properties.SIZE_MAX - 20 - 3) + b"\x02"
    assert decode(encode(a_record(raw_properties=fits), record_crc=True)).properties.startswith(fits)
    with pytest.raises(MessageRejected, match="the properties take"):
        encode(a_record(raw_properties=b"x" + fits), record_crc=True)
