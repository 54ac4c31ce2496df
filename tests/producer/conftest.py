"""A store and the databases of applications."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.live import LiveStore
from tests.checkback.shop import open_store
from tests.ledger.databases import engine, ledger, other_engine, postgres_socket, postgres_url, sqlite_url, url

__all__ = ["engine", "ledger", "other_engine", "postgres_socket", "postgres_url", "sqlite_url", "url"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LiveStore]:
    with open_store(tmp_path / "store") as store:
        yield store
