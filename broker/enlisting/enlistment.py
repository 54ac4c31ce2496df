"""What is staged in one database transaction, and what becomes of it when that ends. Knows no database library.

    half messages appended ─► fsync ─► ledger rows ─► COMMIT ─► end records
                                                        │
                                raises: the outcome is unknown, and check-back asks the ledger

Before COMMIT every failure rolls back, here and in the database. After it nothing can fail: an end record that cannot
be written now is written by check-back.

RocketMQ: DefaultMQProducerImpl.sendMessageInTransaction, endTransaction (5.3.3).
"""

from __future__ import annotations

import abc
import contextlib
import enum
import logging
import os
import time
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from broker.enlisting.ledger_key import LEDGER_KEY, new_key
from broker.errors import AlreadyEnded, BrokerError, TransactionError
from broker.log_fields import event, fields_of_half
from broker.transaction.service import Half, HalfMessageService

_LOGGED = 20  # messages of a transaction that a log line names; an import may have a hundred thousand

_log = logging.getLogger("broker")


class Stage(enum.Enum):
    """How far a transaction has come."""

    ACTIVE = "active"
    """Messages may join it."""
    SEALED = "about to commit"
    """Its rows are in place and COMMIT is next: the outcome is unknown until it returns."""
    COMMITTED = "committed"
    """COMMIT returned: its messages are delivered."""
    ROLLED_BACK = "rolled back"
    """Its messages are never delivered."""
    LEFT = "left to check-back"
    """The outcome is not known here."""


class LedgerRows(Protocol):
    """A ledger's table as a database transaction sees it; `connection` is whatever the adapter passes to `Enlistment`.

    `holds_a_lock`: the database locks a single row, so the row is inserted at the first send and protects a running
    transaction from check-back. Otherwise (SQLite, one writer) it is inserted just before COMMIT.
    """

    @property
    def holds_a_lock(self) -> bool: ...

    def insert(self, connection: Any, key: str, producer_group: str, store_id: str) -> None:
        """Insert "committed". Raises AlreadyEnded when check-back's tombstone stands there, TransactionError."""

    def present(self, connection: Any, keys: Sequence[str]) -> set[str]:
        """The keys that have a row "committed" in this transaction's view."""


