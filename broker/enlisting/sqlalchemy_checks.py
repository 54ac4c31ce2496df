"""What is refused at the send, before anything is saved: sessions in which a message and its row could part.

Each check raises TransactionError with a sentence that says what to do.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from broker.database.ledger_identity import DatabaseIdentity, difference
from broker.database.statements import MYSQL_DIALECTS
from broker.enlisting.attached_files import check_attached
from broker.enlisting.sqlalchemy_enlistments import is_committing, is_in_autocommit, of_session
from broker.enlisting.sqlalchemy_rows import autocommit_of_sqlite, check_no_stream, in_transaction, rows_of
from broker.errors import BrokerError, TransactionError
from broker.ledger import Ledger, executor

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine, Pool
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.orm import Session

_PORTS = {"postgresql": 5432, "mysql": 3306}
_FAMILIES = {"mariadb": "mysql"}
_ONE_DATABASE = "a message and its rows need one COMMIT"
_in_place: weakref.WeakKeyDictionary[Ledger, weakref.WeakSet[Pool]] = weakref.WeakKeyDictionary()


def check_session(session: Session, ledger: Ledger) -> Engine | Connection:
    """What can be refused before the session has a connection; returns what the ledger's table is bound to."""
    if session.twophase:
        raise TransactionError(
            "the session has twophase=True, where COMMIT is split in two: send in a session of its own without it"
        )
    own = ledger.session_engine
    for engine in _engines(session):
        if engine is not own:
            _check_engine(engine, ledger, "the session is also bound to")
    bind = ledger_bind(session, ledger)
    _check_engine(bind.engine, ledger, "the session writes to")
    return bind


def ledger_bind(session: Session, ledger: Ledger) -> Engine | Connection:
    """What a session's ledger row is written to. Raises TransactionError when it has no such bind.

    Asked as for a statement that writes: a `get_bind()` that sends readers to followers, as SQLAlchemy's documents have
    it, knows an UPDATE by its class, and not always an INSERT.
    """
    try:
        return session.get_bind(clause=rows_of(ledger).change)
    except _unbound():
        raise TransactionError(
            "the session has no bind for the ledger's table: give it the ledger's engine, Session(engine)"
        ) from None
    except Exception as error:  # the application's own, or a ShardedSession's, which raises an assertion
        text = f"the get_bind() of {type(session).__name__} does not say where the ledger's table is"
        text = f"{text} ({type(error).__name__}: {error})"
        raise TransactionError(f"{text}: send in a Session that is bound to the ledger's engine alone") from error


def check_greenlet(bind: Engine | Connection) -> None:
    """Raises TransactionError for what an AsyncSession or an AsyncConnection keeps inside, where nothing can await."""
    if bind.dialect.is_async:
        from sqlalchemy.util.concurrency import in_greenlet

        if not in_greenlet():
            text = "this is the inner, sync part of an AsyncSession or AsyncConnection, and works in run_sync() alone"
            raise TransactionError(f"{text}: await producer.send_async(message, session) with the async one")


def check_owned(session: Session, connection: Connection) -> None:
    """Raises TransactionError when session.commit() would not be the COMMIT of the connection's transaction."""
    if not is_owned(session, connection):
        raise TransactionError(
            "the session is a part of an outer transaction, so its commit() is not a COMMIT: send with the connection "
            "that began it, producer.send(message, connection), or let the session begin its own transaction"
        )


def is_owned(session: Session, connection: Connection) -> bool:
    """Whether session.commit() is the COMMIT of the connection's transaction."""
    root: Any = session.get_transaction()
    entry = getattr(root, "_connections", {}).get(connection)
    if entry is None:
        return True
    _, transaction, should_commit, _ = entry
    return bool(should_commit) and transaction is connection.get_transaction()


def connections_of(session: Session) -> set[Connection]:
    """The connections that are in the session's transaction."""
    root: Any = session.get_transaction()
    return {connection for connection, *_ in getattr(root, "_connections", {}).values()}


