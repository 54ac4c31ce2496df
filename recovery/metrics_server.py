"""A small HTTP server of text pages, by default on 127.0.0.1, in a thread of its own, for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from broker.errors import BrokerError

HOST = "127.0.0.1"
PROMETHEUS = "text/plain; version=0.0.4"
_REQUEST_S = 5.0

Page = Callable[[str], tuple[int, str, str]]
"""Code, type and text of the answer to a GET of a path."""


class MetricsServer:
    """Answers each GET with what `page` gives for its path, until it is closed; several threads may ask."""

    def __init__(self, port: int, page: Page, host: str = HOST) -> None:
        """`port` 0 takes a free one. Raises BrokerError when the port is taken."""
        self._host = host
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(page))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise BrokerError(f"cannot listen on {host}:{port}: {reason}") from None
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="checkback-metrics", daemon=True).start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self._host}:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop listening; requests under way are answered or cut off."""
        self._server.shutdown()
        self._server.server_close()


def _handler(page: Page) -> type[BaseHTTPRequestHandler]:
    class PageHandler(BaseHTTPRequestHandler):
        """One request."""

        timeout = _REQUEST_S

        def do_GET(self) -> None:
            code, kind, text = page(self.path.split("?")[0])
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    return PageHandler
