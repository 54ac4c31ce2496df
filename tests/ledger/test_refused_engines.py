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


@pytest.mark.parametrize("option", ["nolock=1", "immutable=on", "vfs=unix-none"])
def test_a_file_of_sqlite_without_locks_is_refused(sqlite_url: URL, option: str) -> None:
    """Of 75 purchases by three processes 46 were acknowledged, and 36 orders were there."""
    url = f"sqlite:///file:{sqlite_url.database}?uri=true&{option}"
    with pytest.raises(BrokerError, match=f"{option} in the URL turns SQLite's locks off"):
        Ledger(create_engine(url))
    Ledger(create_engine(url.replace(option, "nolock=0&immutable=off&mode=rwc")))


@pytest.mark.parametrize("option", ["nolock=1", "immutable=1", "vfs=unix-none"])
def test_an_option_in_the_name_of_the_file_counts_as_one_of_the_url(sqlite_url: URL, option: str) -> None:
    """`URL.create` and Django hand it on to SQLite as it is: the ledger was taken."""
    url = sqlite_url.set(database=f"file:{sqlite_url.database}?mode=rwc&{option}", query={"uri": "true"})
    with pytest.raises(BrokerError, match=f"{option} in the URL turns SQLite's locks off"):
        Ledger(create_engine(url))
    Ledger(create_engine(url.set(database=f"file:{sqlite_url.database}?mode=rwc")))
    Ledger(create_engine(sqlite_url.set(database=f"{sqlite_url.database}?{option}")))  # a name like any other


@pytest.mark.parametrize("dialect", ["duckdb", "mssql", "oracle", "cockroachdb", "redshift"])
def test_another_kind_of_database_is_refused(sqlite_url: URL, dialect: str) -> None:
    """Messages were sent in it, and what a crash left in doubt could not be decided; redshift's keys are not unique."""
    engine = create_engine(sqlite_url)
    engine.dialect.name = dialect
    with pytest.raises(BrokerError, match=f"SQLite, PostgreSQL, MySQL or MariaDB, and .* kind of database: {dialect}"):
        Ledger(engine)
