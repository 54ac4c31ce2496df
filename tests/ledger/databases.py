"""Fixtures: the application's database: SQLite, PostgreSQL, MariaDB. Other rooms import them, too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import URL, Engine, create_engine, make_url, text

from broker.ledger import Ledger

_numbers = itertools.count()


@pytest.fixture
def postgres_url(postgres_socket: Path) -> Iterator[URL]:
    """An empty database of the server."""
    root = make_url(f"postgresql+psycopg://shop@/postgres?host={quote(str(postgres_socket))}")
    name = f"shop{next(_numbers)}"
    engine = create_engine(root, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield root.set(database=name)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture
def mariadb_url(mariadb_socket: Path) -> Iterator[URL]:
    """An empty database of the server."""
    root = make_url(f"mariadb+pymysql://root@localhost/mysql?unix_socket={quote(str(mariadb_socket))}")
    name = f"shop{next(_numbers)}"
    engine = create_engine(root, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield root.set(database=name)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name}"))
    engine.dispose()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> URL:
    return make_url(f"sqlite:///{tmp_path / 'shop.db'}")


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest) -> URL:
    """The database of an application, empty."""
    found = request.getfixturevalue(f"{request.param}_url")
    assert isinstance(found, URL)
    return found


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def other_engine(url: URL) -> Iterator[Engine]:
    """The same database, as another process sees it."""
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def ledger(engine: Engine) -> Ledger:
    ledger = Ledger(engine)
    ledger.create_all()
    return ledger
