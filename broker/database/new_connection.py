"""Where check-back and bindings read the ledger, on a connection that a session may have left elsewhere.

On PostgreSQL where a new connection of the engine goes: to which search_path and role. An application may set these on
each connection, in an event of SQLAlchemy's or by `creator=`: that counts. What a session left behind, by SET
search_path or SET ROLE, when its connection went back to the pool, does not. On MySQL in the database of the URL, which
the rows of sends name (`broker.enlisting.sqlalchemy_rows`): elsewhere a committed transaction would have no row.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from broker.database.statements import MYSQL_DIALECTS

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.pool import Pool

Place = tuple[Any, ...]  # role and search_path

_MAY_BE_ELSEWHERE = (
    "SELECT current_user <> session_user OR setting <> reset_val FROM pg_settings WHERE name = 'search_path'"
)
_PLACE = "SELECT current_setting('role'), current_setting('search_path')"
_GO = "SELECT set_config('role', :role, true), set_config('search_path', :path, true)"

_homes: weakref.WeakKeyDictionary[Pool, Place] = weakref.WeakKeyDictionary()


def home_if_elsewhere(connection: Connection) -> Place | None:
    """Where a new connection goes, if this one of PostgreSQL was left elsewhere."""
    if connection.dialect.name != "postgresql" or not connection.exec_driver_sql(_MAY_BE_ELSEWHERE).scalar():
        return None
    here = tuple(connection.exec_driver_sql(_PLACE).one())
    home = _home(connection, here)
    return None if home == here else home


def go_to(connection: Connection, home: Place | None) -> None:
    """Have a transaction of PostgreSQL, and nothing behind it, go to a place; None: it is there."""
    from sqlalchemy import text

    if home is not None:
        connection.execute(text(_GO), dict(zip(("role", "path"), home, strict=True)))


@contextmanager
def using(connection: Connection, database: str | None) -> Iterator[None]:
    """On MySQL: a connection uses the database of its URL, and then again the one that it was left in by USE."""
    before = database
    if connection.dialect.name in MYSQL_DIALECTS and database:
        before = connection.exec_driver_sql("SELECT DATABASE()").scalar()
    if before == database:
        yield
        return
    quote = connection.dialect.identifier_preparer.quote_identifier
    connection.exec_driver_sql(f"USE {quote(database or '')}")
    try:
        yield
    finally:
        if before and not connection.invalidated and not connection.closed:
            connection.exec_driver_sql(f"USE {quote(before)}")


def _home(connection: Connection, here: Place) -> Place:
    """Where a new connection is, asked once for each pool; `here` where none can be made now."""
    from sqlalchemy import Connection

    engine = connection.engine
    if (found := _homes.get(engine.pool)) is not None:
        return found
    pool = engine.pool.recreate()  # with its events, and none of its connections
    # Each driver has its own errors: the limit of connections, for one.
    with contextlib.suppress(Exception), Connection(engine, connection=pool.connect()) as made:
        here = _homes[engine.pool] = tuple(made.exec_driver_sql(_PLACE).one())
    pool.dispose()
    return here
