"""Run one message through its handler: decode, run in the deduplicated transaction, settle by the retry policy.

body does not decode ──► dead letters
handler raises       ──► rolled back; again after a delay, or dead letters
database is away     ──► kept in hand, and tried again: eight minutes of it use up no retry
handler returns      ──► committed with the note that it was processed; acknowledged
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from broker.app.handler_runs import HandlerRuns, RunOutcome
from broker.app.handlers import Handler, HandlerGroup, HandlerHost
from broker.app.retry import GiveUp, Redeliver, reason_of
from broker.consuming.once import one_transaction
from broker.consuming.processing import AsyncProcessing, Processing, check_note, check_note_async
from broker.database.dedup import Processed
from broker.errors import BodyError, BrokerError, TransactionError
from broker.format import properties as names
from broker.log_fields import event
from broker.message import ReceivedMessage

if TYPE_CHECKING:
    from broker.consumer import Consumer

_WAITS_S = (0.5, 1, 2, 5, 10, *[30] * 16)  # for a database that is away; less than the time to acknowledge
_log = logging.getLogger("broker")


class Loop(Protocol):
    """Runs coroutines for threads."""

    def wait(self, coroutine: Coroutine[Any, Any, None]) -> None: ...


class Settlement:
    """What becomes of one message: the consumer's part in `Processing`, with the handler's policy."""

    def __init__(self, consumer: Consumer, handler: Handler) -> None:
        self._consumer, self._handler = consumer, handler
        self.group = consumer.group
        self.has_begun = False  # the transaction that notes the message
        self.outcome: RunOutcome | None = None  # while it is not settled
        self.error: BaseException | None = None  # of the handler
        self.commit_error: Exception | None = None  # of the COMMIT, when the handler had none
        self.fault: BrokerError | None = None  # of the store, which did not take what became of the message

    @property
    def processed(self) -> Processed:
        return self._consumer.processed

    def ack(self, message: ReceivedMessage) -> bool:
        """The message is done."""
        try:
            acknowledged = self._consumer.ack(message)
        except BrokerError as error:
            self.fault = error
            raise
        self.outcome = RunOutcome.HANDLED
        return acknowledged

    def retry(self, message: ReceivedMessage) -> bool:
        """The transaction was rolled back. One that had not begun is tried again by `Execution`, in hand."""
        if not self.has_begun:
            return False
        return self.fail(message, self.error)

    def note_commit_error(self, error: Exception) -> None:
        """Keep why the COMMIT failed: else nothing would say it, neither the log nor the dead letter."""
        self.commit_error = error

    def fail(self, message: ReceivedMessage, error: BaseException | None) -> bool:
        """Deliver the message again later, or to the dead letters, as the policy decides."""
        try:
            return self._fail(message, error)
        except BrokerError as refused:
            self.fault = refused
            raise

    def _fail(self, message: ReceivedMessage, error: BaseException | None) -> bool:
        consumer = self._consumer
        in_commit = error is None
        error = self.commit_error if error is None else error
        decision = self._handler.retry.decide(error, message.reconsume_times, in_commit=in_commit)
        where = f"{self._handler.name} failed on {message.topic} message {message.message_id}"
        about = _about(message, self.group)
        match decision:
            case GiveUp(reason):
                self.outcome = RunOutcome.DEAD_LETTERED
                try:
                    return consumer.retry(message, -1, reason=reason)
                finally:  # not before: a logging handler that raises would leave the message in hand
                    _log.error(
                        "%s; it goes to the dead letters of %s: %s",
                        where,
                        self.group,
                        reason,
                        exc_info=error,
                        extra=event("dead-letter", **about),
                    )
            case Redeliver(delay_s):
                self.outcome = RunOutcome.RETRIED
                try:
                    return consumer.retry(message, delay_s=delay_s)
                finally:
                    _log.warning(
                        "%s; it is delivered again in %g s: %s",
                        where,
                        delay_s,
                        reason_of(error, in_commit=in_commit),
                        exc_info=error,
                        extra=event("handler-failed", **about),
                    )


class Execution:
    """The messages of one group, run by threads that share it."""

    def __init__(
        self,
        app: HandlerHost,
        group: HandlerGroup,
        consumer: Consumer,
        loop: Loop,
        stopping: threading.Event,
        runs: HandlerRuns | None,
    ) -> None:
        self._app, self._group, self._consumer = app, group, consumer
        self._loop, self._stopping, self._runs = loop, stopping, runs
        if runs is not None:
            for handler in group.handlers:
                runs.expect(group.group, handler.name)

    def run(self, message: ReceivedMessage) -> None:
        """Process one message. Raises StoreFull, StoreError, SyncFailed when it cannot be settled."""
        handler = self._group.handler_of(message)
        if handler is None:
            self._pass_over(message)
            return
        settlement = Settlement(self._consumer, handler)
        if self._runs is None:
            self._settle(handler, settlement, message)
            return
        begun_s = time.perf_counter()
        try:
            self._settle(handler, settlement, message)
        finally:
            if settlement.outcome is not None:
                self._runs.add(settlement.group, handler.name, settlement.outcome, time.perf_counter() - begun_s)

    def _pass_over(self, message: ReceivedMessage) -> None:
        """No handler selects its tag: then it is done, unless it was sent back, by another version of the application.

        That had not processed it, and nobody else would: it waits with the dead letters until a version handles it. One
        that was resent from there has its retries before it, and is known by the topic that it came from; a dead letter
        of another group, which this one reads, states another topic than its own.
        """
        group, is_tag = self._group.group, message.topic in self._group.topics
        if is_tag and message.properties.get(names.RETRY_TOPIC) != message.topic:
            self._consumer.ack(message)
            return
        what = f"{message.topic} with the tag {message.tag!r}" if is_tag else message.topic
        where = f"the application handles no {what} in the group {group}"
        reason = f"{where}: another version of it sent this back"
        self._consumer.retry(message, -1, reason=reason)
        text, about = "message %s goes to the dead letters of %s: %s", _about(message, group)
        _log.error(text, message.message_id, group, reason, extra=event("dead-letter", **about))

    def _settle(self, handler: Handler, settlement: Settlement, message: ReceivedMessage) -> None:
        try:
            value = self._value(handler, message)
        except BodyError as error:
            settlement.fail(message, error)
            return
        for wait_s in _WAITS_S:
            if self._attempt(handler, settlement, value, message):
                return
            if self._stopping.wait(wait_s):
                return  # in hand: the next owner of the queue gets it
        settlement.fail(message, settlement.error)

    def _value(self, handler: Handler, message: ReceivedMessage) -> Any:
        if handler.parameters.body is None:
            return None
        body = self._app.body_of(message.topic)
        return body.decode(message.body, message.properties, handler.parameters.body_type)

    def _attempt(self, handler: Handler, settlement: Settlement, value: Any, message: ReceivedMessage) -> bool:
        """One try; False when the database did not begin the transaction, and the message is still in hand."""
        has_session = handler.parameters.session is not None
        try:
            if handler.is_async:
                run = self._in_async_transaction if has_session else self._alone_async
                self._loop.wait(run(handler, settlement, value, message))
            elif has_session:
                self._in_transaction(handler, settlement, value, message)
            else:
                _call(handler, value, message, None)
        except Exception as error:
            if error is settlement.fault:
                raise
            # Whatever an application raises: the policy decides.
            if has_session and not settlement.has_begun:
                if isinstance(error, TransactionError):  # to wait would not help
                    settlement.fail(message, error)
                    return True
                settlement.error = error
                text, about = f"{handler.name} waits, since {_away(error)}", _about(message, settlement.group)
                _log.warning("%s", text, extra=event("database-away", **about))
                return False
            if not has_session and not (self._stopping.is_set() and isinstance(error, CancelledError)):
                settlement.fail(message, error)
            return True
        if not has_session:
            settlement.ack(message)
        return True

    def _in_transaction(self, handler: Handler, settlement: Settlement, value: Any, message: ReceivedMessage) -> None:
        from sqlalchemy.orm import Session

        make = handler.parameters.session_type or Session
        processing = partial(Processing, settlement, message, on_failed_commit=settlement.note_commit_error)
        with make(self._app.engine) as session, processing(session) as first:
            settlement.has_begun = True
            if not first:
                return
            with _noting(settlement), one_transaction(session, handler.name), self._app.entered(session):
                _call(handler, value, message, session)
                session.flush()  # not at the COMMIT: what the database refuses of it is the handler's error
                check_note(session, settlement, message)

    async def _in_async_transaction(
        self, handler: Handler, settlement: Settlement, value: Any, message: ReceivedMessage
    ) -> None:
        from sqlalchemy.ext.asyncio import AsyncSession

        make = handler.parameters.session_type or AsyncSession
        processing = partial(AsyncProcessing, settlement, message, on_failed_commit=settlement.note_commit_error)
        async with make(self._app.async_engine) as session, processing(session) as first:
            settlement.has_begun = True
            if not first:
                return
            with _noting(settlement), one_transaction(session.sync_session, handler.name), self._app.entered(session):
                await self._call_async(handler, value, message, session)
                await session.flush()
                await check_note_async(session, settlement, message)

    async def _alone_async(self, handler: Handler, _: Settlement, value: Any, message: ReceivedMessage) -> None:
        await self._call_async(handler, value, message, None)

    async def _call_async(self, handler: Handler, value: Any, message: ReceivedMessage, session: Any) -> None:
        try:
            _check_result(handler, await handler.function(**handler.arguments(value, message, session)))
        except asyncio.CancelledError as error:
            if self._stopping.is_set():
                raise
            raise _cancelled(error) from error


def _call(handler: Handler, value: Any, message: ReceivedMessage, session: Any) -> None:
    try:
        _check_result(handler, handler.function(**handler.arguments(value, message, session)))
    except asyncio.CancelledError as error:
        raise _cancelled(error) from error


def _cancelled(error: asyncio.CancelledError) -> CancelledError:
    """What the policy gets of a task that the handler waited for and that was cancelled: an Exception, like others.

    asyncio's own is none, and would end the worker, or leave the message neither acknowledged nor retried."""
    return CancelledError(str(error) or "what the handler waited for was cancelled")


