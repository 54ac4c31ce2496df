"""What stands before the COMMIT of a connection of Django's, and ends the messages after it.

    row inserted, half message durable ... ─► are the rows there? ─► COMMIT ─► end records
                                                  no: its savepoint was rolled back: discarded

Django has no hook before COMMIT, and `on_commit` alone is not enough: PostgreSQL answers the COMMIT of a transaction
that failed with a silent ROLLBACK, and `on_commit` would deliver. So `commit`, `rollback` and `close` of the connection
object are wrapped, once for each connection, at the first message that is sent on it. `Atomic.__exit__` and
`transaction.commit()` call these methods; an SQL statement `COMMIT` does not, and is safe, too: before each row goes in,
its message is not stored; before the next statement can run, it is durable.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from django.db import DatabaseError, Error, InternalError

from broker.errors import TransactionError
from broker.local_transaction import PlainTransaction, Stage

_log = logging.getLogger("broker")
_ATTRIBUTE = "_checkback_watch"
_BATCH = 500  # keys in one SELECT: any database takes so many parameters


@dataclass(frozen=True)
class SentMessage:
    """A message of the running transaction, and the row that says whether it is delivered."""

    key: str
    transaction: PlainTransaction
    table: str

    @property
    def is_open(self) -> bool:
        return self.transaction.stage is Stage.ACTIVE


class ConnectionWatch:
    """The messages of the transaction that a connection is in. Belongs to one thread, as the connection does."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._sent: list[SentMessage] = []
        self._failure: BaseException | None = None  # of a send, outside of any savepoint that could take it back
        self._commit, self._rollback, self._close = connection.commit, connection.rollback, connection.close
        connection.commit, connection.rollback, connection.close = self.commit, self.rollback, self.close

    @classmethod
    def of(cls, connection: Any) -> Self:
        """The watch of a connection, which it keeps for as long as it lives."""
        watch = connection.__dict__.get(_ATTRIBUTE)
        if watch is None:
            watch = cls(connection)
            setattr(connection, _ATTRIBUTE, watch)
        return watch

    def add(self, key: str, transaction: PlainTransaction, table: str) -> None:
        """Take a message whose row is inserted and whose half message is durable."""
        sent = SentMessage(key, transaction, table)
        self._sent.append(sent)
        # After a real COMMIT it is ended before Django calls this. In a TestCase, which never commits, it is what
        # captureOnCommitCallbacks(execute=True) runs.
        self._connection.on_commit(partial(self._deliver_in_test, sent), robust=True)

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
                if not any(connection.savepoint_ids):
                    self._failure = error
            raise

    # In place of the methods of the connection

    def commit(self) -> None:
        """See that every row is where its message needs it, COMMIT, end the messages."""
        if not self._sent:
            self._commit()
            return
        try:
            committed = self._rows_there(self._sent)
        except BaseException as error:
            self._roll_back_at_once()
            if isinstance(error, InternalError):
                text = "nothing was saved: a statement of the transaction failed, and its error was swallowed"
                raise TransactionError(f"{text} ({error})") from error
            raise
        try:
            self._commit()
        except DatabaseError:
            raise  # a deferred constraint, say; Django calls `rollback` next, which asks the rows
        except BaseException:
            _leave(self._take())
            raise
        _end(self._take(), committed)

    def rollback(self) -> None:
        """ROLLBACK, discard the messages; an error of `send` that was swallowed is raised again in other words."""
        failure, self._failure = self._failure, None
        self._rollback()
        sent = self._take()
        if sent:
            self._discard(sent)
        if failure is not None and sys.exc_info()[1] is None:
            text = "nothing was saved: a message could not be sent, and its error was swallowed"
            raise TransactionError(f"{text} ({type(failure).__name__}: {failure})") from failure

    def close(self) -> None:
        """Close; what was not committed is lost with the connection, and check-back discards its messages."""
        self._failure = None
        _leave(self._take())
        self._close()

    # The rows

    def _rows_there(self, messages: list[SentMessage]) -> set[str]:
        """The keys of those messages whose rows are in the database, as this connection sees it."""
        connection, found = self._connection, set()
        by_table: dict[str, list[str]] = {}
        for sent in messages:
            by_table.setdefault(sent.table, []).append(sent.key)
        with connection.cursor() as cursor:
            for table, keys in by_table.items():
                for start in range(0, len(keys), _BATCH):
                    chunk = keys[start : start + _BATCH]
                    marks = ", ".join(["%s"] * len(chunk))
                    name = connection.ops.quote_name(table)
                    cursor.execute(f"SELECT ledger_key FROM {name} WHERE ledger_key IN ({marks})", chunk)  # noqa: S608
                    found.update(key for (key,) in cursor.fetchall())
        return found

    def _discard(self, sent: list[SentMessage]) -> None:
        """After ROLLBACK: no row can be there, unless a COMMIT in plain SQL put it there. So the rows decide here, too.

        What cannot be asked is left to check-back.
        """
        try:
            committed = self._rows_there(sent)
        except Error:
            _leave(sent)
        else:
            if committed:
                _log.error("a COMMIT in plain SQL saved what was then rolled back: its messages are delivered")
            _end(sent, committed)
        finally:
            self._rollback()  # PostgreSQL: the SELECT began a transaction

    def _roll_back_at_once(self) -> None:
        """Before an error leaves `commit`: for errors other than its own, Django would COMMIT on SQLite."""
        try:
            self.rollback()
        except Error:
            self.close()

    def _take(self) -> list[SentMessage]:
        sent, self._sent = self._sent, []
        return sent

    def _deliver_in_test(self, sent: SentMessage) -> None:
        if sent in self._sent and sent.is_open:
            sent.transaction.commit()


def _end(sent: list[SentMessage], committed: set[str]) -> None:
    for one in sent:
        if one.is_open:
            if one.key in committed:
                one.transaction.commit()
            else:
                one.transaction.rollback()


def _leave(sent: list[SentMessage]) -> None:
    for one in sent:
        if one.is_open:
            one.transaction.leave()
