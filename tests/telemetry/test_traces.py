"""Spans of several processes, as a collector gets them: one trace from the send to the charge, across all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from tests.house.tree import ROOT
from tests.telemetry.collector import Collector

SHOP = "tests.telemetry.traced_shop"
PLAIN, FAILING, DYING = 4711, 13, 7
POLICY = '[policy."*"]\nfirst_check_after = "0s"\njitter = 0\n'


class Site:
    """Where the processes of a test run."""

    def __init__(self, directory: Path, engine: str, collector: Collector) -> None:
        self.directory, self.collector, self.log = directory, collector, ""
        self.environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "STORE": str(directory / "shop.store"),
            "DATABASE": str(directory / "shop.db"), "TRANSACTIONS": engine, "OTEL_BSP_SCHEDULE_DELAY": "50",
        }  # fmt: skip

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=self.directory, env=self.environment, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stderr

    def order(self, order_id: int, action: str = "order", code: int = 0) -> None:
        self.run(SHOP, action, self.collector.url, str(order_id), code=code)

    def work(self) -> str:
        words = ("work", f"{SHOP}:app", "--until-idle", "3s", "--otlp", self.collector.url, "--log", "json")
        return self.run("recovery.cli", *words)

    def check_back(self) -> None:
        (self.directory / "policy.toml").write_text(POLICY, encoding="utf-8")
        ledger = f"sqlite:///{self.environment['DATABASE']}"
        words = ("check-back", self.environment["STORE"], "--ledger", ledger, "--config", "policy.toml")
        self.run("recovery.cli", *words, "--otlp", self.collector.url)


pytestmark = pytest.mark.xdist_group("traces")  # one shop for all
of_one_engine = pytest.mark.sample("state-table")


@pytest.fixture(scope="module", params=["state-table", "half-op"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three orders: one in peace, one whose handler fails once, one whose process dies after COMMIT."""
    with Collector() as collector:
        site = Site(tmp_path_factory.mktemp("site"), request.param, collector)
        site.order(PLAIN)
        site.order(FAILING)
        site.order(DYING, "die", code=9)
        site.check_back()
        site.log = site.work()
        yield site


@of_one_engine
def test_one_trace_from_the_checkout_to_the_charge(site: Site) -> None:
    seen = site.collector.of(PLAIN)
    send, commit, process = seen["send orders"], seen["commit orders"], seen["process orders"]
    checkout = next(one for one in site.collector.named("checkout") if one.trace_id == send.trace_id)
    assert (send.service, send.kind, send.parent_id) == ("web", "PRODUCER", checkout.span_id)
    assert (commit.service, commit.kind, commit.parent_id) == ("web", "CLIENT", checkout.span_id)
    assert (process.service, process.kind, process.parent_id) == (SHOP, "CONSUMER", send.span_id)
    assert process.trace_id == send.trace_id
    ack, receive = seen["ack orders"], seen["receive orders"]
    assert (ack.service, ack.kind, ack.parent_id) == (SHOP, "CLIENT", process.span_id)
    assert {one.links for one in (commit, process, ack, receive)} == {(send.place,)}
    invoice = seen["send invoices"]
    assert (invoice.service, invoice.parent_id, invoice.trace_id) == (SHOP, process.span_id, checkout.trace_id)
    assert seen["commit invoices"].links == (invoice.place,)


@of_one_engine
def test_attributes_are_those_of_the_conventions(site: Site) -> None:
    seen = site.collector.of(PLAIN)
    send, process = seen["send orders"], seen["process orders"]
    wanted = {
        "messaging.system": "rocketmq", "messaging.operation.name": "send", "messaging.operation.type": "send",
        "messaging.destination.name": "orders", "messaging.rocketmq.message.type": "transaction",
        "messaging.message.body.size": len(str(PLAIN)), "messaging.rocketmq.message.keys": [str(PLAIN)],
        "checkback.producer_group": "shop",
    }  # fmt: skip
    assert wanted.items() <= send.attributes.items()
    assert process.attributes["messaging.operation.type"] == "process"
    assert process.attributes["messaging.consumer.group.name"] == "billing"
    assert process.attributes["messaging.message.id"] == send.attributes["messaging.message.id"]
    assert seen["ack orders"].attributes["messaging.operation.type"] == "settle"


@of_one_engine
def test_check_back_in_another_process_links_to_the_send(site: Site) -> None:
    """The producer dies between COMMIT and its end: check-back's commit is in the send's trace, and links to it."""
    seen = site.collector.of(DYING)
    send, commit, process = seen["send orders"], seen["commit orders"], seen["process orders"]
    assert commit.service == "check-back"
    assert (commit.trace_id, commit.parent_id, commit.links) == (send.trace_id, send.span_id, (send.place,))
    assert (process.trace_id, process.parent_id) == (send.trace_id, send.span_id)


@of_one_engine
def test_a_handler_that_fails_has_a_failed_span_and_a_retry(site: Site) -> None:
    send = site.collector.of(FAILING)["send orders"]
    mine = [one for one in site.collector.spans if one.links == (send.place,)]
    (retry,) = [one for one in mine if one.name == "retry orders"]
    failed, second = sorted([one for one in mine if one.name == "process orders"], key=lambda one: one.error is None)
    assert (failed.error is not None, second.error) == (True, None)
    assert retry.parent_id == failed.span_id
    lines = [json.loads(line) for line in site.log.splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line.get("event") == "handler-failed"]
    assert (line["topic"], line["group"], line["level"]) == ("orders", "billing", "warning")
    assert line["message_key"] == send.attributes["messaging.message.id"]


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_a_rolled_back_transaction_and_plain_messages(engine: str, tmp_path: Path) -> None:
    """In one process, by the spans of the SDK's own memory."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from broker import telemetry

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.switch_on(provider)
    try:
        layout = broker.StoreLayout.small()
        with broker.open(tmp_path / "store", layout=layout, transactions=engine) as store:
            plain = store.producer("web")
            plain.send_batch([broker.Message("carts", b"1"), broker.Message("carts", b"2")])
            own = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
            plain.send(broker.Message("carts", b"3", properties={"traceparent": own}))
            producer = store.producer("shop", topics=["orders"], resolver=lambda _: None)
            producer.begin_transaction().rollback()
            transaction = producer.begin_transaction()
            producer.send(broker.Message("orders", b"1"), transaction)
            transaction.rollback()
            with store.consumer("audit", "carts") as consumer:
                received = [consumer.receive(10) for _ in range(3)]
                for message in received:
                    assert message is not None
                    with telemetry.processing(message, "audit"):
                        consumer.ack(message)
    finally:
        telemetry.switch_off()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    names = [span.name for span in exporter.get_finished_spans()]
    assert names.count("create carts") == 2
    assert len(spans["rollback orders"].links) == 1
    assert spans["rollback orders"].links[0].context.span_id == spans["send orders"].context.span_id
    assert (names.count("process carts"), names.count("ack carts"), names.count("receive carts")) == (3, 3, 3)
    traces = {f"{span.context.trace_id:032x}" for span in exporter.get_finished_spans() if span.name == "process carts"}
    assert "ab" * 16 in traces, "a context that the application gave is kept"
    assert len(traces) == 3
