"""The event loop of a server: uvloop's where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio

from broker.errors import BrokerError

LOOPS = ("auto", "asyncio", "uvloop")


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
