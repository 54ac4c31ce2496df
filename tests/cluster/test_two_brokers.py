"""A cluster of two brokers, one of which fails: stores that are served in this process, behind one name server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import broker
from broker.cluster.live_cluster import connect
from broker.cluster.membership import group_member
from broker.cluster.publishing import sending as cluster_sending
from broker.database.ledger_binding import LEDGER_BINDING
from broker.enlisting.ledger_key import LEDGER_KEY, new_key
from broker.format.config import PERM_READ
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from recovery.answering.group_answering import answering, bind
from tests.cluster.conftest import LAYOUT, SOON, Buy
from tests.cluster.network import NameServer, Proxy
from tests.cluster.waiting import awaited, wait_less
from tests.producer.delivered import delivered
from tests.server.wire_client import WireClient, sending


@dataclass
class TwoBrokers:
    """`broker-a`, which a test closes, and `broker-b`; with two queues of every topic at each."""

    stores: list[broker.LiveStore]
    servers: list[broker.Server]
    client: broker.LiveCluster


@pytest.fixture
def two(tmp_path: Path, each_engine: str) -> Iterator[TwoBrokers]:
    with ExitStack() as stack:
        names = ("broker-a", "broker-b")
        stores = [stack.enter_context(broker.open(tmp_path / name, sync="os", layout=LAYOUT)) for name in names]
        servers = [
            stack.enter_context(broker.serve(store, "127.0.0.1:0", broker_name=name, **SOON))
            for store, name in zip(stores, names, strict=True)
        ]
        addresses = {name: server.address for name, server in zip(names, servers, strict=True)}
        name_server = stack.enter_context(NameServer(addresses))
        client = stack.enter_context(broker.connect(f"rocketmq://{name_server.address}"))
        yield TwoBrokers(stores, servers, client)


def test_a_broker_that_fails_is_avoided(two: TwoBrokers, ledger: broker.Ledger, buy: Buy) -> None:
    producer = two.client.producer("shop", topics=["orders"], ledger=ledger)
    for number in range(8):
        buy(producer, number)
    first, second = (len(delivered(one)) for one in two.stores)
    assert first + second == 8
    assert min(first, second) > 0  # 4 each, unless one is slow, which is avoided for a while, too
    two.servers[0].close()
    for number in range(8, 16):
        buy(producer, number)
    kept = second + 8
    assert len(delivered(two.stores[1])) == kept
    with two.client.consumer("billing", "orders") as consumer:  # what broker-b has
        assert len({one.body for _ in range(kept) if (one := consumer.receive(5.0))}) == kept


def test_a_broker_that_is_gone_keeps_nobody_from_the_others(two: TwoBrokers) -> None:
    producer = two.client.producer("plain")
    for number in range(8):
        producer.send(broker.Message("carts", b"%d" % number))
    with two.client.consumer("billing", "carts") as consumer:
        assert len(acknowledged(consumer, 8)) == 8
        assert {one[2] for one in consumer.queues} == {"broker-a", "broker-b"}
        two.servers[0].close()
        for number in range(4):
            producer.send(broker.Message("carts", b"after %d" % number))
        assert len(acknowledged(consumer, 4)) == 4


def test_a_broker_that_is_read_only_is_gone_around(two: TwoBrokers, ledger: broker.Ledger, buy: Buy) -> None:
    """The route says so only later; a message with a sharding key stays with its queue."""
    plain, producer = two.client.producer("plain"), two.client.producer("shop", topics=["orders"], ledger=ledger)
    for topic in ("carts", "orders"):
        two.stores[0].create_topic(topic, queues=2, message_type="", perm=PERM_READ)
    assert {plain.send(broker.Message("carts", b"lamp")).broker_name for _ in range(4)} == {"broker-b"}
    for number in range(4):
        buy(producer, number)
    assert len(delivered(two.stores[1])) == 4
    two.stores[1].create_topic("carts", queues=2, message_type="", perm=PERM_READ)
    with pytest.raises(broker.NotPermitted, match=r"topic\[carts\] sending message is forbidden"):
        plain.send(broker.Message("carts", b"lamp"))


def test_a_broker_that_hangs_keeps_no_queue_of_another_from_an_ordered_consumer(
    two: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when it takes its queues, nor when it locks them again."""
    monkeypatch.setattr(group_member, "LOCK_S", 0.05)
    monkeypatch.setattr(group_member, "LOCK_VALID_S", 0.3)
    for store in two.stores:
        store.create_topic("carts", queues=2)
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy())
        proxy.target = two.servers[0].address
        name_server = stack.enter_context(NameServer({"broker-a": proxy.address, "broker-b": two.servers[1].address}))
        wait_less(monkeypatch, 0.1, lambda address, _: address == proxy.address)
        client = stack.enter_context(connect(f"rocketmq://{name_server.address}"))
        before = stack.enter_context(client.consumer("billing", "carts", ordered=True))
        assert awaited(lambda: len(before.queues) == 6)  # with those of its retry topic
        proxy.request = lambda _: None
        locks = _locks(proxy)
        assert awaited(lambda: _locks(proxy) > locks + 3)  # each waits for the one before, in vain: the first are over
        after = stack.enter_context(client.consumer("shipping", "carts", ordered=True))
        two.stores[1].append(broker.Message("carts", b"lamp"))
        for consumer in (before, after):
            message = consumer.receive(5.0)
            assert message is not None
            assert message.body == b"lamp"


