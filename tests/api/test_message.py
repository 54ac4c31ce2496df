"""What may be sent, and what is received."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import Message, MessageRejected, ReceivedMessage
from broker.format import properties
from broker.format.commitlog import MESSAGE_SIZE_MAX, decode, encode, make_record
from broker.format.java import Host
from broker.format.record import body
from broker.format.sysflag import Compression, TransactionType, with_compression

GOOD: dict[str, Any] = {"topic": "orders", "body": b"1"}


def test_a_message() -> None:
    message = Message("orders", bytearray(b"body"), tag="paid", keys=["4711", "4712"], properties={"colour": "blue"})
    assert message.body == b"body"
    assert message.keys == ("4711", "4712")
    assert message.stored_properties == {"colour": "blue", "TAGS": "paid", "KEYS": "4711 4712"}
    assert Message("orders", b"1", keys="4711").keys == ("4711",)


def test_it_does_not_change() -> None:
    colours = {"colour": "blue"}
    message = Message(**GOOD, properties=colours)
    colours["colour"] = "red"
    assert message.properties == {"colour": "blue"}
    with pytest.raises(AttributeError):
        message.topic = "others"  # type: ignore[misc]
    with pytest.raises(TypeError):
        message.properties["colour"] = "red"  # type: ignore[index]


def test_it_travels_between_processes() -> None:
    message = Message(**GOOD, tag="t", keys=["k"], properties={"a": "b"})
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301
    assert copy.deepcopy(message) == message
    assert {message: 1}[Message(**GOOD, tag="t", keys=("k",), properties={"a": "b"})] == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"topic": ""}, "the topic has no name"),
        ({"topic": "a b"}, "may only have ASCII letters"),
        ({"topic": "t" * 128}, "at most 127"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "the broker's own topic"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, "the broker's own topic"),
        ({"topic": None}, "a topic is text, not NoneType"),
        ({"body": "text"}, "a body is bytes, not str; encode it first"),
        ({"body": b""}, "the body is empty"),
        ({"body": bytes(MESSAGE_SIZE_MAX + 1)}, "the body has 4194305 bytes; at most 4194304 are allowed"),
        ({"tag": "a || b"}, "no consumer could select it"),
        ({"tag": " "}, "no consumer could select it"),
        ({"tag": "paid "}, "no consumer could select it"),
        ({"tag": "a\x01"}, "no consumer could select it"),
        ({"tag": 7}, "a tag is text, not int"),
        ({"keys": ["a b"]}, "separates keys in the store"),
        ({"keys": [""]}, "is empty or has a blank"),
        ({"keys": [7]}, "a key is text, not int"),
        ({"properties": {"KEYS": "x"}}, "'KEYS' is RocketMQ's own"),
        ({"properties": {"__CRC32#": "x"}}, "is RocketMQ's own"),
        ({"properties": {"a": ""}}, "needs a name and a value"),
        ({"properties": {"": "a"}}, "needs a name and a value"),
        ({"properties": {"a": "b\x02"}}, "contains 0x01 or 0x02"),
        ({"properties": {"a": 7}}, "a property is text, not int"),
        ({"properties": {"a": "\ud800"}}, "half a surrogate pair"),
        ({"properties": {"a": "x" * 32767}}, "at most 32767"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(MessageRejected, match=said.replace("|", r"\|")) as caught:
        Message(**{**GOOD, **wrong})
    assert isinstance(caught.value, ValueError)


@given(
    st.binary(min_size=1, max_size=300),
    st.sampled_from(Compression),
    st.lists(st.text("abc123", min_size=1, max_size=5), max_size=4),
    st.dictionaries(
        st.text("xyz", min_size=1, max_size=3), st.text(st.characters(codec="utf-8", min_codepoint=3), min_size=1)
    ),
)
def test_what_is_sent_is_received(plain: bytes, kind: Compression, keys: list[str], more: dict[str, str]) -> None:
    """Through the bytes of a record, whatever the compression."""
    message = Message("orders", plain, tag="paid", keys=keys, properties=more)
    host = Host.parse("127.0.0.1:10911")
    record = make_record(
        message.topic,
        body.compress(message.body, kind),
        properties.encode({**message.stored_properties, "UNIQ_KEY": "U1"}),
        born_host=host,
        store_host=host,
        born_timestamp_ms=1,
        store_timestamp_ms=2,
        queue_id=3,
        queue_offset=4,
        commitlog_offset=5,
        sys_flag=with_compression(0, kind),
    )
    received = ReceivedMessage.of(decode(encode(record)))
    assert (received.topic, received.body, received.tag, received.keys) == ("orders", plain, "paid", tuple(keys))
    assert {name: received.properties[name] for name in more} == more
    assert (received.born_timestamp_ms, received.store_timestamp_ms) == (1, 2)
    assert (received.queue_id, received.queue_offset, received.commitlog_offset) == (3, 4, 5)
    assert (received.unique_key, received.message_id) == ("U1", "7F00000100002A9F0000000000000005")
    assert (received.reconsume_times, received.transaction_type) == (0, TransactionType.NONE)
    assert pickle.loads(pickle.dumps(received)) == received  # noqa: S301