def check_only_database(session: Session, ledger: Ledger) -> None:
    """Before COMMIT: whatever `get_bind` said, the session's transaction has one connection, to this database."""
    root: Any = session.get_transaction()
    if len(getattr(root, "_connections", ())) > 2:  # each connection is there twice: by itself, and by its engine
        connections = connections_of(session)
        for connection in connections:
            _check_engine(connection.engine, ledger, "the session's transaction also has a connection to")
        if len(connections) > 1:
            raise TransactionError(
                "the session's transaction has several connections to the ledger's database, each with a COMMIT of its "
                f"own: {_ONE_DATABASE}, so let all mappers of the session use one engine"
            )


def check_late_begin(session: Session, _transaction: object, _connection: object) -> None:
    """The same when the flush of COMMIT takes a connection, behind that check: its COMMIT may go before ours."""
    if is_committing(session):
        for enlistment in of_session.get(session, ()):
            for ledger in enlistment.ledgers:
                check_only_database(session, ledger)


def check_connection(connection: Connection, ledger: Ledger) -> None:
    """What a connection must be, once it is in its transaction."""
    from sqlalchemy.engine.base import TwoPhaseTransaction  # not from a package: that import takes three times as long

    _check_engine(connection.engine, ledger, "the connection leads to")
    if isinstance(connection.get_transaction(), TwoPhaseTransaction):
        raise TransactionError("the connection is in a two-phase transaction: send in a plain one, connection.begin()")
    _check_autocommit(connection)
    _check_translation(ledger)
    if connection.dialect.name == "sqlite":
        _check_file(check_attached(partial(_rows_of_driver, connection)), connection.engine, ledger)


def check_place(connection: Connection, ledger: Ledger) -> None:
    """Before a row goes in: another engine than the ledger's leads to the same database, and to the same table.

    Its URL may be the ledger's, and its `connect_args` or the search_path of its role lead elsewhere. Each pool is
    asked once. A file of SQLite is looked at for each transaction (`_check_file`). Raises TransactionError.
    """
    pool = connection.engine.pool
    if pool is ledger.session_engine.pool or ledger.dialect == "sqlite" or pool in _in_place.get(ledger, ()):
        return
    check_no_stream(connection)
    actual = ledger.look(executor(connection)).identity
    for bound in ledger.identities:
        if what := _difference(bound, actual):
            raise TransactionError(
                f"the connection leads to {actual}, and the ledger is in {bound} ({what}): {_ONE_DATABASE}, so use a "
                "session that is bound to the ledger's engine; for a schema of its own name it, "
                "Ledger(engine, schema=...), one ledger and one producer for each tenant"
            )
    _in_place.setdefault(ledger, weakref.WeakSet()).add(pool)


def _difference(bound: DatabaseIdentity, actual: DatabaseIdentity) -> str:
    """On MySQL the row goes to the database that its statement names, whatever the connection's own is."""
    if bound.dialect in MYSQL_DIALECTS:
        actual = replace(actual, database=bound.database, schema=bound.schema)
    return difference(bound, actual)


def is_autocommit(connection: Connection) -> bool:
    """Whether each statement of the connection, which is in its transaction, is saved alone."""
    raw: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        if autocommit_of_sqlite(connection):  # of Python 3.12: whatever it is in, its commit() ends nothing
            return True
        # A driver in isolation_level None may yet be in a transaction: SQLAlchemy's recipe emits BEGIN by itself.
        loose = connection.dialect.detect_autocommit_setting(raw)
        return bool(loose and (is_in_autocommit(connection) or not in_transaction(connection)))
    return bool(connection.dialect.detect_autocommit_setting(raw))


def _check_autocommit(connection: Connection) -> None:
    if is_autocommit(connection):
        raise TransactionError(
            "the session is in AUTOCOMMIT, where each statement is saved alone and there is no COMMIT to take part in: "
            "send in a session whose engine and driver have another isolation_level"
        )


