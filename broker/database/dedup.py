"""Process each message once: one row in the consumer's own database, in its own transaction.

    processed = broker.Processed()
    processed.create_all(engine)                   # or with Alembic: processed.metadata

    checkback_processed    consumer_group, message_key, processed_ms

The key is the UNIQ_KEY of the message, which its producer made: it is the same when the message is delivered again,
when it comes back through the retry topic, and when check-back repeats a commit that a power cut took. Of two
transactions that insert one key, one commits; the other sees that the message is processed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from broker.database.arguments import check_table, is_async_engine, is_engine, sync_session_of
from broker.database.driver_errors import NO_TABLE, is_named
from broker.database.tables import IN_TRANSACTIONS, key_text, make_tables, schema_of
from broker.errors import BrokerError, given_in_seconds, shown
from broker.format import properties as names
from broker.message import ReceivedMessage

if TYPE_CHECKING:
    from sqlalchemy import Column, Engine, MetaData, Table
    from sqlalchemy.orm import Session

    from broker.database.arguments import SessionOrConnection, SomeSession

_KEY_SIZE = 64  # characters
_ON_CONFLICT = ("sqlite", "postgresql")
_RUN_SYNC = "call it in `await session.run_sync(lambda session: ...)`"


def message_key(message: ReceivedMessage) -> str:
    """The identity of a message, however often it is delivered.

    RocketMQ before 3.2 has no UNIQ_KEY: there it is the id of the record that was sent first. A key that the column
    does not hold, which a client in another language may have sent, is represented by its SHA-256.
    """
    key = message.unique_key or message.properties.get(names.ORIGIN_MESSAGE_ID) or message.message_id
    if len(key) <= _KEY_SIZE and key.isascii() and key.isprintable():
        return key
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


class Processed:
    """The table `checkback_processed`: consumer_group (text, 128), message_key (text, 64), processed_ms (64-bit).

    `schema` and `table` say where it lies; None: the schema of the connection. `metadata` is SQLAlchemy's, `rows` the
    table in it. Raises BrokerError for names that are not text.
    """

    def __init__(self, *, table: str = "checkback_processed", schema: str | None = None) -> None:
        check_table(table, schema)
        self.metadata, self.rows = _table(table, schema)
        self._unplaced = self.rows
        self._unasked: Engine | None = None

    def create_all(self, engine: Engine) -> None:
        """Make the table, where it is not there yet; other processes may do so at the same moment.

        Raises BrokerError for what is not an engine, and what the database raises.
        """
        if is_async_engine(engine):
            step = "await connection.run_sync(processed.metadata.create_all), in `async with engine.begin()`"
            raise BrokerError(f"create_all() takes an Engine, not an AsyncEngine: {step}")
        if not is_engine(engine) and not hasattr(engine, "dialect"):  # a Connection is taken, too
            raise BrokerError(f"create_all() takes an engine, create_engine(...), not {shown(engine)}")
        make_tables(self.metadata, engine)

    def stay_in_place(self, engine: Engine) -> None:
        """Name the table by the schema that new connections of the engine find it in now.

        A `SET search_path` or `USE` outlives its transaction on a connection of the pool, and would lead the notes of
        later ones elsewhere: a message would be processed twice. Without an answer of the database it stays as it is,
        until `find_place` has one.
        """
        from sqlalchemy import MetaData

        # PostgreSQL says it each time, of new connections: another test may have another schema. MySQL does not.
        rows = self._unplaced if engine.dialect.name == "postgresql" else self.rows
        try:
            if rows.schema is None and (schema := schema_of(engine, rows.name)) is not None:
                rows = rows.to_metadata(MetaData(info=self.metadata.info), schema=schema)
        except Exception:  # noqa: BLE001 - an event of the application's, which makes a password for one, raises what it likes
            self._unasked = engine
            return
        self.rows, self._unasked = rows, None

    def find_place(self) -> None:
        """Call it outside a transaction, before a message is processed: `stay_in_place`, where that got no answer."""
        if (engine := self._unasked) is not None:
            self.stay_in_place(engine)

    def first_time(self, session: SomeSession, group: str, message: ReceivedMessage) -> bool:
        """Note in the session's transaction that a group processes a message; False when it did so before.

        Another transaction that is processing the same message at this moment is waited for. Raises TransactionError
        for what is not a Session, BrokerError for what is not a message that was received and when the driver does not
        count rows, and what the database raises.
        """
        session = sync_session_of(session, "first_time(...)", _RUN_SYNC)
        if not isinstance(message, ReceivedMessage):
            raise BrokerError(f"first_time(...) takes a message that receive() returned, not {shown(message)}")
        row = {
            "consumer_group": group,
            "message_key": message_key(message),
            "processed_ms": time.time_ns() // 1_000_000,
        }
        return insert_once(session, self.rows, row)

    def forget(self, session: SessionOrConnection, older_than_ms: int) -> int:
        """Remove rows that were inserted before a time (milliseconds since 1970), and return how many. Commit yourself.

        A message that is delivered again after its row went is processed again: keep rows longer than messages live.
        Raises BrokerError for what is not a time from 0 on, or not a session, and what the database raises.
        """
        return forget_rows(session, self.rows.c.processed_ms, older_than_ms)


def forget_rows(session: SessionOrConnection, written_ms: Column[int], older_than_ms: int) -> int:
    """Remove the rows of a table whose time in a column is before another one; how many they were.

    Raises BrokerError for what is not a time from 0 on, or not a session, and what the database raises.
    """
    is_number = isinstance(cast(object, older_than_ms), int | float) and not isinstance(older_than_ms, bool)
    if not is_number or older_than_ms < 0:
        raise BrokerError(f"older_than_ms is a number of milliseconds since 1970, not {shown(older_than_ms)}")
    if wrong := given_in_seconds(older_than_ms):
        raise BrokerError(f"older_than_ms {wrong}")
    if not hasattr(session, "execute") or hasattr(session, "run_sync"):  # a Connection is taken, too
        session = sync_session_of(session, "forget(session, older_than_ms)", _RUN_SYNC)
    return row_count(session.execute(written_ms.table.delete().where(written_ms < older_than_ms)))


def insert_once(session: Session, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert a row in the session's transaction; False when a row with its key is there.

    Another transaction that is inserting the same key at this moment is waited for. Raises BrokerError, also
    for a table that is not there.
    """
    from sqlalchemy.exc import DatabaseError

    try:
        return _inserted(session, table, row)
    except DatabaseError as error:
        if not is_named(error.orig, NO_TABLE):
            raise
        step = "make it with create_all(engine) of what it is of, or with a migration of its `metadata`"
        raise BrokerError(f"the table {table.name} is not in the database: {step}") from error


