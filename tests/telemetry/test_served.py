"""Spans of a server: a message of a traced client continues its trace, and so does the end of its transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind

import broker
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.command import RemotingCommand
from broker.transaction.service import LocalTransactionState
from tests.server.processes import server_process
from tests.server.wire_client import WireClient, sending
from tests.telemetry.collector import Collector
from tests.telemetry.spans_in_memory import SpansInMemory, links, traced

TRACE, SENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
CONTEXT = f"00-{TRACE:032x}-{SENT:016x}-01"
LAYOUT = broker.StoreLayout(segment_bytes=8 << 20)


@pytest.fixture
def spans() -> Iterator[SpansInMemory]:
    with traced() as made:
        yield made


@pytest.fixture(params=["state-table", "half-op"])
def client(tmp_path: Path, request: pytest.FixtureRequest, spans: SpansInMemory) -> Iterator[WireClient]:
    """A client of a server in this process; no other work of the server has spans."""
    with broker.open(tmp_path / "store", sync="os", layout=LAYOUT, transactions=request.param) as store:
        store.create_topic("orders", queues=4, message_type="")
        with broker.serve(store, "127.0.0.1:0") as server, WireClient(server.address) as made:
            yield made
    assert not spans.named("receive orders")


def prepared(client: WireClient, **properties: str) -> RemotingCommand:
    ext = sending("orders", 1, sys_flag=4, TRAN_MSG="true", PGROUP="shop", UNIQ_KEY="K1", **properties)
    half = client.request(Code.SEND_MESSAGE_V2, ext, b"half")
    assert half.code == Answer.SUCCESS
    return half


def end(client: WireClient, half: RemotingCommand, decision: int, **changes: Any) -> RemotingCommand:
    fields = {
        "producerGroup": "shop", "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": int(half.ext["msgId"][16:], 16), "commitOrRollback": decision, **changes,
    }  # fmt: skip
    return client.request(Code.END_TRANSACTION, fields)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_message_is_stored_in_the_trace_of_its_send(client: WireClient, spans: SpansInMemory) -> None:
    answer = client.publish("orders", b"x", queue_id=2, traceparent=CONTEXT, UNIQ_KEY="K7", TAGS="new", KEYS="a b")
    assert answer.code == Answer.SUCCESS
    span = spans.one("store orders")
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id, span.kind) == (TRACE, SENT, SpanKind.SERVER)
    found = attributes(span)
    assert (found["messaging.message.id"], found["messaging.destination.partition.id"]) == ("K7", "2")
    assert (found["messaging.message.body.size"], found["messaging.rocketmq.message.keys"]) == (1, ("a", "b"))
    assert "new" in found.values()
    assert span.status.is_ok or span.status.is_unset
    assert (span.end_time or 0) >= (span.start_time or 0) > 0


def test_a_refused_message_fails_its_span(client: WireClient, spans: SpansInMemory) -> None:
    assert client.publish("orders", b"", traceparent=CONTEXT).code == Answer.MESSAGE_ILLEGAL
    span = spans.one("store orders")
    assert not span.status.is_ok
    assert "body" in (span.status.description or "")


def test_without_a_context_there_is_no_span(client: WireClient, spans: SpansInMemory) -> None:
    assert client.publish("orders", b"x").code == Answer.SUCCESS
    assert client.publish("orders", b"x", traceparent="nonsense").code == Answer.SUCCESS
    assert client.request(Code.SEND_MESSAGE_V2, {"b": "orders"}, b"x").code != Answer.SUCCESS
    assert not spans.named("store orders")


@pytest.mark.parametrize(("decision", "name"), [(8, "commit"), (12, "rollback")])
def test_an_end_is_in_the_trace_of_its_half(client: WireClient, spans: SpansInMemory, decision: int, name: str) -> None:
    half = prepared(client, traceparent=CONTEXT)
    assert end(client, half, decision).code == Answer.SUCCESS
    span = spans.one(f"{name} orders")
    assert (span.context.trace_id, links(span), span.kind) == (TRACE, [SENT], SpanKind.SERVER)
    assert attributes(span)["checkback.producer_group"] == "shop"
    assert end(client, half, 20 - decision).code == Answer.SYSTEM_ERROR  # the first decision wins


def test_an_end_of_another_group_is_refused_as_without_spans(client: WireClient, spans: SpansInMemory) -> None:
    half = prepared(client, traceparent=CONTEXT)
    assert "the producer group is shop, not other" in (end(client, half, 8, producerGroup="other").remark or "")
    assert "the slot is 0, not 5" in (end(client, half, 8, tranStateTableOffset=5).remark or "")
    assert "there is no half message" in (end(client, half, 8, commitLogOffset=12345678).remark or "")
    assert all(not span.status.is_ok for span in spans.named("commit orders"))
    assert end(client, half, 8).code == Answer.SUCCESS


def test_what_the_server_decides_itself_has_its_span(tmp_path: Path, spans: SpansInMemory) -> None:
    """By the word of a resolver, in a round of check-back."""
    with (
        broker.open(tmp_path / "store", sync="os", layout=LAYOUT) as store,
        broker.serve(
            store, "127.0.0.1:0", resolver=lambda _half, _message: LocalTransactionState.COMMIT_MESSAGE,
            check_interval_s=0.05, transaction_timeout_s=0.01,
        ) as server,
        WireClient(server.address) as client,
    ):  # fmt: skip
        prepared(client, traceparent=CONTEXT)
        deadline = time.monotonic() + 10
        while not spans.named("commit orders") and time.monotonic() < deadline:
            time.sleep(0.01)
    span = spans.one("commit orders")
    assert (span.context.trace_id, links(span), span.kind) == (TRACE, [SENT], SpanKind.CLIENT)


def test_the_verb_sends_its_spans_to_a_collector(tmp_path: Path) -> None:
    with (
        Collector() as collector,
        server_process(tmp_path / "store", "os", "--create", "--otlp", collector.url) as (process, address),
        WireClient(address) as client,
    ):
        assert client.publish("orders", b"x", traceparent=CONTEXT).code == Answer.SUCCESS
        process.terminate()
        assert process.wait(30) == 0
        (span,) = collector.named("store orders")
    assert (span.service, span.trace_id, span.parent_id) == ("serve", f"{TRACE:032x}", f"{SENT:016x}")