def _check_file(path: str, engine: Engine, ledger: Ledger) -> None:
    """Two engines with one relative path lead to two files, where the process changed its directory in between."""
    bound = ledger.identities
    if engine.pool is ledger.session_engine.pool or not path or not bound:
        return
    try:
        inode = str(os.stat(path.encode()).st_ino)  # as SQLite names it, whatever the locale makes of a text
    except OSError:  # it was removed
        inode = ""
    if inode not in {one.number for one in bound}:
        text = f"the connection leads to the file {path}, and the ledger is in {bound[0]}: {_ONE_DATABASE}"
        raise TransactionError(f"{text}, so name the file by its whole path wherever an engine is made")


def _rows_of_driver(connection: Connection, statement: str) -> list[Any]:
    """Past SQLAlchemy: each transaction pays for this, and no echo or event of the user needs to see it."""
    with contextlib.closing(connection.connection.cursor()) as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def _check_translation(ledger: Ledger) -> None:
    """The ledger's own engine must not move its table: the row goes where the ledger says, check-back would not.

    A schema_translate_map of a session or a connection moves the application's tables, and no row.
    """
    translated = ledger.session_engine.get_execution_options().get("schema_translate_map") or {}
    schema = ledger.rows.schema
    if schema in translated and translated[schema] != schema:
        raise TransactionError(
            f"the schema_translate_map of the ledger's engine moves its table from schema {schema!r} to "
            f"{translated[schema]!r}: give the ledger an engine without it, and name the schema where it is, "
            f"Ledger(engine, schema={translated[schema]!r}), one ledger and one producer for each tenant"
        )


def _engines(session: Session) -> list[Engine]:
    """The engines that the session was given, for all mappers or for some."""
    binds: dict[Any, Any] = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})  # 2.1, 2.0
    return [bind.engine for bind in (session.bind, *binds.values()) if bind is not None]


def _check_engine(engine: Engine, ledger: Ledger, what: str) -> None:
    if engine is not ledger.session_engine and not same_database(engine, ledger.session_engine):
        raise TransactionError(
            f"{what} {engine.url!r}, and the ledger is in {ledger.session_engine.url!r}: {_ONE_DATABASE}, so use a "
            "session that is bound to the ledger's engine alone"
        )


def invalid_request() -> type[Exception]:
    """SQLAlchemy's InvalidRequestError, for an `except` clause: it is imported when something was raised."""
    from sqlalchemy.exc import InvalidRequestError

    return InvalidRequestError


def _unbound() -> type[Exception]:
    from sqlalchemy.exc import UnboundExecutionError

    return UnboundExecutionError


def same_database(one: Engine, other: Engine) -> bool:
    """Whether two engines lead to one database, by pool or by URL. Drivers, users and passwords may differ."""
    if one is other or one.pool is other.pool:
        return True
    place = _place(one.url)
    return place is not None and place == _place(other.url)


def check_same_database(engine: Engine, async_engine: AsyncEngine) -> None:
    """Raises BrokerError where an application's two engines lead to two databases."""
    if not same_database(engine, async_engine.sync_engine):
        urls = f"{engine.url!r} and {async_engine.url!r}"
        raise BrokerError(f"engine and async_engine must lead to one database, and they lead to {urls}")


def _place(url: URL) -> tuple[object, ...] | None:
    """Where a database is; None when the URL does not say, since an engine's `creator` connects."""
    family = url.get_backend_name()
    family = _FAMILIES.get(family, family)
    query = {name: value for name, value in url.query.items() if isinstance(value, str)}
    database = url.database or query.get("dbname")
    if not database:
        return None
    if family == "sqlite":
        path = unquote(database.removeprefix("file:").partition("?")[0]) if database.startswith("file:") else database
        return family, os.path.realpath(path)
    host = url.host or query.get("host") or query.get("unix_socket")
    port = url.port or int(query.get("port") or _PORTS.get(family, 0))
    return family, host, port, database, query.get("service")
