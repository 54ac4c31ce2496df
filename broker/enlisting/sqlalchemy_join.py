"""Join a SQLAlchemy session's or connection's transaction: what a send does before it stores its half message."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from broker.enlisting import sqlalchemy_checks as checks
from broker.enlisting.enlistment import Branch, Doom, JoinableTransaction
from broker.enlisting.sqlalchemy_enlistments import (
    SessionEnlistment,
    check_before_commit,
    check_still_open,
    is_committing,
    is_session,
    of_connection,
    of_session,
    open_savepoints,
    savepoint_of,
)
from broker.enlisting.sqlalchemy_events import is_watched, watch, watch_sessions
from broker.enlisting.sqlalchemy_rows import in_transaction, is_always_in_transaction, rows_of
from broker.errors import TransactionError
from broker.ledger import Ledger
from broker.transaction.service import HalfMessageService

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.orm import Session

_watches_begins: list[bool] = []  # not empty when it does


class SqlalchemyTransaction(JoinableTransaction):
    """The transaction that a session or a connection is in; it begins with the first message if it has not."""

    waits_for_disk: ClassVar[bool] = (
        False  # the events of SQLAlchemy run before COMMIT, and flush all messages together
    )

    def __init__(self, target: Session | Connection, ledger: Ledger) -> None:
        self._target, self._ledger = target, ledger

    def sending(self) -> Self:
        """See JoinableTransaction. The object itself: a generator would cost each send five calls more."""
        return self

    def __enter__(self) -> None:
        """Nothing to check before a send."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:  # the caller may catch it, and must not commit without the message
            doom(self._target, f"{type(error).__name__}: {error}")

    def branch(self, producer_group: str, service: HalfMessageService, *, store_id: str) -> Branch:
        enlistment, connection = enlist(self._target, self._ledger)
        check_still_open(enlistment, connection)
        checks.check_place(connection, self._ledger)
        savepoint = savepoint_of(connection)
        rows, inserts = rows_of(self._ledger), is_always_in_transaction(connection)
        branch = enlistment.branch(
            connection, rows, producer_group, service, store_id=store_id, savepoint=savepoint, inserts=inserts
        )
        if not enlistment.was_in_transaction:
            enlistment.was_in_transaction = bool(in_transaction(connection))
        return branch


def enlist(target: Session | Connection, ledger: Ledger) -> tuple[SessionEnlistment, Connection]:
    """The enlistment of a session's or a connection's transaction, and the connection that the ledger is on."""
    if not is_session(target):
        connection = cast("Connection", target)
        checks.check_greenlet(connection)
        if not connection.in_transaction():
            connection.begin()
        return _enlist_connection(connection, ledger, of_connection.get(connection)), connection
    for known in of_session.get(target, ()):
        if known.is_open and ledger in known.ledgers:
            current = known.connection
            if current is not None and known.is_of(current.get_transaction()):
                if not target.in_nested_transaction():  # else its savepoint is set when the connection is asked for
                    return known, current
                return _enlist_session(target, ledger, checks.ledger_bind(target, ledger))
    return _enlist_session(target, ledger, checks.check_session(target, ledger))


def _enlist_session(
    session: Session, ledger: Ledger, bind: Engine | Connection
) -> tuple[SessionEnlistment, Connection]:
    checks.check_greenlet(bind)
    try:
        connection = session.connection(bind_arguments={"bind": bind})
    except checks.invalid_request() as error:
        raise TransactionError(f"the session cannot take part in a transaction now: {error}") from error
    known_here, known = of_connection.get(connection), of_session.setdefault(session, [])
    # One that the session does not know was begun by another session, or by a send with the connection. Without a
    # ledger it was made for a send that failed, and nothing was checked.
    if known_here not in known or not known_here.ledgers or not known_here.is_of(connection.get_transaction()):
        checks.check_owned(session, connection)
    enlistment = _enlist_connection(connection, ledger, known_here)
    if enlistment not in known:
        known.append(enlistment)
        enlistment.sessions.append(weakref.ref(session))
    if is_committing(session):  # sent by an event of the flush, behind the check before COMMIT
        checks.check_only_database(session, ledger)
    return enlistment, connection


def _enlist_connection(connection: Connection, ledger: Ledger, known: SessionEnlistment | None) -> SessionEnlistment:
    """`known`: what `of_connection` has of it, of this transaction or an earlier one."""
    check_before_commit(connection)
    if known is not None and known.is_open:
        known.begin(connection)
    if known is not None and known.is_of(connection.get_transaction()):
        if ledger not in known.ledgers:
            checks.check_connection(connection, ledger)
            known.ledgers.append(ledger)
        return known
    if known is not None:
        known.leave("its transaction ended unseen")
    is_new = watch(connection.engine)
    if is_new and connection.dialect.name == "sqlite" and connection.in_nested_transaction():
        connection.invalidate()  # its release would commit, which nobody could refuse
        raise TransactionError(
            "this savepoint was set before checkback knew the engine, and SQLite's driver may have begun no "
            "transaction around it: create the session from the ledger's engine, or send before the first savepoint"
        )
    checks.check_connection(connection, ledger)
    made = SessionEnlistment(connection)
    made.ledgers.append(ledger)
    of_connection[connection] = made
    return made


