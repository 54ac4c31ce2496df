"""TLS on a connection whose first byte has been read already: one port serves both.

RocketMQ: NettyRemotingServer.TlsModeHandler (5.3.3), which also looks at the first byte.
"""

from __future__ import annotations

import contextlib
import os
import ssl

from broker.errors import BrokerError

HANDSHAKE = 0x16  # the first byte of a TLS record that begins a handshake
_READ_BYTES = 256 << 10


def server_context(certificate: str | os.PathLike[str], private_key: str | os.PathLike[str]) -> ssl.SSLContext:
    """TLS 1.2 and later with a certificate. Raises BrokerError when the two files do not fit together.

    A key with a pass phrase is refused, too: OpenSSL would ask for it on the terminal, where nobody may sit.
    """

    def refuse() -> str:
        raise BrokerError(
            f"--key {private_key} is encrypted. Give a key without a pass phrase: openssl pkey -in KEY -out PLAIN"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, private_key, refuse)
    except (OSError, ssl.SSLError) as error:
        raise BrokerError(
            f"--cert {certificate} and --key {private_key} are not a certificate and its key: {error}"
        ) from None
    return context


class TlsLayer:
    """Between the bytes of a socket and those of the protocol. Raises ssl.SSLError for what is not TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_ready = False
        self.is_ended = False
        """Whether the peer said that it sends nothing more: it may wait for our word that we do not, either."""

    def receive(self, data: bytes) -> bytes:
        """What the peer sent, in clear."""
        self._incoming.write(data)
        parts: list[bytes] = []
        with contextlib.suppress(ssl.SSLWantReadError):
            if not self._is_ready:
                self._ssl.do_handshake()
                self._is_ready = True
            while part := self._ssl.read(_READ_BYTES):
                parts.append(part)
            self.is_ended = True
        return b"".join(parts)

    def end(self) -> None:
        """Say the same; `outgoing` has it then."""
        with contextlib.suppress(ssl.SSLError):  # one that the peer had broken off
            self._ssl.unwrap()

    def send(self, data: bytes) -> None:
        """Encrypt; `outgoing` has it then. Before the handshake is over nobody has anything to send."""
        view = memoryview(data)
        while view:
            view = view[self._ssl.write(view) :]

    def outgoing(self) -> bytes:
        """What the socket is to send now."""
        return self._outgoing.read()
