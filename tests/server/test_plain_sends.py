"""The common send: the record and the answer are those of the general one; what is not common is left to that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broker
from broker import compiled
from broker.errors import BrokerError
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.java import Host
from broker.format.record.recordcrc import RECORD_CRC_SIZE
from broker.format.topics import HALF_TOPIC
from broker.remoting.codes import RequestCode as Code
from broker.remoting.command import RemotingCommand
from broker.server.context import Request, ServerContext
from broker.server.requests import plain_sends, sends
from broker.server.requests.plain_sends import PlainAnswer
from broker.server.threads.store_thread import Stored
from broker.store.read.layout import StoreLayout
from broker.transaction.service import Half

with_c = pytest.mark.skipif(compiled.fast is None, reason="there is no C module")
COMMON = {
    "a": "shop", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "UNIQ_KEY\x01K1\x02WAIT\x01true\x02TAGS\x01t\x02", "j": "0", "k": "false", "l": "16", "m": "false", "n": "b",
}  # fmt: skip
NUMBERS = st.sampled_from(
    ["", "0", "1", "3", "4", "-1", "+1", "01", "9", "007", "1_0", "\u0663", "x", "9" * 10, "9" * 19, "0x1", " 1"]
)
TOPICS = ["orders", "closed", "typed", "nothing", "%RETRY%shop", "%DLQ%shop", "SCHEDULE_TOPIC_XXXX", "", "o o", "ö"]
NAMES = [
    "UNIQ_KEY", "TAGS", "KEYS", "WAIT", "mine", "DELAY", "TRAN_MSG", "POP_CK", "__CRC32#", "CHECKBACK_DELAY", "CLUSTER",
    "TIMER_DELIVER_MS", "PGROUP", "", "grün",
]  # fmt: skip
VALUES = ["K1", "true", "false", "1", "a b", "", "grün", "\ud800", "\x01", "a\x01b", "a" * 300, '"\\', "\x7f"]
PROPERTIES = st.one_of(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=5).map(
        lambda items: "\x02".join(f"{name}\x01{value}" for name, value in [("UNIQ_KEY", "K2"), *items])
    ),
    st.text(st.sampled_from("\x01\x02aUNIQ_KEY"), max_size=30),
    st.just("UNIQ_KEY\x01K\x02x\x01" + "y" * 9000),
    st.sampled_from(["", "PGROUP\x01own\x02", "WAIT\x01false\x02", "REAL_TOPIC\x01x\x02", "DELAY\x011\x02"]).map(
        lambda more: f"UNIQ_KEY\x01K3\x02{more}TRAN_MSG\x01true\x02"
    ),
)


@pytest.fixture(scope="module", params=["state-table", "half-op"])
def context(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerContext]:
    path: Path = tmp_path_factory.mktemp("plain")
    layout = StoreLayout(segment_bytes=64 << 20)
    with broker.open(path / "store", layout=layout, sync="os", transactions=request.param) as store:
        store.create_topic("orders", queues=4, message_type="")
        store.create_topic("closed", queues=4, message_type="", perm=4)
        store.create_topic("typed", queues=4, message_type="FIFO")
        for topic in ("orders", "typed"):
            for queue_id in range(4):
                store.append(broker.Message(topic, b"x"), queue_id=queue_id, extra_properties=fifo(topic))
        store.transactions.rollback(store.transactions.prepare(broker.Message("orders", b"x"), "shop"))
        with broker.serve(store, "127.0.0.1:0") as server:
            yield server.context


def fifo(topic: str) -> dict[str, str] | None:
    return {names.SHARDING_KEY: "k"} if topic == "typed" else None


def send_request(ext: dict[str, str], body: bytes) -> Request:
    peer: Any = SimpleNamespace(address="127.0.0.1:5555", host="127.0.0.1")
    return Request(RemotingCommand(int(Code.SEND_MESSAGE_V2), 77, 0, ext, body), peer, None)


def stored(context: ServerContext, result: Stored | None) -> tuple[Record, dict[str, str]] | None:
    """The record without what says where and when it was stored, and the answer without its place."""
    if result is None:
        return None
    answer = result.value.command() if isinstance(result.value, PlainAnswer) else result.value
    record = context.store.record(int(answer.ext["msgId"][16:], 16))
    assert record is not None
    properties = record.properties[:-RECORD_CRC_SIZE]
    same = replace(record, queue_offset=0, commitlog_offset=0, store_timestamp_ms=0, properties=properties)
    assert result.end == record.commitlog_offset + record.total_size
    assert answer.ext["queueOffset"] == str(record.queue_offset)
    said = {key: value for key, value in answer.ext.items() if key not in ("msgId", "queueOffset")}
    if record.topic == HALF_TOPIC:
        context.store.transactions.rollback(Half.of(record))
    return same, said | {"waits": str(result.waits_for_slave)}


def sent(context: ServerContext, asked: Request) -> Stored | None:
    """Stored the short way; None where that is not for it."""
    common = plain_sends.read_common(context, asked)
    return None if common is None else plain_sends.store_common(context, asked, common)


def outcome(context: ServerContext, send: Callable[[ServerContext, Request], Stored | None], asked: Request) -> Any:
    """What was stored and answered; None; or what is wrong."""
    try:
        return stored(context, send(context, asked))
    except BrokerError as error:
        return f"{type(error).__name__}: {error}"


@with_c
@settings(max_examples=500, deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from("abcdefghijklmn"), st.one_of(st.none(), NUMBERS, st.sampled_from(["true", "shop"])), max_size=2
    ),
    topic=st.sampled_from(TOPICS[:1] * 9 + TOPICS),
    properties=PROPERTIES,
    body=st.sampled_from([b"x", b"body", b"", bytes(5 << 20)]),
)
def test_what_it_stores_and_answers_is_what_the_general_one_does(
    context: ServerContext, changes: dict[str, str | None], topic: str, properties: str, body: bytes
) -> None:
    """And where it does nothing, nothing is stored."""
    ext = {**COMMON, "b": topic, "i": properties, **changes}
    asked = send_request({key: value for key, value in ext.items() if value is not None}, body)
    end = context.store.visible_end
    plain = outcome(context, sent, asked)
    if plain is None or isinstance(plain, str):
        assert context.store.visible_end == end
    if plain is not None:
        assert plain == outcome(context, sends.send_message, asked)


@with_c
@pytest.mark.parametrize("left_out", ["", "j", "k", "l", "m", "n", "jklmn"])
def test_what_clients_send_is_common(context: ServerContext, left_out: str) -> None:
    for ext in (COMMON, COMMON | {"f": "4", "i": COMMON["i"] + "TRAN_MSG\x01true\x02PGROUP\x01shop\x02"}):
        asked = send_request({key: value for key, value in ext.items() if key not in left_out}, b"x")
        assert plain_sends.read_common(context, asked) is not None


@with_c
@pytest.mark.parametrize(
    "changes",
    [
        {"b": "closed"}, {"b": "nothing"}, {"b": "%RETRY%shop"}, {"e": "4"}, {"e": "-1"}, {"f": "1"}, {"f": "8"},
        {"g": "x"}, {"h": "9999999999"}, {"j": "1"}, {"i": "TAGS\x01t\x02"}, {"i": COMMON["i"] + "DELAY\x011\x02"},
        {"i": COMMON["i"] + "TRAN_MSG\x01True\x02"}, {"i": COMMON["i"] + "a\x01b\x01c\x02"},
    ],
)  # fmt: skip
def test_what_is_not_common_is_left_alone(context: ServerContext, changes: dict[str, str]) -> None:
    assert plain_sends.read_common(context, send_request(COMMON | changes, b"x")) is None


@given(
    key=st.text(max_size=20),
    numbers=st.tuples(
        st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 31) - 1),
        st.integers(0, (1 << 63) - 1),
    ),
    address=st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
)  # fmt: skip
def test_the_answer_has_the_bytes_of_any_other(key: str, numbers: tuple[int, int, int, int], address: bytes) -> None:
    opaque, commitlog_offset, queue_id, queue_offset = numbers
    for unique_key in (key, "7F0000010001"):
        answer = PlainAnswer(opaque, Host(address, 10911), commitlog_offset, queue_id, queue_offset, unique_key)
        assert answer.encode() == answer.command().encode()
