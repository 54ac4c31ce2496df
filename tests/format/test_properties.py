"""Properties: RocketMQ's rules for reading them, Java's order for writing them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import MessageRejected
from broker.format import properties
from tests.format.strategies import property_maps


@given(property_maps, st.sampled_from((None, 16, 128)))
def test_properties_round_trip(mapping: dict[str, str], capacity: int | None) -> None:
    raw = properties.encode(mapping, java_order_capacity=capacity)
    assert properties.decode(raw) == properties.decode(raw.removesuffix(b"\x02")) == mapping
    assert properties.decode_3_0(raw) == mapping
    if capacity is None:
        assert list(properties.decode(raw)) == list(mapping)


@given(st.binary(max_size=60) | st.lists(st.sampled_from([b"a", b"b", b"\x01", b"\x02", b"\xff"])).map(b"".join))
def test_any_bytes_are_properties(raw: bytes) -> None:
    for found in (properties.decode(raw), properties.decode_3_0(raw)):
        assert all(isinstance(text, str) for item in found.items() for text in item)


@pytest.mark.parametrize(
    ("raw", "now", "in_3_0"),
    [
        (b"a\x01b", {"a": "b"}, {"a": "b"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}, {"a": "c"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}, {}),
        (b"a\x01b\x01\x02", {"a": "b\x01"}, {"a": "b"}),
        (b"a\x01\x02b\x01c", {"b": "c"}, {"b": "c"}),
        (b"\x01a\x02", {}, {"": "a"}),
        (b"ab\x02\x02\x01\x02", {}, {}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}, {"a": "\ufffd"}),
    ],
)
def test_java_rules(raw: bytes, now: dict[str, str], in_3_0: dict[str, str]) -> None:
    """RocketMQ: MessageDecoder.string2messageProperties, 5.3.3 and 3.1.5."""
    assert properties.decode(raw) == now
    assert properties.decode_3_0(raw) == in_3_0


def test_order_is_that_of_a_java_map() -> None:
    """Section 1.5 of the facts; golden A.1 was written from a map of capacity 16."""
    listed = "MSG_REGION UNIQ_KEY CLUSTER PGROUP __CRC32# __transactionId__ DELAY TAGS TRAN_MSG KEYS WAIT".split()
    listed += "CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET TRACE_ON TRANSACTION_CHECK_TIMES".split()
    listed += ["REAL_TOPIC", "REAL_QID"]
    shuffled = dict.fromkeys([name for name in reversed(listed) if name != "CLUSTER"] + ["CLUSTER"], "v")
    assert list(properties.decode(properties.encode(shuffled))) == listed
    op = properties.encode({"TAGS": "d", "WAIT": "true"}, java_order_capacity=16)
    assert op == b"WAIT\x01true\x02TAGS\x01d\x02"


@pytest.mark.parametrize(
    ("name", "value"), [("", "v"), ("n", ""), ("a\x01", "v"), ("a", "v\x02"), ("a", "\ud800"), ("a", "v" * 32767)]
)
def test_what_a_reader_would_lose_is_refused(name: str, value: str) -> None:
    with pytest.raises(MessageRejected):
        properties.encode({name: value})


def test_keys_and_reserved_names() -> None:
    assert properties.keys({"KEYS": "a  b "}) == ["a", "b"]
    assert properties.keys({}) == []
    assert len(properties.RESERVED) == 51
    assert {"UNIQ_KEY", "TRAN_MSG", "__CRC32#"} <= properties.RESERVED
