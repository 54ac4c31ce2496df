"""Answers from the ledger: what the application's database says, and the tombstone where it says nothing.

    answers = LedgerResolver(ledger, LedgerEvidence(store)).ask(questions, now_ms)

First the database must prove that it is the ledger of this store (`ledgers.proof`), and a half message must name it:
else the answer is REFUSED. A half message that names no ledger binding is older than bindings are: its row says
"committed" where there is one, and where there is none nobody knows.

One SELECT for many keys finds those that committed: a row that is there is there for good. Each key that it does not
find is decided alone, in a short READ COMMITTED transaction with a lock time-out: insert the same key as "rolled back".

- It went in: no local transaction with this key can commit any more. Rolled back.
- It was there: somebody was faster; what stands there is read in a new transaction.
- The lock did not come, or the database wants the transaction done again: it still runs. No answer, and no attempt.

SQLite has one lock for all rows. There many keys are decided in one transaction, since none could go on alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import tenacity
from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError

from broker.database.ledger_binding import LEDGER_BINDING
from broker.database.ledger_identity import Execute
from broker.enlisting.ledger_key import KEY_SIZE, LEDGER_KEY, key_time_ms
from broker.ledger import COMMITTED, ROLLED_BACK, Ledger, executor
from broker.transaction.service import Half
from recovery.checkback.ledgers.borrowed import begun, borrowed, limit_waiting
from recovery.checkback.ledgers.database_errors import answer, place
from recovery.checkback.ledgers.proof import Evidence, WrongLedger, key_trouble, prove
from recovery.checkback.protocol import NOTHING_DECIDED, Answer, Outcome, Question
from recovery.humanize import moment

if TYPE_CHECKING:
    from sqlalchemy import Connection

LOCK_TIMEOUT_MS = 100
_WAITING_S = 5.0
_DECIDING_S = 30.0  # for missing rows, one by one: half of time_limit.LEDGER_WITHIN_S
_BATCH = 500  # keys in one SELECT: any database takes so many parameters
_CONNECT_ATTEMPTS = 3  # a database that restarts, or a proxy that has just lost one
_CONNECT_WAIT_S = 0.5


def check_file(ledger: Ledger) -> None:
    """Raises WrongLedger for a SQLite file that is not there, which a connection would make."""
    path = ledger.engine.url.database or ""
    if ledger.dialect == "sqlite" and not path.startswith("file:") and not os.path.exists(path):
        raise WrongLedger(f"{NOTHING_DECIDED}there is no database at {path}. Name the ledger's own")


class LedgerResolver:
    """Asks one ledger. `evidence` is what the store knows of its ledgers."""

    def __init__(
        self,
        ledger: Ledger,
        evidence: Evidence,
        *,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        by: str = "check-back",
    ) -> None:
        self._ledger, self._evidence, self._by = ledger, evidence, by
        self._store_id = evidence.store_id
        self._lock_timeout_ms = lock_timeout_ms
        self._proved = ""  # the binding that the database proved last

    def __repr__(self) -> str:
        return f"ledger {place(self._ledger.engine.url)}"

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def close(self) -> None:
        """Release the connections of an engine that was made for it alone."""
        self._ledger.engine.dispose()

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:  # noqa: ARG002 - the rows know the time
        """The answers; halves of one transaction have one key and get one answer."""
        halves = {key: one.half for one in questions if (key := _key(one.half))}
        named = {key: binding for key, half in halves.items() if (binding := _binding(half))}
        unbound = [key for key in halves if key not in named]
        found = self._answers({key: halves[key].producer_group for key in named}, named) if named else {}
        found |= self._of_unbound(unbound) if unbound else {}
        return [found.get(_key(one.half) or "", _NO_ROW) for one in questions]

    def answers(self, groups: dict[str, str]) -> dict[str, Answer]:
        """The answers for keys of this ledger, given with their producer groups."""
        return self._answers(groups, {})

    def binding_id(self) -> str:
        """The binding of this ledger. Raises WrongLedger, SQLAlchemyError."""
        with self._connection() as connection:
            return self._prove(connection)

    def _answers(self, groups: dict[str, str], named: Mapping[str, str]) -> dict[str, Answer]:
        """The answers for keys; `named` says which binding the half message of a key names."""
        try:
            with self._connection() as connection:
                binding_id = self._prove(connection)
                others = {key: name for key in groups if (name := named.get(key, binding_id)) != binding_id}
                wrong = {key: _of_another(name, binding_id) for key, name in others.items()}
                mine = {key: group for key, group in groups.items() if key not in wrong}
                found = self._committed(connection, list(mine))
                left = {key: mine[key] for key in mine if key not in found}
                return wrong | found | self._missing(left, connection)
        except (WrongLedger, SQLAlchemyError) as error:
            return dict.fromkeys(groups, self.trouble(error))

    def _of_unbound(self, keys: list[str]) -> dict[str, Answer]:
        """What a ledger says of half messages that name no binding: a row that is there is right in any database."""
        try:
            with self._connection() as connection:
                found = self._committed(connection, keys)
        except (WrongLedger, SQLAlchemyError) as error:
            return dict.fromkeys(keys, self.trouble(error))
        return {key: found.get(key, _UNBOUND) for key in keys}

    def _prove(self, connection: Connection) -> str:
        """The id of the binding. Raises WrongLedger."""

        @contextmanager
        def transaction() -> Iterator[Execute]:
            with begun(connection):
                yield executor(connection)

        self._proved = prove(transaction, self._ledger, self._evidence).binding_id
        return self._proved

    def trouble(self, error: SQLAlchemyError | WrongLedger) -> Answer:
        """What an error of the database, or of its proof, means."""
        if isinstance(error, WrongLedger):
            return Answer(Outcome.REFUSED, str(error))
        return answer(error, self._ledger.engine.url, self._ledger.making_tables)

    def peek(self, half: Half) -> Answer:
        """What the row of a half message says now; unknown without one. Changes nothing, and so decides nothing."""
        rows, key = self._ledger.rows.c, _key(half)
        try:
            with self._connection() as connection:
                if _binding(half) and (binding_id := self._prove(connection)) != _binding(half):
                    return _of_another(_binding(half), binding_id)
                with begun(connection):
                    found = connection.execute(
                        select(rows.state, rows.decided_by).where(rows.ledger_key == key)
                    ).first()
        except (WrongLedger, SQLAlchemyError) as error:
            return self.trouble(error)
        return (
            Answer(Outcome.UNKNOWN, "its ledger has no row")
            if found is None
            else _answer_of(found.state, found.decided_by)
        )

    def settle(self, half: Half, state: int, by: str) -> Answer:
        """Put a person's decision where the row of a half message would be; the answer says which decision stands."""
        key = _key(half) or ""
        try:
            with self._connection() as connection:
                binding_id = self._prove(connection)
                if _binding(half) not in (None, binding_id):
                    return _of_another(_binding(half), binding_id)
                if trouble := self._key_trouble(connection):
                    return trouble
                return self.decide(key, half.producer_group, state, by, connection)
        except (WrongLedger, SQLAlchemyError) as error:
            return self.trouble(error)

    def _missing(self, groups: dict[str, str], connection: Connection) -> dict[str, Answer]:
        """A tombstone for each key, while the database answers, and that and locks take a bearable time."""
        found: dict[str, Answer] = {}
        if groups and (trouble := self._key_trouble(connection)):
            return dict.fromkeys(groups, trouble)
        if self._ledger.dialect == "sqlite":
            for start in range(0, len(groups), _BATCH):
                chunk = dict(list(groups.items())[start : start + _BATCH])
                found.update(self._insert_together(connection, chunk) if len(chunk) > 1 else {})
        started, rest = time.monotonic(), None
        for key, group in groups.items():
            if key in found:
                continue
            found[key] = rest or self.decide(key, group, ROLLED_BACK, self._by, connection)
            rest = rest or _for_the_rest(found[key], time.monotonic() - started)
        return found

    def _key_trouble(self, connection: Connection) -> Answer | None:
        """The answer where a second row of one key would be taken: a tombstone would decide nothing."""
        with begun(connection):
            trouble = key_trouble(connection, self._ledger)
        return Answer(Outcome.REFUSED, f"{NOTHING_DECIDED}{trouble}") if trouble else None

    def _committed(self, connection: Connection, keys: list[str]) -> dict[str, Answer]:
        """The keys that a batch may answer for: those that committed, and no others."""
        rows = self._ledger.rows.c
        found: dict[str, Answer] = {}
        yes = Answer(Outcome.COMMITTED, "its ledger row is there")
        for start in range(0, len(keys), _BATCH):
            wanted = rows.ledger_key.in_(keys[start : start + _BATCH])
            with begun(connection):
                committed = connection.execute(select(rows.ledger_key).where(wanted, rows.state == COMMITTED))
                found.update((key, yes) for (key,) in committed)
        return found

    def decide(self, key: str, group: str, state: int, by: str, connection: Connection) -> Answer:
        """Put a decision under a key, if none stands there; the answer says which one stands.

        Only on a connection whose database has proved that it is the ledger.
        """
        if key_time_ms(key) is None:
            return Answer(Outcome.UNKNOWN, f"{key!r:.60} is not a ledger key")
        try:
            return self._insert(connection, key, group, state, by) or self._standing(connection, key)
        except (WrongLedger, SQLAlchemyError) as error:
            return self.trouble(error)

    def _insert(self, connection: Connection, key: str, group: str, state: int, by: str) -> Answer | None:
        """The outcome of an insert of its own transaction; None when a row is there already."""
        ledger, outcome = self._ledger, _OUTCOMES[state]
        row = {"ledger_key": key, "state": state, "producer_group": group, "store_id": self._store_id}
        try:
            with begun(connection):
                limit_waiting(connection, self._lock_timeout_ms)
                connection.execute(ledger.rows.insert(), {**row, "decided_by": by[:255]})
                if (key_time_ms(key) or 0) < (mark_ms := self._mark(connection)):
                    raise _BelowMark(mark_ms)
        except IntegrityError:
            return None
        except _BelowMark as error:
            text = f"its ledger row may have been removed: those from before {moment(error.args[0])} UTC were"
            return Answer(Outcome.UNKNOWN, text)
        return Answer(outcome, _put(by, outcome))

    def _insert_together(self, connection: Connection, groups: dict[str, str]) -> dict[str, Answer]:
        """Tombstones for many keys in one transaction of SQLite, which has one lock for all rows; none if any is odd.

        With a lock for each row one running transaction would hold up the others; here it holds up all in any case.
        """
        row = {"state": ROLLED_BACK, "store_id": self._store_id, "decided_by": self._by[:255]}
        rows = [{"ledger_key": key, "producer_group": group, **row} for key, group in groups.items()]
        oldest_ms = min(-1 if (made := key_time_ms(key)) is None else made for key in groups)
        try:
            with begun(connection):
                connection.execute(self._ledger.rows.insert(), rows)
                if oldest_ms < self._mark(connection):
                    raise _BelowMark
        except (IntegrityError, _BelowMark):
            return {}
        except (WrongLedger, SQLAlchemyError) as error:
            return dict.fromkeys(groups, self.trouble(error))
        return dict.fromkeys(groups, Answer(Outcome.ROLLED_BACK, _put(self._by, Outcome.ROLLED_BACK)))

    def _mark(self, connection: Connection) -> int:
        """The time below which rows were removed; 0 when none were.

        In the transaction of the tombstone it shows, too, that the binding is still there. Raises WrongLedger.
        """
        marks, bindings = self._ledger.marks, self._ledger.bindings
        both = bindings.outerjoin(marks, marks.c.store_id == bindings.c.store_id)
        wanted = select(bindings.c.binding_id, marks.c.low_water_ms).select_from(both)
        found = connection.execute(wanted.where(bindings.c.store_id == self._store_id)).first()
        if found is None or found.binding_id != self._proved:
            raise WrongLedger(f"{NOTHING_DECIDED}the database is not bound to this store any more. Ask again")
        return int(found.low_water_ms or 0)

    def _standing(self, connection: Connection, key: str) -> Answer:
        """What a row says, in a new transaction: the one that met it must not answer, since it may see the past."""
        rows = self._ledger.rows.c
        with begun(connection):
            found = connection.execute(select(rows.state, rows.decided_by).where(rows.ledger_key == key)).first()
        if found is None:
            return Answer(Outcome.RUNNING, "its ledger row came and went")
        return _answer_of(found.state, found.decided_by)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """A connection that reads what is committed now and waits for no lock for long."""
        level = "SERIALIZABLE" if self._ledger.dialect == "sqlite" else "READ COMMITTED"
        with (
            self._connected().execution_options(isolation_level=level) as connection,
            borrowed(connection, self._ledger, self._lock_timeout_ms),
        ):
            yield connection

    def _connected(self) -> Connection:
        """A connection. What is briefly away is asked again; a SQLite file that is not there is not made."""
        check_file(self._ledger)
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((OperationalError, InterfaceError)),
            stop=tenacity.stop_after_attempt(_CONNECT_ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=_CONNECT_WAIT_S),
            reraise=True,
        )
        return again(self._ledger.engine.connect)

    def newest_below(self, before_ms: int) -> int | None:
        """When the newest row below a time was begun, in milliseconds since 1970; None without one.

        Raises SQLAlchemyError.
        """
        rows = self._ledger.rows.c
        wanted = select(func.max(rows.ledger_key)).where(
            rows.store_id == self._store_id, rows.ledger_key < _low(before_ms)
        )
        with self._connection() as connection, begun(connection):
            return key_time_ms(connection.execute(wanted).scalar() or "")

    def expire(self, before_ms: int) -> int:
        """Remove the rows whose keys were made before a time, and remember that time; returns how many went.

        Only for a time below which every transaction of the store has ended durably, and no local transaction runs any
        more. A key below the mark that has no row is never taken for "rolled back" again. Raises WrongLedger when the
        database is not this store's ledger, and SQLAlchemyError.
        """
        with self._connection() as connection:
            self._prove(connection)

        rows, marks = self._ledger.rows, self._ledger.marks
        with self._connected() as connection, borrowed(connection, self._ledger), begun(connection):
            known = connection.execute(
                select(marks.c.low_water_ms).where(marks.c.store_id == self._store_id).with_for_update()
            ).scalar()
            if known is None:
                connection.execute(marks.insert(), {"store_id": self._store_id, "low_water_ms": before_ms})
            elif known < before_ms:
                connection.execute(
                    marks.update().where(marks.c.store_id == self._store_id), {"low_water_ms": before_ms}
                )
            mine = (rows.c.store_id == self._store_id) & (rows.c.ledger_key < _low(before_ms))
            return int(connection.execute(delete(rows).where(mine)).rowcount)


