"""The connections of a client by address: opened at their first use, signed, and opened again after a loss.

RocketMQ: NettyRemotingClient (5.3.3).
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable

from broker.cluster.network.connection import ClientConnection, OnRequest
from broker.cluster.network.settings import ClientSettings
from broker.errors import BrokerError, ClusterError, MessageRejected, NotPermitted
from broker.remoting.codes import RequestCode, ResponseCode, name_of
from broker.remoting.command import ONEWAY, RemotingCommand
from broker.remoting.header import Header

_REJECTED = (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER)


class _TlsFailed(ClusterError):
    """Something is there, and its TLS or its certificate is not what it is to be."""


class Channels:
    """Sends requests to addresses. All of it runs in the client's event loop."""

    def __init__(self, settings: ClientSettings, on_request: OnRequest, on_change: Callable[[str, bool], None]) -> None:
        """`on_change(address, is_open)` hears of connections that opened and of those that were lost."""
        self._settings, self._on_request, self._on_change = settings, on_request, on_change
        self._opaque = itertools.count()
        self._open: dict[str, ClientConnection] = {}
        self._versions: dict[str, int] = {}  # by address, what its last answer stated
        self._opening: dict[str, asyncio.Lock] = {}

    async def request(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        connect_s: float | None = None,
    ) -> RemotingCommand:
        """The answer to a request, whatever its code; of its time at most `connect_s` for a connection.

        Raises ClusterError when there is none.
        """
        limit_s = self._settings.call_timeout_s if timeout_s is None else timeout_s
        started = asyncio.get_running_loop().time()
        connection = await self._connection(address, limit_s if connect_s is None else min(connect_s, limit_s))
        left_s = limit_s - (asyncio.get_running_loop().time() - started)
        answer = await connection.request(self._command(code, header, body), max(0.05, left_s))
        self._versions[address] = answer.version
        return answer

    def version(self, address: str) -> int | None:
        """The ordinal of the version that a broker has; None before its first answer. RocketMQ: MQVersion (5.3.3)."""
        return self._versions.get(address)

    def oneway_on(self, connection: ClientConnection, code: RequestCode, header: Header) -> None:
        """Send a request that gets no answer, on the connection that a request of the broker came by.

        Raises ClusterError on one that is closed.
        """
        command = self._command(code, header, b"")
        command.flag = ONEWAY
        connection.send(command)

    def _command(self, code: RequestCode, header: Header | None, body: bytes) -> RemotingCommand:
        """A request; batches have fields of one character."""
        short = code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2)
        ext = {} if header is None else header.encode(short=short)
        if self._settings.credentials is not None:
            ext = self._settings.credentials.signed(ext, body)
        return RemotingCommand(int(code), next(self._opaque) & 0x7FFFFFFF, 0, ext, body)

    async def _connection(self, address: str, timeout_s: float) -> ClientConnection:
        found = self._open.get(address)
        if found is not None and found.is_open:
            return found
        try:  # with the wait for another request's try: else a machine that is off holds up one after the other
            async with asyncio.timeout(timeout_s), self._opening.setdefault(address, asyncio.Lock()):
                found = self._open.get(address)
                if found is None or not found.is_open:
                    found = self._open[address] = await self._connect(address)
                    self._on_change(address, True)
                return found
        except TimeoutError:
            raise ClusterError(f"{address} takes no connection within {timeout_s:g} s") from None

    async def _connect(self, address: str) -> ClientConnection:
        host, _, port = address.rpartition(":")
        tls = self._settings.tls
        bare = host.removeprefix("[").removesuffix("]")
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                lambda: ClientConnection(address, self._on_request, self._lost), bare, int(port), ssl=tls
            )
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message.rstrip(".")
            raise _TlsFailed(f"{address}: TLS failed, for its certificate is refused: {why}") from None
        except ssl.SSLError as error:
            raise _TlsFailed(f"{address}: TLS failed: {error.reason or error}") from None
        except ConnectionError as error:
            if tls is not None and not str(error):  # asyncio says nothing of an end in the middle of the handshake
                text = "TLS failed: it closed the connection. Does it speak TLS? Without it, leave out tls"
                raise ClusterError(f"{address}: {text}") from None
            raise ClusterError(f"{address} takes no connection: {error}") from None
        except (OSError, ValueError, OverflowError) as error:  # a route may name anything
            raise ClusterError(f"{address} takes no connection: {error}") from None
        return made

    def _lost(self, connection: ClientConnection) -> None:
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
            self._on_change(connection.address, False)

    @property
    def addresses(self) -> frozenset[str]:
        """Where a connection is open."""
        return frozenset(self._open)

    def close(self) -> None:
        for connection in list(self._open.values()):
            connection.close()


def is_refusal(error: BrokerError) -> bool:
    """Whether something is there, and refuses: that will last, where one that was not reached may be back soon."""
    return not isinstance(error, ClusterError) or error.code is not None or isinstance(error, _TlsFailed)


def checked(answer: RemotingCommand, code: RequestCode, place: str) -> RemotingCommand:
    """An answer of success. Raises ClusterError, MessageRejected or NotPermitted for any other."""
    if answer.code == ResponseCode.SUCCESS:
        return answer
    remark = " ".join((answer.remark or "no reason given").split())[:300]
    text = f"{place} refused {name_of(code)} with code {answer.code}: {remark}"
    if answer.code in _REJECTED:
        raise MessageRejected(text)
    if answer.code == ResponseCode.NO_PERMISSION:
        raise NotPermitted(text)
    raise ClusterError(text, code=answer.code, was_sent=True)