def _inserted(session: Session, table: Table, row: Mapping[str, Any]) -> bool:
    dialect = session.get_bind(clause=table).dialect.name
    if dialect in _ON_CONFLICT:
        statement = _insert_of(dialect)(table).values(row).on_conflict_do_nothing()
        # Without the option psycopg's count is gone by the time it is asked for, and reads -1.
        count = row_count(session.execute(statement, execution_options={"preserve_rowcount": True}))
        if count not in (0, 1):
            raise BrokerError(f"{dialect} did not say whether the row is new (a count of {count})")
        return bool(count)
    from sqlalchemy.exc import IntegrityError

    session.flush()  # `begin_nested` does it, where an error of the application's rows would be taken for that of ours
    try:
        with session.begin_nested():
            session.execute(table.insert(), row)
    except IntegrityError:
        return False
    return True


def row_count(result: Any) -> int:
    """How many rows a statement changed."""
    return int(result.rowcount)


def _insert_of(dialect: str) -> Any:
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert
    from sqlalchemy.dialects.postgresql import insert

    return insert


def _table(table: str, schema: str | None) -> tuple[MetaData, Table]:
    """The table, in a metadata of its own, which Alembic takes in `target_metadata`."""
    try:
        from sqlalchemy import BigInteger, Column, Index, MetaData, Table
    except ModuleNotFoundError as error:  # of an application without a database, which needs it all the same
        raise BrokerError(f"this needs {error.name}: install checkback with its extra 'sql'") from None

    metadata = MetaData(schema=schema)
    rows = Table(
        table,
        metadata,
        Column("consumer_group", key_text(128), primary_key=True),
        Column("message_key", key_text(_KEY_SIZE), primary_key=True),
        Column("processed_ms", BigInteger, nullable=False),
        Index(f"{table}_ms", "processed_ms"),
        **IN_TRANSACTIONS,
    )
    return metadata, rows
