"""Two servers on one store: one consumer group, one list of its clients, one lock for each queue."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import broker
from broker.remoting.bodies import MessageQueue
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.server.siblings.queue_locks import LOCK_MS, granted, released
from tests.server.conftest import LAYOUT
from tests.server.wire_client import WireClient

SOON_S = 2.0


@contextmanager
def server_process(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    words = [sys.executable, "-m", "recovery.cli", "serve", str(path), "--listen", "127.0.0.1:0", "--sync", "os"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"on (\S+): name server", process.stdout.readline())
            assert found
            yield process, found[1]
        finally:
            process.kill()


def members(client: WireClient, group: str = "billing") -> list[str]:
    answer = client.request(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return list(json.loads(answer.body)["consumerIdList"]) if answer.code == Answer.SUCCESS else []


def await_members(client: WireClient, expected: list[str]) -> None:
    deadline = time.monotonic() + SOON_S
    while (found := members(client)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


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


def lock(client: WireClient, client_id: str, *queue_ids: int) -> list[int]:
    """The queues that a client got."""
    queues = [{"topic": "orders", "brokerName": "broker-a", "queueId": queue_id} for queue_id in queue_ids]
    body = {"consumerGroup": "billing", "clientId": client_id, "mqSet": queues}
    answer = client.request(Code.LOCK_BATCH_MQ, body=json.dumps(body).encode())
    return sorted(one["queueId"] for one in json.loads(answer.body)["lockOKMQSet"])


@pytest.mark.parametrize(("later_ms", "is_free"), [(LOCK_MS, False), (LOCK_MS + 1, True), (-1, True)])
def test_a_lock_ends_with_its_time_and_with_the_boot(later_ms: int, is_free: bool) -> None:
    queue = MessageQueue("orders", 0)
    held, given = granted({}, "g", "a", [queue], 1000)
    assert given == [queue]
    after, given = granted(held, "g", "b", [queue], 1000 + later_ms)
    assert bool(given) is is_free
    assert released(after, "g", "b", [queue]) == ({} if is_free else held)
