"""Both event loops serve; the one that is not installed is a sentence."""

from __future__ import annotations

import logging
import sys

import pytest

import broker
from broker.remoting.codes import ResponseCode as Answer
from tests.server.conftest import Connect, Serve


@pytest.mark.parametrize(("loop", "name"), [("asyncio", "asyncio"), ("uvloop", "uvloop"), ("auto", "uvloop")])
def test_each_loop_serves_and_is_named_in_the_log(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture, loop: str, name: str
) -> None:
    pytest.importorskip(name)
    caplog.set_level(logging.INFO, "broker.server")
    server = serve(loop=loop)
    client = connect(server)
    assert client.publish("orders", b"x").code == Answer.SUCCESS
    waits = client.pull("g", "orders", 1, hold_ms=10_000)
    assert client.publish("orders", b"y" * 3_000_000).code == Answer.SUCCESS
    assert client.answer(waits).code == Answer.SUCCESS
    assert (server.loop, f"({name})" in caplog.text) == (name, True)


def test_a_loop_that_is_not_there_is_refused(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(broker.BrokerError, match="install checkback with its extra 'fast'"):
        serve(loop="uvloop")
    with pytest.raises(broker.BrokerError, match="auto, asyncio, uvloop"):
        serve(loop="trio")
    assert connect(serve()).publish("orders", b"x").code == Answer.SUCCESS  # auto
