"""Spans of what a consumer does: receive, process, ack, retry."""

from __future__ import annotations

import abc
import time
from types import TracebackType
from typing import Any

from broker.message import ReceivedMessage
from broker.receiving import Receiver
from broker.telemetry.spans import ACK, RECEIVE, RETRY, Spans, creation, fail_processing


class ObservedReceiver(Receiver, abc.ABC):
    """Mixed into a consumer's class, before it: `super()` is that class."""

    spans: Spans

    def receive_now(self) -> ReceivedMessage | None:
        """See Receiver; a look that finds nothing has no span."""
        begun_ns = time.time_ns()
        message = super().receive_now()  # type: ignore[safe-super] # the consumer's
        if message is not None:
            created = creation(message.properties)
            links = [] if created is None else [created]
            self.spans.past(RECEIVE, message.topic, attributes_of(message, self.group), links, begun_ns)
        return message

    def ack(self, message: ReceivedMessage) -> bool:
        """See Receiver."""
        with self.spans.settling(ACK, message.topic, message.properties, attributes_of(message, self.group)):
            return super().ack(message)  # type: ignore[safe-super]

    def retry(self, message: ReceivedMessage, *place: Any, **named: Any) -> bool:
        """See Receiver."""
        fail_processing(str(named.get("reason") or "sent back"))
        with self.spans.settling(RETRY, message.topic, message.properties, attributes_of(message, self.group)):
            return super().retry(message, *place, **named)  # type: ignore[safe-super]

    def process(self, message: ReceivedMessage, session: Any) -> Any:
        """See Receiver."""
        return ObservedProcessing(super().process(message, session), self.spans, message, self.group)


class ObservedProcessing:
    """`with consumer.process(message, session)`, in a span; or `async with`."""

    def __init__(self, inner: Any, spans: Spans, message: ReceivedMessage, group: str) -> None:
        self._inner = inner
        self._span = spans.process(message.topic, message.properties, attributes_of(message, group))

    def __enter__(self) -> bool:
        self._span.__enter__()
        try:
            return bool(self._inner.__enter__())
        except BaseException as error:
            self._span.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            swallowed = bool(self._inner.__exit__(kind, error, trace))
        except BaseException as raised:
            self._span.__exit__(type(raised), raised, raised.__traceback__)
            raise
        self._end(None if swallowed else error)
        return swallowed

    async def __aenter__(self) -> bool:
        self._span.__enter__()
        try:
            return bool(await self._inner.__aenter__())
        except BaseException as error:
            self._span.__exit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            swallowed = bool(await self._inner.__aexit__(kind, error, trace))
        except BaseException as raised:
            self._span.__exit__(type(raised), raised, raised.__traceback__)
            raise
        self._end(None if swallowed else error)
        return swallowed

    def _end(self, error: BaseException | None) -> None:
        try:
            self._span.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except BaseException as raised:
            if raised is not error:  # else the caller's `with` raises it
                raise


def attributes_of(message: ReceivedMessage, group: str) -> dict[str, Any]:
    """What all spans of a received message say."""
    return {
        "messaging.message.id": message.unique_key or message.message_id,
        "messaging.message.body.size": len(message.body),
        "messaging.destination.partition.id": str(message.queue_id),
        "messaging.consumer.group.name": group,
        "messaging.rocketmq.message.tag": message.tag,
        "messaging.rocketmq.message.keys": message.keys,
        "checkback.reconsume_times": message.reconsume_times or None,
    }
