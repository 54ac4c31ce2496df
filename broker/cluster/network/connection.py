"""One connection to a name server or a broker: frames out and in, answers to their requests by opaque.

RocketMQ: NettyRemotingAbstract (5.3.3).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from broker.errors import ClusterError, ProtocolError
from broker.log_fields import event
from broker.remoting.command import RemotingCommand, decode
from broker.remoting.frames import FrameSplitter

FRAME_BYTES_MAX = 16 << 20  # RocketMQ: com.rocketmq.remoting.frameMaxLength
_log = logging.getLogger("broker")

OnRequest = Callable[["ClientConnection", RemotingCommand], None]


class ClientConnection(asyncio.Protocol):
    """A socket of the event loop. What its peer asks goes to `on_request`, its end to `on_lost`."""

    def __init__(self, address: str, on_request: OnRequest, on_lost: Callable[[ClientConnection], None]) -> None:
        self.address = address
        self._on_request, self._on_lost = on_request, on_lost
        self._splitter = FrameSplitter(FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                self._receive(decode(frame))
        except ProtocolError as error:
            _log.warning(
                "%s does not speak RocketMQ's protocol: %s",
                self.address,
                error,
                extra=event("protocol-error", peer=self.address),
            )
            self.close()

    def _receive(self, command: RemotingCommand) -> None:
        if not command.is_response:
            self._on_request(self, command)
            return
        waiting = self._waiting.pop(command.opaque, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    def connection_lost(self, error: Exception | None) -> None:
        text = f"{self.address} closed the connection" + (f": {error}" if error else "")
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClusterError(text, was_sent=True))
        self._waiting.clear()
        self._on_lost(self)

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer. Raises ClusterError when none comes in time: then the connection is closed, as in Java."""
        waiting: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = waiting
        try:
            self.send(command)
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            self.close()
            text = f"{self.address} did not answer within {timeout_s:g} s"
            raise ClusterError(text, was_sent=True) from None
        finally:
            self._waiting.pop(command.opaque, None)

    def send(self, command: RemotingCommand) -> None:
        """Send without waiting for an answer. Raises ClusterError on a connection that is closed."""
        if self._transport is None or self._transport.is_closing():
            raise ClusterError(f"the connection to {self.address} is closed")
        self._transport.write(command.encode())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
