"""Both event loops serve; the one that is not installed is a sentence."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.remoting.codes import ResponseCode as Answer
from broker.server import event_loop, metrics
from tests.server.conftest import Connect, Serve
from tests.server.processes import await_true


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


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_where_no_descriptor_is_free_nothing_is_flooded(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    """Each try of asyncio was 512, with a traceback and another try for each: 3,000 a second."""
    pytest.importorskip(loop)
    tries: list[int] = []

    def none_is_free(_: socket.socket) -> None:
        tries.append(1)
        raise OSError(24, "Too many open files")

    server = serve(loop=loop, metrics_port=0, ha="127.0.0.1:0")
    with monkeypatch.context() as patch:
        patch.setattr(event_loop._Listening, "accept", none_is_free)
        for address in (server.address, server.metrics_address, server.ha_address):
            socket.create_connection(tuple(address.split(":"))).close()  # type: ignore[arg-type]
        await_true(lambda: loop == "uvloop" or len(tries) >= 3)  # uvloop accepts by itself
    assert connect(server).publish("orders", b"x").code == Answer.SUCCESS
    lines = [record for record in caplog.records if "socket.accept() out of system resource" in record.getMessage()]
    assert len(lines) == len(tries) <= 6
    assert not any(record.exc_info for record in lines)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_queue_of_those_who_connect_is_as_long_as_it_was_made(serve: Serve, loop: str) -> None:
    """Whatever a loop accepts in one go."""
    pytest.importorskip(loop)
    info = serve(loop=loop)._listener.sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    (longest,) = struct.unpack_from("I", info, 28)  # Linux: tcp_get_info of a socket that listens
    assert longest == min(event_loop._BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text()))


def test_a_defect_in_a_loop_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    loop = event_loop.new_event_loop("asyncio")
    loop.call_soon(lambda: 1 // 0)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    (line,) = caplog.records
    assert line.exc_info
    assert line.exc_info[0] is ZeroDivisionError


def test_a_loop_that_is_not_there_is_refused(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(broker.BrokerError, match="install checkback with its extra 'fast'"):
        serve(loop="uvloop")
    with pytest.raises(broker.BrokerError, match="auto, asyncio, uvloop"):
        serve(loop="trio")
    assert connect(serve()).publish("orders", b"x").code == Answer.SUCCESS  # auto


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_who_does_not_wait_for_the_metrics_is_no_defect(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    """uvloop raises RuntimeError for a write to a peer that has gone: a slave that was killed was a traceback, too."""
    pytest.importorskip(loop)
    written, real = list[str](), metrics.write_all

    async def late(writer: asyncio.StreamWriter, data: bytes) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # by a reset, since it has not read
        while not writer.is_closing():  # noqa: ASYNC110 - the loop changes it
            await asyncio.sleep(0.001)
        written.append(data.decode())
        await real(writer, data)

    monkeypatch.setattr(metrics, "write_all", late)
    server = serve(loop=loop, metrics_port=0)
    host, _, port = server.metrics_address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=10)
    client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
    await_true(lambda: written)
    server.close()
    assert "200 OK" in written[0]
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_an_answer_waits_for_memory_and_its_thread_goes_on(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that stores ended, and no send that was for it was answered any more."""
    server = serve(loop="asyncio")
    client, lacks = connect(server), [MemoryError(), MemoryError()]
    call_soon = server._loop.call_soon_threadsafe

    def poor(*given: Any) -> Any:
        if lacks:
            raise lacks.pop()
        return call_soon(*given)

    monkeypatch.setattr(server._loop, "call_soon_threadsafe", poor)
    for topic in ("one", "another"):  # made by the thread
        assert client.publish(topic, b"x").code == Answer.SUCCESS
    assert not lacks
