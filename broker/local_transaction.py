"""Local transactions: half messages that are delivered if and only if something else commits.

    half messages stored ─► ledger row ─► COMMIT ─► end records
                                            │
                    raises: nobody knows, so the half messages stay and check-back asks the ledger

Before COMMIT everything that goes wrong rolls back, here and in the database. After it nothing can go wrong any more:
an end record that cannot be written now is written by check-back. A transaction belongs to one thread, as a session
does.

RocketMQ: DefaultMQProducerImpl.sendMessageInTransaction, endTransaction (5.3.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from broker.errors import AlreadyEnded, BrokerError, TransactionError, UnknownOutcome
from broker.format import properties as names
from broker.message import Message
from broker.transaction.service import Half, TransactionalMessageService

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from broker.ledger import Ledger, LedgerEntry

_log = logging.getLogger("broker")


class Stage(enum.Enum):
    """How far a local transaction has come."""

    ACTIVE = "active"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    LEFT = "left to check-back"


class LocalTransaction:
    """What all local transactions share: their half messages, and how those end."""

    waits_in_send = True  # until a half message is on disk; else the transaction waits before its COMMIT

    def __init__(self, service: TransactionalMessageService, group: str, immunity_s: int | None) -> None:
        self.group = group
        self.stage = Stage.ACTIVE
        self.halves: list[Half] = []
        self.half_properties: dict[str, str] = {}
        self._service = service
        self._doomed = ""
        if immunity_s is not None:
            self.half_properties[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(immunity_s)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.group!r}, {self.stage.value}, {len(self.halves)} messages>"

    def properties_for(self, message: Message, extra: Mapping[str, str]) -> dict[str, str]:
        """What a half message carries beside its own; what the message says of its immunity comes first."""
        found = {**extra, **self.half_properties}
        if names.CHECK_IMMUNITY_TIME_IN_SECONDS in message.properties:
            found.pop(names.CHECK_IMMUNITY_TIME_IN_SECONDS, None)
        return found

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Around the storing of a half message: what goes wrong there leaves only the way back.

        RocketMQ rolls back on every send result but SEND_OK: flush time-out and slave not available are among them.
        """
        self._check_active()
        try:
            yield
        except BaseException as error:
            self._doomed = f"a half message could not be stored ({type(error).__name__}: {error})"
            raise

    def leave(self) -> None:
        """Let check-back find out how it ended."""
        self.stage = Stage.LEFT

    def _check_active(self) -> None:
        if self.stage is not Stage.ACTIVE:
            raise TransactionError(f"the transaction is over: it was {self.stage.value}. Begin another one")

    def _deliver(self) -> None:
        """Commit every half message; what cannot be ended now is left to check-back, which ends it the same way."""
        self.stage = Stage.COMMITTED
        for half in self.halves:
            try:
                self._service.commit(half)
            except AlreadyEnded as error:
                _log.error("%s, although its local transaction committed", error)
            except BrokerError as error:
                _log.warning("check-back will commit %s, which could not be ended now: %s", half.message_id, error)

    def _discard(self) -> None:
        """Roll every half message back; likewise."""
        self.stage = Stage.ROLLED_BACK
        for half in self.halves:
            try:
                self._service.rollback(half)
            except BrokerError as error:
                _log.warning("check-back will roll back %s, which could not be ended now: %s", half.message_id, error)


class PlainTransaction(LocalTransaction):
    """A transaction without a database session: whoever began it says how it ends.

    `commit()` or `rollback()`; or a `with` statement, which commits when it is left well and rolls back otherwise.
    """

    def __enter__(self) -> Self:
        self._check_active()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stage is Stage.ACTIVE:
            self.commit() if error is None else self.rollback()

    def commit(self) -> None:
        """Deliver its messages. Raises TransactionError when one could not be stored: then all are rolled back."""
        self._check_active()
        if self._doomed:
            self._discard()
            raise TransactionError(f"the transaction was rolled back: {self._doomed}")
        self._deliver()

    def rollback(self) -> None:
        """Never deliver its messages."""
        self._check_active()
        self._discard()


class SessionTransaction(LocalTransaction):
    """A transaction that ends as a SQLAlchemy session's does.

    Leave the `with` block and both commit; leave it by an exception and both roll back. `commit()` and `rollback()` do
    the same. The session's own are not to be called inside: where that is seen, the messages are left to check-back.
    """

    waits_in_send = False

    def __init__(
        self,
        service: TransactionalMessageService,
        group: str,
        immunity_s: int | None,
        ledger: Ledger,
        store_id: str,
        session: Session,
    ) -> None:
        super().__init__(service, group, immunity_s)
        self._session = session
        self._entry = ledger.begin(session, group, store_id)
        self.half_properties |= self._entry.half_properties

    def __enter__(self) -> Self:
        self._check_active()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stage is Stage.ACTIVE:
            self.commit() if error is None else self.rollback()

    def _check_active(self) -> None:
        super()._check_active()
        if not self._entry.is_current:
            self._doomed = "the session's own commit() or rollback() was called inside of begin_transaction()"

    def commit(self) -> None:
        """Force the half messages to disk, flush, put the ledger row in place, COMMIT, deliver the messages.

        Raises what the database raises before COMMIT, SyncFailed, TransactionError and AlreadyEnded: then nothing was
        saved. Raises UnknownOutcome when COMMIT itself failed: check-back will find out and end the messages
        accordingly.
        """
        self._check_active()
        with self._entry.turn():
            try:
                self._seal()
            except BaseException:
                self._roll_back()
                raise
            self.stage = Stage.LEFT  # from here on nobody knows, until COMMIT returns
            try:
                self._session.commit()
            except BaseException as error:
                with contextlib.suppress(Exception):
                    self._session.rollback()
                if isinstance(error, Exception):
                    _unknown(error)
                raise
        self._deliver()

    def _seal(self) -> None:
        """All that comes before COMMIT."""
        if self._doomed:
            raise TransactionError(f"nothing more is saved: {self._doomed}")
        if self.halves:
            self._service.wait_durable(self.halves[-1])
        self._entry.seal(announces=bool(self.halves))

    def rollback(self) -> None:
        """Roll the session back; never deliver the messages."""
        self._check_active()
        self._roll_back()

    def _roll_back(self) -> None:
        known = self._entry.is_current  # else somebody ended it already, and nobody here knows how
        with contextlib.suppress(Exception):  # a broken connection: COMMIT was never sent
            self._session.rollback()
        if known:
            self._discard()
        else:
            self.leave()


class AsyncTransaction(LocalTransaction):
    """The same for an AsyncSession: `async with producer.begin_transaction(session) as transaction: ...`."""

    def __init__(
        self,
        service: TransactionalMessageService,
        group: str,
        immunity_s: int | None,
        ledger: Ledger,
        store_id: str,
        session: AsyncSession,
    ) -> None:
        super().__init__(service, group, immunity_s)
        self._session, self._ledger, self._store_id = session, ledger, store_id
        self._begun: LedgerEntry | None = None

    @property
    def _entry(self) -> LedgerEntry:
        if self._begun is None:
            raise TransactionError("begin it first: async with producer.begin_transaction(session) as transaction")
        return self._begun

    async def __aenter__(self) -> Self:
        self._check_active()
        self._begun = await self._session.run_sync(
            lambda session: self._ledger.begin(session, self.group, self._store_id)
        )
        self.half_properties |= self._begun.half_properties
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stage is Stage.ACTIVE:
            await (self.commit() if error is None else self.rollback())

    def _check_active(self) -> None:
        super()._check_active()
        if self._begun is not None and not self._begun.is_current:
            self._doomed = "the session's own commit() or rollback() was called inside of begin_transaction()"

    async def commit(self) -> None:
        """See SessionTransaction.commit."""
        self._check_active()
        entry = self._entry
        try:
            if self._doomed:
                raise TransactionError(f"nothing more is saved: {self._doomed}")
            await self._session.run_sync(lambda _: entry.seal(announces=bool(self.halves)))
        except BaseException:
            await self._roll_back()
            raise
        self.stage = Stage.LEFT
        try:
            await self._session.commit()
        except BaseException as error:
            with contextlib.suppress(Exception):
                await self._session.rollback()
            if isinstance(error, Exception):
                _unknown(error)
            raise
        await asyncio.to_thread(self._deliver)

    async def rollback(self) -> None:
        """Roll the session back; never deliver the messages."""
        self._check_active()
        await self._roll_back()

    async def _roll_back(self) -> None:
        known = self._begun is not None and self._begun.is_current
        with contextlib.suppress(Exception):
            await self._session.rollback()
        if known:
            await asyncio.to_thread(self._discard)
        else:
            self.leave()


def _unknown(error: Exception) -> NoReturn:
    text = "COMMIT failed, and nobody knows yet whether it took place: check-back will find out, and deliver or discard"
    raise UnknownOutcome(
        f"{text} the messages ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    ) from error
