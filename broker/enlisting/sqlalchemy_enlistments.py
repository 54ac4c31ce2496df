"""The enlistments of this process: which belong to which session and which connection of SQLAlchemy.

An enlistment refers to its connection weakly, so a session that is dropped is collected; its messages are left to
check-back.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

from broker.enlisting.enlistment import Enlistment
from broker.enlisting.sqlalchemy_rows import in_transaction, is_rolled_back_by
from broker.enlisting.targets import in_a_thread, in_a_thread_to_the_end
from broker.enlisting.transaction_words import RELEASES, SETS_SAVEPOINT
from broker.errors import TransactionError
from broker.ledger import Ledger

if TYPE_CHECKING:
    from sqlalchemy import Connection, NestedTransaction, RootTransaction
    from sqlalchemy.orm import Session, SessionTransaction

_T = TypeVar("_T")
JOINED = "checkback"  # in the `info` of a driver's connection, until the pool has it back: what joined it last


class SessionEnlistment(Enlistment):
    """An enlistment in a SQLAlchemy connection's transaction, with what the listeners need to know of it."""

    def __init__(self, connection: Connection | None) -> None:
        super().__init__()
        self.is_async = connection is not None and connection.dialect.is_async
        self.session_commits = False  # since Session.before_commit
        self.ledgers: list[Ledger] = []  # whose checks passed
        self.was_in_transaction = False
        self.was_ended_unseen = False  # by a COMMIT or ROLLBACK that SQLAlchemy did not send
        self.was_undone = False  # by MySQL, which rolled it back for an error, as a deadlock
        self.sessions: list[weakref.ref[Session]] = []  # whose it is; several may share a connection
        self._connection = None if connection is None else weakref.ref(connection)
        self._root: weakref.ref[RootTransaction] | None = None
        if connection is not None:
            self.begin(connection)

    def begin(self, connection: Connection) -> None:
        """Belong to the transaction that the connection is in; a send may have failed before there was one."""
        if self._root is None and (root := connection.get_transaction()) is not None:
            self._root, self.was_undone = weakref.ref(root), self.was_undone or root in _undone
            if not connection.invalidated:
                connection.info[JOINED] = self

    @property
    def connection(self) -> Connection | None:
        return None if self._connection is None else self._connection()

    def is_of(self, root: RootTransaction | None) -> bool:
        """Whether this is the enlistment of a transaction, and that has not ended."""
        return self.is_open and self._root is not None and self._root() is root

    def is_stale(self, connection: Connection) -> bool:
        """Whether the connection is in another transaction than this one: it ended unseen, as a two-phase one does."""
        return self._root is not None and self._root() is not connection.get_transaction()

    @property
    def has_unflushed_rows(self) -> bool:
        """Whether a session of it has changes that no statement was sent for."""
        sessions = [session for one in self.sessions if (session := one()) is not None]
        return any(session.new or session.dirty or session.deleted for session in sessions)

    @property
    def has_begun(self) -> bool:
        """Whether the driver must have a transaction open: it had, or a row was inserted."""
        return self.was_in_transaction or any(branch.is_inserted for branch in self.branches)

    def look(self, connection: Connection) -> None:
        """Note that the driver's transaction has ended, before the next statement begins another one."""
        if not self.was_ended_unseen and self.has_begun:
            self.was_ended_unseen = in_transaction(connection) is False

    def run(self, work: Callable[[], _T]) -> _T:
        """Run what waits for the disk; of an async session not on its event loop."""
        return in_a_thread(work) if self.is_async else work()

    def deliver(self) -> None:
        """Deliver every message, behind COMMIT; of an async session not on its event loop."""
        in_a_thread_to_the_end(self.committed) if self.is_async else self.committed()


