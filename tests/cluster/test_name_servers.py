"""What name servers do or fail to do keeps no message from brokers that are there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

import broker
from broker.cluster.live_cluster import connect
from broker.cluster.membership import group_member
from broker.cluster.network import client as client_of_brokers
from broker.cluster.network import route_table
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from tests.backends.clusters import Connected
from tests.cluster.network import Closing, NameServer, Proxy
from tests.cluster.waiting import awaited
from tests.server.wire_client import WireClient


@dataclass
class Named:
    """A client whose routes are always old, and its name server, behind a proxy."""

    client: broker.LiveCluster
    name_server: NameServer
    proxy: Proxy

    def send(self) -> str:
        return self.client.producer("plain").send(broker.Message("carts", b"lamp")).broker_name


@pytest.fixture
def named(served: Connected) -> Iterator[Named]:
    with ExitStack() as stack:
        name_server = stack.enter_context(NameServer({"broker-a": served.proxy.target}))
        proxy = stack.enter_context(Proxy())
        proxy.target = name_server.address
        client = stack.enter_context(connect(f"rocketmq://{proxy.address}", route_s=0.0, call_timeout_s=1.0))
        yield Named(client, name_server, proxy)


def test_a_name_server_that_hangs_keeps_no_message_back(named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    """The send waits a moment for it, and not longer than a send may take."""
    monkeypatch.setattr(route_table, "_PATIENCE_S", 0.05)
    object.__setattr__(named.client._settings, "send_timeout_s", 1.0)
    assert named.send() == "broker-a"
    named.proxy.answer = lambda _: None
    asked = len(named.proxy.passed)
    assert [named.send() for _ in range(3)] == ["broker-a"] * 3
    assert len(named.proxy.passed) == asked + 1  # and not for each message


def test_resolvers_that_hang_do_not_keep_its_name_from_being_resolved(served: Connected) -> None:
    """As many checks as there are threads did, and no consumer could give a message back."""
    is_asked, is_over = threading.Event(), threading.Event()

    def hang(_: broker.ReceivedMessage) -> str:
        is_asked.set()
        is_over.wait(30)
        return "unknown"

    url = f"rocketmq://localhost:{served.proxy.address.rpartition(':')[2]}"
    with broker.connect(url) as client, ExitStack() as stack:
        stack.callback(is_over.set)
        loop = client._loop.loop
        loop.call_soon_threadsafe(loop.set_default_executor, ThreadPoolExecutor(1))
        producer = client.producer("shop", topics=["orders"], resolver=hang)
        producer.send(broker.Message("orders", b"lamp"), producer.begin_transaction())
        assert is_asked.wait(served.soon_s)
        served.proxy.cut()
        assert client.topic("elsewhere") is None  # an answer


def test_a_name_server_that_was_just_started_keeps_no_message_back(named: Named) -> None:
    """It knows no topic until its brokers register again, within 30 seconds."""
    with named.client.consumer("billing", "carts") as consumer:
        assert named.send() == "broker-a"
        named.name_server.brokers = {}
        assert named.send() == "broker-a"
        assert [consumer.receive(10.0) is not None for _ in range(2)] == [True, True]
    assert named.client.topic("carts") is None  # its own answer, which changes nothing for who sends
    assert named.send() == "broker-a"


def test_a_topic_that_no_name_server_and_no_broker_has_is_gone(named: Named) -> None:
    """Whose only broker was killed was told to make it, and could not."""
    assert named.send() == "broker-a"
    named.name_server.brokers = {}
    named.client._loop.run(_expired(named.client))
    with pytest.raises(broker.ClusterError, match="no broker is registered at rocketmq://") as caught:
        named.send()
    assert caught.value.code is None  # nobody refused it


@dataclass
class Moved:
    """A client, and what puts its broker elsewhere: a proxy is gone, and the name server names the broker itself."""

    client: broker.LiveCluster
    name_server: NameServer
    proxy: Proxy

    def move(self) -> None:
        self.name_server.brokers = {"broker-a": self.proxy.target}
        self.proxy.close()


@pytest.fixture
def moved(served: Connected) -> Iterator[Moved]:
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy())
        proxy.target = served.proxy.target
        name_server = stack.enter_context(NameServer({"broker-a": proxy.address}))
        yield Moved(stack.enter_context(broker.connect(f"rocketmq://{name_server.address}")), name_server, proxy)


def test_a_message_on_its_way_goes_where_its_broker_is_now(moved: Moved) -> None:
    """All of its tries went to the address that was known before: two servers of a store, of which one was killed."""
    producer = moved.client.producer("plain")
    producer.send(broker.Message("carts", b"lamp"))

    def lost(command: RemotingCommand) -> RemotingCommand | None:
        if command.code == RequestCode.SEND_MESSAGE:
            moved.move()
            return None
        return command

    moved.proxy.request = lost
    producer.send(broker.Message("carts", b"desk"))
    assert [one.body for one in moved.client.newest("carts")] == [b"lamp", b"desk"]


def test_a_consumer_goes_on_where_its_broker_is_now(moved: Moved, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when the route is asked for again, up to 30 seconds later. Its producers are checked there, too."""
    monkeypatch.setattr(client_of_brokers, "_BACK_S", 0.05)
    monkeypatch.setattr(group_member, "_AFTER_FAILURE_S", 0.05)
    producer = moved.client.producer("plain")
    with moved.client.consumer("billing", "carts") as consumer:
        producer.send(broker.Message("carts", b"lamp"))
        assert consumer.receive(5.0) is not None
        moved.move()
        with WireClient(moved.proxy.target) as other:
            fields = {"producerGroup": "plain"}
            is_there = ResponseCode.SUCCESS
            assert awaited(lambda: other.request(RequestCode.GET_PRODUCER_CONNECTION_LIST, fields).code == is_there)
        producer.send(broker.Message("carts", b"desk"))
        assert consumer.receive(5.0) is not None


def test_a_transactional_producer_makes_a_topic_again_that_was_deleted(served: Connected) -> None:
    producer = served.client.producer("shop", topics=["orders"], resolver=lambda _: None)
    transaction = producer.begin_transaction()
    producer.send(broker.Message("orders", b"lamp"), transaction)
    transaction.rollback()
    with WireClient(served.proxy.target) as operator:
        assert operator.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == ResponseCode.SUCCESS
    assert served.client.topic("orders") is None
    served.client.producer("shop", topics=["orders"], resolver=lambda _: None)
    assert served.client.topic("orders") is not None


async def _expired(client: broker.LiveCluster) -> None:
    """As after a send that no broker took."""
    client._client.routes.expire("carts")


def test_a_port_that_closes_each_connection_is_tried_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a container whose broker is away: some 800 connections a second were opened, without end."""
    monkeypatch.setattr(client_of_brokers, "_BACK_S", 0.1)
    with Closing() as port, NameServer({"broker-a": port.address}) as name_server:
        with broker.connect(f"rocketmq://{name_server.address}") as client:
            client.join("plain")
            assert awaited(lambda: len(port.times_s) > 6)
        assert port.times_s[6] - port.times_s[0] > 0.3
