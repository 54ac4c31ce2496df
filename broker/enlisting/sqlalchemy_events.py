"""Messages join the transaction of a SQLAlchemy session or connection, and end with it, whichever code commits.

    Session.before_commit     refuse what is doomed; take a turn (SQLite); fsync the half messages, beside the flush
    Session.after_begin       refuse what the flush of COMMIT adds to messages that its events sent
    Engine "commit"           the ledger rows: the last step before COMMIT
    Session.after_commit      deliver
    Engine "rollback"         discard
    Session.after_transaction_end   what is neither, is left to check-back
    Engine "begin", pool "reset"    roll back what a COMMIT left that was stopped on its way to the driver, or a session
                              that was dropped

A `Connection` that no session commits has no event after COMMIT. There the listener of "commit" sends COMMIT itself,
and SQLAlchemy's own that follows finds no transaction.

Listeners are registered once, for the class Session and for each engine that was seen: on each session they would cost
more than the ledger's row.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from broker.enlisting import sqlalchemy_checks as checks
from broker.enlisting.enlistment import Stage
from broker.enlisting.sqlalchemy_enlistments import (
    JOINED,
    SessionEnlistment,
    check_still_open,
    end_savepoint,
    invalidate_unfinished,
    is_only_a_release,
    note_autocommit,
    note_commit,
    note_error,
    note_session_commit,
    note_sqlite_statement,
    of_connection,
    of_session,
    savepoint_number,
)
from broker.enlisting.sqlalchemy_rows import in_transaction, is_aborted, is_driver_in_transaction
from broker.enlisting.transaction_words import IN_PARTS, ending
from broker.errors import TransactionError, UnknownOutcome

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, ExceptionContext, RootTransaction
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.orm import Session
    from sqlalchemy.orm import SessionTransaction as OrmTransaction
    from sqlalchemy.pool import ConnectionPoolEntry, PoolResetState

_watched: weakref.WeakSet[Engine] = weakref.WeakSet()
_held: weakref.WeakKeyDictionary[Connection, str] = weakref.WeakKeyDictionary()  # and why it does not commit
_guarded: weakref.WeakSet[RootTransaction] = weakref.WeakSet()  # of those that must not end unseen
_ended_unseen: weakref.WeakSet[RootTransaction] = weakref.WeakSet()  # of these, as far as is known
_watching = threading.Lock()
_watches_sessions: list[bool] = []  # not empty when it does


def watch(engine: Engine) -> bool:
    """Listen to an engine's transactions; False when somebody did before."""
    watch_sessions()
    engine = getattr(engine, "_proxied", engine)  # engine.execution_options() shares the listeners of its engine
    if engine in _watched:
        return False
    from sqlalchemy import event

    with _watching:
        if engine in _watched:
            return False
        event.listen(engine, "begin", _on_begin)
        event.listen(engine, "commit", _on_commit)
        event.listen(engine, "prepare_twophase", _on_twophase)
        event.listen(engine, "commit_twophase", _on_twophase)
        event.listen(engine, "rollback", _on_rollback)
        event.listen(engine, "rollback_savepoint", _on_rollback_savepoint)
        event.listen(engine, "release_savepoint", end_savepoint)
        event.listen(engine, "before_cursor_execute", _on_statement, retval=True)
        event.listen(engine, "handle_error", _on_error)
        event.listen(engine, "reset", _on_reset_of(engine.dialect.name))
        if engine.dialect.name == "sqlite":
            event.listen(engine, "after_cursor_execute", note_sqlite_statement)
            event.listen(engine, "savepoint", _on_sqlite_savepoint)
        _watched.add(engine)
    return True


def is_watched(engine: Engine) -> bool:
    """Whether its transactions are listened to."""
    return getattr(engine, "_proxied", engine) in _watched


