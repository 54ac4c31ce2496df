"""The ledger: one row in the application's own database, in its own transaction, says how that transaction ended.

    ledger = broker.Ledger(create_engine("postgresql+psycopg:///shop"))
    ledger.create_all()                                      # or with Alembic: ledger.metadata

    checkback_ledger       ledger_key (a time, then chance), state (8 committed, 12 rolled back), producer_group,
                           store_id, decided_by
    checkback_ledger_mark  store_id, low_water_ms: rows older than this were removed
    checkback_ledger_binding   whose ledger it is: see broker.database.ledger_binding

The row says "committed", and exists if and only if the local transaction committed. Check-back that finds none for a
transaction in doubt inserts the same key as "rolled back", the tombstone: the primary key lets only one of the two in,
so a local transaction that still runs can no longer commit against it.

PostgreSQL and MySQL: the row is inserted at the transaction's first send, so that a running one holds its lock and the
tombstone has to wait for it. SQLite has one writer: the row is the last statement before COMMIT, so that the database
is not locked longer; there only the age of a half message protects a transaction that still runs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from broker.database.arguments import check_table, is_async_engine, is_engine
from broker.database.bound_ledger import COMMITTED, ROLLED_BACK, BoundLedger
from broker.database.ledger_binding import Binding, KnownLedgers, Transaction, binding_table
from broker.database.ledger_identity import Execute, Observed, observe
from broker.database.new_connection import go_to, home_if_elsewhere, using
from broker.database.statements import Sql
from broker.database.tables import IN_TRANSACTIONS, make_tables, make_tables_async
from broker.enlisting.ledger_key import KEY_SIZE, LEDGER_KEY
from broker.errors import BrokerError, shown
from broker.transaction.events import TransactionState

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine, MetaData, Table
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.orm import Session


__all__ = ["COMMITTED", "ROLLED_BACK", "Ledger", "executor"]

_SQLITE = "sqlite"
_DIALECTS = (_SQLITE, "postgresql", "mysql", "mariadb")
_TURN_S = 1.0


class Ledger(BoundLedger):
    """The table `checkback_ledger` in the application's database.

    `engine` is the SQLAlchemy engine (or async engine) of the database that the application's sessions use; `schema`
    (None: that of the connection) and `table` say where the table lies. Raises BrokerError for what is not an engine,
    for a name that is not text, for a database that is not one of SQLite, PostgreSQL, MySQL and MariaDB, for one in
    memory, which one connection holds: what is not committed there cannot be distinguished from what is, and for a URL
    that turns SQLite's locks off.
    """

    making_tables: str = "ledger.create_all(), or with Alembic by a migration of ledger.metadata"
    """What makes the tables, for sentences that name the next step."""

    def __init__(
        self, engine: Engine | AsyncEngine, *, table: str = "checkback_ledger", schema: str | None = None
    ) -> None:
        if not is_engine(engine) and not is_async_engine(engine):
            raise BrokerError(f"a ledger takes an engine, Ledger(create_engine(...)), not {shown(engine)}")
        check_table(table, schema)
        super().__init__()
        self.is_async: bool = hasattr(engine, "sync_engine")
        """Whether the engine is an async one."""
        self._engine: Engine = engine.sync_engine if hasattr(engine, "sync_engine") else engine
        if self.dialect not in _DIALECTS:  # check-back knows nothing of its locks and its identity
            text = "a ledger is in SQLite, PostgreSQL, MySQL or MariaDB"
            raise BrokerError(f"{text}, and this engine leads to another kind of database: {self.dialect}")
        if self.dialect == _SQLITE and _is_in_memory(self._engine.url):
            raise BrokerError("a ledger needs a database that lives longer than a process: give SQLite a file")
        if self.dialect == _SQLITE and (option := _turns_locks_off(self._engine.url)):
            text = "one transaction would overwrite what another one saved"
            raise BrokerError(f"{option} in the URL turns SQLite's locks off, and {text}: leave it out")
        self.metadata, self.rows, self.marks = _tables(table, schema)
        self.bindings: Table = binding_table(self.metadata, table)
        """The table of the bindings, of SQLAlchemy."""
        self._insert = self.rows.insert()
        self._turn = threading.RLock()

    def __repr__(self) -> str:
        return f"<broker.Ledger {self._engine.url!r}>"

    @property
    def dialect(self) -> str:
        """The kind of database, as SQLAlchemy names it: sqlite, postgresql, mysql, mariadb."""
        return self._engine.dialect.name

    @property
    def database(self) -> str | None:
        """The name of the database in the engine's URL; of SQLite its file. None: the URL names none."""
        return self._engine.url.database

    @property
    def session_engine(self) -> Engine:
        """The engine that the application's sessions use; of an async engine the part that SQLAlchemy's events name."""
        return self._engine

    @property
    def engine(self) -> Engine:
        """The engine for work outside any session. Raises BrokerError when the ledger has an async engine only."""
        if self.is_async:
            text = (
                "check-back asks the ledger without an event loop: give it Ledger(create_engine(...)), not an async one"
            )
            raise BrokerError(text)
        return self._engine

    def with_engine(self) -> Ledger:
        """The ledger itself."""
        return self

    @property
    def table(self) -> str:
        """The plain name of the ledger's table."""
        return self.rows.name

    @property
    def bindings_name(self) -> str:
        """The table of the bindings as SQL names it."""
        return str(self._engine.dialect.identifier_preparer.format_table(self.bindings))

    @property
    def holds_a_lock(self) -> bool:
        """Whether a running transaction locks its row, so that no other can answer for it: not in SQLite."""
        return self.dialect != _SQLITE

    def create_all(self) -> None:
        """Make the tables, where they are not there yet; other processes may do so at the same moment.

        Raises BrokerError for an async engine, what the database raises, and what `bind` raises.
        """
        make_tables(self.metadata, self.engine)
        self._bind_again()

    async def create_all_async(self) -> None:
        """The same, for an async engine. Raises what the database raises, and what `bind` raises."""
        from sqlalchemy.ext.asyncio import AsyncEngine

        await make_tables_async(self.metadata, AsyncEngine(self._engine))
        self._bind_again()

    def bind(self, store_id: str, known: KnownLedgers) -> None:
        """Bind a store and this database to each other, or verify that they are. See BoundLedger.

        A database that does not answer is asked again before the first transaction, an async one other than SQLite then
        for the first time. Raises TransactionError when it is another one than it was, StoreError for a file of the
        store that is damaged.
        """
        from sqlalchemy.exc import SQLAlchemyError

        if self._is_bound(store_id, known) or (self.is_async and self.dialect != _SQLITE):
            return
        try:
            self._bind(store_id, _transactions(self._without_loop()))
        except SQLAlchemyError as error:
            self._does_not_answer_yet(error)

    def binding(self, store_id: str) -> Binding:
        """The binding of a store and this database, made if there is none. With an async engine call it within
        `run_sync`. Raises TransactionError when the database cannot be asked, or is another one than it was.
        """
        found = self._bound.get(store_id)
        if found is not None:
            return found
        from sqlalchemy.exc import SQLAlchemyError

        try:
            return self._bind(store_id, _transactions(self._engine))
        except SQLAlchemyError as error:
            raise self._unanswered(error) from error

    def look(self, execute: Execute) -> Observed:
        """Which database this is, read by `execute(statement)` on a connection. Raises what the database raises."""
        name = self._engine.dialect.identifier_preparer.format_table(self.rows)
        return observe(execute, self.dialect, name, self.rows.schema)

    def _without_loop(self) -> Engine:
        """An engine that needs no event loop. Python brings a driver of SQLite, so an async one can be replaced."""
        if not self.is_async:
            return self._engine
        from sqlalchemy import NullPool, create_engine

        return create_engine(self._engine.url.set(drivername=_SQLITE), poolclass=NullPool)

    def state_of(self, properties: Mapping[str, str]) -> TransactionState | None:
        """What the row says that a half message with these properties names: COMMITTED or ROLLED_BACK.

        None when there is no such row, when the properties name none, and for an async engine other than SQLite's,
        which cannot be asked without its event loop. A row is right in any database, since its key is chance. Raises
        what the database raises.
        """
        from sqlalchemy import select

        key = properties.get(LEDGER_KEY)
        if key is None or (self.is_async and self.dialect != _SQLITE):
            return None
        with _transactions(self._without_loop())() as execute:
            found = execute(select(self.rows.c.state).where(self.rows.c.ledger_key == key))
        return TransactionState(found[0][0]) if found else None

    def insert(self, connection: Connection | Session, key: str, group: str, store_id: str) -> None:
        """Insert the row "committed" in a transaction; `key` has 32 characters, as `store_id` has.

        Raises IntegrityError of SQLAlchemy when check-back's tombstone is there.
        """
        row = {"ledger_key": key, "state": COMMITTED, "producer_group": group, "store_id": store_id, "decided_by": None}
        connection.execute(self._insert, row)

    def take_turn(self, meanwhile: Callable[[], object] = lambda: None) -> Callable[[], None]:
        """Keep the other threads of this process out, as long as nobody waits a second; returns what ends the turn.

        SQLite lets one write at a time, and the others sleep and try again, each for up to 100 ms, in no order. By
        turns they wait as long as it takes. Who has to wait calls `meanwhile` first, which then takes none of its turn.
        Correctness does not depend on turns: a thread that waited in vain goes on without, and later ones do not wait
        for its holder.
        """
        turn = self._turn
        if not turn.acquire(blocking=False):
            meanwhile()
            if not turn.acquire(timeout=_TURN_S):
                self._turn = threading.RLock()
                return lambda: None
        return partial(self._end_turn, turn)

    def _end_turn(self, turn: threading.RLock) -> None:
        try:
            turn.release()
        except RuntimeError:  # another thread closes the session: this turn is never given back
            self._turn = threading.RLock()


