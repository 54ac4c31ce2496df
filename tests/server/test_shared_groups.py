"""One group, whose members are clients of servers and consumers in processes that have the store open."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broker
from broker.consuming.group.members import MemberKind
from broker.consuming.group.membership import client_id, share, share_with_clients
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from tests.server.conftest import Connect, Serve
from tests.server.processes import SOON_S, await_members, await_true, lock, members
from tests.server.wire_client import WireClient, json_of


@contextmanager
def sharing(store: broker.LiveStore, client: WireClient) -> Iterator[broker.Consumer]:
    """Client `a` and a consumer of this process share the four queues of a topic: 0 and 1 are the client's."""
    store.create_topic("orders", queues=4)
    assert client.heartbeat(consumer="billing", topics={"orders": "*"}).code == Answer.SUCCESS
    await_members(client, ["a"])
    with store.consumer("billing", "orders") as consumer:
        client.next_asked(Code.NOTIFY_CONSUMER_IDS_CHANGED, SOON_S)
        assert [one.startswith("store@") for one in members(client)] == [False, True]
        await_true(lambda: consumer.queues == [("orders", 2), ("orders", 3)])
        yield consumer


def append(store: broker.LiveStore, queue_id: int, *bodies: bytes) -> None:
    for body in bodies:
        store.append(broker.Message("orders", body), queue_id=queue_id)


