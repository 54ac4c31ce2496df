"""The metrics of a verb with several processes: `--metrics HOST:PORT`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from broker.format.java import split_address
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
    if (found := split_address(address)) is None:
        raise BadParameter(f"HOST:PORT such as 127.0.0.1:9464, not {address!r:.60}", param_hint="--metrics")
    from recovery.metrics.work_metrics import WorkPage
    from recovery.metrics_server import HOST, MetricsServer

    with tempfile.TemporaryDirectory(prefix="checkback-work-") as directory:
        server = MetricsServer(found[1], WorkPage(directory).page, found[0] or HOST)
        try:
            warn(f"Metrics on http://{server.address}/metrics")
            yield directory
        finally:
            server.close()