def _is_in_memory(url: URL) -> bool:
    """Whether a URL of SQLite's names no file, also one in SQLite's own form, `file:name?mode=memory&uri=true`."""
    return not url.database or url.database.endswith(":memory:") or url.query.get("mode") == "memory"


def _turns_locks_off(url: URL) -> str:
    """The option of a URL in SQLite's own form by which no connection locks the file; empty: none.

    `URL.create` and Django have it in the name of the file.
    """
    file, _, stated = (url.database or "").partition("?")
    stated_options = parse_qsl(stated) if file.startswith("file:") else []
    options = {name: str(value).lower() for name, value in (*stated_options, *url.query.items())}
    for name in ("nolock", "immutable"):
        if options.get(name, "0") not in ("0", "no", "false", "off"):
            return f"{name}={options[name]}"
    return "vfs=unix-none" if options.get("vfs") == "unix-none" else ""


def _transactions(engine: Engine) -> Transaction:
    """What begins transactions of an engine: where a new connection does, wherever its pool's were left."""

    @contextlib.contextmanager
    def transaction() -> Iterator[Execute]:
        with engine.begin() as connection:
            go_to(connection, home_if_elsewhere(connection))
            with using(connection, engine.url.database):
                yield executor(connection)

    return transaction


def executor(connection: Connection) -> Execute:
    """What executes a statement on a connection of SQLAlchemy and returns its rows, if it has any."""

    from sqlalchemy import text

    def execute(statement: Any) -> list[Any]:
        if isinstance(statement, Sql):
            statement = text(statement.text).bindparams(**statement.values)
        found = connection.execute(statement)
        return list(found) if found.returns_rows else []

    return execute


def _tables(table: str, schema: str | None) -> tuple[MetaData, Table, Table]:
    """The tables, in a metadata of their own, which Alembic takes in `target_metadata`."""
    from sqlalchemy import BigInteger, Column, MetaData, SmallInteger, String, Table

    metadata = MetaData(schema=schema)
    rows = Table(
        table,
        metadata,
        Column("ledger_key", String(KEY_SIZE), primary_key=True),
        Column("state", SmallInteger, nullable=False),
        Column("producer_group", String(255), nullable=False),
        Column("store_id", String(32), nullable=False),
        Column("decided_by", String(255)),
        sqlite_with_rowid=False,
        **IN_TRANSACTIONS,
    )
    marks = Table(
        f"{table}_mark",
        metadata,
        Column("store_id", String(32), primary_key=True),
        Column("low_water_ms", BigInteger, nullable=False),
        **IN_TRANSACTIONS,
    )
    return metadata, rows, marks