def _low(ms: int) -> str:
    """The lowest key of a time."""
    return f"{max(0, ms):012x}".ljust(KEY_SIZE, "0")


class _BelowMark(Exception):
    """Takes an insert back."""


_OUTCOMES = {COMMITTED: Outcome.COMMITTED, ROLLED_BACK: Outcome.ROLLED_BACK}


def _for_the_rest(answer: Answer, seconds: float) -> Answer | None:
    """The answer for all keys behind one that was decided alone, when no more are asked this time."""
    if answer.outcome in (Outcome.DOWN, Outcome.REFUSED):
        return answer
    if answer.outcome is Outcome.RUNNING and seconds > _WAITING_S:
        return Answer(Outcome.RUNNING, f"not asked: others were waited for, for {_WAITING_S} s")
    if seconds > _DECIDING_S:  # as of a database far away: what was decided must not be lost with the batch's limit
        return Answer(Outcome.RUNNING, f"not asked this time: the database took {_DECIDING_S:g} s for others")
    return None


def _put(by: str, outcome: Outcome) -> str:
    return f"no ledger row was there, and {by} put one: {outcome.value}"


def _answer_of(state: int, decided_by: str | None) -> Answer:
    outcome = _OUTCOMES.get(state, Outcome.UNKNOWN)
    by = f", by {decided_by}" if decided_by else ""
    return Answer(outcome, f"its ledger row says {outcome.value}{by}")


def _key(half: Half) -> str | None:
    return half.properties.get(LEDGER_KEY)


def _binding(half: Half) -> str | None:
    return half.properties.get(LEDGER_BINDING)


def _of_another(named: str | None, binding_id: str) -> Answer:
    text = f"the half message names the ledger {named}, and the database is bound as {binding_id}"
    return Answer(Outcome.REFUSED, f"nothing was decided: {text}. Name its own database, or its schema")


# Its producer has no ledger: what a ledger does not know of it says nothing, and brings no limit nearer.
_NO_ROW = Answer(Outcome.DOWN, "nobody is named who could answer: no ledger row is named in it", nobody_named=True)
_UNBOUND = Answer(Outcome.UNKNOWN, "no row, and the half message does not name its database. Run: checkback resolve")
