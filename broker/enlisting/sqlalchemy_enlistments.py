"""The enlistments of this process: which belong to which session and which connection of SQLAlchemy.

An enlistment refers to its connection weakly, so a session that is dropped is collected; its messages are left to
check-back.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from broker.enlisting.enlistment import Enlistment
from broker.enlisting.sqlalchemy_rows import in_transaction
from broker.enlisting.targets import in_a_thread
from broker.errors import TransactionError
from broker.ledger import Ledger

if TYPE_CHECKING:
    from sqlalchemy import Connection, NestedTransaction, RootTransaction
    from sqlalchemy.orm import Session

_T = TypeVar("_T")


class SessionEnlistment(Enlistment):
    """An enlistment in a SQLAlchemy connection's transaction, with what the listeners need to know of it."""

    def __init__(self, connection: Connection | None) -> None:
        super().__init__()
        self.is_async = connection is not None and connection.dialect.is_async
        self.session_commits = False  # since Session.before_commit
        self.ledgers: list[Ledger] = []  # whose checks passed
        self.was_in_transaction = False
        self._connection = None if connection is None else weakref.ref(connection)
        self._root: weakref.ref[RootTransaction] | None = None
        if connection is not None:
            self.begin(connection)

    def begin(self, connection: Connection) -> None:
        """Belong to the transaction that the connection is in; a send may have failed before there was one."""
        if self._root is None and (root := connection.get_transaction()) is not None:
            self._root = weakref.ref(root)

    @property
    def connection(self) -> Connection | None:
        return None if self._connection is None else self._connection()

    def is_of(self, root: RootTransaction | None) -> bool:
        """Whether this is the enlistment of a transaction, and that has not ended."""
        return self.is_open and self._root is not None and self._root() is root

    def run(self, work: Callable[[], _T]) -> _T:
        """Run what waits for the disk; of an async session not on its event loop."""
        return in_a_thread(work) if self.is_async else work()


of_connection: weakref.WeakKeyDictionary[Connection, SessionEnlistment] = weakref.WeakKeyDictionary()
of_session: weakref.WeakKeyDictionary[Session, list[SessionEnlistment]] = weakref.WeakKeyDictionary()
_savepoints: weakref.WeakKeyDictionary[NestedTransaction, int] = weakref.WeakKeyDictionary()
_savepoint_numbers = itertools.count(1)


def check_still_open(enlistment: SessionEnlistment, connection: Connection) -> None:
    """Raises TransactionError when the database's transaction ended without SQLAlchemy."""
    began = enlistment.was_in_transaction or any(branch.is_inserted for branch in enlistment.branches)
    if began and in_transaction(connection) is False:
        raise TransactionError(
            "the transaction was ended by a COMMIT or ROLLBACK that went past the session: roll the session back, and "
            "end transactions by session.commit() and session.rollback() alone"
        )


def savepoint_of(connection: Connection) -> int | None:
    """What identifies the innermost savepoint of a connection."""
    nested = connection.get_nested_transaction()
    if nested is None:
        return None
    number = _savepoints.get(nested)
    if number is None:
        number = _savepoints[nested] = next(_savepoint_numbers)
    return number


def enlistments_of(target: Session | Connection) -> list[SessionEnlistment]:
    """The enlistments of the target's current transaction."""
    from sqlalchemy import Connection

    if isinstance(target, Connection):
        found = [of_connection[target]] if target in of_connection else []
    else:
        found = list(of_session.get(target, ()))
    return [one for one in found if one.is_open]
