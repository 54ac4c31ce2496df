"""A store and the databases of applications."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.live import LiveStore
from tests.backends.kinds import backend
from tests.backends.shop import backend_shop
from tests.checkback.shop import open_store
from tests.ledger.databases import (
    engine,
    ledger,
    mariadb_url,
    other_engine,
    postgres_url,
    sqlite_url,
    url,
)  # fmt: skip

__all__ = [
    "backend", "backend_shop", "engine", "ledger", "mariadb_url", "other_engine", "postgres_url",
    "sqlite_url", "url",
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LiveStore]:
    with open_store(tmp_path / "store") as store:
        yield store
