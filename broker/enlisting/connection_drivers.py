"""What the drivers `sqlite3` and `psycopg` have in common, seen from a message that joins a transaction of theirs.

    status ─► begin ─► execute (the ledger's rows) ─► commit or rollback

Both are asked what state the connection is in before each step: an application may commit, roll back or close the
connection itself, by a method, a `with` block or plain SQL.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import sqlite3
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from broker.database.statements import Sql, pyformat
from broker.enlisting.attached_files import check_attached
from broker.errors import TransactionError

if TYPE_CHECKING:
    import psycopg

_WANTED = "a connection of sqlite3 or psycopg"
_SQLITE_TRANSACTION = 22  # the action code of an authorizer. SQLite: SQLITE_TRANSACTION (sqlite3.h)
_UNDEFINED_TABLE = "42P01"  # SQLSTATE
_MISSING = "the ledger's table is not in the connection's database: call ledger.create_all() when the program starts"
_READ_ONLY = "the connection is read-only: the ledger's row is written in its transaction, so use one that can write"


class ConnectionStatus(enum.Enum):
    """What a connection is doing, as its driver knows it."""

    IDLE = "in no transaction"
    ACTIVE = "in a transaction"
    FAILED = "in an aborted transaction"
    BUSY = "in the middle of a statement"
    CLOSED = "closed"


class Driver(abc.ABC):
    """One driver's way to end transactions and to execute the ledger's statements, whatever the user set."""

    dialect: ClassVar[str]

    @abc.abstractmethod
    def status(self, connection: Any) -> ConnectionStatus:
        """What the connection is doing."""

    @abc.abstractmethod
    def refuse(self, connection: Any) -> None:
        """Raises TransactionError for a connection in a mode in which this transaction would not end by our commit."""

    @abc.abstractmethod
    def begin(self, connection: Any) -> None:
        """Be in a transaction that can write. Raises TransactionError for one that is read-only."""

    @abc.abstractmethod
    def commit(self, connection: Any) -> None:
        """COMMIT."""

    @abc.abstractmethod
    def rollback(self, connection: Any) -> None:
        """ROLLBACK; nothing outside a transaction."""

    @abc.abstractmethod
    def execute(self, connection: Any, statement: Sql) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows as plain tuples, whatever row factory the connection has."""

    @abc.abstractmethod
    def make_commit_impossible(self, connection: Any) -> None:
        """After a send that failed, until the ROLLBACK. In the middle of a statement of PostgreSQL not that in SQL."""

    @abc.abstractmethod
    def allow_commit(self, connection: Any) -> None:
        """After the ROLLBACK: nothing of it is left."""

    @abc.abstractmethod
    def refusal(self, error: BaseException) -> str:
        """What to say of an error that the ledger's row met; empty for one that says enough by itself."""

    @abc.abstractmethod
    def was_refused(self, connection: Any, error: BaseException) -> bool:
        """Whether an error of COMMIT is the database's answer "no", so that nothing was saved."""


