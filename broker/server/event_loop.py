"""The event loop of a server: uvloop's where it is installed, else asyncio's own. And the sockets that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from broker.errors import BrokerError

LOOPS = ("auto", "asyncio", "uvloop")
BACKLOG = 512
_CLOSE_S = 1.0


def new_event_loop(kind: str) -> asyncio.AbstractEventLoop:
    """A loop of a kind of LOOPS. Raises BrokerError for uvloop where it is not installed."""
    if kind != "asyncio":
        try:
            import uvloop
        except ImportError:
            if kind == "uvloop":
                text = "the event loop uvloop is not installed: install checkback with its extra 'fast'"
                raise BrokerError(f"{text}, or leave the choice to the server with --loop auto") from None
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def loop_name(loop: asyncio.AbstractEventLoop) -> str:
    """The library that a loop is of."""
    return type(loop).__module__.partition(".")[0]


async def write_all(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send to a peer, at its pace. Raises ConnectionResetError where it has gone: uvloop raises RuntimeError then."""
    if writer.is_closing():
        raise ConnectionResetError("the connection is closed")
    writer.write(data)
    await writer.drain()


async def close_soon(writer: asyncio.StreamWriter) -> None:
    """Close a connection, at the end of its task, when its peer has read what was sent; at the latest in a second.

    A transport that is closed alone waits for that without end: a peer that hangs kept its socket and its memory.
    """
    writer.close()
    with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):  # the last: the server stops
        async with asyncio.timeout(_CLOSE_S):
            await writer.wait_closed()
    writer.transport.abort()


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket of which connections will be accepted. Raises BrokerError.

    It listens from now on: a loop that is given an address listens when it begins to serve, and by then another socket
    may do so, also one of the same server.
    """
    try:
        return socket.create_server((host, port), backlog=BACKLOG)
    except OSError as error:
        raise BrokerError(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}") from None