@dataclass(eq=False)
class Branch:
    """The messages of one producer group in one savepoint, or outside any: they share one ledger row.

    The row is inserted inside the savepoint, so the database itself says which branches survived.
    """

    rows: LedgerRows
    producer_group: str
    store_id: str
    service: HalfMessageService
    savepoint: Hashable | None
    key: str = field(default_factory=lambda: new_key(time.time_ns() // 1_000_000))
    is_inserted: bool = False
    halves: list[Half] = field(default_factory=list)
    waited: int = 0
    """How many of the half messages, from the first on, are known to be durable."""

    @property
    def properties(self) -> dict[str, str]:
        """What each half message of the branch carries."""
        return {LEDGER_KEY: self.key}


@dataclass(eq=False, slots=True)
class Doom:
    """Why a transaction cannot commit; several enlistments may have it: of a session, and of its connections."""

    reason: str
    is_lifted: bool = False


class JoinableTransaction(abc.ABC):
    """A database transaction that half messages can join: what a send needs to know of it, whichever library runs it.

    with transaction.sending():                     # what is raised inside makes its COMMIT impossible
        branch = transaction.branch(group, service, store_id=store_id)
        branch.halves.append(half)                  # stored with `branch.properties`
    """

    waits_for_disk: ClassVar[bool]
    """Whether a half message must be durable when its send returns, because nothing can run just before COMMIT."""

    @abc.abstractmethod
    def sending(self) -> AbstractContextManager[None]:
        """Around one send. Raises TransactionError for a transaction that no message can join."""

    @abc.abstractmethod
    def branch(self, producer_group: str, service: HalfMessageService, *, store_id: str) -> Branch:
        """The branch that the next message belongs to. Raises TransactionError where message and row could part."""


class Enlistment:
    """The messages in one transaction of a database connection. An adapter calls, in this order:

    - `branch(...)` for each send, with a value that identifies the innermost open savepoint (None outside all);
      it appends the half message to the branch it gets, and calls `doom(...)` when anything in the send fails.
    - `savepoint_rolled_back(savepoint)` after a ROLLBACK TO: what failed inside does not matter any more.
    - `check()` and `wait_durable()` before COMMIT, ideally before the database takes its write lock; then
      `seal(connection)` as the last step before COMMIT.
    - `committed()` when COMMIT returned; `rolled_back()` when the transaction is known to be rolled back, or
      `rolled_back_by(connection)` where a COMMIT behind the adapter's back is possible; `leave(...)` when the outcome
      is unknown, which check-back then finds out. The first of these calls counts; later ones do nothing.

    It belongs to the process that made it. In a child that was forked meanwhile, which has a copy of the session and of
    the driver's connection, nothing joins it, it cannot commit, and what ends it there ends no message.

    Not thread-safe, as a database transaction is not.
    """

    def __init__(self) -> None:
        self.stage = Stage.ACTIVE
        self._process = os.getpid()
        self.branches: list[Branch] = []
        self._branch_of: dict[tuple[Hashable, ...], Branch] = {}
        self.turns: list[Callable[[], None]] = []  # end the turns at SQLite's write lock, kept until COMMIT returned
        self._dooms: list[tuple[set[Hashable], Doom]] = []  # each with the savepoints that were open around it

    def __repr__(self) -> str:
        return f"<Enlistment, {self.stage.value}, {len(self.halves)} messages>"

    @property
    def halves(self) -> list[Half]:
        return [half for branch in self.branches for half in branch.halves]

    @property
    def is_open(self) -> bool:
        """Whether the transaction has not ended, as far as is known here."""
        return self.stage in (Stage.ACTIVE, Stage.SEALED)

    # Before COMMIT

    def branch(
        self,
        connection: Any,
        rows: LedgerRows,
        producer_group: str,
        service: HalfMessageService,
        *,
        store_id: str,
        savepoint: Hashable | None,
        inserts: bool = False,
    ) -> Branch:
        """The branch that a message belongs to; a new one inserts its row here with `inserts`, or as `LedgerRows` says.

        Raises TransactionError in a forked child.
        """
        self._check_process()
        place = (savepoint, id(rows), producer_group, store_id, id(service))
        if (known := self._branch_of.get(place)) is not None:
            return known
        made = Branch(rows, producer_group, store_id, service, savepoint)
        if inserts or rows.holds_a_lock or savepoint is not None:
            rows.insert(connection, made.key, producer_group, store_id)
            made.is_inserted = True
        self.branches.append(made)
        self._branch_of[place] = made
        return made

    def doom(self, doom: Doom, savepoints: Iterable[Hashable] = ()) -> None:
        """Make COMMIT impossible: a send failed, and a caller that catches its error must not commit.

        `savepoints`: those that are open; a ROLLBACK TO any of them takes the failure back.
        """
        while self._dooms and self._dooms[-1][1].is_lifted:  # of a send_async that is done: there may be a million
            self._dooms.pop()
        self._dooms.append((set(savepoints), doom))

    def savepoint_released(self, savepoint: Hashable) -> None:
        """What failed in the savepoint is a matter of those around it now."""
        for around, _ in self._dooms:
            around.discard(savepoint)

    def savepoint_rolled_back(self, savepoint: Hashable) -> None:
        """What the savepoint did was undone; its ledger rows went with it, which `seal` sees."""
        for around, doom in self._dooms:
            doom.is_lifted = doom.is_lifted or savepoint in around

    @property
    def dooms(self) -> list[Doom]:
        """Why the transaction cannot commit, now."""
        return [doom for _, doom in self._dooms if not doom.is_lifted]

    def check(self) -> None:
        """Raises TransactionError when the transaction must not commit."""
        self._check_process()
        if self._dooms and (dooms := self.dooms):
            raise TransactionError(
                f"the transaction cannot commit, since a message could not be sent in it: {dooms[0].reason}. Nothing "
                "was saved: roll it back and do it again, or put the send that may fail into a savepoint"
            )

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise TransactionError(
                f"the transaction belongs to process {self._process}, which forked this one: end it there, and begin "
                "one here on a connection of this process (engine.dispose(close=False) first)"
            )

    @property
    def is_durable(self) -> bool:
        """Whether `wait_durable` has waited for all half messages."""
        return not [branch for branch in self.branches if branch.waited < len(branch.halves)]

    def begin_flush(self) -> bool:
        """Let the half messages become durable beside what comes before `wait_durable`; False: better wait now."""
        return all(branch.service.begin_flush(branch.halves[-1]) for branch in self.branches if branch.halves)

    def wait_durable(self) -> None:
        """Return when all half messages are as durable as the store's sync mode says. Raises SyncFailed."""
        for branch in self.branches:
            count = len(branch.halves)
            if branch.waited < count:
                branch.service.wait_durable(branch.halves[-1])
                branch.waited = count

    def seal(self, connection: Any) -> None:
        """Put the ledger rows in place: the last step before COMMIT.

        Raises AlreadyEnded when check-back rolled the transaction back meanwhile, TransactionError when a row that was
        inserted is not there, SyncFailed.
        """
        self.check()
        self.wait_durable()
        vanished = self._vanished(connection)
        for branch in vanished:
            if branch.savepoint is None:
                raise TransactionError(
                    f"the ledger row {branch.key} is gone from its own transaction, which was rolled back past the "
                    "session: nothing more is saved"
                )
        self.branches = [branch for branch in self.branches if branch not in vanished]
        for branch in vanished:
            discard(branch.service, branch.halves)
        for branch in self.branches:
            if branch.halves and not branch.is_inserted:
                branch.rows.insert(connection, branch.key, branch.producer_group, branch.store_id)
                branch.is_inserted = True
        self.stage = Stage.SEALED

    def _vanished(self, connection: Any) -> dict[Branch, None]:
        """The branches whose rows were inserted and are not there, in order: there may be a hundred thousand."""
        inserted = [branch for branch in self.branches if branch.is_inserted]
        if not inserted:
            return {}
        present: set[str] = set()
        for rows in {id(branch.rows): branch.rows for branch in inserted}.values():
            present |= rows.present(connection, [branch.key for branch in inserted if branch.rows is rows])
        return dict.fromkeys(branch for branch in inserted if branch.key not in present)

    # The end

    def committed(self) -> None:
        """Deliver every message; what cannot be ended now is left to check-back, which ends it the same way."""
        if self._ends(Stage.COMMITTED):
            self._end_each({})

    def rolled_back(self) -> None:
        """Never deliver the messages; likewise."""
        if self._ends(Stage.ROLLED_BACK):
            self._end_each(dict.fromkeys(self.branches))

    def rolled_back_by(self, connection: Any) -> None:
        """The same after a ROLLBACK on a connection that still works, once it is sure that nothing was committed.

        A row that is there says that a COMMIT went past the session. Its branch is delivered, as check-back would.
        """
        inserted = [branch for branch in self.branches if branch.is_inserted]
        vanished = self._vanished(connection)
        if len(vanished) == len(inserted):
            self.rolled_back()
        elif self._ends(Stage.COMMITTED):
            _log.error(
                "a COMMIT went past the session: %s",
                self._ids("delivered, since their ledger row is saved:"),
                extra=event("commit-unseen", **self._fields()),
            )
            self._end_each(vanished)

    def ended_by_application(self, connection: Any) -> None:
        """The same where the application may end its transaction without the adapter: by its rows, whichever way.

        Ask on a connection that is in no transaction of its own any more.
        """
        vanished = self._vanished(connection)
        if self._ends(Stage.ROLLED_BACK if len(vanished) == len(self.branches) else Stage.COMMITTED):
            self._end_each(vanished)

    def _end_each(self, vanished: Container[Branch]) -> None:
        """Discard the messages of these branches, and deliver those of all others."""
        for branch in self.branches:
            (discard if branch in vanished else deliver)(branch.service, branch.halves)

    def leave(self, why: str) -> None:
        """Let check-back find out how the transaction ended."""
        if self._ends(Stage.LEFT) and self.halves:
            _log.warning(
                "%s: %s", why, self._ids("left to check-back:"), extra=event("left-in-doubt", **self._fields())
            )

    def park(self, why: str) -> None:
        """Let a person decide: the ledger cannot say how the transaction ended."""
        if self._ends(Stage.LEFT):
            _log.error(
                "%s: %s",
                why,
                self._ids("parked until `checkback resolve` decides:"),
                extra=event("parked", **self._fields()),
            )
            for branch in self.branches:
                for half in branch.halves:
                    with contextlib.suppress(BrokerError):  # check-back will ask, then
                        branch.service.park(half, why)

    def _ends(self, stage: Stage) -> bool:
        """Enter a last stage; False when the transaction has ended before, and in a forked child."""
        if not self.is_open or self._process != os.getpid():
            return False
        self.stage = stage
        self.end_turns()
        return True

    def end_turns(self) -> None:
        """Let the next thread write, as soon as this one has committed or given up."""
        while self.turns:
            self.turns.pop()()

    def _fields(self) -> dict[str, Any]:
        """The fields of an event about the whole transaction: lists, of some of its messages."""
        each = [fields_of_half(half) for half in self.halves[:_LOGGED]]
        return {name: list(dict.fromkeys(one[name] for one in each)) for name in (each[0] if each else ())}

    def _ids(self, what: str) -> str:
        halves = self.halves
        rest = f" and {len(halves) - _LOGGED:,} more" if len(halves) > _LOGGED else ""
        return f"{what} {', '.join(half.message_id for half in halves[:_LOGGED]) or 'no message'}{rest}"


def deliver(service: HalfMessageService, halves: Iterable[Half]) -> None:
    """Commit half messages; one that cannot be ended now is left to check-back."""
    _end(service.commit, halves, "commit")


def discard(service: HalfMessageService, halves: Iterable[Half]) -> None:
    """Roll half messages back; likewise."""
    _end(service.rollback, halves, "roll back")


def _end(end: Callable[[Half], object], halves: Iterable[Half], verb: str) -> None:
    for half in halves:
        try:
            end(half)
        except AlreadyEnded as error:
            _log.error(
                "%s, although its local transaction says %s",
                error,
                verb,
                extra=event("end-contradicted", **fields_of_half(half)),
            )
        except Exception as error:  # noqa: BLE001 - the outcome is decided: whatever it is, COMMIT has returned
            _log.warning(
                "check-back will %s %s, which could not be ended now: %s",
                verb,
                half.message_id,
                error if isinstance(error, BrokerError) else f"{type(error).__name__}: {error}",
                extra=event("end-postponed", **fields_of_half(half)),
            )
