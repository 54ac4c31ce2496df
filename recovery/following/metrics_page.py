"""`/metrics` for Prometheus and `/healthz`, on a port of 127.0.0.1; `/status` is the last status as JSON."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from broker.errors import BrokerError
from broker.server.metrics import exposition
from recovery.following.status import FollowerStatus

_HOST = "127.0.0.1"
_REQUEST_S = 5.0


class MetricsServer:
    """Shows the last status that it was given, in a thread of its own; without a port it does nothing."""

    def __init__(self, port: int | None) -> None:
        """Raises BrokerError when the port is taken."""
        self._status: FollowerStatus | None = None
        self._server: ThreadingHTTPServer | None = None
        if port is None:
            return
        try:
            self._server = ThreadingHTTPServer((_HOST, port), self._handler())
        except OSError as error:
            raise BrokerError(f"cannot listen on {_HOST}:{port}: {error.strerror or error}") from None
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="checkback-follow-metrics", daemon=True).start()

    @property
    def address(self) -> str:
        """HOST:PORT; empty without one."""
        return "" if self._server is None else f"{_HOST}:{self._server.server_address[1]}"

    def show(self, status: FollowerStatus) -> None:
        """The status from now on."""
        self._status = status

    def page(self, path: str) -> tuple[int, str, str]:
        """Code, type and text of the answer to a GET."""
        status = self._status
        if path not in ("/metrics", "/healthz", "/status"):
            return 404, "text/plain", "GET /metrics, /healthz or /status\n"
        if status is None:
            return 503, "text/plain", "not followed yet\n"
        if path == "/metrics":
            return 200, "text/plain; version=0.0.4", exposition(status.samples())
        if path == "/status":
            return 200, "application/json", json.dumps(status.as_json())
        return (200, "text/plain", "ok\n") if status.is_connected else (503, "text/plain", f"{status.trouble}\n")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        page = self.page

        class StatusHandler(BaseHTTPRequestHandler):
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

        return StatusHandler

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