def watch_sessions() -> None:
    """Listen to all sessions of the process."""
    if _watches_sessions:
        return
    from sqlalchemy import event
    from sqlalchemy.orm import Session

    with _watching:
        if not _watches_sessions:
            event.listen(Session, "after_transaction_end", _after_transaction_end)
            event.listen(Session, "after_commit", _after_commit)
            event.listen(Session, "before_commit", _before_commit)
            event.listen(Session, "before_commit", note_session_commit)
            event.listen(Session, "after_begin", checks.check_late_begin)
            _watches_sessions.append(True)


@contextlib.contextmanager
def hold(connections: Iterable[Connection], why: str) -> Iterator[None]:
    """Within the block the connections do not commit: not by themselves either, past their session, or in SQL.

    Raises TransactionError with `why` there; a transaction whose COMMIT was refused is rolled back.
    """
    held = guard(connections)
    _held.update(dict.fromkeys(held, why))
    try:
        yield
    finally:
        for one in held:
            _held.pop(one, None)


def guard(connections: Iterable[Connection]) -> list[Connection]:
    """Note from now on whether the connections' transactions end without SQLAlchemy; returns those that can be seen."""
    seen = [one for one in connections if is_watched(one.engine) or not one.in_nested_transaction()]
    for one in seen:
        watch(one.engine)
        if (root := one.get_transaction()) is not None:
            _guarded.add(root)
    return seen


def may_have_ended_unseen(connection: Connection) -> bool:
    """Whether the transaction of a guarded connection may have ended without SQLAlchemy: what it did may be gone.

    By a COMMIT or ROLLBACK that SQLAlchemy did not send, or since a statement failed in it.
    """
    if connection.get_transaction() in _ended_unseen or in_transaction(connection) is False:
        return True
    return is_aborted(connection)


def _before_commit(session: Session) -> None:
    enlistments = of_session.get(session)
    if not enlistments or session.in_nested_transaction():
        return
    for one in enlistments:
        one.check()
    try:
        for one in enlistments:
            _take_turns(one)
            if not one.is_durable and not one.begin_flush():
                one.run(one.wait_durable)
        session.flush()  # here and not by the session, which would look at its connections before the flush
        for one in enlistments:
            if not one.is_durable:
                one.run(one.wait_durable)
            for ledger in one.ledgers:
                checks.check_only_database(session, ledger)
            one.session_commits = True
    except BaseException:
        for one in enlistments:
            one.end_turns()
        raise


def _take_turns(enlistment: SessionEnlistment) -> None:
    """At SQLite's write lock, before the flush takes it (`Ledger.take_turn`); who has the lock does not wait.

    Who has to wait does so for the disk first: in a turn it would keep the others from their COMMITs.
    """
    connection = enlistment.connection
    if enlistment.is_async or connection is None or all(one.is_inserted for one in enlistment.branches):
        return
    if not in_transaction(connection):
        for ledger in sorted(enlistment.ledgers, key=id):  # in one order, or two threads would wait for each other
            enlistment.turns.append(ledger.take_turn(enlistment.wait_durable))


def _on_begin(connection: Connection) -> None:
    """Before a transaction begins: end what a COMMIT left that failed on the way to the driver.

    After a listener of "commit" that raised, SQLAlchemy takes the transaction for ended, and sends no ROLLBACK.
    """
    enlistment = of_connection.get(connection)
    if enlistment is not None and enlistment.is_open and enlistment.has_begun and in_transaction(connection):
        of_connection.pop(connection)
        _roll_back(connection, enlistment)


def _on_reset_of(dialect: str) -> Callable[[DBAPIConnection, ConnectionPoolEntry | None, PoolResetState], None]:
    """The same before a connection of this dialect goes back to the pool, which takes it for rolled back then.

    And where a session with messages was dropped: a pool with another `reset_on_return` would commit its rows, or leave
    them to the next session.
    """

    def on_reset(raw: DBAPIConnection, record: ConnectionPoolEntry | None, state: PoolResetState) -> None:
        joined = None if record is None else record.info.pop(JOINED, None)
        is_left = state.transaction_was_reset or (joined is not None and joined.is_open)
        if is_left and not state.terminate_only and is_driver_in_transaction(dialect, raw):
            raw.rollback()

    return on_reset


