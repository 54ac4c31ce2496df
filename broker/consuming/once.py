"""What a session must be, and must not do, so that a message and its effects are saved by one COMMIT: that of the end.

Raises TransactionError with a sentence that says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.enlisting import sqlalchemy_checks as checks
from broker.errors import TransactionError

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.orm import Session


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
