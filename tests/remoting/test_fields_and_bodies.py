"""Extension fields and bodies: declared once, read from what official clients send, and fuzzed."""

from __future__ import annotations

import importlib
import inspect
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.errors import ProtocolError
from broker.remoting import bodies, fastjson
from broker.remoting.header import Header
from broker.remoting.message_headers import (
    EndTransactionRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
)
from tests.scan.effort import tries

HEADERS = [
    kind
    for name in ("message_headers", "admin_headers")
    for _, kind in inspect.getmembers(importlib.import_module(f"broker.remoting.{name}"), inspect.isclass)
    if issubclass(kind, Header) and kind is not Header
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def test_each_request_is_declared_once() -> None:
    codes = Counter(code for kind in HEADERS for code in kind.CODES)
    assert codes.most_common(1)[0][1] == 1, codes.most_common(3)


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
@tries(40)
@given(data=st.data())
def test_any_fields_are_a_header_or_refused(kind: type[Header], data: st.DataObject) -> None:
    names = [name for name, *_ in header_fields(kind)]
    ext = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(["", "1", "-1", "true", "x", "9" * 19])))
    try:
        found = kind.decode(ext)
    except ProtocolError:
        return
    assert kind.decode(found.encode()) == found


def header_fields(kind: type[Header]) -> list[tuple[str, str]]:
    """(name on the wire, name here) of each field."""
    from broker.remoting.header import _fields

    return [(one.wire, one.name) for one in _fields(kind)]


def test_letters_and_names_are_the_same_fields() -> None:
    """Java sends letters with SEND_MESSAGE_V2, Go 2.1 and Java 3.1.4 names with SEND_MESSAGE."""
    letters = {"a": "g", "b": "t", "c": "TBW102", "d": "4", "e": "1", "f": "4", "g": "1795304532614", "h": "7",
               "i": "TRAN_MSG\x01true\x02", "j": "0", "k": "false", "n": "broker-a"}  # fmt: skip
    names = {"producerGroup": "g", "topic": "t", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
             "queueId": "1", "sysFlag": "4", "bornTimestamp": "1795304532614", "flag": "7",
             "properties": "TRAN_MSG\x01true\x02", "isUnitMode": "false"}  # fmt: skip
    first, second = SendMessageRequestHeader.decode(letters, short=True), SendMessageRequestHeader.decode(names)
    assert (first.topic, first.queue_id, first.sys_flag, first.flag) == ("t", 1, 4, 7)
    assert first.properties == second.properties
    assert (first.broker_name, second.broker_name) == ("broker-a", None)


def test_what_is_missing_or_no_number_is_named() -> None:
    with pytest.raises(ProtocolError, match="lacks the field queueId"):
        PullMessageRequestHeader.decode({"consumerGroup": "g", "topic": "t"})
    fields = {"producerGroup": "g", "tranStateTableOffset": "0", "commitLogOffset": "1_0", "commitOrRollback": "8"}
    with pytest.raises(ProtocolError, match="commitLogOffset"):
        EndTransactionRequestHeader.decode(fields)


@given(st.binary(max_size=100) | JSON.map(lambda value: json.dumps(value).encode()))
@example(b'{"clientID":"\\ud800"}')
@example(b"[" * 5000)
@example(b'{"a":' * 80 + b"1" + b"}" * 80)
@example(b"\0\0\0\x16" + b"\0" * 12 + b"\x7f\xff\xff\xff\0\0")
def test_any_body_is_a_value_or_refused(raw: bytes) -> None:
    for decode in (bodies.decode_heartbeat, bodies.decode_lock_batch, bodies.decode_batch, fastjson.loads):
        try:
            decode(raw)
        except ProtocolError:
            continue


@given(st.fixed_dictionaries({"clientID": JSON, "producerDataSet": JSON, "consumerDataSet": JSON}))
def test_any_heartbeat_is_one_or_refused(value: dict[str, Any]) -> None:
    try:
        found = bodies.decode_heartbeat(json.dumps(value).encode())
    except ProtocolError:
        return
    assert isinstance(found.client_id, str)


def test_a_heartbeat_of_the_go_client() -> None:
    subscription = {"classFilterMode": False, "topic": "t", "subString": "a || b", "tagsSet": ["a", "b"],
                    "codeSet": [97, 98], "subVersion": 1795305042770594401, "expressionType": "TAG"}  # fmt: skip
    consumer = {"groupName": "g", "consumeType": "PUSH", "messageModel": "CLUSTERING", "unitMode": False,
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription]}  # fmt: skip
    raw = json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]})
    raw = raw.replace("[97, 98]", '["97", "98"]').encode()  # as text
    found = bodies.decode_heartbeat(raw)
    assert found.consumers[0].subscriptions[0].as_json() == subscription


def test_a_heartbeat_of_the_cpp_client() -> None:
    """Enumerations by their ordinals, the version of a subscription as text. No other number is a constant."""
    subscription = {"subString": "*", "subVersion": "1795735436674", "topic": "t"}
    consumer = {"groupName": "g", "consumeType": 1, "messageModel": 0, "consumeFromWhere": 4,
                "subscriptionDataSet": [subscription]}  # fmt: skip
    (found,) = bodies.decode_heartbeat(json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()).consumers
    named = (found.consume_type, found.message_model, found.consume_from_where)
    assert named == ("CONSUME_PASSIVELY", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET")
    assert found.subscriptions[0].sub_version == 1795735436674
    for wrong in (2, -1, True, [1]):
        raw = json.dumps({"clientID": "c", "consumerDataSet": [consumer | {"messageModel": wrong}]}).encode()
        with pytest.raises(ProtocolError, match="messageModel is not what it must be"):
            bodies.decode_heartbeat(raw)


def test_a_batch_of_the_go_client() -> None:
    """Two messages without properties."""
    raw = bytes.fromhex(
        "000000180000000000000000000000000000000262300000000000180000000000000000000000000000000262310000"
    )
    assert [one.body for one in bodies.decode_batch(raw)] == [b"b0", b"b1"]


def test_fastjson_writes_integer_keys_and_object_keys() -> None:
    queue = bodies.MessageQueue("t", 0).as_json("b")
    table = {"brokerAddrs": {0: "h:1"}, "offsetTable": fastjson.ObjectMap([(queue, {"maxOffset": 2})]), "x": [True]}
    key = '{"brokerName":"b","queueId":0,"topic":"t"}'
    text = '{"brokerAddrs":{0:"h:1"},"offsetTable":{' + key + ':{"maxOffset":2}},"x":[true]}'
    assert fastjson.dumps(table).decode() == text
    assert fastjson.dumps({0: 1}, quote_numbers=True) == b'{"0":1}'
