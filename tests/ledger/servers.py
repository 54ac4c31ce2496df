"""Fixtures: one database server of each kind for all rooms. No SQLAlchemy: an older Airflow has one of another kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledger import mariadb, postgres


@pytest.fixture(scope="session")
def postgres_socket() -> Iterator[Path]:
    """The directory of the socket of a running PostgreSQL server."""
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.server() as directory:
        yield directory


@pytest.fixture(scope="session")
def mariadb_socket() -> Iterator[Path]:
    """The socket of a running MariaDB server."""
    if reason := mariadb.missing():
        pytest.skip(reason)
    with mariadb.server() as socket:
        yield socket