of_connection: weakref.WeakKeyDictionary[Connection, SessionEnlistment] = weakref.WeakKeyDictionary()
of_session: weakref.WeakKeyDictionary[Session, list[SessionEnlistment]] = weakref.WeakKeyDictionary()
_at_commit: weakref.WeakKeyDictionary[Connection, weakref.ref[RootTransaction]] = weakref.WeakKeyDictionary()
_committing: weakref.WeakSet[SessionTransaction] = weakref.WeakSet()
_savepoints: weakref.WeakKeyDictionary[NestedTransaction | SessionTransaction, int] = weakref.WeakKeyDictionary()
_savepoint_numbers = itertools.count(1)
_gone: weakref.WeakSet[NestedTransaction] = weakref.WeakSet()  # from the database
_begun: weakref.WeakSet[RootTransaction] = weakref.WeakSet()  # of those on SQLite, in which something was written
_in_autocommit: weakref.WeakSet[RootTransaction] = weakref.WeakSet()  # of those on SQLite, that set a savepoint
_of_savepoint: weakref.WeakSet[RootTransaction] = weakref.WeakSet()  # of those on SQLite, that began with one in SQL
_undone: weakref.WeakSet[RootTransaction] = weakref.WeakSet()  # for an error, with what was written before a first send


def note_sqlite_statement(connection: Connection, *_: object) -> None:
    """SQLite's driver begins a transaction with the first change, which may be behind the send.

    What is written by then would go with it.
    """
    enlistment = of_connection.get(connection)
    if (enlistment is not None and enlistment.was_in_transaction) or not in_transaction(connection):
        return
    if (root := connection.get_transaction()) is not None:
        _begun.add(root)
    if enlistment is not None:
        enlistment.was_in_transaction = True


def note_autocommit(connection: Connection) -> None:
    """SQLite sets a savepoint in AUTOCOMMIT: in it the driver is in a transaction, which the RELEASE commits."""
    if (root := connection.get_transaction()) is not None:
        _in_autocommit.add(root)


def is_in_autocommit(connection: Connection) -> bool:
    """Whether `note_autocommit` was called for the connection's transaction."""
    return connection.get_transaction() in _in_autocommit


def is_only_a_release(connection: Connection, statement: str) -> bool:
    """Whether a statement on a savepoint, which was set in SQL, releases it, and ends no transaction.

    On SQLite the RELEASE of a savepoint that began the transaction is a COMMIT. What is set there first is noted here.
    """
    root = connection.get_transaction()
    if RELEASES.match(statement):
        return root not in _of_savepoint
    is_set = root is not None and connection.dialect.name == "sqlite" and SETS_SAVEPOINT.match(statement)
    if is_set and in_transaction(connection) is False:
        _of_savepoint.add(cast("RootTransaction", root))
    return False


def note_error(connection: Connection, error: BaseException) -> None:
    """A statement failed, perhaps in a way for which the database rolled back what came before it in the transaction.

    MySQL's driver is as it was before: a first statement takes nothing with it. SQLite's says that its transaction is
    over, as for INSERT OR ROLLBACK; `SessionEnlistment.look` sees that behind a send.
    """
    root, enlistment = connection.get_transaction(), of_connection.get(connection)
    if root is None:
        return
    if connection.dialect.name == "sqlite":
        if root in _begun and in_transaction(connection) is False:
            _undone.add(root)
    elif in_transaction(connection) is not False and is_rolled_back_by(connection, error):
        _undone.add(root)
        if enlistment is not None:
            enlistment.was_undone = True


def note_commit(connection: Connection) -> None:
    """The transaction of a connection commits now: no message can join it any more."""
    if (root := connection.get_transaction()) is not None:
        _at_commit[connection] = weakref.ref(root)


def check_before_commit(connection: Connection) -> None:
    """Raises TransactionError when the connection's transaction commits now: in a listener of "commit" behind ours."""
    at_commit, root = _at_commit.get(connection), connection.get_transaction()
    if at_commit is not None and root is not None and at_commit() is root:
        text = "the transaction commits at this moment, and no message can join it: send before COMMIT"
        raise TransactionError(f'{text}. A listener of "commit" that sends has to be there before the producer is made')