class SqliteDriver(Driver):
    """`sqlite3` of the standard library, in each of its modes of transaction control."""

    dialect = "sqlite"

    def status(self, connection: sqlite3.Connection) -> ConnectionStatus:
        try:
            return ConnectionStatus.ACTIVE if connection.in_transaction else ConnectionStatus.IDLE
        except sqlite3.ProgrammingError:
            return ConnectionStatus.CLOSED

    def refuse(self, connection: sqlite3.Connection) -> None:
        check_attached(lambda statement: self.execute(connection, Sql(statement)))

    def begin(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:  # always, with autocommit=False of Python 3.12
            return
        # IMMEDIATE: the ledger's row is going to be written. A transaction that reads first and writes later fails with
        # "database is locked" at once, without waiting for its timeout.
        self.execute(connection, Sql(f"BEGIN {connection.isolation_level or 'IMMEDIATE'}"))

    def commit(self, connection: sqlite3.Connection) -> None:
        if getattr(connection, "autocommit", None) is False:
            connection.commit()  # which begins the next transaction
        else:
            self.execute(connection, Sql("COMMIT"))  # with autocommit=True the method commits nothing

    def rollback(self, connection: sqlite3.Connection) -> None:
        if getattr(connection, "autocommit", None) is False:
            connection.rollback()
        elif connection.in_transaction:
            self.execute(connection, Sql("ROLLBACK"))

    def execute(self, connection: sqlite3.Connection, statement: Sql) -> list[tuple[Any, ...]]:
        # Not connection.cursor(): a factory or a row_factory is the user's. Not sqlite3.Cursor(connection): the
        # connection would keep a weak reference to each, until somebody calls cursor().
        cursor = sqlite3.Connection.cursor(_bare(connection), sqlite3.Cursor)
        cursor.row_factory = None
        theirs, connection.text_factory = connection.text_factory, str
        try:
            return cursor.execute(statement.text, statement.values).fetchall()
        finally:
            connection.text_factory = theirs
            cursor.close()

    def make_commit_impossible(self, connection: sqlite3.Connection) -> None:
        """By an authorizer, in place of the user's if there is one: SQLite asks it for each COMMIT, also of `with`."""
        connection.set_authorizer(_DenyCommit())

    def allow_commit(self, connection: sqlite3.Connection) -> None:
        connection.set_authorizer(None)

    def refusal(self, error: BaseException) -> str:
        text = str(error)
        return _MISSING if "no such table" in text else _READ_ONLY if "readonly database" in text else ""

    def was_refused(self, connection: sqlite3.Connection, error: BaseException) -> bool:
        """SQLite keeps the transaction open when it refuses: locked by a reader, or a deferred foreign key."""
        return isinstance(error, sqlite3.Error) and connection.in_transaction


def _bare(connection: Any) -> Any:
    """The driver's own connection: OpenTelemetry and other tracers put a proxy around it, which no C method takes."""
    while not issubclass(type(connection), sqlite3.Connection) and hasattr(connection, "__wrapped__"):
        connection = connection.__wrapped__
    return connection


class _DenyCommit:
    """Denies COMMIT until a ROLLBACK: it cannot take itself off, which would change the connection that asks it.

    Where SQLite rolled back by itself, as INSERT OR ROLLBACK does, it denies the next COMMIT, too. A BEGIN cannot tell:
    SQLite announces one in the middle of a transaction as well, before that fails.
    """

    def __init__(self) -> None:
        self._is_over = False

    def __call__(self, action: int, operation: str | None, *_: object) -> int:
        if self._is_over or action != _SQLITE_TRANSACTION:
            return sqlite3.SQLITE_OK
        self._is_over = operation == "ROLLBACK"
        return sqlite3.SQLITE_DENY if operation == "COMMIT" else sqlite3.SQLITE_OK


class PsycopgDriver(Driver):
    """`psycopg` 3, with or without autocommit."""

    dialect = "postgresql"

    def status(self, connection: psycopg.Connection[Any]) -> ConnectionStatus:
        from psycopg.pq import TransactionStatus

        if connection.closed:
            return ConnectionStatus.CLOSED
        if connection.info.pipeline_status:
            return ConnectionStatus.BUSY  # with statements whose answers come later
        known = {
            TransactionStatus.IDLE: ConnectionStatus.IDLE,
            TransactionStatus.INTRANS: ConnectionStatus.ACTIVE,
            TransactionStatus.INERROR: ConnectionStatus.FAILED,
            TransactionStatus.ACTIVE: ConnectionStatus.BUSY,
        }
        return known.get(connection.info.transaction_status, ConnectionStatus.CLOSED)

    def refuse(self, connection: psycopg.Connection[Any]) -> None:
        if connection.info.pipeline_status:
            text = "the connection is in pipeline mode, where the answer to a statement comes later"
            raise TransactionError(f"{text}: send outside `with connection.pipeline()`")
        if getattr(connection, "_tpc", None) is not None:
            text = "the connection is in a two-phase transaction, where COMMIT is split in two"
            raise TransactionError(f"{text}: send in a plain transaction")
        if getattr(connection, "_num_transactions", 0):  # there is no public way to see it; commit() looks there too
            text = "the connection is in a block `with connection.transaction()`, which commits after this one"
            raise TransactionError(
                f"{text}: make begin_transaction(connection) the outer block, and transaction() a savepoint in it"
            )

    def begin(self, connection: psycopg.Connection[Any]) -> None:
        if connection.autocommit and self.status(connection) is ConnectionStatus.IDLE:
            level = connection.isolation_level
            level_text = f" ISOLATION LEVEL {level.name.replace('_', ' ')}" if level is not None else ""
            self.execute(connection, Sql(f"BEGIN{level_text}"))
        ((read_only,),) = self.execute(connection, Sql("SHOW transaction_read_only"))  # psycopg begins by itself
        if read_only == "on":
            self.rollback(connection)
            raise TransactionError(_READ_ONLY)

    def commit(self, connection: psycopg.Connection[Any]) -> None:
        connection.commit()

    def rollback(self, connection: psycopg.Connection[Any]) -> None:
        connection.rollback()

    def execute(self, connection: psycopg.Connection[Any], statement: Sql) -> list[tuple[Any, ...]]:
        import psycopg
        from psycopg.rows import tuple_row

        # Not connection.cursor(): its factories are the user's.
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(pyformat(statement.text).encode(), statement.values)
            return cursor.fetchall() if cursor.description is not None else []

    def make_commit_impossible(self, connection: psycopg.Connection[Any]) -> None:
        """By an error in the transaction, or in its savepoint: PostgreSQL commits nothing after one.

        In the middle of a statement none can be made: there the connection's own `commit` rolls back, until a rollback.
        """
        import psycopg

        status = self.status(connection)
        if status is ConnectionStatus.BUSY:
            _replace_commit(connection)
        elif status is ConnectionStatus.ACTIVE:
            reason = "DO $$BEGIN RAISE EXCEPTION 'checkback: a message could not be sent in this transaction'; END$$"
            try:
                self.execute(connection, Sql(reason))
            except psycopg.Error:
                return

    def allow_commit(self, connection: psycopg.Connection[Any]) -> None:
        _restore_commit(connection)

    def refusal(self, error: BaseException) -> str:
        return _MISSING if getattr(error, "sqlstate", None) == _UNDEFINED_TABLE else ""

    def was_refused(self, connection: psycopg.Connection[Any], error: BaseException) -> bool:
        """An error with a SQLSTATE is the server's own, and it rolled back: a deferred constraint, a serialization."""
        answered = getattr(error, "sqlstate", None) is not None
        return answered and self.status(connection) is ConnectionStatus.IDLE


def _replace_commit(connection: Any) -> None:
    """Have `connection.commit()`, which `with connection:` calls, roll back and raise TransactionError, once."""

    def rollback() -> None:
        _restore_commit(connection)
        connection.rollback()

    def commit() -> None:
        rollback()
        text = "a message could not be sent in this transaction, and its error was swallowed"
        raise TransactionError(f"{text}: it is rolled back, and nothing was saved")

    connection.commit, connection.rollback = commit, rollback


def _restore_commit(connection: Any) -> None:
    for name in ("commit", "rollback"):  # the methods of its class are behind them
        vars(connection).pop(name, None)


def driver_of(connection: object) -> Driver | None:
    """The driver of a connection; None for anything else. Raises TransactionError for a connection that cannot do."""
    if issubclass(type(_bare(connection)), sqlite3.Connection):
        return _SQLITE
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None:
        if isinstance(connection, psycopg.Connection):
            return _PSYCOPG
        if isinstance(connection, psycopg.AsyncConnection):
            text = f"{_WANTED} is what a message joins, not an AsyncConnection"
            raise TransactionError(f"{text}: use AsyncSession of SQLAlchemy with broker.Ledger(engine)")
    return None


def doom_connection(target: object) -> None:
    """After a send that was refused: where it names a plain connection, what that is in can only be rolled back."""
    with contextlib.suppress(Exception):  # the send's own error says more
        driver = driver_of(target)
        if driver is None:
            return
        status = driver.status(target)
        if status is ConnectionStatus.ACTIVE or (status is ConnectionStatus.BUSY and _has_begun(target)):
            driver.make_commit_impossible(target)


def _has_begun(connection: Any) -> bool:
    """Whether a connection of psycopg that is in the middle of a statement has a transaction that it will commit."""
    return not connection.autocommit and bool(connection.info.transaction_status)


def is_cursor(value: object) -> bool:
    """Whether it is a cursor of one of the drivers, which stands for no transaction: its connection does."""
    psycopg = sys.modules.get("psycopg")
    return isinstance(value, sqlite3.Cursor) or (psycopg is not None and isinstance(value, psycopg.Cursor))


def is_connection(value: object) -> bool:
    """Whether it is a connection of one of the drivers, one for an event loop included."""
    psycopg = sys.modules.get("psycopg")
    kinds = () if psycopg is None else (psycopg.Connection, psycopg.AsyncConnection)
    return isinstance(value, (sqlite3.Connection, *kinds))


_SQLITE, _PSYCOPG = SqliteDriver(), PsycopgDriver()
