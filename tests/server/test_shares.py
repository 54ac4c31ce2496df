"""What one connection may take of what all clients of a server share: the others go on."""

from __future__ import annotations

import json
import os
import socket
import time
import zlib
from pathlib import Path

import pytest

import broker
from broker.consuming.group import consumer_table
from broker.format import config
from broker.format.record import body as bodies
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.command import RemotingCommand
from broker.server import connection
from broker.server.requests import pulls, shares
from broker.server.siblings import queue_locks
from tests.server.conftest import Connect, Serve
from tests.server.processes import await_true, lock
from tests.server.wire_client import WireClient, records_of


def goes_on(client: WireClient, store: broker.LiveStore, name: str) -> None:
    """A client over the network and a consumer with the store open consume, each for a new group."""
    assert client.heartbeat(consumer=name, topics={"orders": "*"}).code == Answer.SUCCESS
    with store.consumer(f"{name}-local", "orders"):
        pass


def test_topics_that_are_missing_take_no_cells(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    store.create_topic("orders", queues=4)
    server = serve()
    client, honest = connect(server, client_id="a"), connect(server)
    for group in range(5):
        topics = {f"t{group}-{number}": "*" for number in range(1022)}
        assert client.heartbeat(consumer=f"g{group}", topics=topics).code == Answer.SUCCESS
    assert len(server.context.positions.table.cells) < 30
    goes_on(honest, store, "honest")


def test_a_topic_that_appears_gets_its_cell_by_a_heartbeat(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    server = serve()
    client, cells = connect(server), server.context.positions.table.cells
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    assert cells.find("billing", "orders", -1) is None
    store.create_topic("orders", queues=4)
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    assert cells.find("billing", "orders", -1) is not None


def test_a_connection_takes_its_share_of_the_cells_and_gives_it_back(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a smaller table: it is used up several times."""
    monkeypatch.setattr(consumer_table, "CELLS", 256)
    monkeypatch.setattr(shares, "CELLS_MAX", 64)
    topics = [f"t{number}" for number in range(shares.CELLS_MAX)]
    for topic in [*topics, "orders"]:
        store.create_topic(topic, queues=1)
    server = serve()
    honest, asked = connect(server), dict.fromkeys(topics[:-2], "*")
    for turn in range(10):
        client = connect(server, client_id=f"c{turn}")
        assert client.heartbeat(consumer=f"g{turn}", topics=asked).code == Answer.SUCCESS
        for group, more in ((f"g{turn}", {"orders": "*"}), (f"h{turn}", {})):
            answer = client.heartbeat(consumer=group, topics=more if group[0] == "h" else asked | more)
            assert (answer.code, "at most 64" in (answer.remark or "")) == (Answer.NO_PERMISSION, True)
        goes_on(honest, store, f"honest-{turn}")
        client.socket.close()
        await_true(lambda: not server.context.clients.ids_by_group().keys() & {f"g{turn}"})  # noqa: B023
        await_true(lambda: f"g{turn}" not in server.context.positions._members)  # noqa: B023


def test_the_groups_of_a_connection_are_bounded(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    for turn in range(3):
        names = [{"groupName": f"g{turn}-{number}"} for number in range(200)]
        body = {"clientID": "c", "producerDataSet": names}
        answer = client.request(Code.HEART_BEAT, body=json.dumps(body).encode())
        assert answer.code == (Answer.NO_PERMISSION if turn else Answer.SUCCESS)
    client.client_id = "c" * 256
    answer = client.heartbeat(producer="shop")
    assert (answer.code, "at most 255 characters" in (answer.remark or "")) == (Answer.NO_PERMISSION, True)
    one, codes = connect(serve()), list[int]()
    for first in ("a", "b"):
        names = [{"groupName": f"{first}{number}".ljust(20_000)} for number in range(120)]
        body = {"clientID": "c", "producerDataSet": names}
        codes.append(one.request(Code.HEART_BEAT, body=json.dumps(body).encode()).code)
    assert codes == [Answer.SUCCESS, Answer.NO_PERMISSION]
    assert connect(serve(), client_id="d").heartbeat(producer="shop").code == Answer.SUCCESS


def test_the_subscriptions_of_a_connection_are_bounded(serve: Serve, connect: Connect) -> None:
    client, codes = connect(serve()), list[int]()
    for number in range(5):
        codes.append(client.heartbeat(consumer=f"g{number}", topics={"orders": "x" * (1 << 20)}).code)
    assert codes == [Answer.SUCCESS] * 3 + [Answer.NO_PERMISSION] * 2


def test_a_query_decompresses_nothing_and_its_answer_is_bounded(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, decompressed = connect(serve()), list[int]()
    for _ in range(4):
        client.publish("orders", zlib.compress(bytes(20 << 20), 9), sys_flag=1, KEYS="small")
        client.publish("orders", os.urandom(1 << 20), KEYS="large")
    monkeypatch.setattr(bodies, "decompress", lambda stored, *_: decompressed.append(len(stored)) or stored)
    asked = {"topic": "orders", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62}
    answer = client.request(Code.QUERY_MESSAGE, asked | {"key": "small"})
    assert (answer.code, len(records_of(answer.body)), decompressed) == (Answer.SUCCESS, 4, [])
    newest = records_of(client.request(Code.QUERY_MESSAGE, asked | {"key": "large"}).body)
    assert [record.queue_offset for record in newest] == [7, 5, 3]
    assert client.request(Code.QUERY_MESSAGE, asked | {"key": "none"}).code == Answer.QUERY_NOT_FOUND


def pulls_of(number: int) -> bytes:
    """Many pulls of the first messages, side by side."""
    ext = {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
           "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}  # fmt: skip
    return b"".join(
        RemotingCommand(int(Code.PULL_MESSAGE), 1_000 + one, ext=dict(ext)).encode() for one in range(number)
    )


def test_a_client_that_reads_late_gets_all_answers(serve: Serve, connect: Connect) -> None:
    """What came waits for the answers before it to be read: 96 MB of them are not held, and nothing is closed."""
    server = serve()
    client = connect(server)
    for _ in range(2):
        client.publish("orders", os.urandom(120_000))
    client.pulled("billing", "orders")
    client.socket.sendall(pulls_of(400))
    time.sleep(0.5)
    assert server.held_bytes < 16 << 20
    for number in range(400):
        assert len(client.answer(1_000 + number).body) > 240_000
    await_true(lambda: server.held_bytes == 0)


def test_unread_answers_of_all_connections_are_bounded(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HELD_BYTES_MAX", 6 << 20)
    server = serve()
    honest, greedy = connect(server), [connect(server) for _ in range(3)]
    for _ in range(2):
        honest.publish("orders", os.urandom(120_000))
    honest.pulled("billing", "orders")
    for client in greedy:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.sendall(pulls_of(200))
    await_true(lambda: len(server._connections) == 2)
    assert server.held_bytes < 6 << 20
    assert honest.pulled("billing", "orders")[0] == Answer.SUCCESS
    for client in greedy:
        client.socket.close()
    await_true(lambda: len(server._connections) == 1 and server.held_bytes == 0)


def test_a_connection_has_its_share_of_the_pulls_that_wait(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "HELD_OF_CONNECTION_MAX", 10, raising=False)
    monkeypatch.setattr(pulls, "HELD_MAX", 15)
    server = serve()
    greedy, honest = connect(server), connect(server)
    honest.publish("orders", b"x")
    honest.pulled("billing", "orders")
    asked = [greedy.pull("billing", "orders", 1, hold_ms=20_000) for _ in range(20)]
    for opaque in asked[10:]:
        assert greedy.answer(opaque).code == Answer.PULL_NOT_FOUND
    waits = honest.pull("billing", "orders", 1, hold_ms=20_000)
    await_true(lambda: len(server.held) == 11)
    honest.publish("orders", b"y")
    assert honest.answer(waits).code == Answer.SUCCESS
    greedy.socket.close()
    await_true(lambda: not len(server.held))


def test_queues_that_are_missing_are_not_locked(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    client = connect(serve())
    assert lock(client, "a", 0) == []
    store.create_topic("orders", queues=4)
    assert lock(client, "a", 0, 3, 4, -1) == [0, 3]
    assert set(json.loads(Path(store.writer.paths.queue_locks).read_text(encoding="utf-8"))) == {
        "billing orders 0",
        "billing orders 3",
    }
    body = {"consumerGroup": "b" * 256, "clientId": "a", "mqSet": []}
    assert client.request(Code.LOCK_BATCH_MQ, body=json.dumps(body).encode()).code == Answer.NO_PERMISSION


@pytest.mark.parametrize("by_pull", [True, False])
def test_a_connection_gives_its_share_of_first_positions(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, by_pull: bool
) -> None:
    """They are kept, so one client filled the table for good: 4,096 of them took it 8 seconds."""
    monkeypatch.setattr(shares, "PLACES_MAX", 5, raising=False)
    server = serve()
    greedy, honest = connect(server), connect(server)
    for queue_id in range(4):
        honest.publish("orders", b"x", queue_id=queue_id)

    def commit(client: WireClient, group: str, queue_id: int, offset: int = 1) -> int:
        place = {"consumerGroup": group, "topic": "orders", "queueId": queue_id, "commitOffset": offset}
        pull = {"queueOffset": 0, "maxMsgNums": 1, "sysFlag": 5, "suspendTimeoutMillis": 0, "subscription": "*"}
        return client.request(
            *(Code.PULL_MESSAGE, place | pull) if by_pull else (Code.UPDATE_CONSUMER_OFFSET, place)
        ).code

    for group in ("a", "b"):
        greedy.pulled(group, "orders")
    if not by_pull:
        assert commit(greedy, "a", 0, -1) == Answer.SUCCESS
    assert [commit(greedy, "a", queue_id) for queue_id in range(4)] == [Answer.SUCCESS] * 4
    assert [commit(greedy, "b", queue_id) for queue_id in range(3)] == [Answer.SUCCESS, *[Answer.NO_PERMISSION] * 2]
    assert [commit(greedy, "a", 3), commit(greedy, "b", 0)] == [Answer.SUCCESS] * 2
    assert commit(honest, "b", 1) == Answer.SUCCESS
    assert commit(greedy, "b", 1) == Answer.SUCCESS


def test_a_connection_has_its_share_of_the_locks(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever groups it names: the file of locks is written at each request, under the lock of all consumers."""
    monkeypatch.setattr(queue_locks, "LOCKS_MAX", 6, raising=False)
    store.create_topic("orders", queues=4)
    server = serve()
    greedy, honest = connect(server), connect(server)
    assert [lock(greedy, "a", *range(4), group=f"g{number}") for number in range(4)] == [[0, 1, 2, 3], [0, 1], [], []]
    assert lock(greedy, "a", *range(4), group="g1") == [0, 1]
    assert lock(greedy, "a", *range(4), group="g0") == [0, 1, 2, 3]
    assert lock(honest, "b", *range(4), group="g1") == [2, 3]
    queues = [{"topic": "orders", "brokerName": "broker-a", "queueId": queue_id} for queue_id in range(4)]
    for client_id in ("b", "a"):  # only its own
        body = {"consumerGroup": "g0", "clientId": client_id, "mqSet": queues}
        greedy.request(Code.UNLOCK_BATCH_MQ, body=json.dumps(body).encode())
        assert lock(greedy, "a", *range(4), group="g2") == ([] if client_id == "b" else [0, 1, 2, 3])
    now_ms = queue_locks.monotonic_ms()
    monkeypatch.setattr(queue_locks, "monotonic_ms", lambda: now_ms + 61_000)
    assert lock(greedy, "a", *range(4), group="g3") == [0, 1, 2, 3]
    assert len(json.loads(Path(store.writer.paths.queue_locks).read_text(encoding="utf-8"))) == 4


@pytest.mark.parametrize("one", [b"[],", b'"",', b"1 ", b'"\\n', b"-"])
def test_a_body_of_many_values_is_refused_unread(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, one: bytes
) -> None:
    """Reading one took half a second, in which no other client was answered."""
    client, read = connect(serve()), list[int]()
    assert client.heartbeat(producer="shop").code == Answer.SUCCESS
    monkeypatch.setattr(config, "loads", lambda body: read.append(len(body)))
    body = b'{"clientID":"x","a":[' + one * (4_000_000 // len(one)) + b"[]]}"
    answer = client.request(Code.HEART_BEAT, body=body)
    assert (answer.code, "at most" in (answer.remark or ""), read) == (Answer.SYSTEM_ERROR, True, [])
