"""The metrics of a verb with several processes: `--metrics HOST:PORT`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from broker.format.properties import decimal
from recovery.cli.declaration import BadParameter
from recovery.cli.terminal.output import warn


@contextlib.contextmanager
def measured(address: str | None, into: str | None) -> Iterator[str | None]:
    """The directory in which processes share what they count: `into`, or one behind a page at `address`.

    None when neither is given: then nothing is counted. Raises BadParameter, BrokerError when the port is taken.
    """
    if address is None:
        yield into
        return
    host, port = _host_and_port(address)
    from recovery.metrics.work_metrics import WorkPage
    from recovery.metrics_server import MetricsServer

    with tempfile.TemporaryDirectory(prefix="checkback-work-") as directory:
        server = MetricsServer(port, WorkPage(directory).page, host)
        try:
            warn(f"Metrics on http://{server.address}/metrics")
            yield directory
        finally:
            server.close()


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, number = text.rpartition(":")
    if (port := decimal(number, 5)) is None or port > 65_535:
        raise BadParameter(f"HOST:PORT such as 127.0.0.1:9464, not {text!r:.60}", param_hint="--metrics")
    return host or "127.0.0.1", port
