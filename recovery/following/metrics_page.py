"""`/metrics` for Prometheus and `/healthz`, on a port of 127.0.0.1; `/status` is the last status as JSON."""

from __future__ import annotations

import json
from typing import Self

from broker.server.metrics import exposition
from recovery.following.status import FollowerStatus
from recovery.metrics_server import PROMETHEUS, MetricsServer


class StatusPage:
    """Shows the last status that it was given; without a port it does nothing."""

    def __init__(self, port: int | None) -> None:
        """Raises BrokerError when the port is taken."""
        self._status: FollowerStatus | None = None
        self._server = None if port is None else MetricsServer(port, self.page)

    @property
    def address(self) -> str:
        """HOST:PORT; empty without one."""
        return "" if self._server is None else self._server.address

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
            return 200, PROMETHEUS, exposition(status.samples())
        if path == "/status":
            return 200, "application/json", json.dumps(status.as_json())
        return (200, "text/plain", "ok\n") if status.is_connected else (503, "text/plain", f"{status.trouble}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