def test_one_that_broadcasts_by_mistake_has_no_share_and_changes_that_of_nobody(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """The consumer with the store open then had all queues, beside the client that read its own on."""
    server = serve()
    client, other = connect(server, client_id="a"), connect(server, client_id="b")
    with sharing(store, client) as consumer:
        queues, named = consumer.queues, members(client)
        sent = other.heartbeat(consumer="billing", topics={"orders": "*"}, model="BROADCASTING")
        assert sent.code == Answer.SUCCESS
        assert "billing" in server.context.clients.clustered()
        for body in (b"one", b"two"):  # both have had their turn since
            append(store, 3, body)
            message = consumer.receive(SOON_S)
            assert message is not None
            assert message.body == body
            consumer.ack(message)
        assert (consumer.queues, members(client), members(other)) == (queues, named, named)
        client.socket.close()
        await_true(lambda: len(consumer.queues) >= 4)
        assert members(other) == ["b"]


@pytest.mark.parametrize("has_position", [False, True])
def test_clients_that_left_before_the_group_had_a_position_do_not_count(
    serve: Serve, connect: Connect, store: broker.LiveStore, has_position: bool
) -> None:
    """Else the start that a consumer asks for would count only where the table of consumers is full."""
    server = serve()
    client, cells = connect(server, client_id="a"), server.context.positions.table.cells
    store.create_topic("orders", queues=2)
    for queue_id in range(2):
        append(store, queue_id, b"one", b"two")
    assert client.heartbeat(consumer="billing", topics={"orders": "*"}).code == Answer.SUCCESS
    if has_position:
        place = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": 1}
        assert client.request(Code.UPDATE_CONSUMER_OFFSET, place).code == Answer.SUCCESS
    client.socket.close()
    await_true(lambda: "billing" not in server.context.positions._members)
    for _ in range(2):
        with store.consumer("billing", "orders", start="last") as consumer:
            at = consumer.positions()
            cell = cells.find("billing", "orders", -1)
            assert cell is not None
            assert cells.position(cell) == 0
            await_true(lambda: len(consumer.queues) == 3)
        assert (at[("orders", 0)], at.get(("orders", 1), 0)) == ((1, 0) if has_position else (2, 2))


def test_each_queue_has_one_reader_and_goes_on_where_the_other_stopped(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve(), client_id="a")
    with sharing(store, client) as consumer:
        append(store, 0, b"for the client")
        append(store, 3, b"one", b"two")
        assert [record.body for record in client.pulled("billing", "orders")[1]] == [b"for the client"]
        first = consumer.receive(timeout_s=SOON_S)
        assert first is not None
        assert consumer.ack(first)
        held = client.pull("billing", "orders", 0, queue_id=3, hold_ms=20_000)
        short = client.answer(client.pull("billing", "orders", 0, queue_id=3, hold_ms=1))
        assert (short.code, short.ext["nextBeginOffset"]) == (Answer.PULL_NOT_FOUND, "1")
        place = {"consumerGroup": "billing", "topic": "orders", "queueId": 3}
        client.request(Code.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": 0})
        assert client.request(Code.QUERY_CONSUMER_OFFSET, place).ext == {"offset": "1"}
        assert lock(client, "a", 1, 3) == [1]
        client.asked.clear()
    client.next_asked(Code.NOTIFY_CONSUMER_IDS_CHANGED, SOON_S)
    assert members(client) == ["a"]
    answer = client.answer(held, SOON_S)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (Answer.PULL_RETRY_IMMEDIATELY, "1")
    assert [record.body for record in client.pulled("billing", "orders", 1, queue_id=3)[1]] == [b"two"]


def test_a_consumer_that_hung_moves_nothing_once_a_client_has_its_queue(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on where it was after a minute: what the client had done came again, and the group was put back."""
    client = connect(serve(), client_id="a")
    with sharing(store, client) as consumer:
        append(store, 3, b"one", b"two")
        message = consumer.receive(timeout_s=SOON_S)
        assert message is not None
        consumer._keeper._stop.set()  # its thread stands still, as in a process that is stopped
        consumer._keeper._thread.join()
        cells, place = consumer._positions.cells, consumer._member.place
        cells.beat(place, 0)
        monkeypatch.setattr("broker.consuming.group.membership.SILENT_MS", 1000)
        await_members(client, ["a"])
        answer = client.answer(client.pull("billing", "orders", 0, queue_id=3, hold_ms=20_000), SOON_S)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (Answer.SUCCESS, "2")
        queue = {"consumerGroup": "billing", "topic": "orders", "queueId": 3}
        client.request(Code.UPDATE_CONSUMER_OFFSET, queue | {"commitOffset": 2})
        cell = cells.find("billing", "orders", 3)
        assert cell is not None
        await_true(lambda: cells.owner(cell) == (0, 0))
        cells.beat(place, time.monotonic_ns() // 1_000_000)
        assert not consumer.ack(message)
        assert client.request(Code.QUERY_CONSUMER_OFFSET, queue).ext == {"offset": "2"}


def assigned(client: WireClient, topic: str = "orders", **stated: str) -> list[int] | None:
    """The queues that the server gives a client; None where it says nothing. All are to be pulled from."""
    body = {"topic": topic, "consumerGroup": "billing", "clientId": client.client_id, "strategyName": "AVG"}
    answer = client.request(
        Code.QUERY_ASSIGNMENT, body=json.dumps(body | {"messageModel": "CLUSTERING"} | stated).encode()
    )
    assert answer.code == Answer.SUCCESS
    found = json_of(answer).get("messageQueueAssignments")
    assert {one["mode"] for one in found or ()} <= {"PULL"}
    return None if found is None else [one["messageQueue"]["queueId"] for one in found]


def test_a_client_that_does_not_divide_the_queues_itself_is_told_its_own(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """Java's setClientRebalance(false): since 5.3.2 it consumed nothing here, without an exception."""
    server = serve()
    first, second = connect(server, client_id="a"), connect(server, client_id="b")
    store.create_topic("orders", queues=5)
    assert assigned(first) is None
    for client in (first, second):
        client.heartbeat(consumer="billing", topics={"orders": "*"})
    await_members(first, ["a", "b"])
    assert [assigned(client) for client in (first, second)] == [[0, 1, 2], [3, 4]]
    assert [assigned(client, strategyName="AVG_BY_CIRCLE") for client in (first, second)] == [[0, 2, 4], [1, 3]]
    assert assigned(first, messageModel="BROADCASTING") == [0, 1, 2, 3, 4]
    assert assigned(first, clientId="stranger") == []
    assert assigned(first, strategyName="CONSISTENT_HASH") is None
    assert assigned(first, "nowhere") is None
    server.context.settings = replace(server.context.settings, name_servers=("192.0.2.5:9876",))
    body = b'{"topic":"orders","consumerGroup":"billing","clientId":"a"}'
    assert first.request(Code.QUERY_ASSIGNMENT, body=body).code == Answer.REQUEST_CODE_NOT_SUPPORTED


def test_a_client_that_asks_for_its_queues_shares_them_with_a_consumer_here(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve(), client_id="a")
    with sharing(store, client):
        assert assigned(client) == [0, 1]


def test_a_consumer_here_takes_over_from_a_client_that_is_gone(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve(), client_id="a")
    with sharing(store, client) as consumer:
        append(store, 0, b"done", b"open")
        place = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
        client.request(Code.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": 1})
        client.socket.close()
        message = consumer.receive(timeout_s=SOON_S)
        assert message is not None
        assert message.body == b"open"


def test_a_queue_that_a_client_locked_waits_until_it_unlocks(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve(), client_id="z")  # after the consumer in order: its queues are 2 and 3
    store.create_topic("orders", queues=4)
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    assert lock(client, "z", 0, 1, 2, 3) == [0, 1, 2, 3]
    with store.consumer("billing", "orders", ordered=True) as consumer:
        time.sleep(SOON_S)
        assert [queue for queue in consumer.queues if queue[0] == "orders"] == []
        body = b'{"consumerGroup":"billing","clientId":"z","mqSet":[{"topic":"orders","brokerName":"b","queueId":0}]}'
        client.request(Code.UNLOCK_BATCH_MQ, body=body)
        await_true(lambda: ("orders", 0) in consumer.queues)
        assert ("orders", 1) not in consumer.queues
        assert lock(client, "z", 0, 1) == [1]


def test_members_that_ask_for_other_topics_are_refused(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    client = connect(serve(), client_id="a")
    client.publish("refunds", b"x")
    with sharing(store, client):
        answer = client.heartbeat(consumer="billing", topics={"refunds": "*"})
        assert (answer.code, "group billing consumes other topics" in str(answer.remark)) == (
            Answer.NO_PERMISSION,
            True,
        )
        assert client.heartbeat(consumer="billing", topics={"orders": "*"}).code == Answer.SUCCESS
        with pytest.raises(broker.StoreError, match="other topics"):
            store.consumer("billing", ["orders", "refunds"])


def test_a_group_of_several_brokers_is_not_shared(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    """Its clients divide queues that are not known here."""
    server = serve()
    server.context.positions._kind = MemberKind.REGISTERED  # as with --register
    client = connect(server)
    client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    with pytest.raises(broker.StoreError, match="other brokers"):
        store.consumer("billing", "orders")
    with store.consumer("local", "orders"):
        assert client.heartbeat(consumer="local", topics={"orders": "*"}).code == Answer.NO_PERMISSION


NAMES = st.lists(st.text("0189@az.", min_size=1, max_size=6), max_size=5, unique=True)


@given(st.integers(1, 20), st.integers(0, 3), NAMES, st.lists(st.integers(1, 30), min_size=1, max_size=4, unique=True))
def test_consumers_here_take_what_clients_leave(count: int, extra: int, clients: list[str], numbers: list[int]) -> None:
    """What clients compute from the list of ids, and what consumers here do, is a partition."""
    names = sorted([*clients, *map(client_id, numbers)])
    queues = list(range(count + extra))
    taken = [queue for name in clients for queue in share(queues[:count], names, name)]
    for number in numbers:
        taken += share_with_clients(queues, count, clients, sorted(numbers), number)
    assert sorted(taken) == queues
    assert all(one < other for one, other in pairwise(share_with_clients(queues, count, clients, numbers, numbers[0])))
