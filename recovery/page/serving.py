"""Runs the page on a port, until it is stopped.

with bound("127.0.0.1", 8090) as listening: serve(listening, stores, ...)
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Sequence

from broker.errors import BrokerError
from recovery.page.app import OperationsPage, PageStore, make_page_app
from recovery.page.sessions import Sessions

TOKEN_MIN = 16
_CONNECTIONS_MAX = 50
_IDLE_S = 15


def new_token() -> str:
    """32 random bytes as text."""
    return secrets.token_urlsafe(32)


def check_token(token: str) -> str:
    """Raises BrokerError for a token that could be guessed, or that does not fit into a header."""
    if len(token) < TOKEN_MIN or not token.isascii() or not token.isprintable() or " " in token:
        raise BrokerError(f"the token of the page has at least {TOKEN_MIN} printable ASCII characters and no spaces")
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket; port 0 takes a free one. Raises BrokerError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        text = f"the page cannot listen on {host}:{port} ({error.strerror}): give another address with --listen"
        raise BrokerError(text) from None
    with listening:
        yield listening


def serve(
    listening: socket.socket,
    stores: Sequence[PageStore],
    *,
    stopped: threading.Event,
    token: str,
    hosts: Sequence[str],
    certificate: str | None = None,
    private_key: str | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread; not at all if `stopped` is set.

    `hosts` are the names by which it may be reached.
    """
    import uvicorn

    port = listening.getsockname()[1]
    page = OperationsPage(stores, Sessions(token), cookie=f"checkback_page_{port}", is_tls=certificate is not None)
    config = uvicorn.Config(
        make_page_app(page, hosts),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_IDLE_S,
        ssl_certfile=certificate,
        ssl_keyfile=private_key,
    )
    server = uvicorn.Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn, when it has stopped, raises what it caught once more
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    server.should_exit |= stopped.is_set()
    server.run(sockets=[listening])
