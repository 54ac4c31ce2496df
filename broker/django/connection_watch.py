"""Drives the enlistment of a Django connection's transaction: what stands before its COMMIT, and what follows it.

Django has no hook before COMMIT, and `on_commit` alone is not enough: PostgreSQL answers the COMMIT of a transaction in
which a statement failed with a silent ROLLBACK, and `on_commit` would deliver. So `commit`, `rollback`,
`savepoint_rollback` and `close` of the connection object are wrapped, at the first message that is sent on it.
`Atomic.__exit__` and `transaction.commit()` call these methods. A COMMIT in plain SQL does not, and is sound as well: a
row goes in before its half message is stored, and the half message is durable before another statement can run.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from django.db import DatabaseError, Error, InternalError
from django.db.transaction import Atomic

from broker.enlisting.attached_files import check_attached
from broker.enlisting.enlistment import Branch, Enlistment, LedgerRows
from broker.enlisting.sqlalchemy_rows import check_not_in_statement
from broker.errors import TransactionError
from broker.transaction.events import BY
from broker.transaction.service import HalfMessageService

_ATTRIBUTE = "_checkback_watch"
_places = itertools.count(1)


class _FailedSend(NamedTuple):
    """One that the block must not commit past."""

    savepoints: list[str]  # of the blocks around it, from the outermost on
    made: int  # savepoints that the connection had made by then
    error: BaseException


class ConnectionWatch:
    """The messages of the transaction that a connection is in. Belongs to one thread, as the connection does."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._enlistment: Enlistment | None = None
        self._failures: list[_FailedSend] = []
        self._commit, self._rollback, self._close = connection.commit, connection.rollback, connection.close
        self._savepoint_rollback = connection.savepoint_rollback
        connection.commit, connection.rollback, connection.close = self.commit, self.rollback, self.close
        connection.savepoint_rollback = self.savepoint_rollback

    @contextlib.contextmanager
    def failing_makes_commit_impossible(self) -> Iterator[None]:
        """Mark the transaction, or its innermost savepoint, for rollback when a message could not be sent.

        Django's own mark: further statements raise, and the block is rolled back even if the error is swallowed.
        """
        connection = self._connection
        try:
            yield
        except BaseException as error:
            if connection.in_atomic_block:
                connection.set_rollback(True)
                connection.rollback_exc = error
                self._failures.append(_FailedSend(self._savepoints(), connection.savepoint_state, error))
            raise

    def branch(self, rows: LedgerRows, producer_group: str, service: HalfMessageService, *, store_id: str) -> Branch:
        """A branch for one message: each has a ledger row of its own.

        So the database itself says which messages a ROLLBACK TO took with it, also one by
        `transaction.savepoint_rollback` or in plain SQL, of which nothing is seen here. Raises TransactionError where
        SQLite would not commit the row together with the application's, or has no transaction any more, and inside a
        COPY of psycopg.
        """
        connection = self._connection
        if connection.vendor == "sqlite" and connection.in_atomic_block and not connection.connection.in_transaction:
            raise TransactionError(
                "SQLite rolled the transaction back for an error, which was caught (INSERT OR ROLLBACK, a trigger, a "
                "full disk), with all that the block had saved: let that error leave transaction.atomic()"
            )
        check_not_in_statement(connection.connection)
        if self._enlistment is None:
            if connection.vendor == "sqlite":
                check_attached(lambda statement: connection.connection.execute(statement).fetchall())
            self._enlistment = Enlistment()
        return self._enlistment.branch(
            connection, rows, producer_group, service, store_id=store_id, savepoint=next(_places)
        )

    def deliver_in_tests(self, branch: Branch) -> None:
        """Deliver at `captureOnCommitCallbacks(execute=True)` of a TestCase, which never commits.

        After a real COMMIT the message is delivered before Django calls this.
        """
        self._connection.on_commit(partial(self._deliver, branch), robust=True)

    def _deliver(self, branch: Branch) -> None:
        if self._enlistment is not None and branch in self._enlistment.branches:
            for half in branch.halves:  # by a test, and no evidence of a row: TestCase rolls the row back
                branch.service.commit(half, extra_properties={BY: "captureOnCommitCallbacks"})
            branch.halves.clear()

    # In place of the methods of the connection

    def commit(self) -> None:
        """See that the rows are in place, COMMIT, end the messages."""
        if self._failures:  # `set_rollback(False)` took Django's mark away
            failure = self._failures[0].error
            self._roll_back_at_once()
            raise _swallowed(failure, "nothing was saved") from failure
        enlistment = self._enlistment
        if enlistment is None:
            self._commit()
            return
        try:
            enlistment.seal(self._connection)
        except BaseException as error:
            self._roll_back_at_once()
            if isinstance(error, InternalError):
                text = "nothing was saved: a statement of the transaction failed, and its error was swallowed"
                raise TransactionError(f"{text} ({error})") from error
            raise
        try:
            self._commit()
        except DatabaseError:
            raise  # a deferred constraint, say: Django calls `rollback` next, where the ledger is asked
        except BaseException:
            self._leave("COMMIT was interrupted")
            raise
        self._enlistment = None
        enlistment.committed()

    def rollback(self) -> None:
        """ROLLBACK, discard the messages; an error of `send` that was swallowed is raised again in other words."""
        failures, self._failures = self._failures, []
        self._rollback()
        if self._enlistment is not None:
            try:
                self._enlistment.rolled_back_by(self._connection)
            except Error as error:
                self._leave(f"the database does not say whether the transaction was rolled back ({error})")
            finally:
                self._enlistment = None
                self._rollback()  # PostgreSQL: asking the ledger began a transaction
        if failures and _ends_without_error(sys._getframe(1)):  # noqa: SLF001
            failure = failures[0].error
            raise _swallowed(failure, "nothing was saved") from failure

    def savepoint_rollback(self, sid: str) -> None:
        """ROLLBACK TO, of a block or a manual one: what failed since then does not matter any more.

        An error of `send` that was swallowed inside is raised where its block ends without an error.
        """
        self._savepoint_rollback(sid)
        caller, within = sys._getframe(1), self._savepoints()  # noqa: SLF001 - Django passes nothing on
        is_manual, number = _block_that_ends(caller) is None, _number(sid)
        undone = [
            one
            for one in self._failures
            if sid in one.savepoints or (is_manual and number <= one.made and one.savepoints[: len(within)] == within)
        ]
        self._failures = [one for one in self._failures if one not in undone]
        if undone and _ends_without_error(caller):
            failure = undone[0].error
            raise _swallowed(failure, "nothing of the inner transaction.atomic() was saved") from failure

    def _savepoints(self) -> list[str]:
        """Those of the blocks that are open, from the outermost on; a block without one has None for it."""
        return [sid for sid in self._connection.savepoint_ids if sid]

    def close(self) -> None:
        """Close; what was not committed is lost with the connection, and check-back discards its messages."""
        self._failures.clear()
        self._leave("the connection was closed in its transaction")
        self._close()

    def _leave(self, why: str) -> None:
        if self._enlistment is not None:
            self._enlistment.leave(why)
            self._enlistment = None

    def _roll_back_at_once(self) -> None:
        """Before an error leaves `commit`: after one that is not the database's, Django would COMMIT on SQLite."""
        try:
            self.rollback()
        except Error:
            self.close()