def note_session_commit(session: Session) -> None:
    """The transaction of a session commits now: a flush may follow, and no more events before COMMIT."""
    if not session.in_nested_transaction() and (root := session.get_transaction()) is not None:
        _committing.add(root)


def is_committing(session: Session) -> bool:
    """Whether `note_session_commit` was called for the session's transaction."""
    return session.get_transaction() in _committing


def check_still_open(enlistment: SessionEnlistment, connection: Connection, *, rows_decide: bool = False) -> None:
    """Raises TransactionError when the database's transaction ended without SQLAlchemy.

    With `rows_decide` not where all rows had been inserted: whether they are there says how it ended.
    """
    enlistment.look(connection)
    if enlistment.was_undone:  # its rows say nothing: those of savepoints may be gone for themselves
        raise TransactionError(
            "the database rolled the whole transaction back for an error, which was caught: roll the session "
            "back, and do the transaction again from its first statement"
        )
    if not enlistment.was_ended_unseen:
        return
    has_rows = all(branch.is_inserted for branch in enlistment.branches)
    if not (rows_decide and has_rows and in_transaction(connection)):
        raise TransactionError(
            "the transaction was ended by a COMMIT or ROLLBACK that went past the session: roll the session back, and "
            "end transactions by session.commit() and session.rollback() alone"
        )


def invalidate_unfinished(connection: Connection, error: BaseException) -> None:
    """After a COMMIT that failed in a listener: what it left open is not for the next transaction to commit.

    SQLAlchemy does the same after its own COMMIT, where that was interrupted, and sends no ROLLBACK after either.
    """
    with contextlib.suppress(Exception):
        if not isinstance(error, Exception) or in_transaction(connection) is not False:
            connection.invalidate(error)


def savepoint_of(connection: Connection) -> int | None:
    """What identifies the innermost savepoint of a connection."""
    return next(map(_number, _nested_of(connection)), None)


def open_savepoints(target: Session | Connection) -> list[int]:
    """What identifies the savepoints that a session or a connection is in, from the innermost on."""
    return [_number(nested) for nested in _nested_of(target)]


def _nested_of(target: Session | Connection) -> Iterator[NestedTransaction | SessionTransaction]:
    """The savepoints that the database has, from the innermost on."""
    nested: Any = target.get_nested_transaction()
    while nested is not None:
        if getattr(nested, "nested", True) and nested not in _gone:  # a session's outermost is none
            yield nested
        # There is no public way to the savepoint around one of a connection: without it too much is refused.
        nested = nested.parent if hasattr(nested, "parent") else getattr(nested, "_previous_nested", None)


def end_savepoint(connection: Connection, name: str, *_: object) -> list[int]:
    """A savepoint is released or rolled back: it ends, and those inside it, which SQLAlchemy may keep as its current.

    Returns what identifies them; nothing for one that had ended with another.
    """
    ended: list[Any] = []
    for nested in _nested_of(connection):
        ended.append(nested)
        if getattr(nested, "_savepoint", name) == name:
            _gone.update(ended)
            return [_number(one) for one in ended]
    return []


def savepoint_number(nested: NestedTransaction | SessionTransaction | None) -> int | None:
    """What identifies a savepoint of a connection, or of a session, which sets it when it first executes something."""
    return None if nested is None else _number(nested)


def _number(nested: NestedTransaction | SessionTransaction) -> int:
    number = _savepoints.get(nested)
    if number is None:
        number = _savepoints[nested] = next(_savepoint_numbers)
    return number


def enlistments_of(target: Session | Connection) -> list[SessionEnlistment]:
    """The enlistments of the target's current transaction."""
    if is_session(target):
        return [one for one in of_session.get(target, ()) if one.is_open]
    found = of_connection.get(cast("Connection", target))
    return [] if found is None or not found.is_open else [found]


def is_session(target: Session | Connection) -> TypeGuard[Session]:
    """By a method that only sessions have: each send asks, and importing SQLAlchemy inside a function has its price."""
    return hasattr(target, "get_bind")
