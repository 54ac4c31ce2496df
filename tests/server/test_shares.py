"""What one connection may take of what all clients of a server share: the others go on."""

from __future__ import annotations

import json

import pytest

import broker
from broker.consuming.group import consumer_table
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.server.requests import shares
from tests.server.conftest import Connect, Serve
from tests.server.processes import await_true
from tests.server.wire_client import WireClient


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
    answer = client.heartbeat(producer="p" * 256)
    assert (answer.code, "at most 255 characters" in (answer.remark or "")) == (Answer.NO_PERMISSION, True)
    assert connect(serve(), client_id="d").heartbeat(producer="shop").code == Answer.SUCCESS


def test_the_subscriptions_of_a_connection_are_bounded(serve: Serve, connect: Connect) -> None:
    client, codes = connect(serve()), list[int]()
    for number in range(5):
        codes.append(client.heartbeat(consumer=f"g{number}", topics={"orders": "x" * (1 << 20)}).code)
    assert codes == [Answer.SUCCESS] * 3 + [Answer.NO_PERMISSION] * 2
