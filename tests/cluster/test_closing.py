"""The end of a connection to a cluster, while others still use it."""

from __future__ import annotations

import asyncio
import threading

import pytest

import broker
from broker.cluster.network import event_loop
from broker.cluster.network.event_loop import LoopThread
from broker.errors import ClusterError
from broker.remoting.codes import RequestCode
from tests.backends.clusters import CALL_S, Connected


def test_a_resolver_that_hangs_is_left_alone(served: Connected, monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, is_over = threading.Event(), threading.Event()

    def hang(_: broker.ReceivedMessage) -> str:
        is_asked.set()
        is_over.wait(30)
        return "unknown"

    producer = served.client.producer("shop", topics=["orders"], resolver=hang)
    producer.send(broker.Message("orders", b"lamp"), producer.begin_transaction())
    try:
        assert is_asked.wait(served.soon_s)
        monkeypatch.setattr(event_loop, "_CLOSE_S", 1.0)
        served.client.close()
    finally:
        is_over.set()
    with pytest.raises(broker.ClusterError, match="was closed"):
        served.client.topic("orders")


def test_a_call_that_meets_the_close_has_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one of the loop's, and no wait without end: it is closed between the check and the call."""
    thread = LoopThread("closing")
    check = thread.check

    def check_and_close() -> None:
        check()
        closing = threading.Thread(target=thread.close)
        closing.start()
        closing.join(10)

    monkeypatch.setattr(thread, "check", check_and_close)
    with pytest.raises(ClusterError, match="was closed"):
        thread.run(asyncio.sleep(0))


def test_a_broker_that_hangs_is_told_once_that_its_client_leaves(served: Connected) -> None:
    """Not for each producer group, each of which would take as long as a call may."""
    for number in range(3):
        served.client.producer(f"shop-{number}").send(broker.Message("carts", b"lamp"))
    object.__setattr__(served.client._settings, "call_timeout_s", CALL_S)
    served.proxy.answer = lambda _: None
    served.client.close()
    told = [one for one in served.proxy.passed if one.code == RequestCode.UNREGISTER_CLIENT]
    assert len(told) == 1
