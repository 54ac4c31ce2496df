"""A transaction of messages on a plain connection of sqlite3 or psycopg.

Nothing can run just before a COMMIT that the application executes itself, so nothing has to: the ledger's row goes in
before the half message, and the half message is durable when `send` returns. Whichever way the transaction ends, its
rows say how; leaving the block asks them, and so does check-back after a crash.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

from broker.database.bound_ledger import COMMITTED
from broker.database.ledger_identity import DatabaseIdentity
from broker.database.statements import Sql, quoted
from broker.enlisting.connection_drivers import ConnectionStatus, Driver, doom_connection
from broker.enlisting.enlistment import Branch, Enlistment, JoinableTransaction, Stage
from broker.enlisting.search_path import home_schema, table_of
from broker.enlisting.sqlalchemy_events import unknown_outcome
from broker.errors import TransactionError
from broker.local_transaction import BlockTransaction
from broker.transaction.service import HalfMessageService

_places = itertools.count(1)
_ENDED = (
    "the connection is {}: its transaction was ended inside the block, so no message can join it. Send before commit()"
)
_NOT_NOW = {
    ConnectionStatus.FAILED: "a statement of the transaction failed, and its error was swallowed, so no message can "
    "join it. Put what may fail into a savepoint, `with connection.transaction():`",
    ConnectionStatus.BUSY: "the connection is in the middle of a statement (a COPY, stream(), a pipeline), so no "
    "message can join its transaction: send when that is done",
}


class ConnectionRows:
    """Implements `broker.enlisting.enlistment.LedgerRows` for a connection of a driver.

    The row goes in at the send, on SQLite too: there it takes the write lock, which protects the transaction from
    check-back as the lock of a row does elsewhere.
    """

    holds_a_lock = True

    def __init__(self, driver: Driver, table: str, plain_name: str, home: DatabaseIdentity) -> None:
        self._driver, self._table, self._plain_name, self._bound = driver, table, plain_name, home
        columns = "(ledger_key, state, producer_group, store_id) VALUES (:key, :state, :producer_group, :store_id)"
        self._returns_id = driver.dialect == "postgresql"
        returning = " RETURNING CAST(tableoid AS bigint)" if self._returns_id else ""
        self._insert = f"INSERT INTO {table} {columns}{returning}"
        self._read_from(table)
        self._home: int | None = None  # PostgreSQL's id of the table that check-back reads

    def insert(self, connection: Any, key: str, producer_group: str, store_id: str) -> None:
        """See LedgerRows. Raises TransactionError when the table is missing or another than check-back's."""
        row = {"key": key, "state": COMMITTED, "producer_group": producer_group, "store_id": store_id}
        try:
            found = self._driver.execute(connection, Sql(self._insert, row))
        except Exception as error:
            if text := self._driver.refusal(error):
                raise TransactionError(text) from error
            raise
        if self._returns_id and (table_id := table_of(found)) != self._home:
            self._check_home(connection, table_id)

    def present(self, connection: Any, keys: Sequence[str]) -> set[str]:
        """See LedgerRows."""
        return {key for key in keys if self._driver.execute(connection, Sql(self._select, {"key": key}))}

    def _read_from(self, table: str) -> None:
        self._select = f"SELECT 1 FROM {table} WHERE ledger_key = :key"  # noqa: S608 - ours

    def _check_home(self, connection: Any, table_id: int) -> None:
        execute = partial(self._driver.execute, connection)
        step = "name the schema, ConnectionLedger(connect, schema=...), one ledger for each tenant"
        schema = home_schema(execute, self._table, table_id, [self._bound], whose="the connection's", step=step)
        self._read_from(f"{quoted(schema)}.{quoted(self._plain_name)}")
        self._home = table_id


class RowsOfConnections(Protocol):
    """What a transaction needs of its ledger: `ConnectionLedger`."""

    @property
    def connection_rows(self) -> ConnectionRows: ...
    def check_connection(self, connection: Any, driver: Driver) -> None: ...
    def are_committed(self, keys: Sequence[str]) -> bool: ...


