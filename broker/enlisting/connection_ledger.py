"""ConnectionLedger: the ledger by the database's driver alone, for applications without SQLAlchemy.

    ledger = broker.ConnectionLedger(lambda: sqlite3.connect("shop.db"))
    ledger.create_all()
    producer = store.producer("shop", topics=["orders"], ledger=ledger)

    with producer.begin_transaction(connection) as transaction:
        connection.execute("INSERT INTO orders (item) VALUES (?)", ("lamp",))
        producer.send(broker.Message("orders", b"lamp"), transaction)     # both, or neither

The tables are those of `broker.Ledger`, and check-back reads them through SQLAlchemy, in its own process.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from broker.database.arguments import check_table
from broker.database.bound_ledger import BoundLedger
from broker.database.ledger_binding import Binding, KnownLedgers, Transaction
from broker.database.ledger_identity import DatabaseIdentity, Execute, Observed, difference, observe
from broker.database.statements import Sql, quoted
from broker.enlisting.connection_drivers import (
    ConnectionStatus,
    Driver,
    doom_connection,
    driver_of,
    is_connection,
    is_cursor,
)
from broker.enlisting.connection_transaction import ConnectionRows, ConnectionTransaction, open_transaction
from broker.enlisting.ledger_key import LEDGER_KEY
from broker.enlisting.targets import target_of
from broker.errors import BrokerError, TransactionError, shown
from broker.log_fields import event
from broker.transaction.events import TransactionState

if TYPE_CHECKING:
    from broker.ledger import Ledger

_log = logging.getLogger("broker")

# The tables of broker.ledger and broker.database.ledger_binding, as SQLAlchemy makes them: a test compares.
_TABLES = (
    """CREATE TABLE IF NOT EXISTS {ledger} (
    ledger_key VARCHAR(32) NOT NULL, state SMALLINT NOT NULL, producer_group VARCHAR(255) NOT NULL,
    store_id VARCHAR(32) NOT NULL, decided_by VARCHAR(255), PRIMARY KEY (ledger_key)){without_rowid}""",
    """CREATE TABLE IF NOT EXISTS {mark} (
    store_id VARCHAR(32) NOT NULL, low_water_ms BIGINT NOT NULL, PRIMARY KEY (store_id))""",
    """CREATE TABLE IF NOT EXISTS {binding} (
    store_id VARCHAR(32) NOT NULL, binding_id VARCHAR(32) NOT NULL, identity TEXT NOT NULL, opened BIGINT NOT NULL,
    made_ms BIGINT NOT NULL, PRIMARY KEY (store_id))""",
)


class ConnectionLedger(BoundLedger):
    """The table `checkback_ledger` in a database of SQLite or PostgreSQL, read and written by its driver.

    `connect` returns a new connection of `sqlite3` or `psycopg` each time, to the database that the application's
    connections lead to; the ledger closes it. `schema` is PostgreSQL's; None: that of the connection. Raises
    BrokerError for anything but a function, a connection among them, and for names that are not text; what it returns
    is looked at when the ledger first connects.
    """

    def __init__(
        self, connect: Callable[[], Any], *, table: str = "checkback_ledger", schema: str | None = None
    ) -> None:
        given = cast(object, connect)
        if not callable(given) or is_connection(given) or given is sqlite3.connect:
            text = "a ConnectionLedger takes a function that opens a connection"
            raise BrokerError(f'{text}, ConnectionLedger(lambda: sqlite3.connect("shop.db")), not {shown(connect)}')
        check_table(table, schema)
        super().__init__()
        self._connect, self._table, self._schema = connect, table, schema
        self._same: weakref.WeakSet[Any] = (
            weakref.WeakSet()
        )  # connections of psycopg that lead to the ledger's database

    def __repr__(self) -> str:
        return f"<broker.ConnectionLedger {self._table!r}>"

    @cached_property
    def _driver(self) -> Driver:
        with self._connected() as (_, driver):
            if driver.dialect == "sqlite" and self._schema is not None:
                raise BrokerError("a ledger in SQLite has no schema: ConnectionLedger(connect)")
            return driver

    @cached_property
    def connection_rows(self) -> ConnectionRows:
        """The ledger's rows, as connections see them in their transactions. Raises as `create_all`."""
        return ConnectionRows(self._driver, self._name(self._table), self._table, self._home)

    @cached_property
    def _home(self) -> DatabaseIdentity:
        """The database that the ledger was bound in: another directory or tenant may lead `connect` elsewhere later."""
        with self._transaction() as execute:
            return self.look(execute).identity

    @property
    def dialect(self) -> str:
        """The kind of database: sqlite or postgresql. Raises as `create_all`, since it may have to connect."""
        return self._driver.dialect

    @property
    def table(self) -> str:
        """The plain name of the ledger's table."""
        return self._table

    @property
    def bindings_name(self) -> str:
        """The table of the bindings as SQL names it."""
        return self._name(f"{self._table}_binding")

    def create_all(self) -> None:
        """Make the tables, where they are not there yet; other processes may do so at the same moment.

        Raises BrokerError when `connect` returns no usable connection (another driver's, one that is in use, SQLite in
        memory, a schema in SQLite), TransactionError when the database is another one than it was, and what the
        database raises.
        """
        names = {"ledger": self._table, "mark": f"{self._table}_mark", "binding": f"{self._table}_binding"}
        names = {key: self._name(name) for key, name in names.items()}
        without_rowid = " WITHOUT ROWID" if self.dialect == "sqlite" else ""
        for statement in _TABLES:
            make = Sql(statement.format(**names, without_rowid=without_rowid))
            for attempt in range(2):  # PostgreSQL raises when another process makes it at the same moment
                try:
                    with self._transaction() as execute:
                        execute(make)
                    break
                except Exception:
                    if attempt:
                        raise
        self._bind_again()

    def bind(self, store_id: str, known: KnownLedgers) -> None:
        """Bind a store and this database to each other, or verify that they are. See BoundLedger.

        A database that does not answer is asked again before the first transaction. Raises as `create_all` but for what
        the database raises, which is logged; StoreError for a file of the store that is damaged.
        """
        if self._is_bound(store_id, known):
            return
        try:
            self._bind(store_id, self._transaction)
        except BrokerError:
            raise
        except Exception as error:  # noqa: BLE001 - each driver has errors of its own
            self._does_not_answer_yet(error)

    def binding(self, store_id: str) -> Binding:
        """The binding of a store and this database, made if there is none.

        Raises TransactionError when the database cannot be asked or is another one than it was, BrokerError as
        `create_all`.
        """
        found = self._bound.get(store_id)
        if found is not None:
            return found
        try:
            return self._bind(store_id, self._transaction)
        except BrokerError:
            raise
        except Exception as error:
            raise self._unanswered(error) from error

    def look(self, execute: Execute) -> Observed:
        """Which database this is, read by `execute(statement)` on a connection. Raises what the database raises."""
        return observe(execute, self.dialect, self._name(self._table), self._schema)

    def state_of(self, properties: Mapping[str, str]) -> TransactionState | None:
        """What the row says that a half message with these properties names: COMMITTED or ROLLED_BACK.

        None when there is no such row, or when the properties name none. Raises as `create_all`.
        """
        key = properties.get(LEDGER_KEY)
        if key is None:
            return None
        statement = f"SELECT state FROM {self._name(self._table)} WHERE ledger_key = :key"  # noqa: S608 - ours
        with self._transaction() as execute:
            found = execute(Sql(statement, {"key": key}))
        return TransactionState(int(found[0][0])) if found else None

    def with_engine(self) -> Ledger:
        """The same ledger as a `broker.Ledger`, by SQLAlchemy, as check-back needs it. Raises as `create_all`.

        The engine has no pool: as here, each connection is new and closed after its use.
        """
        from sqlalchemy import URL, NullPool, create_engine

        from broker.ledger import Ledger

        if self.dialect == "sqlite":
            url = URL.create("sqlite", database=self._home.database)
            return Ledger(create_engine(url, poolclass=NullPool), table=self._table)
        with self._connected() as (connection, _):
            info = connection.info
            url = URL.create("postgresql+psycopg", info.user, None, info.host, info.port, info.dbname)
        engine = create_engine(url, poolclass=NullPool, creator=self._connect)
        return Ledger(engine, table=self._table, schema=self._schema)

    def are_committed(self, keys: Sequence[str]) -> bool:
        """Whether all these keys have a row "committed", for a connection that was closed.

        False also when the database does not answer, which is logged.
        """
        try:
            states = [self.state_of({LEDGER_KEY: key}) for key in keys]
        except Exception as error:  # noqa: BLE001 - each driver has errors of its own
            _log.warning("%r does not answer: %s", self, error, extra=event("ledger-away"))
            return False
        return all(state is TransactionState.COMMITTED for state in states)

    def _bind(self, store_id: str, transaction: Transaction) -> Binding:
        found = super()._bind(store_id, transaction)
        self._home  # noqa: B018 - cached from here on
        return found

    # Transactions of the application's connections

    def begin(self, target: Any, producer_group: str, immunity_s: int | None) -> ConnectionTransaction | None:
        """Begin a transaction of messages on a connection of sqlite3 or psycopg; None for what is SQLAlchemy's.

        `immunity_s`: seconds, as of `Producer.begin_transaction`. Raises TransactionError for a connection that no
        message can join, where one is open on it, and for anything else.
        """
        driver = driver_of(target)
        if driver is None:
            _refuse_no_connection(target)
            return None
        if open_transaction(target) is not None:
            text = "a transaction of messages is open on this connection"
            raise TransactionError(f"{text}: send with it, producer.send(message, transaction), and end it first")
        return ConnectionTransaction(self, target, driver, producer_group, immunity_s)

    def joinable(self, target: Any) -> ConnectionTransaction | None:
        """The transaction of messages that is open on a connection; None for what is not one of sqlite3 or psycopg.

        Raises TransactionError for a cursor, and when none is open on it, or one with another ledger: what the
        connection is in can only be rolled back then.
        """
        if isinstance(target, ConnectionTransaction):
            found: ConnectionTransaction | None = target
        elif driver_of(target) is None:
            if is_cursor(target):
                _refuse_no_connection(target)
            return None
        else:
            found = open_transaction(target)
        if found is None:
            doom_connection(target)
            text = "a plain connection does not say when it commits"
            raise TransactionError(f"{text}: send inside `with producer.begin_transaction(connection):`")
        if not found.belongs_to(self):
            text = "the transaction was begun by a producer with another ledger, whose rows are elsewhere"
            with found.sending():
                raise TransactionError(f"{text}: give both producers the same ConnectionLedger")
        return found

    def check_connection(self, connection: Any, driver: Driver) -> None:
        """See that messages can join a connection: it leads to the ledger's database, and its COMMIT is ours.

        Raises TransactionError when not; BrokerError, and what the database raises, as `create_all`.
        """
        status = driver.status(connection)
        if status is ConnectionStatus.BUSY:
            driver.refuse(connection)  # a pipeline
        if status not in (ConnectionStatus.IDLE, ConnectionStatus.ACTIVE):
            step = "roll it back first" if status is ConnectionStatus.FAILED else "open another one"
            raise TransactionError(f"the connection is {status.value}, so no message can join it: {step}")
        driver.refuse(connection)
        if driver is not self._driver:
            text = f"the connection is one of {driver.dialect}, and the ledger is in {self.dialect}"
            raise TransactionError(f"{text}: a message and its rows need one COMMIT, so use a connection to that")
        if driver.dialect == "postgresql" and connection in self._same:
            return
        actual = observe(
            partial(driver.execute, connection), driver.dialect, self._name(self._table), self._schema
        ).identity
        if status is ConnectionStatus.IDLE:
            driver.rollback(connection)  # psycopg began a transaction to ask
        if what := difference(self._home, actual):
            text = f"the connection leads to {actual}, and the ledger is in {self._home} ({what})"
            raise TransactionError(f"{text}: a message and its rows need one COMMIT, so use a connection to that")
        if driver.dialect == "postgresql":
            self._same.add(connection)

    # The ledger's own connections

    @contextlib.contextmanager
    def _connected(self) -> Iterator[tuple[Any, Driver]]:
        connection = self._connect()
        driver = driver_of(connection)
        if driver is None:
            raise BrokerError(
                f"a ledger's connect() returns a connection of sqlite3 or psycopg, not {connection!r:.60}"
            )
        if (
            driver.status(connection) is not ConnectionStatus.IDLE
            and getattr(connection, "autocommit", None) is not False
        ):
            text = f"the ledger's connect() returned a connection that is {driver.status(connection).value}"
            raise BrokerError(f"{text}: it must return a new one each time, which the ledger closes")
        try:
            if driver.dialect == "sqlite":
                _check_file(partial(driver.execute, connection))
            yield connection, driver
        finally:
            connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Execute]:
        with self._connected() as (connection, driver):
            if driver.dialect == "sqlite" and not connection.in_transaction:
                driver.execute(connection, Sql("BEGIN"))  # not IMMEDIATE: most of them only read
            execute = partial(driver.execute, connection)
            home: DatabaseIdentity | None = self.__dict__.get("_home")
            if home is not None and (what := difference(home, actual := self.look(execute).identity)):
                text = f"the ledger's connect() leads to {actual} now, and the ledger is in {home} ({what})"
                raise TransactionError(f"{text}: connect to one database, by its whole path, whatever the directory")
            yield execute
            driver.commit(connection)

    def _name(self, table: str) -> str:
        """A table as SQL names it; of SQLite in the main file, where a temporary one of that name does not hide it."""
        schema = "main" if self.dialect == "sqlite" else self._schema
        return quoted(table) if schema is None else f"{quoted(schema)}.{quoted(table)}"


def _refuse_no_connection(target: object) -> None:
    """Raises TransactionError for what is neither a connection nor SQLAlchemy's, which the producer refuses itself."""
    try:
        target_of(target)
    except TransactionError:
        kind = f"{type(target).__module__}.{type(target).__qualname__}" if is_cursor(target) else shown(target)
        step = "cursor.connection" if is_cursor(target) else "what sqlite3.connect() or psycopg.connect() returned"
        text = f"a producer with a ConnectionLedger takes an open connection of sqlite3 or psycopg, not {kind}"
        raise TransactionError(f"{text}: pass {step}") from None


def _check_file(execute: Execute) -> None:
    files = {str(name): path for _, name, path in execute(Sql("PRAGMA database_list"))}
    if not files.get("main"):
        raise BrokerError("a ledger needs a database that lives longer than a process: give SQLite a file")
