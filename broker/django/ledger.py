"""DjangoLedger: the ledger in a database of Django's settings. Its rows go through Django's own connection.

    producer = store.producer("shop", topics=["orders"], ledger=DjangoLedger(using="default"))

Check-back reads the same tables through SQLAlchemy, with the settings of the same alias.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import DEFAULT_DB_ALIAS, connections

from broker.database.ledger_binding import ID_SIZE, Binding
from broker.database.ledger_identity import DatabaseIdentity
from broker.django.connection_watch import watch_of
from broker.django.rows import DjangoRows
from broker.enlisting.enlistment import Branch, JoinableTransaction
from broker.errors import TransactionError
from broker.ledger import Ledger

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from broker.transaction.service import HalfMessageService

_VENDORS = ("postgresql", "sqlite")
_CONNECTIONS = ("django", "psycopg", "psycopg2", "sqlite3")
_DJANGOS_OPTIONS = {  # of OPTIONS, what Django takes for itself and the driver does not know
    "assume_role", "init_command", "isolation_level", "pool", "prepare_threshold", "server_side_binding",
    "transaction_mode",
}  # fmt: skip

_IN_TEST_CASE = (
    "a message was sent in no transaction.atomic() but that of the TestCase itself: anywhere else this is refused. "
    "Send inside transaction.atomic(), or set ATOMIC_REQUESTS"
)


class DjangoLedger(Ledger):
    """The tables `checkback_ledger` and `checkback_ledger_mark` in the database of an alias of Django's settings.

    Make it at first use, not while Django loads its settings. Raises TransactionError for a database other than SQLite
    and PostgreSQL, BrokerError for an SQLite database in memory that is not the test runner's.
    """

    def __init__(self, using: str = DEFAULT_DB_ALIAS) -> None:
        self.using = using
        connection = connections[using]
        if connection.vendor not in _VENDORS:
            raise TransactionError(f"the ledger for Django takes {' and '.join(_VENDORS)}, not {connection.vendor}")
        self._database = str(connection.settings_dict["NAME"])
        self._is_in_memory = connection.vendor == "sqlite" and connection.is_in_memory_db()
        super().__init__(_engine(connection))
        self._rows = DjangoRows(self)

    def __repr__(self) -> str:
        return f"<broker.django.DjangoLedger {self.using!r}: {self._engine.url!r}>"

    @property
    def making_tables(self) -> str:  # type: ignore[override]
        """The migration that makes the tables."""
        database = "" if self.using == DEFAULT_DB_ALIAS else f" --database {self.using}"
        return f"manage.py migrate checkback{database}"

    def binding(self, store_id: str) -> Binding:
        """As `Ledger.binding`. A database in memory that a TestCase has locked gets one that check-back refuses."""
        try:
            return super().binding(store_id)
        except TransactionError:
            if not self._is_in_memory:
                raise
            identity = DatabaseIdentity(self.dialect, database=":memory:")
            return Binding("0" * ID_SIZE, store_id, identity, opened=0, made_ms=0)

    def running_transaction(self) -> JoinableTransaction:
        """The transaction that this thread's connection is in."""
        return DjangoTransaction(connections[self.using], self.using, self._database, self._rows)

    def begin(self, target: Any, producer_group: str, immunity_s: int | None) -> None:  # noqa: ARG002 - see BoundLedger
        """None for a session of SQLAlchemy. Raises TransactionError for a connection or a cursor."""
        if _is_of_django(target):
            text = "with a DjangoLedger transaction.atomic() is the transaction, and there is none to begin"
            raise TransactionError(f"{text}: producer.send(message) inside it")

    def joinable(self, target: Any) -> None:
        """None for a session of SQLAlchemy. Raises TransactionError for a connection or a cursor."""
        if _is_of_django(target):
            with watch_of(connections[self.using]).failing_makes_commit_impossible():
                text = "with a DjangoLedger a message joins transaction.atomic() without a session or a connection"
                raise TransactionError(f"{text}: producer.send(message) inside it")


class DjangoTransaction(JoinableTransaction):
    """The transaction of one connection of Django's."""

    waits_for_disk: ClassVar[bool] = (
        True  # a COMMIT may come from anywhere: also as plain SQL, of which nothing is seen
    )

    def __init__(self, connection: Any, using: str, database: str, rows: DjangoRows) -> None:
        self._connection, self._using, self._database, self._rows = connection, using, database, rows
        self._watch = watch_of(connection)

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        with self._watch.failing_makes_commit_impossible():
            self._check()
            yield

    def branch(self, producer_group: str, service: HalfMessageService, *, store_id: str) -> Branch:
        """Its row is inserted here."""
        branch = self._watch.branch(self._rows, producer_group, service, store_id=store_id)
        self._watch.deliver_in_tests(branch)
        return branch

    def _check(self) -> None:
        """Refuse, before anything is stored, a connection that has no transaction to join."""
        connection, where = self._connection, f"the database {self._using!r}"
        if not connection.in_atomic_block:
            text = f"no transaction.atomic() is active on {where}, so there is no COMMIT that the message could join"
            text = f"{text}: send inside transaction.atomic(), or set ATOMIC_REQUESTS"
            raise TransactionError(f"{text} (from async code: await sync_to_async(function)(), with both inside)")
        if not connection.commit_on_exit:
            text = (
                f"{where} is in manual transaction management (set_autocommit(False)), where atomic() does not commit"
            )
            raise TransactionError(f"{text}: turn autocommit on, and send inside transaction.atomic()")
        if all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):  # as Django's `durable`
            warnings.warn(_IN_TEST_CASE, RuntimeWarning, stacklevel=2)
        if str(connection.settings_dict["NAME"]) != self._database:
            text = (
                f"the ledger was made for {self._database!r}, and {where} is {connection.settings_dict['NAME']!r} now"
            )
            raise TransactionError(f"{text}: make the DjangoLedger at first use, in a function, and not at import")


def _is_of_django(target: object) -> bool:
    """Whether it is a connection or a cursor of Django, or that of a driver, and so no session of SQLAlchemy."""
    return type(target).__module__.partition(".")[0] in _CONNECTIONS


def _engine(connection: Any) -> Engine:
    """An engine for the database that a connection of Django's is configured for; nothing connects yet."""
    from sqlalchemy import URL, NullPool, create_engine

    chosen = connection.settings_dict
    options = {name: value for name, value in chosen["OPTIONS"].items() if name not in _DJANGOS_OPTIONS}
    database = str(chosen["NAME"])
    if connection.vendor == "sqlite":
        url = URL.create("sqlite", database=database, query={"uri": "true"} if database.startswith("file:") else {})
    else:
        from django.db.backends.postgresql.psycopg_any import is_psycopg3

        driver = "psycopg" if is_psycopg3 else "psycopg2"
        url = URL.create(
            f"postgresql+{driver}",
            chosen["USER"] or None,
            chosen["PASSWORD"] or None,
            chosen["HOST"] or None,
            int(chosen["PORT"]) if chosen["PORT"] else None,
            database,
        )
    return create_engine(url, poolclass=NullPool, connect_args=options)
