"""The metrics of a store from within an application: `/metrics` for Prometheus, in a thread of its own.

Besides what `checkback metrics` prints there is how long this process's appends and fsyncs take. They are timed from
when an exporter is made on; a process without one runs no code for it.
"""

from __future__ import annotations

import time
from typing import Self

from broker.errors import BrokerError
from broker.live import LiveStore
from broker.server.metrics import exposition
from recovery.metrics.latency import Latencies
from recovery.metrics.store_metrics import latency_samples, samples
from recovery.metrics_server import PROMETHEUS, MetricsServer


class MetricsExporter:
    """Answers `GET /metrics` and `/healthz` on a port of 127.0.0.1 until it is closed.

        with broker.open("shop.store") as store, MetricsExporter(store, port=9464):
            ...

    Make one for each process and store. Close it before the store.
    """

    def __init__(self, store: LiveStore, port: int = 9464) -> None:
        """`port` 0 takes a free one: see `address`. Raises BrokerError when the port is taken."""
        self._store = store
        self._latencies = Latencies(store.writer.appender, store.writer.syncer)
        self._server = MetricsServer(port, self.page)  # it may be asked at once
        self._latencies.start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self._server.address

    def page(self, path: str) -> tuple[int, str, str]:
        """Code, type and text of the answer to a GET."""
        if path not in ("/metrics", "/healthz"):
            return 404, "text/plain", "GET /metrics or /healthz\n"
        try:
            if path == "/healthz":
                return 200, "text/plain", f"ok, {self._store.visible_end} bytes\n"
            found = [*samples(self._store, time.time_ns() // 1_000_000), *latency_samples(self._latencies)]
            return 200, PROMETHEUS, exposition(iter(found))
        except (BrokerError, OSError, ValueError) as error:
            return 503, "text/plain", f"{error}\n"

    def close(self) -> None:
        """Stop listening, and time nothing any more."""
        self._server.close()
        self._latencies.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
