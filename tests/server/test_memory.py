"""What one connection may keep of the server's memory: what it asked for, until that is answered."""

from __future__ import annotations

import contextlib
import threading
import time
import tracemalloc
import zlib
from typing import Any

import pytest

import broker
from broker.format import java
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.command import RemotingCommand
from broker.server import connection, running
from broker.server.requests import pulls
from broker.store.write import pending_record
from broker.transaction import ends
from tests.server.conftest import Connect, Serve
from tests.server.processes import await_true
from tests.server.wire_client import WireClient, sending

WAITING = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32,
           "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 20_000, "subscription": "*"}  # fmt: skip


def large_sends(number: int) -> bytes:
    """Messages of 1 MiB, side by side, with the request numbers 100 and up."""
    ext = {name: str(value) for name, value in sending("orders").items()}
    return b"".join(
        RemotingCommand(int(Code.SEND_MESSAGE_V2), 100 + one, ext=dict(ext), body=bytes(1 << 20)).encode()
        for one in range(number)
    )


def begin(client: WireClient) -> None:
    """A topic with one message, and a group."""
    client.publish("orders", b"x")
    client.pulled("billing", "orders")


def test_a_pull_that_waits_keeps_nothing_of_its_request(serve: Serve, connect: Connect) -> None:
    """4,096 of them with bodies of 4 MiB were 16 GiB of one connection."""
    server = serve()
    client, honest = connect(server), connect(server)
    begin(honest)
    asked = [client.send(Code.PULL_MESSAGE, WAITING, bytes(1 << 20)) for _ in range(20)]
    asked += [client.send(Code.PULL_MESSAGE, WAITING | {"more": "x" * 200_000}) for _ in range(20)]
    unread = WAITING | {"subscription": "x" * 60_000}
    asked += [client.send(Code.PULL_MESSAGE, unread) for _ in range(5)]
    await_true(lambda: len(server.held) == len(asked))
    kept: list[Any] = [held for waiting in server.held._queues.values() for held in waiting]
    assert {(bool(held.request.command.body), bool(held.request.command.ext)) for held in kept} == {(False, False)}
    assert all(len(held.header.subscription or "") + len(held.header.expression_type or "") < 100 for held in kept)
    assert server.working_bytes == 0
    honest.publish("orders", b"y")
    assert {client.answer(opaque).code for opaque in asked[:40]} == {Answer.SUCCESS}


def test_the_expressions_of_pulls_that_wait_are_bounded(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "TEXT_OF_CONNECTION_MAX", 20_000, raising=False)
    monkeypatch.setattr(pulls, "TEXT_MAX", 24_950, raising=False)
    server = serve()
    client, other = connect(server), connect(server)
    begin(client)
    texts = [f"t{number}".ljust(4_990, "t") for number in range(6)]
    answers = list[RemotingCommand]()
    for text in texts:
        client.pull("billing", "orders", 1, hold_ms=20_000, text=text)
    while len(answers) < 2:
        client.receive(time.monotonic() + 10)
        answers += client.taken()
    assert {one.code for one in answers} == {Answer.PULL_NOT_FOUND}
    waits = other.pull("billing", "orders", 1, hold_ms=20_000, text=texts[0])
    await_true(lambda: len(server.held) == 5)
    assert other.answer(other.pull("billing", "orders", 1, hold_ms=20_000)).code == Answer.PULL_NOT_FOUND
    client.socket.close()
    await_true(lambda: len(server.held) == 1)
    late = other.pull("billing", "orders", 1, hold_ms=20_000, text=texts[1])
    await_true(lambda: len(server.held) == 2)
    other.publish("orders", b"y", TAGS=texts[0])
    assert other.answer(waits).code == Answer.SUCCESS
    assert other.answer(late).code == Answer.PULL_RETRY_IMMEDIATELY
    assert server.held._total_size == sum(server.held._sizes.values()) == 0


@pytest.mark.parametrize(("name", "number"), [("WORK_BYTES_MAX", 4), ("HELD_BYTES_MAX", 3)])
def test_large_requests_that_wait_are_bounded(
    serve: Serve,
    connect: Connect,
    store: broker.LiveStore,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
) -> None:
    """While the disk stalls: 1,024 messages of 4 MiB were read and kept. They are stored later, in their order."""
    monkeypatch.setattr(connection, name, number << 20, raising=False)
    server = serve()
    client = connect(server)
    begin(client)
    sender = threading.Thread(target=client.socket.sendall, args=(large_sends(30),), daemon=True)
    with store.writer.append_lock:
        sender.start()
        await_true(lambda: server.working_bytes >= number << 20)
        time.sleep(0.3)
        assert server.working_bytes < 6 << 20
        assert connect(server).request(Code.GET_BROKER_CLUSTER_INFO).code == Answer.SUCCESS
    answers = [client.answer(100 + one) for one in range(30)]
    sender.join()
    assert [(one.code, one.ext["queueOffset"]) for one in answers] == [(0, str(at)) for at in range(1, 31)]
    await_true(lambda: server.working_bytes == 0)


