"""The event loop of a server: uvloop's where it is installed, else asyncio's own. And the sockets that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from broker.errors import BrokerError
from broker.log_fields import event

LOOPS = ("auto", "asyncio", "uvloop")
_BACKLOG = 512
_CLOSE_S = 1.0
_MEMORY_S = 0.05

log = logging.getLogger("broker.server")


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
            return _reporting(uvloop.new_event_loop())
    return _reporting(asyncio.new_event_loop())


def _reporting(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    """The same loop; what fails in it is a line of the log, and where that is the system's, without a traceback."""

    def report(_loop: asyncio.AbstractEventLoop, found: dict[str, Any]) -> None:
        error = found.get("exception")
        is_memory = isinstance(error, MemoryError)  # which says nothing
        text = "%s" if error is None else f"%s: {'there is no more memory' if is_memory else error}"
        is_known = error is None or is_memory or isinstance(error, OSError)
        log.warning(text, found["message"], exc_info=None if is_known else error, extra=event("background-failed"))

    loop.set_exception_handler(report)
    return loop


def backlog_of(loop: asyncio.AbstractEventLoop) -> int:
    """The `backlog` for a server of a loop that gets its socket by `listening_socket`.

    asyncio accepts so many in one go. Where no descriptor is free each was a traceback, and a second later another go:
    3,000 a second, and nothing else had its turn. uvloop means the system's queue by it.
    """
    return _BACKLOG if loop_name(loop) == "uvloop" else 1


class _Listening(socket.socket):
    """Its queue is as long as it was made, whatever `backlog` a loop has."""

    def listen(self, backlog: int = _BACKLOG, /) -> None:
        super().listen(max(backlog, _BACKLOG))


def loop_name(loop: asyncio.AbstractEventLoop) -> str:
    """The library that a loop is of."""
    return type(loop).__module__.partition(".")[0]


def hand_over(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have a loop call something soon, for any other thread; waits while there is no memory for that.

    What was stored is to be answered, and the thread that stored it goes on.
    """
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        while True:
            try:
                loop.call_soon_threadsafe(call)
                return
            except MemoryError:
                time.sleep(_MEMORY_S)


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
    with contextlib.ExitStack() as undone:
        try:
            made = undone.enter_context(_Listening(socket.AF_INET, socket.SOCK_STREAM))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, port))
            made.listen()
        except OSError as error:
            raise BrokerError(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}") from None
        undone.pop_all()
    return made
