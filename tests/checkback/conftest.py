"""A shop: a store, an application's database of each kind, and check-back on connections of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from broker.ledger import Ledger
from tests.backends.shop import backend_shop
from tests.checkback.shop import Shop
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
    "backend_shop", "engine", "ledger", "mariadb_url", "other_engine", "postgres_url",
    "sqlite_url", "url",
]  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path, engine: Engine, other_engine: Engine, ledger: Ledger) -> Iterator[Shop]:
    """The same test on each database."""
    shop = Shop(tmp_path / "store", ledger, Ledger(other_engine))
    yield shop
    shop.close()
