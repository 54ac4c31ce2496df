"""A desk that sells on plain connections of sqlite3 and psycopg, in each mode of their transaction control."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL

from broker.enlisting.connection_ledger import ConnectionLedger
from tests.backends.backend import Backend
from tests.backends.shop import TOPICS
from tests.producer.desk import Desk, desk_at

SQLITE = ("deferred", "immediate", "none", "row-factory", "own-class", "traced")
POSTGRES = ("plain", "autocommit", "serializable", "dict-row")


class OwnConnection(sqlite3.Connection):
    """A connection as applications make them: its cursors are of another kind."""

    def cursor(self, *_: Any) -> Any:
        raise AssertionError("the ledger uses a plain cursor")


class TracedConnection:
    """A connection as OpenTelemetry and others wrap it: it says that it is one, and no method in C takes it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.__dict__["__wrapped__"] = connection

    @property
    def __class__(self) -> type[Any]:
        return sqlite3.Connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__wrapped__, name, value)

    def __enter__(self) -> Any:
        return self.__wrapped__.__enter__()

    def __exit__(self, *error: object) -> bool:
        return self.__wrapped__.__exit__(*error)


@dataclass
class PlainDesk(Desk):
    """A desk whose producer has a ConnectionLedger; check-back asks by SQLAlchemy, as its own process would."""

    mode: str = ""
    opened: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        ledger = ConnectionLedger(lambda: connect(self.url))
        self.producer = self.producer_of(self.shop.group, TOPICS, ledger)

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    def connection(self, **options: Any) -> Any:
        made = connect(self.url, self.mode, **options)
        self.opened.append(made)
        return made

    def save(self, session: Any, number: int) -> None:
        self.execute(session, f"INSERT INTO orders (id) VALUES ({self.first + number})")  # noqa: S608 - a number

    def execute(self, connection: Any, statement: str) -> None:
        bare = getattr(connection, "__wrapped__", connection)
        cursor = sqlite3.Cursor(bare) if self.is_sqlite else connection.cursor()
        cursor.execute(statement)
        cursor.close()

    def close_connections(self) -> None:
        for one in self.opened:
            one.close()
        self.opened.clear()


def connect(url: URL, mode: str = "", **options: Any) -> Any:
    """A connection to the database, as an application in a mode makes it."""
    if url.get_backend_name() == "sqlite":
        levels: dict[str, Any] = {"none": None, "immediate": "IMMEDIATE"}
        kind = OwnConnection if mode == "own-class" else sqlite3.Connection
        found = sqlite3.connect(str(url.database), isolation_level=levels.get(mode, ""), factory=kind, **options)
        if mode == "row-factory":
            found.row_factory, found.text_factory = sqlite3.Row, bytes
        return TracedConnection(found) if mode == "traced" else found
    made = psycopg.connect(
        host=str(url.query["host"]), user=url.username, dbname=url.database, autocommit=mode == "autocommit", **options
    )
    if mode == "serializable":
        made.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    if mode == "dict-row":
        made.row_factory = psycopg.rows.dict_row  # type: ignore[assignment]
    return made


@contextmanager
def plain_desk_at(backend: Backend, url: URL, group: str = "shop") -> Iterator[PlainDesk]:
    """A desk with an empty database, of SQLite or PostgreSQL."""
    with desk_at(backend, url, group) as made:
        desk = PlainDesk(made.shop, url)
        try:
            yield desk
        finally:
            desk.close_connections()


ends_with = pytest.raises
"""Around a block of several statements whose end raises."""
