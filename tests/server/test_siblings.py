"""Two servers on one store: one consumer group, one list of its clients, one lock for each queue."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import broker
from broker.format.topics import DELAY_LEVELS
from broker.remoting.bodies import MessageQueue
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.server.siblings.queue_locks import granted, released
from broker.store.shared.queue_lock_file import LOCK_MS
from tests.server.conftest import LAYOUT, Serve
from tests.server.processes import SOON_S, await_members, lock, members, server_process
from tests.server.wire_client import WireClient

LEAVING = {"clientID": "two", "consumerGroup": "billing"}
UNLOCKING = json.dumps(
    {"consumerGroup": "billing", "clientId": "one", "mqSet": [{"topic": "orders", "brokerName": "b", "queueId": 7}]}
).encode()


def test_a_group_spans_servers_and_rebalances_when_one_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    broker.open(path, layout=LAYOUT).close()
    with ExitStack() as stack:
        (_, first), (victim, second) = (stack.enter_context(server_process(path)) for _ in range(2))
        one = stack.enter_context(WireClient(first, client_id="one"))
        two = stack.enter_context(WireClient(second, client_id="two"))
        assert one.publish("orders", b"x").code == Answer.SUCCESS
        one.heartbeat(consumer="billing", topics={"orders": "*"})
        await_members(two, ["one"])
        two.heartbeat(consumer="billing", topics={"orders": "*"})
        await_members(one, ["one", "two"])
        await_members(two, ["one", "two"])
        one.next_asked(Code.NOTIFY_CONSUMER_IDS_CHANGED, SOON_S)
        assert lock(one, "one", 0, 1) == [0, 1]
        assert lock(two, "two", 1, 2) == [2]
        one.asked.clear()
        victim.send_signal(signal.SIGKILL)
        await_members(one, ["one"])
        one.next_asked(Code.NOTIFY_CONSUMER_IDS_CHANGED, SOON_S)


@pytest.mark.parametrize(
    ("option", "value"),
    [("broker_name", "broker-b"), ("cluster", "other"), ("delay_levels", " ".join(["1s"] * 18))],
)
def test_a_server_that_is_set_otherwise_is_refused(serve: Serve, option: str, value: str) -> None:
    """With two names, both registered with one name server, consumers got each message twice."""
    first = serve(delay_levels=DELAY_LEVELS.replace("1m", "60s"))
    with pytest.raises(broker.BrokerError, match=f"--{option.replace('_', '-')} .*Start both with the same") as raised:
        serve(**{option: value})
    assert first.address in str(raised.value)
    serve().close()  # as nothing is left of the one that was refused, and 60s is 1m
    first.close()
    serve(**{option: value})


@pytest.mark.parametrize("servers", [1, 2])
def test_a_group_divides_its_queues_within_two_seconds(tmp_path: Path, servers: int) -> None:
    """When one joins, leaves, and is gone without a word."""
    path = tmp_path / "store"
    broker.open(path, layout=LAYOUT).close()
    with ExitStack() as stack:
        addresses = [stack.enter_context(server_process(path))[1] for _ in range(servers)]
        one = stack.enter_context(WireClient(addresses[0], client_id="one"))
        one.publish("orders", b"x")
        one.heartbeat(consumer="billing", topics={"orders": "*"})

        def seen(expected: list[str]) -> None:
            one.next_asked(Code.NOTIFY_CONSUMER_IDS_CHANGED, SOON_S)
            await_members(one, expected)
            one.asked.clear()

        seen(["one"])
        for leaves in (lambda client: client.request(Code.UNREGISTER_CLIENT, LEAVING), lambda client: None):
            with WireClient(addresses[-1], client_id="two") as two:
                two.heartbeat(consumer="billing", topics={"orders": "*"})
                seen(["one", "two"])
                leaves(two)
            seen(["one"])


def test_the_queues_of_a_killed_consumer_with_the_store_open_go_to_a_client(tmp_path: Path) -> None:
    path = tmp_path / "store"
    words = [sys.executable, "-m", "tests.server.killed_wire", "local", str(tmp_path)]
    with ExitStack() as stack:
        store = stack.enter_context(broker.open(path, layout=LAYOUT))
        store.create_topic("orders", queues=8, message_type="")
        server = stack.enter_context(broker.serve(store, "127.0.0.1:0"))
        client = stack.enter_context(WireClient(server.address, client_id="one"))
        client.heartbeat(consumer="billing", topics={"orders": "*"})
        victim = stack.enter_context(subprocess.Popen(words))
        stack.callback(victim.kill)
        client.next_asked(Code.NOTIFY_CONSUMER_IDS_CHANGED, 10)
        deadline = time.monotonic() + 15
        while lock(client, "one", 7) == [7]:  # until the consumer has a lease
            time.sleep(0.05)
            assert client.request(Code.UNLOCK_BATCH_MQ, body=UNLOCKING).code == Answer.SUCCESS
            assert time.monotonic() < deadline
            time.sleep(0.5)
        held = client.pull("billing", "orders", 0, queue_id=7, hold_ms=20_000)
        while not len(server.held):  # it finds the queue taken, and waits
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client.asked.clear()
        victim.kill()
        client.next_asked(Code.NOTIFY_CONSUMER_IDS_CHANGED, SOON_S)
        assert members(client) == ["one"]
        assert client.answer(held, SOON_S).code == Answer.PULL_RETRY_IMMEDIATELY
        assert lock(client, "one", 7) == [7]


@pytest.mark.parametrize(("later_ms", "is_free"), [(LOCK_MS, False), (LOCK_MS + 1, True), (-1, True)])
def test_a_lock_ends_with_its_time_and_with_the_boot(later_ms: int, is_free: bool) -> None:
    queue = MessageQueue("orders", 0)
    held, given = granted({}, "g", "a", [queue], 1000)
    assert given == [queue]
    after, given = granted(held, "g", "b", [queue], 1000 + later_ms)
    assert bool(given) is is_free
    assert released(after, "g", "b", [queue]) == ({} if is_free else held)