def test_large_requests_beyond_those_of_all_connections_are_refused(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of connections that were closed meanwhile."""
    monkeypatch.setattr(running, "WAITING_BYTES_MAX", 11 << 19, raising=False)
    server = serve()
    honest = connect(server)
    begin(honest)
    with store.writer.append_lock:
        for turn in range(2):
            client = connect(server)
            client.socket.sendall(large_sends(2))
            await_true(lambda: server.working_bytes > (2 * turn + 2) << 20)  # noqa: B023
            client.socket.close()
        client = connect(server)
        client.socket.sendall(large_sends(3))
        assert client.answer(102).code == Answer.SYSTEM_BUSY
    assert client.answer(100).code == Answer.SUCCESS
    await_true(lambda: server.working_bytes == 0)
    assert honest.publish("orders", b"y").code == Answer.SUCCESS


def remembered(module: Any) -> int:
    """How many texts the caches of a module hold."""
    return sum(one.cache_info().currsize for one in vars(module).values() if hasattr(one, "cache_info"))


@pytest.mark.parametrize("name", ["TAGS", "PGROUP", "KEYS"])
def test_long_texts_of_messages_are_not_remembered(serve: Serve, connect: Connect, name: str) -> None:
    """Texts that are not ASCII, and many keys, go the longer way. 4,096 tags of 32 KiB took half a gigabyte."""
    client = connect(serve())
    for turn in range(5):
        if turn == 1:
            before = remembered(pending_record) + remembered(java)
        long = f"{turn}-" + "x" * 20_000 + (" k" * 50 if name == "KEYS" else "\U0001f600")
        more = {"UNIQ_KEY": "K", "TRAN_MSG": "true", "TAGS": "ü", name: long}
        assert client.publish("orders", b"x", **more).code == Answer.SUCCESS
    assert remembered(pending_record) + remembered(java) == before


def test_a_long_producer_group_of_an_end_is_not_remembered(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve())
    half = {"UNIQ_KEY": "K", "TRAN_MSG": "true", "PGROUP": "g" * 300, "TAGS": "ü"}
    stored = client.publish("orders", b"x", **half)
    end = {"commitLogOffset": int(stored.ext["msgId"][16:], 16), "tranStateTableOffset": stored.ext["queueOffset"],
           "commitOrRollback": 8}  # fmt: skip
    before = ends.group_item.cache_info().currsize
    for turn in range(3):
        other = end | {"producerGroup": f"{turn}" + "x" * 200_000}
        answer = client.request(Code.END_TRANSACTION, other)
        assert (answer.code, len(answer.remark or "") < 1000) == (Answer.SYSTEM_ERROR, True)
    assert client.request(Code.END_TRANSACTION, end | {"producerGroup": "g" * 300}).code == Answer.SUCCESS
    assert ends.group_item.cache_info().currsize == before
    assert not store.transactions.in_doubt_slots()


def test_a_long_type_of_an_expression_is_not_remembered(serve: Serve, connect: Connect) -> None:
    """Nor is one that is not known taken for tags: 1,024 types of 256 KiB took 256 MiB."""
    client = connect(serve())
    begin(client)
    before = pulls._parsed_once.cache_info().currsize
    for kind in ("sql92", "x" * 200_000):
        answer = client.answer(client.pull("billing", "orders", text="a = 1", kind=kind))
        assert answer.code == Answer.SUBSCRIPTION_PARSE_FAILED
        assert (answer.remark or "").endswith(f"an expression is of the type TAG or SQL92, not {kind!r:.40}")
    assert pulls._parsed_once.cache_info().currsize == before


def test_nothing_is_kept_of_a_namespace_without_values(serve: Serve, connect: Connect) -> None:
    """Each name was, of up to 256 KiB, and no bound counted them."""
    server = serve()
    client = connect(server)
    for number in range(20):
        one = {"namespace": f"{number}", "key": "k", "value": "v"}
        assert client.request(Code.PUT_KV_CONFIG, one).code == Answer.SUCCESS
        assert client.request(Code.DELETE_KV_CONFIG, one).code == Answer.SUCCESS
    assert server.context.properties == {}
    for name in ("namespace", "key"):
        one = {"namespace": "n", "key": "k", "value": "v", name: "x" * 70_000}
        assert client.request(Code.PUT_KV_CONFIG, one).code == Answer.SYSTEM_ERROR


def test_the_table_of_the_name_server_has_a_size(serve: Serve, connect: Connect) -> None:
    """10,000 values of 64 KiB were 640 MB, which one client could have the server keep."""
    server = serve()
    client = connect(server)
    one = {"namespace": "n", "value": "v" * 60_000}
    codes = [client.request(Code.PUT_KV_CONFIG, {**one, "key": f"{number}"}).code for number in range(300)]
    assert codes == [Answer.SUCCESS] * 279 + [Answer.SYSTEM_ERROR] * 21
    assert client.request(Code.PUT_KV_CONFIG, {**one, "key": "0"}).code == Answer.SUCCESS  # in place of what is there
    assert client.request(Code.DELETE_KV_CONFIG, {"namespace": "n", "key": "0"}).code == Answer.SUCCESS
    assert client.request(Code.PUT_KV_CONFIG, {**one, "key": "last"}).code == Answer.SUCCESS


@pytest.mark.parametrize("place", ["store", "cluster"])
def test_a_consumer_reads_few_bodies_that_grow(
    serve: Serve, connect: Connect, store: broker.LiveStore, place: str
) -> None:
    """32 messages of 2 KiB had up to 2 GiB when they were read, of each queue, and were read before the first came."""
    server = serve()
    client, body = connect(server), zlib.compress(bytes(10 << 20), 9)
    for _ in range(12):
        assert client.publish("orders", body, sys_flag=1).code == Answer.SUCCESS
    with contextlib.ExitStack() as opened:
        read_from: Any = store
        if place == "cluster":
            read_from = opened.enter_context(broker.connect(f"rocketmq://{server.address}"))
        tracemalloc.start()
        opened.callback(tracemalloc.stop)
        consumer = opened.enter_context(read_from.consumer("billing", "orders"))
        for _ in range(12):
            message = consumer.receive(10)
            assert len(message.body) == 10 << 20
            consumer.ack(message)
        assert consumer.receive(0) is None
        assert tracemalloc.get_traced_memory()[1] < 70 << 20
