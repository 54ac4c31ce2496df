"""Spans of messages that go through a cluster: those of a store, and those of the answers to its brokers' checks."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import broker
from broker import telemetry
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from recovery.answering.group_answering import answering, bind
from tests.backends.clusters import Connected
from tests.cli.command import process
from tests.cluster.conftest import ONE_ENGINE, Buy
from tests.cluster.waiting import awaited
from tests.telemetry.collector import Collector
from tests.telemetry.spans_in_memory import SpansInMemory, links, traced


def without_ends(command: RemotingCommand) -> RemotingCommand | None:
    return None if command.code == RequestCode.END_TRANSACTION else command


def test_one_trace_from_the_send_to_what_the_handler_sends(
    backend: Connected, engine: Engine, ledger: broker.Ledger, buy: Buy
) -> None:
    processed = broker.Processed()
    processed.create_all(engine)
    with traced() as spans, backend.another() as cluster:
        producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
        with spans.provider.get_tracer("shop").start_as_current_span("checkout"):
            buy(producer, 7)
        with cluster.consumer("billing", "orders", processed=processed) as consumer:
            message = consumer.receive(backend.soon_s)
            assert message is not None
            with Session(engine) as session, consumer.process(message, session) as first:
                assert first
                cluster.producer("bills").send(broker.Message("bills", b"7"))
    checkout, send = spans.one("checkout"), spans.one("send orders")
    commit = own_end(spans, "commit orders")
    receive, handled, ack = (spans.one(f"{name} orders") for name in ("receive", "process", "ack"))
    assert send.parent is not None
    assert message.properties["traceparent"].split("-")[2] == f"{send.context.span_id:016x}"
    assert send.parent.span_id == checkout.context.span_id
    assert commit.parent.span_id == checkout.context.span_id
    assert [links(one) for one in (commit, receive, handled, ack)] == [[send.context.span_id]] * 4
    assert handled.parent.span_id == send.context.span_id
    assert ack.parent.span_id == handled.context.span_id
    bill = spans.one("send bills")
    assert (bill.parent.span_id, bill.context.trace_id) == (handled.context.span_id, checkout.context.trace_id)
    assert send.attributes["messaging.rocketmq.message.type"] == "transaction"
    assert handled.attributes["messaging.message.id"] == send.attributes["messaging.message.id"]


def test_batches_delays_rollbacks_and_retries(backend: Connected) -> None:
    with traced() as spans, backend.another() as cluster:
        plain = cluster.producer("web")
        plain.send_batch([broker.Message("carts", b"1"), broker.Message("carts", b"2")])
        producer = cluster.producer("shop", topics=["orders"], resolver=lambda _: None)
        transaction = producer.begin_transaction()
        producer.send(broker.Message("orders", b"1"), transaction)
        transaction.rollback()
        with cluster.consumer("audit", "carts") as consumer:
            for _ in range(2):
                message = consumer.receive(backend.soon_s)
                assert message is not None
                with telemetry.processing(message, "audit"):
                    consumer.ack(message) if message.body == b"1" else consumer.retry(message, 1)
    created = {span.context.span_id for span in spans.named("create carts")}
    assert len(created) == 2
    assert set(links(spans.one("send carts"))) == created
    assert links(own_end(spans, "rollback orders")) == [spans.one("send orders").context.span_id]
    assert {span.parent.span_id for span in spans.named("process carts") if span.parent} == created
    retry = spans.one("retry carts")
    assert set(links(retry)) < created
    assert [span.status.is_ok for span in spans.named("process carts")].count(False) == 1


def test_the_answer_to_a_check_links_to_the_send_in_either_process(
    backend: Connected, ledger: broker.Ledger, buy: Buy
) -> None:
    """The producer's own process answers first; then, with the producer gone, `answering` does."""
    backend.proxy.request = without_ends
    with traced() as spans, backend.another() as cluster:
        producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
        buy(producer, 1)
        assert awaited(lambda: any(by_check(span) for span in spans.named("commit orders")), backend.soon_s)
        send = spans.one("send orders")
    for span in filter(by_check, spans.named("commit orders")):
        assert links(span) == [send.context.span_id]
        assert span.parent.span_id == send.context.span_id
    with backend.another() as cluster:
        bind(cluster, ledger)
        backend.proxy.request = lambda command: command
        with traced() as others, answering(cluster, "shop", [ledger]):
            assert awaited(lambda: not backend.in_doubt(), backend.soon_s)
            assert awaited(lambda: others.named("commit orders"), backend.soon_s)
    assert links(others.named("commit orders")[0]) == [send.context.span_id]


def own_end(spans: SpansInMemory, name: str) -> ReadableSpan:
    """The producer's: a server of ours in this process has spans too, and a check may come besides."""
    (span,) = [one for one in spans.named(name) if one.kind is not SpanKind.SERVER and not by_check(one)]
    return span


def by_check(span: object) -> bool:
    return span.attributes.get("checkback.decided_by") == "a check of its broker"  # type: ignore[attr-defined]


@ONE_ENGINE
def test_the_command_line_sends_the_spans_of_its_answers(
    backend: Connected, engine: Engine, ledger: broker.Ledger
) -> None:
    with traced() as spans, backend.another() as cluster:
        bind(cluster, ledger)
        producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
        with Session(engine) as session:  # rolled back with the process: nothing ends it
            session.execute(text("SELECT 1"))
            producer.send(broker.Message("orders", b"gone"), session)
            backend.proxy.request = without_ends
        send = spans.one("send orders")
    backend.proxy.request = lambda command: command
    with Collector() as collector:
        names = backend.client.path.removeprefix("rocketmq://")
        words = ["answer", names, "--group", "shop", "--ledger", engine.url, "--once", "--idle", "3s"]
        done = process(*words, "--otlp", collector.url)
        assert done.code == 0, done.err
        rollback = collector.named("rollback orders")[0]
    assert (rollback.service, rollback.kind) == ("answer", "CLIENT")
    assert rollback.parent_id == f"{send.context.span_id:016x}"
    assert rollback.links == ((f"{send.context.trace_id:032x}", f"{send.context.span_id:016x}"),)
