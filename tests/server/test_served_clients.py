"""What a person sees of the clients of a store's servers: those that are connected now, of servers that live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import broker
from broker.consuming.group.served_clients import served_clients
from broker.remoting.bodies import ConsumerData, HeartbeatData
from broker.server.clients import CLUSTERING, Clients
from broker.store.disk.paths import Paths
from recovery.page.facts import CLIENTS_LISTED, store_of
from tests.server.conftest import Connect, Serve
from tests.server.processes import await_true, server_process
from tests.server.wire_client import WireClient


def test_they_come_and_go(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    """Of several servers together; a local consumer is none of them."""
    path = store.path
    assert served_clients(path) == {}
    first, second = connect(serve(), client_id="a"), connect(serve(), client_id="<script>b</script>")
    store.create_topic("orders", queues=4, message_type="")
    with store.consumer("billing", "orders"):
        first.heartbeat(consumer="billing", topics={"orders": "*"})
        second.heartbeat(consumer="billing", topics={"orders": "*"})
        await_true(lambda: served_clients(path) == {"billing": ["<script>b</script>", "a"]})
        second.socket.close()
        await_true(lambda: served_clients(path) == {"billing": ["a"]})
        assert store_of("shop", path)["clients"] == [{"group": "billing", "count": 1, "ids": ["a"]}]


def test_one_whose_connection_closed_before_its_heartbeat_was_worked_on_is_none_of_them() -> None:
    """Nothing would ever take it out: its group would wait for it with each division of the queues."""
    peer: Any = type("Peer", (), {"is_closed": True})()
    clients = Clients()
    billing = ConsumerData("billing", "CONSUME_PASSIVELY", CLUSTERING, "CONSUME_FROM_LAST_OFFSET", ())
    assert clients.heartbeat(peer, HeartbeatData("c1", ("shop",), (billing,)), "JAVA", 1) == []
    assert clients.counts() == (0, 0)


def test_those_of_a_killed_server_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with server_process(path, "os", "--create") as (process, address), WireClient(address) as client:
        client.heartbeat(consumer="billing", topics={"orders": "*"})
        await_true(lambda: served_clients(str(path)) == {"billing": ["c1"]})
        process.kill()
        process.wait(10)
        assert served_clients(str(path)) == {}
        published = Path(Paths(str(path)).servers)
        assert [file.name for file in published.glob("*.json")] == ["0.json"]
        with broker.open(path) as store, store.consumer("billing", "orders"):  # at the place of the dead
            assert served_clients(str(path)) == {}


def test_what_is_damaged_is_left_out(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    """Another program's file, a place that is none, half a file."""
    client = connect(serve())
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    await_true(lambda: served_clients(store.path) == {"billing": ["c1"]})
    directory = Path(Paths(store.path).servers)
    damaged = {
        "7.json": '{"number": 1, "gro',
        "x.json": "{}",
        "5000.json": json.dumps({"number": 1, "groups": {"billing": ["ghost"]}}),
        "3.json": '{"number": 0, "groups": {"g": ["ghost"]}}',
    }
    for name, text in damaged.items():
        (directory / name).write_text(text)
    assert served_clients(store.path) == {"billing": ["c1"]}


def test_the_page_lists_the_first_and_counts_all(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    server, many = serve(), CLIENTS_LISTED + 5
    for number in range(many):
        connect(server, client_id=f"c{number:02}").heartbeat(consumer="billing", topics={"orders": "*"})
    await_true(lambda: len(served_clients(store.path).get("billing", ())) == many)
    (line,) = store_of("shop", store.path)["clients"]
    assert (line["count"], line["ids"][-1], len(line["ids"])) == (many, "c19", CLIENTS_LISTED)
