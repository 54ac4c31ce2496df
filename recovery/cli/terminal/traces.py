"""The spans of a verb: `--otlp URL`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def traced(url: str | None, service: str) -> Iterator[None]:
    """While the block runs, what it makes has spans, if there is a URL. Raises BrokerError."""
    if url is None:
        yield
        return
    from broker import telemetry

    close = telemetry.export_to(url, service=service)
    try:
        yield
    finally:
        close()