def doom(target: Session | Connection, reason: str) -> None:
    """Make the COMMIT of the target's transaction impossible, until it is rolled back, or a savepoint around this is.

    It begins, if it has not, as by a send that succeeds. Where it cannot begin there is nothing to commit.
    """
    with contextlib.suppress(Exception):  # a session that was closed for good, or cannot say what it is bound to
        if _is_in_unseen_savepoint(target):
            target.invalidate()  # its release would commit, which nobody could refuse
            return
    _mark(target, Doom(reason))


@contextlib.asynccontextmanager
async def in_turn(target: Session | Connection) -> AsyncIterator[None]:
    """For one send after another: `asyncio.gather` runs several at once, and while a session connects it takes one.

    Who is cancelled while it waits has sent nothing, and makes COMMIT impossible as one that was cancelled in its send.
    """
    loop, known = asyncio.get_running_loop(), _turns.get(target)
    if known is None or known[0] is not loop:  # a lock is of one loop, and a session may outlive a run of asyncio
        known = _turns[target] = loop, asyncio.Lock()
    try:
        await known[1].acquire()
    except BaseException as error:
        doom(target, f"{type(error).__name__}: {error}")
        raise
    try:
        yield
    finally:
        known[1].release()


_turns: weakref.WeakKeyDictionary[object, tuple[asyncio.AbstractEventLoop, asyncio.Lock]] = weakref.WeakKeyDictionary()


def expect(target: Session | Connection, made: Doom) -> None:
    """The same until `made` is lifted: for a send that may never run, as one without await.

    Begins nothing, since the send may be awaited in a transaction that begins later.
    """
    with contextlib.suppress(Exception):
        if is_session(target):
            watch_sessions()
            # A savepoint of an engine that nobody watches: the send itself would be refused, if it ever ran.
            _mark_session(target, made, and_connections=not _is_in_unseen_savepoint(target))
        elif not _is_in_unseen_savepoint(target):
            _mark_connection(cast("Connection", target), made)


def _mark(target: Session | Connection, made: Doom) -> None:
    watch_sessions()
    if not target.in_transaction() and getattr(target, "autobegin", True):
        with contextlib.suppress(Exception):
            target.begin()
    if not is_session(target):
        _mark_connection(cast("Connection", target), made)
    elif target.in_transaction():
        _mark_session(target, made)


def _mark_connection(connection: Connection, made: Doom) -> None:
    watch(connection.engine)
    known = of_connection.get(connection)
    if known is None or not known.is_open or known.is_stale(connection):
        known = of_connection[connection] = SessionEnlistment(connection)
    known.doom(made, open_savepoints(connection))


def _mark_session(session: Session, made: Doom, *, and_connections: bool = True) -> None:
    """The session's COMMIT, and each that goes past it: of its connections, of the outer transaction that it is in."""
    _watch_begins()
    enlistments = of_session.setdefault(session, [])
    enlistment = next((one for one in enlistments if one.is_open), None)
    if enlistment is None:
        enlistment = SessionEnlistment(None)
        enlistments.append(enlistment)
    around = open_savepoints(session)
    if not around and (own := enlistment.connection) is not None:
        around = open_savepoints(own)
    enlistment.doom(made, around)
    if not and_connections:
        return
    connections = checks.connections_of(session)
    bind: Any = session.bind
    if hasattr(bind, "in_transaction") and bind.in_transaction():
        connections.add(bind)
    for connection in connections:
        if of_connection.get(connection) is not enlistment:
            _mark_connection(connection, made)


def _watch_begins() -> None:
    """From the first doom of the process on: what a session takes later is in a transaction that cannot commit, too."""
    if not _watches_begins:
        from sqlalchemy import event
        from sqlalchemy.orm import Session

        event.listen(Session, "after_begin", _after_begin)
        _watches_begins.append(True)


def _after_begin(session: Session, _transaction: object, connection: Connection) -> None:
    if _is_in_unseen_savepoint(connection):  # a send in it is refused, as long as nobody watches the engine
        return
    dooms = [made for one in of_session.get(session, ()) if one.is_open for made in one.dooms]
    known = of_connection.get(connection)
    for made in dooms:  # it has those from before its savepoint: one rolled back takes none of them back
        if known is None or known.is_stale(connection) or made not in known.dooms:
            _mark_connection(connection, made)


def _is_in_unseen_savepoint(target: Session | Connection) -> bool:
    """Whether SQLite's driver may have begun no transaction around the savepoint, since nobody watched the engine."""
    if not target.in_nested_transaction():
        return False
    bind = target.get_bind() if is_session(target) else cast("Connection", target)
    return bind.dialect.name == "sqlite" and not is_watched(bind.engine)