def _on_commit(connection: Connection) -> None:
    """Just before the driver's COMMIT."""
    try:
        sealed = _sealed(connection)
    except BaseException:
        # SQLAlchemy takes the transaction for ended now and would not roll it back before the connection is closed.
        enlistment = of_connection.get(connection)
        with contextlib.suppress(Exception):
            if enlistment is None or enlistment.is_stale(connection):
                connection.dialect.do_rollback(connection.connection)
            else:
                _roll_back(connection, enlistment)
        raise
    if sealed is not None and not sealed.session_commits:
        _commit(connection, sealed)


def _sealed(connection: Connection) -> SessionEnlistment | None:
    """The enlistment of the connection's transaction, when its rows are in place; None without messages."""
    note_commit(connection)
    enlistment = of_connection.get(connection)
    if enlistment is not None and enlistment.is_stale(connection):
        del of_connection[connection]
        enlistment.leave("its transaction ended unseen")
        enlistment = None
    if _held and (why := _held.get(connection)) is not None:
        raise TransactionError(why)
    if enlistment is None or enlistment.stage is not Stage.ACTIVE:
        return None
    enlistment.begin(connection)
    enlistment.check()
    if not enlistment.ledgers:  # no message joined it: it is known for a send that failed, and was rolled back
        of_connection.pop(connection, None)
        return None
    if (not enlistment.session_commits or len(enlistment.sessions) > 1) and enlistment.has_unflushed_rows:
        text = "the connection of a session was committed past the session, which has rows to flush: nothing was saved"
        raise TransactionError(f"{text}. Call session.commit()")
    if not enlistment.is_durable:
        enlistment.run(enlistment.wait_durable)
    check_still_open(enlistment, connection, rows_decide=True)
    enlistment.seal(connection)
    return enlistment


def _on_twophase(connection: Connection, xid: object, is_prepared: bool = False) -> None:
    """A two-phase transaction takes no message: after a send that was refused it cannot commit."""
    enlistment = of_connection.get(connection)
    if enlistment is not None and enlistment.is_open and not enlistment.is_stale(connection):
        try:
            enlistment.check()
        except TransactionError:
            connection.dialect.do_rollback_twophase(connection, xid, is_prepared)
            raise


def _commit(connection: Connection, enlistment: SessionEnlistment) -> None:
    """COMMIT for a connection that no session commits: nobody would say that it returned."""
    try:
        connection.dialect.do_commit(connection.connection)
    except BaseException as error:
        enlistment.leave("COMMIT failed")
        invalidate_unfinished(connection, error)
        if isinstance(error, Exception):
            raise unknown_outcome(error) from error
        raise
    of_connection.pop(connection, None)
    enlistment.deliver()


def _after_commit(session: Session) -> None:
    enlistments = of_session.get(session)
    if not enlistments:
        return
    if (nested := session.get_nested_transaction()) is not None:  # its savepoint was released
        for one in enlistments:
            one.savepoint_released(savepoint_number(nested))
        return
    sealed = [one for one in enlistments if one.stage is Stage.SEALED]
    for one in sealed:
        one.end_turns()
        enlistments.remove(one)
    for one in sealed:
        one.deliver()


def _on_rollback(connection: Connection) -> None:
    """Just before the driver's ROLLBACK."""
    if (joined := of_connection.pop(connection, None)) is None or not joined.is_of(connection.get_transaction()):
        return
    try:
        _roll_back(connection, joined)
    except Exception as error:  # noqa: BLE001 - a broken connection cannot say how its transaction ended
        why = "its connection was given up before" if connection.invalidated else _short(error)
        joined.leave(f"the database does not say whether the transaction was rolled back ({why})")


