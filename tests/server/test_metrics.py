"""The page for Prometheus, and that of health checks."""

from __future__ import annotations

import gc
import re
import socket
import urllib.error
import urllib.request

import pytest

import broker
from broker.remoting.codes import RequestCode as Code
from broker.server.metrics import exposition
from tests.server.conftest import Connect, Serve


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_what_is_behind_and_in_doubt_is_on_the_page(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    server = serve(metrics_port=0)
    client = connect(server)
    for _ in range(3):
        client.publish("orders", b"secret-body", KEYS="secret-key")
    store.transactions.prepare(broker.Message("orders", b"x"), "shop")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    position = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": 1}
    client.request(Code.UPDATE_CONSUMER_OFFSET, position)
    page = get(server.metrics_address, "/metrics")
    for line in (
        r'rocketmq_producer_offset\{.*topic="orders"\} 3$',
        r'rocketmq_group_diff\{.*group="billing",topic="orders",countOfOnlineConsumers="1"\} 2$',
        r"checkback_transactions_in_doubt\{.*\} 1$",
        r"checkback_connections\{\} 1$",
    ):
        assert re.search(line, page, re.MULTILINE), f"{line} is not in:\n{page}"
    assert "secret" not in page
    assert get(server.metrics_address, "/healthz") == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(server.metrics_address, "/etc/passwd")


def test_what_a_group_has_not_begun_to_read_is_before_it(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """As mqadmin consumerProgress says: a topic that got more queues, and a group without any position."""
    server = serve(metrics_port=0)
    client = connect(server)
    for queue_id in (0, 0, 3):
        client.publish("orders", b"x", queue_id=queue_id)
    for group in ("billing", "stuck"):
        client.heartbeat(consumer=group, topics={"orders": "*"})
    position = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": 2}
    client.request(Code.UPDATE_CONSUMER_OFFSET, position)
    page = get(server.metrics_address, "/metrics")
    found = dict(re.findall(r'rocketmq_group_diff\{.*group="(\w+)",topic="orders".*\} (\d+)$', page, re.MULTILINE))
    assert found == {"billing": "1", "stuck": "3"}


def test_labels_are_escaped() -> None:
    text = exposition(iter([("a", "gauge", {"b": 'x"\\\n'}, 1.0)]))
    assert text == '# TYPE a gauge\na{b="x\\"\\\\\\n"} 1\n'


def test_a_connection_that_says_nothing_is_closed_with_the_server(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a health check that only connects: its task was left, and asyncio logged an error for it."""
    server = serve(metrics_port=0)
    host, _, port = server.metrics_address.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as idle:
        assert get(server.metrics_address, "/healthz") == "ok\n"  # by now the first one was taken
        server.close()
        del server
        gc.collect()
        assert idle.recv(1) == b""
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []
