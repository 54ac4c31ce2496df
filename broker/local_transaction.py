"""Local transactions as objects: what `producer.begin_transaction()` returns.

With a session it is sugar: leaving the block calls the session's own commit() or rollback(), and the messages end with
the session's transaction, whichever code ends it (`broker.enlisting`). Without one, the caller says how it ended.
"""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from broker.database.arguments import OnlyAsyncWith, OnlyWith
from broker.enlisting.enlistment import Doom, Enlistment, Stage, deliver, discard
from broker.enlisting.sqlalchemy_enlistments import enlistments_of
from broker.enlisting.sqlalchemy_events import unknown_outcome
from broker.enlisting.sqlalchemy_join import enlist
from broker.errors import TransactionError, UnknownOutcome
from broker.format import properties as names
from broker.message import Message
from broker.transaction.service import Half, HalfMessageService

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    from broker.ledger import Ledger


class LocalTransaction(abc.ABC):
    """What all local transactions share: the half messages that were sent with it.

    `producer.begin_transaction` makes them. `immunity_s`: seconds, 0 or more, for which check-back leaves its messages
    alone; None: as the policy says. Raises TransactionError for anything else.
    """

    def __init__(self, group: str, immunity_s: int | None) -> None:
        self.group: str = group
        """The producer group."""
        self.halves: list[Half] = []
        """The half messages that were stored with it, in the order of sending."""
        self.half_properties: dict[str, str] = {}
        """What each of its half messages carries besides its own properties."""
        self._is_over = False
        self._expected: list[Doom] = []  # sends that were called, and may not have run
        if immunity_s is not None:
            if type(immunity_s) is not int or immunity_s < 0:
                raise TransactionError(f"immunity_s is a whole number of seconds, not {immunity_s!r:.60}")
            self.half_properties[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(immunity_s)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.group!r}, {self.stage.value}, {len(self.halves)} messages>"

    @property
    @abc.abstractmethod
    def stage(self) -> Stage:
        """How far it has come: active, about to commit, committed, rolled back, or left to check-back."""

    def properties_for(self, message: Message, extra: Mapping[str, str]) -> dict[str, str]:
        """The properties that a half message gets: `extra` and `half_properties`; the message's own immunity wins."""
        found = {**extra, **self.half_properties}
        if names.CHECK_IMMUNITY_TIME_IN_SECONDS in message.properties:
            found.pop(names.CHECK_IMMUNITY_TIME_IN_SECONDS, None)
        return found

    def expect(self, send: Doom) -> None:
        """Take note of a send that was called and is not done: until it is lifted, `commit` rolls back."""
        self._expected = [one for one in self._expected if not one.is_lifted]
        self._expected.append(send)

    def _unfinished(self) -> str:
        """Why it cannot commit: a send that was not awaited; empty when there is none."""
        return next((one.reason for one in self._expected if not one.is_lifted), "")

    def check_active(self) -> None:
        """See that it still runs. Raises TransactionError when it was ended."""
        if self._is_over:
            raise TransactionError(f"the transaction is over: it was {self.stage.value}. Begin another one")


class BlockTransaction(OnlyWith, LocalTransaction):
    """A local transaction that a `with` statement ends: commits, or rolls back where an exception leaves the block."""

    def __enter__(self) -> Self:
        self.check_active()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_over:
            self.commit() if error is None else self.rollback()

    @abc.abstractmethod
    def commit(self) -> None:
        """Commit the database's transaction, if there is one, and deliver the messages."""

    @abc.abstractmethod
    def rollback(self) -> None:
        """Roll back, and never deliver the messages."""