def _roll_back(connection: Connection, enlistment: SessionEnlistment) -> None:
    """ROLLBACK, and make sure that it was one: a COMMIT could have gone past the session."""
    if not any(branch.is_inserted for branch in enlistment.branches):
        enlistment.look(connection)
        if enlistment.was_ended_unseen:
            enlistment.run(lambda: enlistment.park("a COMMIT or ROLLBACK went past the session"))
        connection.dialect.do_rollback(connection.connection)
        enlistment.run(enlistment.rolled_back)
        return
    connection.dialect.do_rollback(connection.connection)
    enlistment.rolled_back_by(connection)


def _on_rollback_savepoint(connection: Connection, name: str, _context: None) -> None:
    enlistment = of_connection.get(connection)
    for savepoint in end_savepoint(connection, name):
        if enlistment is not None:
            enlistment.savepoint_rolled_back(savepoint)


def _on_sqlite_savepoint(connection: Connection, _name: str | None) -> None:
    """Python's driver begins nothing before it, and an outermost RELEASE commits, as it shall in AUTOCOMMIT."""
    if checks.is_autocommit(connection):
        note_autocommit(connection)
    elif in_transaction(connection) is False:
        connection.exec_driver_sql("BEGIN")


def _on_statement(
    connection: Connection, _cursor: object, statement: str, parameters: object, *_: object
) -> tuple[str, object]:
    """Refuse to end the transaction in SQL: SQLAlchemy would not know of it. Where it was ended, note that in time."""
    enlistment = of_connection.get(connection)
    if enlistment is not None and enlistment.stage is Stage.ACTIVE:
        enlistment.look(connection)
    root = connection.get_transaction()
    if root is not None and root in _guarded and in_transaction(connection) is False:
        _ended_unseen.add(root)
    words = ending(connection.dialect.name, statement)
    if not words or is_only_a_release(connection, statement):
        return statement, parameters
    if enlistment is not None and enlistment.is_open and not enlistment.is_stale(connection):
        raise TransactionError(
            f"{words} in SQL would go past the messages of the transaction: call commit(), "
            "rollback() or begin_nested() of the session or the connection"
        )
    if (why := _held.get(connection)) is not None and not IN_PARTS.match(statement):
        raise TransactionError(why)
    return statement, parameters


def _on_error(context: ExceptionContext) -> None:
    """A statement that fails may take its transaction with it, also where the application catches the error.

    MySQL and MariaDB roll back for some errors. PostgreSQL takes nothing more, and answers COMMIT with ROLLBACK.
    """
    connection = context.connection
    if connection is None:
        return
    root = connection.get_transaction()
    if root is not None and root in _guarded:
        _ended_unseen.add(root)
    note_error(connection, context.original_exception)


def _after_transaction_end(session: Session, transaction: OrmTransaction) -> None:
    """The end of a session's transaction, however it came: what is not known by now is left to check-back."""
    if transaction.parent is not None:
        if transaction.nested:  # rolled back or closed; of one that was released nothing is kept under its number
            for one in of_session.get(session, ()):
                one.savepoint_rolled_back(savepoint_number(transaction))
        return
    for one in of_session.pop(session, ()):
        failed = "COMMIT failed" if one.stage is Stage.SEALED else "the transaction ended without COMMIT or ROLLBACK"
        one.leave(f"{failed}, and its outcome is unknown")
        one.end_turns()
        if (connection := one.connection) is not None and of_connection.get(connection) is one:
            of_connection.pop(connection, None)


# What a user reads


def unknown_outcome(error: BaseException) -> UnknownOutcome:
    """The error of a COMMIT that failed."""
    text = "COMMIT failed, and nobody knows yet whether it took place: check-back will find out, and deliver or discard"
    return UnknownOutcome(f"{text} the messages ({_short(error)})")


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