def test_a_broker_that_answers_late_keeps_no_heartbeat_from_another(two: TwoBrokers) -> None:
    """A connection that was opened while a heartbeat to another broker was under way was greeted after 30 seconds."""
    is_over = threading.Event()

    def late(command: RemotingCommand) -> RemotingCommand:
        if command.code == RequestCode.HEART_BEAT:
            is_over.wait(10.0)
        return command

    with ExitStack() as stack:
        slow, quick = (stack.enter_context(Proxy()) for _ in range(2))
        slow.target, quick.target = (server.address for server in two.servers)
        name_server = stack.enter_context(NameServer({"broker-a": slow.address, "broker-b": quick.address}))
        client = stack.enter_context(broker.connect(f"rocketmq://{name_server.address}"))
        stack.callback(is_over.set)
        client.join("plain")
        operator = stack.enter_context(WireClient(two.servers[1].address))
        before, slow.request = _beats(slow), late
        slow.cut()
        assert awaited(lambda: _beats(slow) > before)  # it is under way
        quick.cut()
        assert awaited(lambda: not _has_producers(operator))
        client._loop.run(client._client.channels.request(quick.address, RequestCode.GET_BROKER_RUNTIME_INFO))
        is_over.set()
        assert awaited(lambda: _has_producers(operator))


def _beats(proxy: Proxy) -> int:
    return sum(one.code == RequestCode.HEART_BEAT for one in proxy.passed)


def _has_producers(client: WireClient) -> bool:
    return client.request(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "plain"}).code == 0


def _locks(proxy: Proxy) -> int:
    return sum(one.code == RequestCode.LOCK_BATCH_MQ for one in proxy.passed)


def test_a_machine_that_is_off_holds_up_all_sends_at_the_same_time() -> None:
    """No packet comes back from it. They tried one after the other: the last of eight threads waited eight times."""
    with ExitStack() as stack:
        name_server = stack.enter_context(NameServer({"broker-a": _off(stack)}))
        url, limit_s = f"rocketmq://{name_server.address}", 1.0
        client = stack.enter_context(connect(url, call_timeout_s=limit_s, send_timeout_s=limit_s))
        producer = client.producer("plain")

        def send(_: int) -> str:
            with pytest.raises(broker.ClusterError) as raised:
                producer.send(broker.Message("carts", b"lamp"))
            return str(raised.value)

        begun_s = time.monotonic()
        with ThreadPoolExecutor(8) as threads:
            texts = set(threads.map(send, range(8)))
        assert all("takes no connection within" in text for text in texts), texts
        assert time.monotonic() - begun_s < 4 * limit_s


def test_a_machine_that_is_off_keeps_no_message_from_another_broker(
    two: TwoBrokers, ledger: broker.Ledger, buy: Buy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for a connection took all the time of the first send, which failed; so did one every ten seconds."""
    monkeypatch.setattr(cluster_sending, "_CONNECT_S", 0.3)
    with ExitStack() as stack:
        places = {"broker-a": _off(stack), "broker-b": two.servers[1].address}
        name_server = stack.enter_context(NameServer(places))
        client = stack.enter_context(connect(f"rocketmq://{name_server.address}", call_timeout_s=1.0))
        plain = client.producer("plain")
        assert {plain.send(broker.Message("carts", b"lamp")).broker_name for _ in range(4)} == {"broker-b"}
        producer = client.producer("shop", topics=["orders"], ledger=ledger)
        for number in range(4):
            buy(producer, number)
        assert len(delivered(two.stores[1])) == 4


def _off(stack: ExitStack) -> str:
    """The address of a machine from which no packet comes back: a full backlog."""
    off = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _ in range(3):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(off.getsockname())
    return f"127.0.0.1:{off.getsockname()[1]}"


def acknowledged(consumer: broker.ClusterConsumer, count: int) -> set[bytes]:
    """The bodies of the next messages, each once, and none is left."""
    received: list[bytes] = []
    while message := consumer.receive(0.3 if len(received) == count else 10.0):
        received.append(message.body)
        assert consumer.ack(message)
    assert len(received) == count
    return set(received)


def test_an_address_that_cannot_be_is_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    """A name server may say anything, also a port that no socket takes."""
    with (
        NameServer({"broker-a": "127.0.0.1:99999"}) as name_server,
        broker.connect(f"rocketmq://{name_server.address}") as client,
        pytest.raises(broker.ClusterError, match="99999 takes no connection"),
    ):
        client.producer("plain").send(broker.Message("carts", b"lamp"))


def test_a_backup_is_noticed_beside_a_broker_that_is_gone(
    two: TwoBrokers, ledger: broker.Ledger, buy: Buy, tmp_path: Path
) -> None:
    """Rows of what the other broker delivered are missing: it was not looked at, and a lost row meant rollback."""
    bound, path = bind(two.client, ledger), tmp_path / "shop.db"
    producer = two.client.producer("shop", topics=["orders"], ledger=ledger)
    backup = path.read_bytes()
    for number in range(8):
        buy(producer, number)
    assert awaited(lambda: all(map(delivered, two.stores)))
    two.servers[0].close()
    now_ms = time.time_ns() // 1_000_000
    named = {"PGROUP": "shop", LEDGER_KEY: new_key(now_ms), LEDGER_BINDING: bound.binding_id}
    with WireClient(two.servers[1].address) as client:  # its row was lost, too
        fields = sending("orders", sys_flag=4, TRAN_MSG="true", **named) | {"g": now_ms}
        assert client.request(RequestCode.SEND_MESSAGE_V2, fields, b"left").code == 0
    path.write_bytes(backup)
    with answering(two.client, "shop", [ledger]) as answerer:
        assert awaited(lambda: answerer.report.checks)
    assert (answerer.report.refused > 0, answerer.report.rolled_back) == (True, 0)
    with pytest.raises(broker.ClusterError):
        two.client.newest("orders")
    two.servers[1].close()
    with pytest.raises(broker.ClusterError):
        two.client.newest("orders", partial=True)
