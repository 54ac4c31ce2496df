"""config/*.json and abort: fastjson's dialect both ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import CorruptRecord
from broker.format import config
from broker.format.config import ConsumerOffsets, DataVersion, DelayOffsets, TopicConfig, Topics
from tests.format.strategies import CODECS, integers, words

OFFSETS = b"""{
\t"dataVersion":{
\t\t"counter":3,
\t\t"stateVersion":0,
\t\t"timestamp":1795228874632
\t},
\t"groupTopicMap":{
\t\t"g":["a:1 ,2:b","t"]
\t},
\t"offsetTable":{
\t\t"a:1 ,2:b@g":{0:5,1:7
\t\t},
\t\t"t@g":{}
\t}
}""".replace(b"\\t", b"\t")

json_values = st.recursive(
    st.none() | st.booleans() | integers("i64") | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.sampled_from(["1", '"']), inner, max_size=3),
    max_leaves=12,
)


def test_unquoted_keys_are_read_and_written() -> None:
    """A name that looks like such keys inside a string stays what it is."""
    offsets = config.decode_consumer_offsets(OFFSETS)
    assert offsets.positions == {("a:1 ,2:b", "g"): {0: 5, 1: 7}, ("t", "g"): {}}
    assert offsets.version == DataVersion(3, 1795228874632)
    assert config.encode_consumer_offsets(offsets) == OFFSETS


@given(json_values)
def test_json_is_read_as_json(value: Any) -> None:
    """The dialect is an addition: what the standard library writes, we read alike."""
    for ensure_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=ensure_ascii)
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            continue
        assert config.loads(raw) == value


@given(st.dictionaries(words, st.dictionaries(integers("i32"), integers("i64"), max_size=3), max_size=3))
def test_dumps_and_loads(value: dict[str, dict[int, int]]) -> None:
    found = config.loads(config.dumps(value).encode())
    assert found == {name: {str(key): number for key, number in inner.items()} for name, inner in value.items()}


names = st.text("abcXYZ-_%|019", min_size=1, max_size=8)
positions = st.dictionaries(st.integers(0, 1 << 20), integers("i64"), max_size=4)


@given(st.dictionaries(st.tuples(names, names), positions, max_size=4))
def test_consumer_offsets_round_trip(table: dict[tuple[str, str], dict[int, int]]) -> None:
    offsets = ConsumerOffsets(table, DataVersion(1, 2, 3))
    assert config.decode_consumer_offsets(config.encode_consumer_offsets(offsets)) == offsets


@given(positions)
def test_delay_offsets_round_trip(table: dict[int, int]) -> None:
    offsets = DelayOffsets(table)
    assert config.decode_delay_offsets(config.encode_delay_offsets(offsets)) == offsets


def test_topics_keep_what_we_do_not_know() -> None:
    raw = (
        b'{"later":[1,{"x":null}],"topicConfigTable":{"T":{"attributes":{"message.type":"TRANSACTION"},"perm":7,'
        b'"readQueueNums":4,"shape":"round"}}}'
    )
    topics = config.decode_topics(raw)
    topic = topics.topics["T"]
    assert (topic.name, topic.perm, topic.read_queue_count, topic.write_queue_count) == ("T", 7, 4, 16)
    assert topic.message_type == "TRANSACTION"
    assert TopicConfig("T").message_type == "NORMAL"
    assert (topic.extra, topics.extra) == ({"shape": "round"}, {"later": [1, {"x": None}]})
    assert config.decode_topics(config.encode_topics(topics)) == topics


def test_a_lone_surrogate_survives() -> None:
    topics = Topics(extra={"odd": "\ud800"})
    assert config.decode_topics(config.encode_topics(topics)).extra == topics.extra


@pytest.mark.parametrize("decode", [codec[0] for codec in CODECS.values()], ids=CODECS)
@given(raw=st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_config_or_corrupt(decode: Callable[[bytes], Any], raw: bytes) -> None:
    tables = [b'{"topicConfigTable":%b}', b'{"subscriptionGroupTable":{"g":%b}}', b'{"offsetTable":{"a@b":%b}}']
    for whole in (raw, *(table % raw for table in tables), b'{"dataVersion":%b}' % raw, b'{"offsetTable":%b}' % raw):
        try:
            decode(whole)
        except CorruptRecord:
            pass


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"nul",
        b'{"a":NaN}',
        b'{"a":1' + b"0" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a" "' + b'\\"' * 50_000,
        b'{"offsetTable":{"x@g":{"a":1}}}',
        b'{"offsetTable":{"x@g":{0:1.5}}}',
        b'{"offsetTable":{"x@g":{0:9223372036854775808}}}',
        b'{"offsetTable":{"x":{}}}',
        b'{"dataVersion":{"counter":true}}',
    ],
    ids=range(12),
)
def test_what_is_no_offset_table(raw: bytes) -> None:
    with pytest.raises(CorruptRecord):
        config.decode_consumer_offsets(raw)


@given(st.binary(max_size=25))
def test_abort(raw: bytes) -> None:
    pid = config.decode_abort(raw)
    assert pid is None or config.decode_abort(b"%d\n" % pid) == pid
    assert config.decode_abort(b"") is None
    assert config.decode_abort(b"26061") == 26061
