"""The ledger's table as a SQLAlchemy connection sees it in a transaction that joined it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from broker.database.statements import MYSQL_DIALECTS, quoted
from broker.enlisting.search_path import home_schema, table_of
from broker.errors import AlreadyEnded, TransactionError
from broker.ledger import COMMITTED, ROLLED_BACK, Ledger, executor

if TYPE_CHECKING:
    from sqlalchemy import Connection, Dialect, Select, Table
    from sqlalchemy.engine.interfaces import DBAPIConnection

_BATCH = 500  # keys in one SELECT: any database takes so many parameters
_MYSQL_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of MySQL's protocol
# A deadlock, a row that changed behind the snapshot of the transaction (MariaDB), no room for more locks.
_MYSQL_ROLLS_BACK = frozenset((1213, 1020, 1206))
_MYSQL_LOCK_WAIT = 1205
_UNMOVED = {"schema_translate_map": None}  # one that was set behind the send moves no row
_PSYCOPG_ACTIVE, _PSYCOPG_IN_ERROR = 1, 3  # TransactionStatus.ACTIVE, INERROR


def rows_of(ledger: Ledger) -> SqlAlchemyRows:
    """The rows of a ledger; one object for each, so that what was found out about its table is kept."""
    known = _known.get(ledger)
    if known is None:
        known = _known.setdefault(ledger, SqlAlchemyRows(ledger))
    return known


class SqlAlchemyRows:
    """Implements `broker.enlisting.enlistment.LedgerRows` for a SQLAlchemy `Connection`."""

    def __init__(self, ledger: Ledger) -> None:
        from sqlalchemy import literal_column
        from sqlalchemy.exc import IntegrityError

        self._integrity_error, self._ledger = IntegrityError, weakref.ref(ledger)
        self.holds_a_lock = ledger.holds_a_lock
        self._table = table = _qualified(ledger)
        self._read_from(table)
        self._insert = table.insert()
        self.change = ledger.rows.update()  # to ask a session where it would go; it is never executed
        self._finds_its_place = ledger.dialect == "postgresql" and table.schema is None
        if self._finds_its_place:
            self._insert = self._insert.returning(literal_column("tableoid"))
        # By driver, since sessions may have several: the statement, and what makes a row what the driver takes.
        self._compiled: dict[tuple[str, str], tuple[str, Callable[[dict[str, Any]], Any]]] = {}
        self._home: int | None = None  # PostgreSQL's id of the table that check-back reads

    def insert(self, connection: Connection, key: str, producer_group: str, store_id: str) -> None:
        """See LedgerRows."""
        row = {
            "ledger_key": key,
            "state": COMMITTED,
            "producer_group": producer_group,
            "store_id": store_id,
            "decided_by": None,
        }
        check_no_stream(connection)
        statement, values_of = self._statement(connection.dialect)
        try:
            done = connection.exec_driver_sql(statement, values_of(row))
        except self._integrity_error as error:
            text = f"check-back rolled the transaction {key} back, since it took too long: nothing was saved"
            raise AlreadyEnded(f"{text}. Do it again, or raise first_check_after", state=ROLLED_BACK) from error
        if self._finds_its_place and (table_id := table_of(done.fetchall())) != self._home:
            self._check_home(connection, table_id)

    def present(self, connection: Connection, keys: Sequence[str]) -> set[str]:
        """See LedgerRows."""
        select, column = self._reads
        found: set[str] = set()
        for start in range(0, len(keys), _BATCH):
            wanted = column == keys[0] if len(keys) == 1 else column.in_(keys[start : start + _BATCH])
            found.update(key for (key,) in _rows(connection, select.where(wanted)))
        return found

    def _read_from(self, table: Table) -> None:
        from sqlalchemy import select

        self._reads = select(table.c.ledger_key).where(table.c.state == COMMITTED), table.c.ledger_key

    def _statement(self, dialect: Dialect) -> tuple[str, Callable[[dict[str, Any]], Any]]:
        """The INSERT of a row, compiled once: each purchase pays for this statement."""
        driver = (dialect.driver, dialect.paramstyle)
        known = self._compiled.get(driver)
        if known is None:
            compiled = self._insert.compile(dialect=dialect)
            places = compiled.positiontup  # in the order of the driver's places; None where it takes names
            known = self._compiled[driver] = str(compiled), dict if places is None else itemgetter(*places)
        return known

    def _check_home(self, connection: Connection, table_id: int) -> None:
        """Raises TransactionError when the session's search_path leads to another table than check-back's."""
        ledger = self._ledger()
        schema = home_schema(
            executor(connection), quoted(self._table.name), table_id, [] if ledger is None else ledger.identities,
            whose="the session's",
            step="name the schema, Ledger(engine, schema=...), one ledger and one producer for each tenant",
        )  # fmt: skip
        self._read_from(_in_schema(self._table, schema))
        self._home = table_id


_known: weakref.WeakKeyDictionary[Ledger, SqlAlchemyRows] = weakref.WeakKeyDictionary()


def _qualified(ledger: Ledger) -> Table:
    """The table; with the database's name on MySQL, where `USE` would lead to another table of that name."""
    database = ledger.database if ledger.dialect in MYSQL_DIALECTS else None
    if database is None or ledger.rows.schema is not None:
        return ledger.rows
    return _in_schema(ledger.rows, database)