class PlainTransaction(BlockTransaction):
    """A transaction without a database session: the process that began it says how it ends.

    `commit()` or `rollback()`; or a `with` statement, which commits unless an exception leaves it.
    """

    _statement = "producer.begin_transaction()"

    def __init__(self, service: HalfMessageService, group: str, immunity_s: int | None) -> None:
        super().__init__(group, immunity_s)
        self._service, self._stage = service, Stage.ACTIVE
        self._doomed = ""
        self._process = os.getpid()

    @property
    def stage(self) -> Stage:
        """See LocalTransaction."""
        return self._stage

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process == os.getpid():  # a forked child that ends decides nothing
            super().__exit__(kind, error, trace)

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Around a send: when it fails, the transaction can only be rolled back.

        Raises TransactionError when it was ended. RocketMQ rolls back on every send result but SEND_OK: flush time-out
        and slave not available are among them.
        """
        self.check_active()
        try:
            yield
        except BaseException as error:
            self._doomed = f"a message could not be sent in it ({type(error).__name__}: {error})"
            raise

    def commit(self) -> None:
        """Deliver its messages; check-back delivers those whose end cannot be written now, which is logged.

        Raises TransactionError when it was ended, or when a send failed in it: then all are rolled back.
        """
        self.check_active()
        if why := self._doomed or self._unfinished():
            self.rollback()
            raise TransactionError(f"the transaction was rolled back: {why}")
        self._end(Stage.COMMITTED)
        deliver(self._service, self.halves)

    def rollback(self) -> None:
        """Never deliver its messages. Raises TransactionError when it was ended."""
        self.check_active()
        self._end(Stage.ROLLED_BACK)
        discard(self._service, self.halves)

    def leave(self) -> None:
        """End it without a decision: check-back asks the resolver."""
        self._end(Stage.LEFT)

    def _end(self, stage: Stage) -> None:
        self._stage, self._is_over = stage, True


class _OfSession(LocalTransaction):
    """What the transactions of a session share. A session's messages join the session, not this object."""

    _joined: Sequence[Enlistment] = ()
    _ending: Sequence[Enlistment] = ()

    @property
    def stage(self) -> Stage:
        return self._joined[-1].stage if self._joined else Stage.LEFT if self._is_over else Stage.ACTIVE

    def joins(self, target: Session | Connection) -> None:
        """Take note of the enlistments that the next COMMIT of a session ends."""
        self._ending = enlistments_of(target)
        self._joined = [*self._ending] or self._joined

    def _error_of(self, error: BaseException) -> BaseException:
        """What a failed commit() raises: UnknownOutcome where the database may have committed."""
        # One with a send that failed never came to COMMIT, also where it was left without a word of how it ended.
        is_unknown = any(one.stage is Stage.LEFT and not one.dooms for one in self._ending)
        if is_unknown and isinstance(error, Exception) and not isinstance(error, UnknownOutcome):
            return unknown_outcome(error)
        return error


class SessionTransaction(BlockTransaction, _OfSession):
    """A transaction that ends as a SQLAlchemy session's, or a connection's, does.

    Leave the `with` block and both commit; leave it by an exception and both roll back. `commit()` and `rollback()` do
    the same. They are the session's own: where the session is committed inside the block, its messages are delivered
    then, and what comes later is another transaction. Raises TransactionError for a session that no message can join.
    """

    _statement = "producer.begin_transaction(session)"

    def __init__(self, group: str, immunity_s: int | None, ledger: Ledger, target: Session | Connection) -> None:
        super().__init__(group, immunity_s)
        self.target: Session | Connection = target
        """The session or connection."""
        enlistment, _ = enlist(target, ledger)
        self._joined = (enlistment,)

    def commit(self) -> None:
        """Commit the session: fsync the half messages, flush, put the ledger row in place, COMMIT, deliver.

        Raises TransactionError when it was ended, when a send failed in it or its row is gone; AlreadyEnded when
        check-back rolled it back meanwhile; SyncFailed, and what the database raises before COMMIT: then nothing was
        saved, and the session is rolled back. Raises UnknownOutcome when COMMIT itself failed: check-back will find
        out and end the messages accordingly.
        """
        self.check_active()
        self._is_over = True
        self.joins(self.target)
        try:
            self.target.commit()
        except BaseException as error:
            self._roll_back()
            if (better := self._error_of(error)) is not error:
                raise better from error
            raise

    def rollback(self) -> None:
        """Roll the session back; never deliver the messages. Raises TransactionError when it was ended."""
        self.check_active()
        self._is_over = True
        self.joins(self.target)
        self._roll_back()

    def _roll_back(self) -> None:
        with contextlib.suppress(Exception):  # a broken connection: COMMIT was never sent
            self.target.rollback()


class AsyncTransaction(OnlyAsyncWith, _OfSession):
    """The same for an AsyncSession: `async with producer.begin_transaction(session) as transaction: ...`.

    Entering the block raises TransactionError for a session that no message can join.
    """

    _statement = "producer.begin_transaction(session)"

    def __init__(
        self, group: str, immunity_s: int | None, ledger: Ledger, target: AsyncSession | AsyncConnection
    ) -> None:
        super().__init__(group, immunity_s)
        self.target, self._ledger = target, ledger

    async def __aenter__(self) -> Self:
        self.check_active()
        await self._run(lambda target: enlist(target, self._ledger))
        return self

    async def _run(self, work: Any) -> None:
        target: Any = self.target
        await target.run_sync(work)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_over:
            await (self.commit() if error is None else self.rollback())

    async def commit(self) -> None:
        """The same as SessionTransaction.commit, with the same errors."""
        self.check_active()
        self._is_over = True
        await self._run(self.joins)
        try:
            await self.target.commit()
        except BaseException as error:
            await self._roll_back()
            if (better := self._error_of(error)) is not error:
                raise better from error
            raise

    async def rollback(self) -> None:
        """Roll the session back; never deliver the messages. Raises TransactionError when it was ended."""
        self.check_active()
        self._is_over = True
        await self._run(self.joins)
        await self._roll_back()

    async def _roll_back(self) -> None:
        with contextlib.suppress(Exception):
            await self.target.rollback()
