"""A connection of the application's pool, as check-back uses it: as a new one is, with short waits; then as it was.

An application may leave a connection elsewhere when it gives it back: by `SET search_path`, SET ROLE, or MySQL's USE.
The ledger's table is the one that a new connection finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from broker.database.new_connection import go_to, home_if_elsewhere, using
from broker.database.statements import MYSQL_DIALECTS
from broker.ledger import Ledger

if TYPE_CHECKING:
    from sqlalchemy import Connection

_STATEMENT_TIMEOUT_MS = 10_000
_HOME = "checkback_home"


@contextmanager
def borrowed(connection: Connection, ledger: Ledger, lock_timeout_ms: int | None = None) -> Iterator[Connection]:
    """The connection at the ledger's tables, and with this limit for locks; what was set before is put back."""
    restore = "" if lock_timeout_ms is None else _limit(connection, lock_timeout_ms)
    home = home_if_elsewhere(connection)
    connection.rollback()
    connection.execution_options(**{_HOME: home})
    try:
        with using(connection, ledger.database):
            connection.rollback()
            yield connection
            if not connection.invalidated and not connection.closed:
                connection.rollback()
    finally:
        if restore and not connection.invalidated and not connection.closed:
            connection.rollback()
            connection.exec_driver_sql(restore)
            connection.rollback()


@contextmanager
def begun(connection: Connection) -> Iterator[None]:
    """A transaction on a borrowed connection.

    On PostgreSQL each one goes where a new connection does, and leaves nothing behind: through a proxy the next one may
    be another connection of the server.
    """
    with connection.begin():
        go_to(connection, connection.get_execution_options().get(_HOME))
        yield


def limit_waiting(connection: Connection, lock_timeout_ms: int) -> None:
    """Limits that end with the transaction, where the database has such."""
    if connection.dialect.name == "postgresql":
        lock, statement = f"{lock_timeout_ms}ms", f"{_STATEMENT_TIMEOUT_MS}ms"
        limits = f"set_config('lock_timeout', '{lock}', true), set_config('statement_timeout', '{statement}', true)"
        connection.exec_driver_sql(f"SELECT {limits}")


def _limit(connection: Connection, lock_timeout_ms: int) -> str:
    """Limits that these databases know for a connection only; returns what puts the old ones back."""
    if connection.dialect.name == "sqlite":
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(lock_timeout_ms)}")
        return f"PRAGMA busy_timeout = {int(before or 0)}"
    if connection.dialect.name in MYSQL_DIALECTS:
        before = connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar()
        connection.exec_driver_sql(f"SET innodb_lock_wait_timeout = {max(1, lock_timeout_ms // 1000)}")
        return f"SET innodb_lock_wait_timeout = {int(before or 50)}"
    return ""