def _in_schema(table: Table, schema: str) -> Table:
    from sqlalchemy import MetaData

    return table.to_metadata(MetaData(), schema=schema)


def _rows(connection: Connection, statement: Select[Any]) -> Iterable[Sequence[Any]]:
    nested = connection.get_nested_transaction()
    if nested is None or nested.is_active:
        return connection.execute(statement, execution_options=_UNMOVED)
    # After a savepoint whose RELEASE failed SQLAlchemy executes nothing, also when the transaction was rolled back.
    words = str(statement.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True}))
    with contextlib.closing(connection.connection.cursor()) as cursor:
        cursor.execute(words)
        return list(cursor.fetchall())


def check_no_stream(connection: Connection) -> None:
    """Raises TransactionError while the driver is in the middle of a statement, which one of ours would meet.

    PyMySQL and aiomysql, which read a result row by row, would end it without an error: who iterates over it would take
    what was read for all there is. psycopg, in a COPY or `stream()` of its own cursor, would wait without an end.
    """
    driver = connection.connection.driver_connection
    if connection.dialect.name in MYSQL_DIALECTS:
        if getattr(getattr(driver, "_result", None), "unbuffered_active", False):
            text = "a result is read row by row on the connection (yield_per, stream_results), and a send writes to it"
            raise TransactionError(
                f"{text}: send before it, or once all its rows are read, or read it in another session"
            )
        return
    check_not_in_statement(driver)


def check_not_in_statement(driver: Any) -> None:
    """Raises TransactionError for a connection of psycopg that is in a COPY or `stream()`; not in a pipeline."""
    info = getattr(driver, "info", None)
    is_active = int(getattr(info, "transaction_status", 0)) == _PSYCOPG_ACTIVE
    if is_active and not getattr(info, "pipeline_status", 0):  # there the answer comes later, and it does not wait
        text = "the connection is in the middle of a statement (a COPY, stream() of psycopg), and a send writes to it"
        raise TransactionError(f"{text}: send before it, or when that is done")


def in_transaction(connection: Connection) -> bool | None:
    """Whether the driver has a transaction open, whatever SQLAlchemy thinks; None for a driver that does not tell."""
    return is_driver_in_transaction(connection.dialect.name, connection.connection.dbapi_connection)


def is_always_in_transaction(connection: Connection) -> bool:
    """Whether SQLite's driver begins the next transaction where one ends (autocommit=False of Python 3.12).

    `in_transaction` sees no end there: a row that was inserted says whether the transaction is still the same.
    """
    return connection.dialect.name == "sqlite" and autocommit_of_sqlite(connection) is False


def autocommit_of_sqlite(connection: Connection) -> bool | None:
    """How SQLite's driver is set to commit, from Python 3.12 on; None: as ever, or it says so in its thread alone."""
    driver = connection.connection.driver_connection
    with contextlib.suppress(Exception):
        found = getattr(getattr(driver, "_conn", driver), "autocommit", None)  # aiosqlite has no public way to it
        return found if isinstance(found, bool) else None
    return None


def is_aborted(connection: Connection) -> bool:
    """Whether PostgreSQL takes no more statements in the transaction, and would answer COMMIT with ROLLBACK.

    False for a driver that does not tell: psycopg does, whichever way the statement took that failed.
    """
    status = getattr(getattr(connection.connection.driver_connection, "info", None), "transaction_status", None)
    return status is not None and int(status) == _PSYCOPG_IN_ERROR


def is_rolled_back_by(connection: Connection, error: BaseException) -> bool:
    """Whether a database rolls the whole transaction back for an error, and begins another one: MySQL does for some.

    Its drivers do not tell otherwise: what they know of a transaction comes with answers, and not with errors.
    """
    if connection.dialect.name not in MYSQL_DIALECTS:
        return False
    numbers = {one for one in (getattr(error, "errno", None), *getattr(error, "args", ())[:1]) if isinstance(one, int)}
    return not _MYSQL_ROLLS_BACK.isdisjoint(numbers) or (_MYSQL_LOCK_WAIT in numbers and _rolls_back_waits(connection))


def _rolls_back_waits(connection: Connection) -> bool:
    """Whether MySQL is set to roll the transaction back for a lock that it waited for in vain, and not the statement.

    True as well where it does not say: then the connection has more than that lock against it.
    """
    try:
        with contextlib.closing(connection.connection.cursor()) as cursor:
            cursor.execute("SHOW GLOBAL VARIABLES LIKE 'innodb_rollback_on_timeout'")
            return any(str(value).upper() in ("ON", "1") for _, value in cursor.fetchall())
    except Exception:  # noqa: BLE001 - each driver has its own
        return True


def is_driver_in_transaction(dialect: str, raw: DBAPIConnection | None) -> bool | None:
    """The same of a driver's connection."""
    driver: Any = getattr(raw, "driver_connection", raw)
    if dialect == "sqlite":
        return bool(driver.in_transaction) if hasattr(driver, "in_transaction") else None
    if dialect in MYSQL_DIALECTS:
        status = getattr(driver, "server_status", None)  # PyMySQL, aiomysql
        return None if status is None else bool(status & _MYSQL_IN_TRANSACTION)
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return bool(driver.is_in_transaction())
    status = getattr(getattr(driver, "info", None), "transaction_status", None)  # psycopg; 0 is IDLE
    return None if status is None else bool(int(status))
