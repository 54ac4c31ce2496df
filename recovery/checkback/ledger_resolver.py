"""Answers from the ledger: what the application's database says, and the tombstone where it says nothing.

    answers = LedgerResolver(ledger, store_id).ask(questions, now_ms)

One SELECT for many keys finds those that committed: a row that is there is there for good. Each key that it does not
find is decided alone, in a short READ COMMITTED transaction with a lock time-out: insert the same key as "rolled back".

- It went in: no local transaction with this key can commit any more. Rolled back.
- It was there: somebody was faster; what stands there is read in a new transaction.
- The lock did not come, or the database wants the transaction done again: it still runs. No answer, and no attempt.

SQLite has one lock for all rows. There many keys are decided in one transaction, since none could go on alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, select
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from broker.ledger import COMMITTED, KEY_SIZE, LEDGER_KEY, ROLLED_BACK, Ledger, key_time_ms
from recovery.checkback.protocol import Answer, Outcome, Question

if TYPE_CHECKING:
    from sqlalchemy import Connection

LOCK_TIMEOUT_MS = 100
_STATEMENT_TIMEOUT_MS = 10_000
_WAITING_S = 5.0
_BATCH = 500  # keys in one SELECT: any database takes so many parameters
_MYSQL = ("mysql", "mariadb")

# The statement may succeed when it is done again: somebody holds a lock, or two transactions met.
_AGAIN_STATES = {"55P03", "40P01", "40001", "57014", "55006"}
_AGAIN_NUMBERS = {1205, 1213}  # MySQL: lock wait time-out, deadlock
_AGAIN_WORDS = ("database is locked", "database table is locked", "database is busy", "database schema is locked")


class LedgerResolver:
    """Asks the ledger. `store_id` is that of the store, which the tombstones get: see `expire`."""

    def __init__(
        self, ledger: Ledger, store_id: str, *, lock_timeout_ms: int = LOCK_TIMEOUT_MS, by: str = "check-back"
    ) -> None:
        self._ledger, self._store_id, self._by = ledger, store_id, by
        self._lock_timeout_ms = lock_timeout_ms

    def __repr__(self) -> str:
        return f"ledger {self._ledger.engine.url!r}"

    def close(self) -> None:
        """Let go of the connections of an engine that was made for it alone."""
        self._ledger.engine.dispose()

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:  # noqa: ARG002 - the rows know the time
        """The answers; halves of one transaction have one key and get one answer."""
        keys = [question.half.properties.get(LEDGER_KEY) for question in questions]
        groups = {key: question.half.producer_group for key, question in zip(keys, questions, strict=True) if key}
        found = self.answers(groups)
        missing = Answer(Outcome.UNKNOWN, "the half message names no ledger row")
        return [found[key] if key else missing for key in keys]

    def answers(self, groups: dict[str, str]) -> dict[str, Answer]:
        """The answers for keys, given with their producer groups."""
        try:
            with self._connection() as connection:
                found = self._committed(connection, list(groups))
                return found | self._missing({key: groups[key] for key in groups if key not in found}, connection)
        except SQLAlchemyError as error:
            answer = _trouble(error)
            return dict.fromkeys(groups, answer)

    def peek(self, key: str) -> Answer:
        """What a row says now; unknown without one. Changes nothing, and so decides nothing."""
        rows = self._ledger.rows.c
        try:
            with self._connection() as connection, connection.begin():
                found = connection.execute(select(rows.state, rows.decided_by).where(rows.ledger_key == key)).first()
        except SQLAlchemyError as error:
            return _trouble(error)
        return (
            Answer(Outcome.UNKNOWN, "its ledger has no row") if found is None else _said(found.state, found.decided_by)
        )

    def _missing(self, groups: dict[str, str], connection: Connection) -> dict[str, Answer]:
        """A tombstone for each key, while the database answers and the waiting for locks stays bearable."""
        found: dict[str, Answer] = {}
        if self._ledger.dialect == "sqlite":
            for start in range(0, len(groups), _BATCH):
                chunk = dict(list(groups.items())[start : start + _BATCH])
                found.update(self._insert_together(connection, chunk) if len(chunk) > 1 else {})
        started, rest = time.monotonic(), None
        for key, group in groups.items():
            if key in found:
                continue
            answer = rest or self.decide(key, group, ROLLED_BACK, self._by, connection)
            found[key] = answer
            if answer.outcome is Outcome.DOWN:
                rest = answer
            elif answer.outcome is Outcome.RUNNING and time.monotonic() - started > _WAITING_S:
                rest = Answer(Outcome.RUNNING, f"not asked: others were waited for, for {_WAITING_S} s")
        return found

    def _committed(self, connection: Connection, keys: list[str]) -> dict[str, Answer]:
        """The keys that a batch may answer for: those that committed, and no others."""
        rows = self._ledger.rows.c
        found: dict[str, Answer] = {}
        yes = Answer(Outcome.COMMITTED, "its ledger row is there")
        for start in range(0, len(keys), _BATCH):
            wanted = rows.ledger_key.in_(keys[start : start + _BATCH])
            with connection.begin():
                said = connection.execute(select(rows.ledger_key).where(wanted, rows.state == COMMITTED))
                found.update((key, yes) for (key,) in said)
        return found

    def decide(self, key: str, group: str, state: int, by: str, connection: Connection | None = None) -> Answer:
        """Put a decision under a key, if none stands there; the answer says which one stands."""
        if key_time_ms(key) is None:
            return Answer(Outcome.UNKNOWN, f"{key!r:.60} is no ledger key")
        try:
            if connection is None:
                with self._connection() as connection:
                    return self._insert(connection, key, group, state, by) or self._standing(connection, key)
            return self._insert(connection, key, group, state, by) or self._standing(connection, key)
        except SQLAlchemyError as error:
            return _trouble(error)

    def _insert(self, connection: Connection, key: str, group: str, state: int, by: str) -> Answer | None:
        """The outcome of an insert of its own transaction; None when a row is there already."""
        ledger, outcome = self._ledger, _OUTCOMES[state]
        row = {"ledger_key": key, "state": state, "producer_group": group, "store_id": self._store_id}
        try:
            with connection.begin():
                self._limit_waiting(connection)
                connection.execute(ledger.rows.insert(), {**row, "decided_by": by[:255]})
                if (key_time_ms(key) or 0) < self._mark(connection):
                    raise _BelowMark
        except IntegrityError:
            return None
        except _BelowMark:
            return Answer(Outcome.UNKNOWN, "its ledger row may have been removed: it is older than what is kept")
        return Answer(outcome, _put(by, outcome))

    def _insert_together(self, connection: Connection, groups: dict[str, str]) -> dict[str, Answer]:
        """Tombstones for many keys in one transaction of SQLite, which has one lock for all rows; none if any is odd.

        With a lock for each row one running transaction would hold up the others; here it holds up all in any case.
        """
        row = {"state": ROLLED_BACK, "store_id": self._store_id, "decided_by": self._by[:255]}
        rows = [{"ledger_key": key, "producer_group": group, **row} for key, group in groups.items()]
        oldest_ms = min(-1 if (made := key_time_ms(key)) is None else made for key in groups)
        try:
            with connection.begin():
                connection.execute(self._ledger.rows.insert(), rows)
                if oldest_ms < self._mark(connection):
                    raise _BelowMark
        except (IntegrityError, _BelowMark):
            return {}
        except SQLAlchemyError as error:
            return dict.fromkeys(groups, _trouble(error))
        return dict.fromkeys(groups, Answer(Outcome.ROLLED_BACK, _put(self._by, Outcome.ROLLED_BACK)))

    def _mark(self, connection: Connection) -> int:
        """The time below which rows were removed; 0 when none were."""
        marks = self._ledger.marks.c
        return int(connection.execute(select(marks.low_water_ms).where(marks.store_id == self._store_id)).scalar() or 0)

    def _standing(self, connection: Connection, key: str) -> Answer:
        """What a row says, in a new transaction: the one that met it must not answer, since it may see the past."""
        rows = self._ledger.rows.c
        with connection.begin():
            found = connection.execute(select(rows.state, rows.decided_by).where(rows.ledger_key == key)).first()
        if found is None:
            return Answer(Outcome.RUNNING, "its ledger row came and went")
        return _said(found.state, found.decided_by)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """A connection that reads what is committed now and waits for no lock for long."""
        level = "SERIALIZABLE" if self._ledger.dialect == "sqlite" else "READ COMMITTED"
        with self._ledger.engine.connect().execution_options(isolation_level=level) as connection:
            restore = self._limit_session(connection)
            try:
                yield connection
            finally:
                if restore and not connection.invalidated and not connection.closed:
                    connection.rollback()
                    connection.exec_driver_sql(restore)
                    connection.rollback()

    def _limit_session(self, connection: Connection) -> str:
        """Limits that these databases know for a connection only; returns what puts the old ones back."""
        if self._ledger.dialect == "sqlite":
            before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(self._lock_timeout_ms)}")
            connection.rollback()
            return f"PRAGMA busy_timeout = {int(before or 0)}"
        if self._ledger.dialect in _MYSQL:
            before = connection.exec_driver_sql("SELECT @@innodb_lock_wait_timeout").scalar()
            connection.exec_driver_sql(f"SET innodb_lock_wait_timeout = {max(1, self._lock_timeout_ms // 1000)}")
            connection.rollback()
            return f"SET innodb_lock_wait_timeout = {int(before or 50)}"
        return ""

    def _limit_waiting(self, connection: Connection) -> None:
        """Limits that end with the transaction."""
        if self._ledger.dialect == "postgresql":
            lock, statement = f"{self._lock_timeout_ms}ms", f"{_STATEMENT_TIMEOUT_MS}ms"
            said = f"set_config('lock_timeout', '{lock}', true), set_config('statement_timeout', '{statement}', true)"
            connection.exec_driver_sql(f"SELECT {said}")

    def expire(self, before_ms: int) -> int:
        """Remove the rows whose keys were made before a time, and remember that time; returns how many went.

        Only for a time below which every transaction of the store has ended durably, and no local transaction runs any
        more. A key below the mark that has no row is never taken for "rolled back" again. Raises SQLAlchemyError.
        """
        rows, marks = self._ledger.rows, self._ledger.marks
        low_key = f"{max(0, before_ms):012x}".ljust(KEY_SIZE, "0")
        with self._ledger.engine.begin() as connection:
            known = connection.execute(
                select(marks.c.low_water_ms).where(marks.c.store_id == self._store_id).with_for_update()
            ).scalar()
            if known is None:
                connection.execute(marks.insert(), {"store_id": self._store_id, "low_water_ms": before_ms})
            elif known < before_ms:
                connection.execute(
                    marks.update().where(marks.c.store_id == self._store_id), {"low_water_ms": before_ms}
                )
            mine = (rows.c.store_id == self._store_id) & (rows.c.ledger_key < low_key)
            return int(connection.execute(delete(rows).where(mine)).rowcount)


class _BelowMark(Exception):
    """Takes an insert back."""


_OUTCOMES = {COMMITTED: Outcome.COMMITTED, ROLLED_BACK: Outcome.ROLLED_BACK}


def _put(by: str, outcome: Outcome) -> str:
    return f"no ledger row was there, and {by} put one: {outcome.value}"


def _said(state: int, decided_by: str | None) -> Answer:
    outcome = _OUTCOMES.get(state, Outcome.UNKNOWN)
    by = f", by {decided_by}" if decided_by else ""
    return Answer(outcome, f"its ledger row says {outcome.value}{by}")


def _trouble(error: SQLAlchemyError) -> Answer:
    """What an error of the database means: the transaction still runs, or the database is down."""
    cause: Any = error.orig if isinstance(error, DBAPIError) else error
    said = " ".join(str(cause).split())[:200] or type(cause).__name__
    if isinstance(error, DBAPIError) and not error.connection_invalidated and _may_work_again(cause, said):
        return Answer(Outcome.RUNNING, f"the local transaction still runs, or its database is busy: {said}")
    return Answer(Outcome.DOWN, f"the database of the ledger does not answer: {said}")


def _may_work_again(cause: Any, said: str) -> bool:
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    number = cause.args[0] if getattr(cause, "args", None) and isinstance(cause.args[0], int) else None
    return state in _AGAIN_STATES or number in _AGAIN_NUMBERS or any(word in said for word in _AGAIN_WORDS)
