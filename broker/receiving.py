"""What every consumer does, whatever its messages come from: waiting, batches, iteration, processing once.

`Consumer` reads a store on this machine, `ClusterConsumer` pulls from the brokers of a cluster. Each says what
`receive_now`, `ack` and `retry` are; the rest is here.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from broker.consuming.arguments import check_limit, check_messages, check_processed, check_received, check_seconds
from broker.consuming.once import InProcess
from broker.consuming.processing import AsyncProcessing, Processing, note_until_commit
from broker.database.arguments import is_async_session, session_of, sync_session_of
from broker.errors import BrokerError
from broker.message import ReceivedMessage

if TYPE_CHECKING:
    from broker.database.arguments import SomeAsyncSession, SomeSession
    from broker.database.dedup import Processed

_PAUSE_FIRST_S, _PAUSE_LAST_S = 0.0005, 0.004  # between looks: soon after a message, later when nothing comes


class Receiver(abc.ABC):
    """One member of a consumer group. Threads share it. Close it, or use `with`.

    Iterating over it, also with `async for`, yields messages until it is closed. `processed` is the table that
    `process` notes messages in; None: `Processed()`.
    """

    def __init__(self, group: str, processed: Processed | None) -> None:
        self.group: str = group
        """The consumer group."""
        self._processed = check_processed(processed)
        self._closed = threading.Event()
        self._in_process = InProcess()

    @abc.abstractmethod
    def receive_now(self) -> ReceivedMessage | None:
        """The next message, without waiting; None when there is none."""

    @abc.abstractmethod
    def ack(self, message: ReceivedMessage) -> bool:
        """Acknowledge a message: it is done, and the group never gets it again. False when it is not in its hands."""

    @abc.abstractmethod
    def retry(self, message: ReceivedMessage, delay_level: int | None = None) -> bool:
        """Give a message back that could not be processed: the group gets it again later. False as for `ack`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give the queues back to the group and write the positions. Closing twice is not an error."""

    @abc.abstractmethod
    def _check(self) -> None:
        """Raises BrokerError when nothing can be received any more."""

    def _pause(self, seconds: float) -> None:
        """Wait between two looks; shorter where the arrival of a message is noticed."""
        self._closed.wait(seconds)

    # Receive

    @overload
    def receive(self, timeout_s: None = None) -> ReceivedMessage: ...

    @overload
    def receive(self, timeout_s: float) -> ReceivedMessage | None: ...

    def receive(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """Wait for the next message, as long as it takes or `timeout_s` seconds: then None when none came.

        Raises CorruptStore when a message cannot be read; StoreError (of a cluster: ClusterError) when the store was
        closed, or the consumer, before this call or while it waited without a time-out; BrokerError for a time-out
        below 0.
        """
        check_seconds("timeout_s", timeout_s, may_be_zero=True)
        if self._closed.is_set():
            self._check()
        found = self._receive(timeout_s)
        if found is None and timeout_s is None:
            self._check()  # it was closed while this waited
        return found

    def _receive(self, timeout_s: float | None) -> ReceivedMessage | None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = _PAUSE_FIRST_S
        while not self._closed.is_set():
            found = self._look()
            if found is not None:
                return found
            if deadline is not None and time.monotonic() >= deadline:
                return None
            self._pause(pause_s)
            pause_s = min(pause_s * 1.3, _PAUSE_LAST_S)
        return None

    def _look(self) -> ReceivedMessage | None:
        """`receive_now`; None as well where another thread closes the consumer at this moment."""
        try:
            return self.receive_now()
        except BrokerError:
            if self._closed.is_set():
                return None
            raise

    def batch(self, limit: int, timeout_s: float | None = None) -> list[ReceivedMessage]:
        """Wait for the first message as `receive` does, and take what else is there by then: up to `limit` messages.

        Empty when none came in `timeout_s` seconds; None: no limit. Each is acknowledged by itself: `ack`, or all of
        them by `ack_all`. Raises what `receive` raises, BrokerError for a limit below 1.
        """
        check_limit(limit)
        first = self.receive(timeout_s) if timeout_s is not None else self.receive()
        messages = [] if first is None else [first]
        while messages and len(messages) < limit and (message := self.receive_now()) is not None:
            messages.append(message)
        return messages

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while (message := self._receive(None)) is not None:
            yield message

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self._receive_async()

    async def _receive_async(self) -> AsyncIterator[ReceivedMessage]:
        import asyncio

        pause_s = _PAUSE_FIRST_S
        while not self._closed.is_set():
            found = self._look()
            if found is None:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.3, _PAUSE_LAST_S)
            else:
                await asyncio.sleep(0)  # also where messages never end, others have their turn
                yield found
                pause_s = _PAUSE_FIRST_S

    # Say what became of a message

    def ack_all(self, messages: Iterable[ReceivedMessage]) -> int:
        """Acknowledge each; returns how many were still in this consumer's hands. Raises what `ack` raises."""
        check_messages(messages)
        return sum([self.ack(message) for message in messages])

    @overload
    def process(self, message: ReceivedMessage, session: SomeSession) -> Processing: ...

    @overload
    def process(self, message: ReceivedMessage, session: SomeAsyncSession) -> AsyncProcessing: ...

    def process(self, message: ReceivedMessage, session: Any) -> Processing | AsyncProcessing:
        """Process a message once, in one transaction with its effects.

            with consumer.process(message, session) as first:
                if first: session.add(...)

        Leaving well commits the session and acknowledges. An exception rolls back, lets the message come again later
        (`retry`) and goes on to you. `first` is False when the group processed the message before: what the body does
        then is rolled back, so that even one that does not look at `first` does nothing twice. In the block commit(),
        rollback() and ack() raise TransactionError, at once or at its end, and so fail it; begin_nested() is free.
        The table is `broker.Processed`; make it once with `create_all`. Raises TransactionError for what is not a
        session, BrokerError for what is not a message that was received.
        """
        check_received("process", message)
        found: Any = session_of(session, "consumer.process(message, session)")
        kind = AsyncProcessing if is_async_session(found) else Processing
        return kind(self, message, found, self._in_process)

    def first_time(self, message: ReceivedMessage, session: SomeSession) -> bool:
        """Note in the session's transaction that the group processes a message; False when it did so before.

        For a transaction that is committed elsewhere, by `producer.begin_transaction` for one. Acknowledge after it.
        Its commit() raises TransactionError where the database took the note back for an error that was caught. Raises
        what `Processed.first_time` raises.
        """
        first = self.processed.first_time(session, self.group, message)
        if first:
            note_until_commit(sync_session_of(session, "first_time(...)"), self, message)
        return first

    @property
    def processed(self) -> Processed:
        """The table of what the group processed: the one given, or `broker.Processed()`."""
        if self._processed is None:
            from broker.database.dedup import Processed

            self._processed = Processed()
        return self._processed

    # The end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
