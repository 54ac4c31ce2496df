"""A served store for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import broker
from tests.server.wire_client import WireClient

Serve = Callable[..., broker.Server]
Connect = Callable[..., WireClient]
LAYOUT = broker.StoreLayout(segment_bytes=8 << 20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[broker.LiveStore]:
    with broker.open(tmp_path / "store", sync="os", layout=LAYOUT) as opened:
        yield opened


@pytest.fixture
def serve(store: broker.LiveStore) -> Iterator[Serve]:
    """`serve(**options)`: a server on a free port; closed after the test."""
    with ExitStack() as stack:
        yield lambda listen="127.0.0.1:0", **options: stack.enter_context(broker.serve(store, listen, **options))


@pytest.fixture
def connect() -> Iterator[Connect]:
    """`connect(server, ...)`: a client; closed after the test."""
    with ExitStack() as stack:

        def made(server: broker.Server, **options: Any) -> WireClient:
            return stack.enter_context(WireClient(server.address, **options))

        yield made
