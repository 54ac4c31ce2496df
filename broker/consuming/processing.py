"""`with consumer.process(message, session) as first:` — the message's effects and its row, in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from broker.consuming.once import InProcess, check_session, guard_session, may_be_undone
from broker.database.arguments import OnlyAsyncWith, OnlyWith
from broker.database.dedup import Processed
from broker.errors import TransactionError
from broker.message import ReceivedMessage

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session, SessionTransaction


_noted: weakref.WeakKeyDictionary[SessionTransaction, tuple[Acknowledges, ReceivedMessage]] = (
    weakref.WeakKeyDictionary()
)
_watches_commits: list[bool] = []  # not empty when it does


class Acknowledges(Protocol):
    """What a consumer does with a message in the end."""

    group: str

    @property
    def processed(self) -> Processed: ...
    def ack(self, message: ReceivedMessage) -> bool: ...
    def retry(self, message: ReceivedMessage) -> bool: ...


def _note(session: Session, consumer: Acknowledges, message: ReceivedMessage) -> bool:
    """Note that the group processes a message; False when it did so before."""
    check_session(session, consumer.processed.rows)
    return consumer.processed.first_time(session, consumer.group, message)


def check_note(session: Session, consumer: Acknowledges, message: ReceivedMessage) -> None:
    """Before COMMIT: raises TransactionError where the note is gone, and with it what was done before."""
    if not may_be_undone(session):
        return
    from sqlalchemy.exc import DBAPIError

    try:
        was_gone = consumer.processed.first_time(session, consumer.group, message)
    except DBAPIError as error:
        cause = " ".join(str(error.orig).split())[:200]
        raise TransactionError(
            f"a statement failed in the transaction that notes the message, and its error was caught ({cause}): raise "
            "it again, or put what may fail into session.begin_nested()"
        ) from None
    if was_gone:
        raise TransactionError(
            "the transaction that notes the message was rolled back past its session, by the driver's rollback(), by "
            "SQLite, as for INSERT OR ROLLBACK, or by MySQL for a deadlock: raise the error of such a statement again, "
            "or leave OR ROLLBACK out"
        )


def note_until_commit(session: Session, consumer: Acknowledges, message: ReceivedMessage) -> None:
    """After a note in a transaction that is committed elsewhere: see before COMMIT that it is not gone.

    One note stands for those that follow. That of a savepoint may go with it, so it is not looked for.
    """
    root = session.get_transaction()
    if root is None or session.in_nested_transaction() or root in _noted:
        return
    guard_session(session)
    _noted[root] = consumer, message
    if not _watches_commits:
        from sqlalchemy import event
        from sqlalchemy.orm import Session as AnySession

        event.listen(AnySession, "before_commit", _before_commit)
        _watches_commits.append(True)


def _before_commit(session: Session) -> None:
    root = session.get_transaction()
    if root is not None and root in _noted and not session.in_nested_transaction():
        check_note(session, *_noted[root])


async def check_note_async(session: AsyncSession, consumer: Acknowledges, message: ReceivedMessage) -> None:
    """The same of an async session."""
    if may_be_undone(session.sync_session):
        await session.run_sync(check_note, consumer, message)


def _undo(session: Session) -> None:
    """Roll back. Where the connection died that is an error, and what became of the message is to be said all the same:
    the connection is thrown away, which rolls back, too."""
    try:
        session.rollback()
    except Exception:  # noqa: BLE001 - whatever a driver raises
        with contextlib.suppress(Exception):
            session.invalidate()


async def _undo_async(session: AsyncSession) -> None:
    try:
        await session.rollback()
    except Exception:  # noqa: BLE001 - as above
        with contextlib.suppress(Exception):
            await session.invalidate()


class _WatchedBody:
    """The body of the `with`, watched in a consumer's `process`. Handlers are watched by their application."""

    def __init__(self, in_process: InProcess | None, message: ReceivedMessage) -> None:
        self._in_process, self._message = in_process, message
        self._watched = contextlib.ExitStack()

    def enter(self, session: Session) -> None:
        if self._in_process is not None:
            self._watched.enter_context(self._in_process.block(self._message, session))

    def leave(self, error: BaseException | None) -> BaseException | None:
        """What it failed with: the error, or that it rolled back; None when it did not fail."""
        try:
            self._watched.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except TransactionError as found:
            return found
        return error


def _unheard(_: Exception) -> None:
    """Nobody is to hear why a COMMIT failed but the caller, who gets the error."""


class _ProcessBlock:
    """What the blocks for both kinds of sessions share. `in_process` is that of a consumer; None: a handler's block."""

    _statement = "consumer.process(message, session)"

    def __init__(
        self,
        consumer: Acknowledges,
        message: ReceivedMessage,
        session: Any,
        in_process: InProcess | None = None,
        *,
        on_failed_commit: Callable[[Exception], None] = _unheard,
    ) -> None:
        self._consumer, self._message, self._session = consumer, message, session
        self._block = _WatchedBody(in_process, message)
        self._on_failed_commit = on_failed_commit
        self._first = True

    def __bool__(self) -> bool:
        """Refuses `if consumer.process(...)`: true for each delivery, and nothing would be noted."""
        text = "whether it is the first time is what a block of process() gets"
        raise TransactionError(f"{text}: write `with consumer.process(message, session) as first`, or first_time()")


class Processing(_ProcessBlock, OnlyWith):
    """One message being processed. Entering returns whether it is the first time."""

    _session: Session

    def __enter__(self) -> bool:
        try:
            self._first = _note(self._session, self._consumer, self._message)
            self._block.enter(self._session)
        except Exception:
            _undo(self._session)
            self._consumer.retry(self._message)
            raise
        return self._first

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        failed = self._block.leave(error)
        if not self._first:  # its effects are there: whatever the body did or failed to do is undone
            _undo(self._session)
            self._consumer.ack(self._message)
            return isinstance(failed, Exception)
        if failed is None:
            try:
                check_note(self._session, self._consumer, self._message)
                self._session.commit()
            except Exception as refused:  # perhaps it did commit: the row will tell when the message comes again
                _undo(self._session)
                self._on_failed_commit(refused)
                self._consumer.retry(self._message)
                raise
            self._consumer.ack(self._message)
        else:
            _undo(self._session)
            if isinstance(failed, Exception):
                self._consumer.retry(self._message)
            if failed is not error:
                raise failed
        return False


class AsyncProcessing(_ProcessBlock, OnlyAsyncWith):
    """The same for an async session: `async with consumer.process(message, session) as first:`."""

    _session: AsyncSession

    async def __aenter__(self) -> bool:
        try:
            self._first = await self._session.run_sync(_note, self._consumer, self._message)
            self._block.enter(self._session.sync_session)
        except Exception:
            await _undo_async(self._session)
            await self._retry()
            raise
        return self._first

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        failed = self._block.leave(error)
        if not self._first:
            await _undo_async(self._session)
            self._consumer.ack(self._message)
            return isinstance(failed, Exception)
        if failed is None:
            try:
                await check_note_async(self._session, self._consumer, self._message)
                await self._session.commit()
            except Exception as refused:
                await _undo_async(self._session)
                self._on_failed_commit(refused)
                await self._retry()
                raise
            self._consumer.ack(self._message)
        else:
            await _undo_async(self._session)
            if isinstance(failed, Exception):
                await self._retry()
            if failed is not error:
                raise failed
        return False

    async def _retry(self) -> None:
        """It waits for the disk: not in the event loop."""
        await asyncio.to_thread(self._consumer.retry, self._message)
