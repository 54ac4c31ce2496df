"""Engines that no ledger takes: what is none, a database in memory, and one of a kind that check-back cannot ask."""

from __future__ import annotations

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.pool import NullPool

from broker.errors import BrokerError
from broker.ledger import Ledger


@pytest.mark.parametrize("engine", ["sqlite:///shop.db", None, b"x", 1])
def test_what_is_no_engine_is_refused(engine: object) -> None:
    with pytest.raises(BrokerError, match=r"Ledger\(create_engine"):
        Ledger(engine)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url", ["", "/:memory:", "/file::memory:?cache=shared&uri=true", "/file:shop?mode=memory&cache=shared&uri=true"]
)
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(BrokerError, match="give SQLite a file"):
        Ledger(create_engine(f"sqlite://{url}", poolclass=NullPool))


@pytest.mark.parametrize("dialect", ["duckdb", "mssql", "oracle", "cockroachdb", "redshift"])
def test_another_kind_of_database_is_refused(sqlite_url: URL, dialect: str) -> None:
    """Messages were sent in it, and what a crash left in doubt could not be decided; redshift's keys are not unique."""
    engine = create_engine(sqlite_url)
    engine.dialect.name = dialect
    with pytest.raises(BrokerError, match=f"SQLite, PostgreSQL, MySQL or MariaDB, and .* kind of database: {dialect}"):
        Ledger(engine)