def _number(savepoint: str) -> int:
    """Which of its connection's savepoints it is, by the name that Django gave it; 0 for another name."""
    digits = savepoint.rpartition("_x")[2]
    return int(digits) if digits.isdecimal() else 0


def _block_that_ends(caller: FrameType) -> Atomic | None:
    """The `atomic()` block whose end, Django's `Atomic.__exit__`, is the caller of a rollback.

    By its name: a package may have another one in its place, as django-cacheops does, which calls it.
    """
    code = caller.f_code
    block = caller.f_locals.get(code.co_varnames[0]) if code.co_name == "__exit__" else None
    return block if isinstance(block, Atomic) else None


def _ends_without_error(caller: FrameType) -> bool:
    """Whether the caller of a rollback is the end of an `atomic()` block that no error leaves, and not a TestCase's.

    Django passes nothing on of how the block is left, and `sys.exc_info()` may have an error that is handled around it.
    """
    block = _block_that_ends(caller)
    if block is None or block._from_testcase:  # noqa: SLF001 - Django's `durable` asks it, too
        return False
    return caller.f_locals[caller.f_code.co_varnames[1]] is None


def _swallowed(failure: BaseException, what: str) -> TransactionError:
    text = f"{what}: a message could not be sent, and its error was swallowed"
    return TransactionError(f"{text} ({type(failure).__name__}: {failure})")


def watch_of(connection: Any) -> ConnectionWatch:
    """The watch of a connection, which it keeps for as long as it lives."""
    known = connection.__dict__.get(_ATTRIBUTE)
    if not isinstance(known, ConnectionWatch):
        known = ConnectionWatch(connection)
        setattr(connection, _ATTRIBUTE, known)
    return known
