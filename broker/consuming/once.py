"""What a session must be, and must not do, so that a message and its effects are saved by one COMMIT: that of the end.

Raises TransactionError with a sentence that says what to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.consuming.window import name_in_hand
from broker.enlisting import sqlalchemy_checks as checks
from broker.enlisting.sqlalchemy_events import guard, hold, may_have_ended_unseen
from broker.errors import TransactionError

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.orm import Session

    from broker.message import ReceivedMessage


def check_session(session: Session, rows: Table) -> None:
    """Before the note that a message was processed, a row of `rows`: what would save or lose it alone is refused."""
    connection = session.connection(bind_arguments={"bind": session.get_bind(clause=rows)})
    if checks.is_autocommit(connection):
        raise TransactionError(
            "the session is in AUTOCOMMIT, where the note that a message was processed is saved alone, also when the "
            "rest fails: process it in a session whose engine and driver have another isolation_level"
        )
    if not checks.is_owned(session, connection):
        raise TransactionError(
            "the session is a part of an outer transaction, so its commit() is not a COMMIT, and a message that is "
            "acknowledged after it could be lost: let the session begin its own transaction, or call "
            "consumer.first_time(message, session) in the outer one, and acknowledge after its COMMIT"
        )


@contextlib.contextmanager
def one_transaction(session: Session, who: str) -> Iterator[None]:
    """While a handler or the block of `process` runs: only the end commits the transaction that notes the message.

    One that commits by itself would save its effects apart from the note that the message was processed. Raises
    TransactionError at its commit(), or at its end after a rollback().
    """
    from sqlalchemy import event

    begun = session.get_transaction()
    connections = checks.connections_of(session)
    roots = [root for one in connections if (root := one.get_transaction()) is not None]
    text = f"{who} commits the session that it was given, which checkback commits at the end"
    text = f"{text}: leave the commit out, or use begin_nested() for a part that may fail"

    def refuse(_: object) -> None:
        if not session.in_nested_transaction():  # else a savepoint ends
            raise TransactionError(text)

    event.listen(session, "before_commit", refuse)
    try:
        with hold(connections, text):
            yield
    finally:
        event.remove(session, "before_commit", refuse)
    if session.get_transaction() is not begun or not all(root.is_active for root in roots):
        text = f"{who} rolled back the session that it was given, and with it the note that the message was processed"
        raise TransactionError(f"{text}: raise an exception instead, or use begin_nested() for a part that may fail")


def guard_session(session: Session) -> None:
    """Note from now on whether the session's transaction ends without SQLAlchemy."""
    guard(checks.connections_of(session))


def may_be_undone(session: Session) -> bool:
    """Whether the transaction of such a block may have ended without SQLAlchemy: its driver may be in the next one."""
    return any(may_have_ended_unseen(connection) for connection in checks.connections_of(session))


class InProcess:
    """The messages whose blocks of `process` run: only the end of its block acknowledges one."""

    def __init__(self) -> None:
        self._running: set[tuple[str, int]] = set()  # by `name_in_hand`

    @contextlib.contextmanager
    def block(self, message: ReceivedMessage, session: Session) -> Iterator[None]:
        """The block of one message. Raises TransactionError as `one_transaction`."""
        self._running.add(name_in_hand(message))
        try:
            with one_transaction(session, "the block of process()"):
                yield
        finally:
            self._running.discard(name_in_hand(message))

    def check_ack(self, message: ReceivedMessage) -> None:
        """Raises TransactionError where an acknowledgment would count although the block may still fail."""
        if name_in_hand(message) in self._running:
            text = "ack() in the block of process(), which acknowledges the message at its end, after the COMMIT"
            raise TransactionError(f"{text}: leave the ack() out")
