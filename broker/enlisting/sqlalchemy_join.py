"""Join a SQLAlchemy session's or connection's transaction: what a send does before it stores its half message."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from broker.enlisting import sqlalchemy_checks as checks
from broker.enlisting.enlistment import Branch, JoinableTransaction
from broker.enlisting.sqlalchemy_enlistments import (
    SessionEnlistment,
    check_still_open,
    is_session,
    of_connection,
    of_session,
    savepoint_number,
    savepoint_of,
)
from broker.enlisting.sqlalchemy_events import watch, watch_sessions
from broker.enlisting.sqlalchemy_rows import in_transaction, rows_of
from broker.errors import TransactionError
from broker.ledger import Ledger
from broker.transaction.service import HalfMessageService

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.orm import Session


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
        savepoint = savepoint_of(connection)
        rows = rows_of(self._ledger)
        branch = enlistment.branch(connection, rows, producer_group, service, store_id=store_id, savepoint=savepoint)
        if not enlistment.was_in_transaction:
            enlistment.was_in_transaction = bool(in_transaction(connection))
        return branch


def enlist(target: Session | Connection, ledger: Ledger) -> tuple[SessionEnlistment, Connection]:
    """The enlistment of a session's or a connection's transaction, and the connection that the ledger is on."""
    if not is_session(target):
        connection = cast("Connection", target)
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
    try:
        connection = session.connection(bind_arguments={"bind": bind})
    except checks.invalid_request() as error:
        raise TransactionError(f"the session cannot take part in a transaction now: {error}") from error
    known_here = of_connection.get(connection)
    # Without a ledger it was made for a send that failed, and nothing was checked.
    if known_here is None or not known_here.ledgers or not known_here.is_of(connection.get_transaction()):
        checks.check_owned(session, connection)
    enlistment = _enlist_connection(connection, ledger, known_here)
    known = of_session.setdefault(session, [])
    if enlistment not in known:
        known.append(enlistment)
    return enlistment, connection


def _enlist_connection(connection: Connection, ledger: Ledger, known: SessionEnlistment | None) -> SessionEnlistment:
    """`known`: what `of_connection` has of it, of this transaction or an earlier one."""
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
    """Make the COMMIT of the target's transaction impossible. It begins, if it has not, as by a send that succeeds.

    So a rollback ends it. Where it cannot begin here, the next one is meant.
    """
    watch_sessions()
    if is_session(target):
        _doom_session(target, reason)
        return
    connection = cast("Connection", target)
    if watch(connection.engine) and connection.dialect.name == "sqlite" and connection.in_nested_transaction():
        connection.invalidate()  # the savepoint's release would commit, which nobody could refuse
        return
    if not connection.in_transaction() and not connection.dialect.is_async:  # that would wait, perhaps in no greenlet
        with contextlib.suppress(Exception):
            connection.begin()
    known = of_connection.get(connection)
    if known is None or not known.is_open:
        known = of_connection[connection] = SessionEnlistment(connection)
    known.doom(reason, savepoint_of(connection))


def _doom_session(session: Session, reason: str) -> None:
    with contextlib.suppress(Exception):  # it was closed for good, or cannot say what it is bound to
        if session.autobegin and not session.in_transaction():
            session.begin()
        if session.in_nested_transaction() and _is_unseen_sqlite(session):
            session.invalidate()  # as above
            return
    enlistments = of_session.setdefault(session, [])
    enlistment = next((one for one in enlistments if one.is_open), None)
    if enlistment is None:
        enlistment = SessionEnlistment(None)
        enlistments.append(enlistment)
    savepoint = savepoint_number(session.get_nested_transaction())
    if savepoint is None and (connection := enlistment.connection) is not None:
        savepoint = savepoint_of(connection)
    enlistment.doom(reason, savepoint)
    bind: Any = session.bind
    if hasattr(bind, "in_transaction") and bind.in_transaction():  # a connection; its transaction may be an outer one
        doom(cast("Connection", bind), reason)


def _is_unseen_sqlite(session: Session) -> bool:
    bind = session.get_bind()
    return bind.dialect.name == "sqlite" and watch(bind.engine)