class ConnectionTransaction(BlockTransaction, JoinableTransaction):
    """A transaction that ends as a connection's does: `with producer.begin_transaction(connection) as transaction:`.

    Leave the block and both commit; leave it by an exception and both roll back. `commit()` and `rollback()` do the
    same. Where the application commits the connection itself inside the block, its messages are delivered at the end of
    the block, and what it sends after that commit is refused. Belongs to one thread, as the connection does.
    `immunity_s`: seconds, as of `Producer.begin_transaction`. Raises TransactionError for a connection that no message
    can join, and what the database raises.
    """

    _statement = "producer.begin_transaction(connection)"

    waits_for_disk: ClassVar[bool] = True
    """A half message is durable when its send returns, since nothing runs just before COMMIT."""

    def __init__(
        self, ledger: RowsOfConnections, connection: Any, driver: Driver, group: str, immunity_s: int | None
    ) -> None:
        super().__init__(group, immunity_s)
        self._ledger, self._connection, self._driver = ledger, connection, driver
        self._enlistment = Enlistment()
        self._doom: BaseException | None = None
        self._is_doomed_for_good = False  # else a ROLLBACK TO takes the doom back
        ledger.check_connection(connection, driver)
        try:
            driver.begin(connection)
        except Exception as error:
            if text := driver.refusal(error):
                raise TransactionError(text) from error
            raise
        _open[id(connection)] = self

    @property
    def stage(self) -> Stage:
        """See LocalTransaction."""
        return self._enlistment.stage

    def belongs_to(self, ledger: object) -> bool:
        """Whether its rows go into a ledger."""
        return self._ledger is ledger

    # What a send needs

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Around a send: when it fails, the transaction can only be rolled back.

        Raises TransactionError when it was ended, here or by the application, or a statement of it failed.
        """
        try:
            self.check_active()
            status = self._driver.status(self._connection)
            if status is not ConnectionStatus.ACTIVE:
                raise TransactionError(_NOT_NOW.get(status, _ENDED.format(status.value)))
            yield
        except BaseException as error:  # the caller may catch it, and must not commit without the message
            self._doomed(error)
            raise

    def branch(self, producer_group: str, service: HalfMessageService, *, store_id: str) -> Branch:
        """A branch for one message: the row of each says which of them a ROLLBACK TO took with it."""
        rows, connection = self._ledger.connection_rows, self._connection
        return self._enlistment.branch(
            connection, rows, producer_group, service, store_id=store_id, savepoint=next(_places)
        )

    def _doomed(self, error: BaseException) -> None:
        if self._is_over:  # the connection may be in another transaction, which is meant
            doom_connection(self._connection)
        else:  # each failure: a ROLLBACK TO may have taken the one before back
            self._doom = self._doom or error
            with contextlib.suppress(Exception):  # a connection that is closed commits nothing
                self._driver.make_commit_impossible(self._connection)
                # PostgreSQL's transaction is aborted now, unless the connection is in the middle of a statement.
                if self._driver.status(self._connection) is not ConnectionStatus.FAILED:
                    self._is_doomed_for_good = True

    # The end

    def commit(self) -> None:
        """See that the ledger's rows are in place, COMMIT, deliver.

        Raises TransactionError when it was ended or a send or a statement failed in it, AlreadyEnded when check-back
        rolled it back meanwhile, and what the database raises: then nothing was saved, and the connection is rolled
        back. Raises UnknownOutcome when COMMIT itself failed without an answer: check-back will find out.
        """
        self.check_active()
        self._end()
        connection, driver = self._connection, self._driver
        try:
            status = driver.status(connection)
            self._check_commit(status)
            if status is not ConnectionStatus.ACTIVE:  # the application ended it
                self._settle(status)
                return
            self._enlistment.seal(connection)
        except BaseException:
            self._roll_back()
            raise
        try:
            driver.commit(connection)
        except BaseException as error:
            self._commit_failed(error)
            raise
        self._enlistment.committed()

    def rollback(self) -> None:
        """Roll the connection back; never deliver the messages. Raises TransactionError when it was ended."""
        self.check_active()
        self._end()
        self._roll_back()

    def _end(self) -> None:
        self._is_over = True
        _open.pop(id(self._connection), None)

    def _check_commit(self, status: ConnectionStatus) -> None:
        """Raises TransactionError when the transaction can only be rolled back."""
        # PostgreSQL: a ROLLBACK TO takes a send that failed back, and the transaction is active again.
        if self._doom is not None and (self._is_doomed_for_good or status is not ConnectionStatus.ACTIVE):
            cause = f"{type(self._doom).__name__}: {self._doom}"
            text = f"a message could not be sent, and its error was swallowed: the transaction is rolled back ({cause})"
            raise TransactionError(text) from self._doom
        if why := self._unfinished():
            raise TransactionError(f"the transaction is rolled back: {why}")
        if status is ConnectionStatus.FAILED:
            text = "nothing was saved: a statement of the transaction failed, and its error was swallowed"
            raise TransactionError(f"{text}. Put what may fail into a savepoint, `with connection.transaction():`")
        if status is ConnectionStatus.BUSY:
            raise TransactionError("nothing was saved: the connection is in the middle of a statement (a COPY?)")

    def _roll_back(self) -> None:
        connection, driver = self._connection, self._driver
        try:
            status = driver.status(connection)
            if status is not ConnectionStatus.CLOSED:
                driver.rollback(connection)
                status = ConnectionStatus.IDLE
            self._settle(status)
        except Exception as error:  # noqa: BLE001 - a broken connection; each driver has errors of its own
            self._enlistment.leave(f"the database does not say whether the transaction was rolled back ({error})")
        finally:
            if self._doom is not None:
                with contextlib.suppress(Exception):
                    driver.allow_commit(connection)

    def _settle(self, status: ConnectionStatus) -> None:
        """End the messages by what the database says of their rows, when the transaction is over."""
        if status is ConnectionStatus.CLOSED:
            if not self._ledger.are_committed([branch.key for branch in self._enlistment.branches]):
                self._enlistment.leave("the connection was closed inside the block")
            else:
                self._enlistment.committed()
            return
        self._enlistment.ended_by_application(self._connection)
        self._driver.rollback(self._connection)  # asking may have begun a transaction

    def _commit_failed(self, error: BaseException) -> None:
        """After an error of COMMIT: a refusal is a rollback, anything else leaves the outcome open."""
        if self._driver.status(self._connection) is not ConnectionStatus.CLOSED and self._driver.was_refused(
            self._connection, error
        ):
            self._roll_back()
            return
        self._enlistment.leave("COMMIT failed without an answer")
        if isinstance(error, Exception):
            raise unknown_outcome(error) from error


_open: weakref.WeakValueDictionary[int, ConnectionTransaction] = weakref.WeakValueDictionary()


def open_transaction(connection: object) -> ConnectionTransaction | None:
    """The transaction of messages that is open on a connection; each keeps its connection, so an id names it."""
    return _open.get(id(connection))
