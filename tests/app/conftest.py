"""The databases of applications, the clock that tests move, and an application on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

import broker
from broker.testing.pytest_plugin import checkback_clock
from tests.app.shop import shop_app
from tests.ledger.databases import mariadb_url, postgres_url, sqlite_url, url

__all__ = ["checkback_clock", "mariadb_url", "postgres_url", "sqlite_url", "url"]


@pytest.fixture
def app(tmp_path: Path, sqlite_url: URL) -> Iterator[broker.App]:
    with_engine = shop_app(tmp_path, sqlite_url)
    yield with_engine
    with_engine.close()
    assert with_engine.engine is not None
    with_engine.engine.dispose()