def _check_result(handler: Handler, result: object) -> None:
    """Raises BrokerError for a coroutine or a generator: nothing of what it would do has been done."""
    if not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()  # else Python warns of it later, elsewhere
    text = f"{handler.name} returned a {type(result).__name__}, which nobody runs, so the message was not processed"
    raise BrokerError(f"{text}: declare it with async def and await, without yield, and its decorators, too")


def _away(error: Exception) -> str:
    """Why a transaction did not begin; of asyncio's own words the end alone says it, behind all that a task is."""
    if isinstance(error, RuntimeError) and "different loop" in str(error):
        text = "the pool of its async_engine gave it a connection of another event loop than that of the handlers"
        return f"{text}: make the engine with poolclass=NullPool"
    return f"its database did not answer: {' '.join(str(error).split())[:300]}"


def _about(message: ReceivedMessage, group: str) -> dict[str, Any]:
    """The fields of an event about a message."""
    key = message.unique_key or message.message_id
    return {"topic": message.topic, "message_key": key, "group": group, "queue": message.queue_id}


class _noting:  # noqa: N801 - a context manager, used as a function
    """Keeps what a handler raises, for the policy."""

    def __init__(self, settlement: Settlement) -> None:
        self._settlement = settlement

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, asyncio.CancelledError):
            self._settlement.error = error
