"""The spans themselves: their names, kinds, attributes, parents and links, by the semantic conventions.

span                kind      parent                            link
send orders         PRODUCER  the current span                  -              its context goes with the message
commit orders       CLIENT    the current span, else `send`     send           also rollback, park; SERVER
                                                                               where a server does it for a client
receive orders      CLIENT    the current span                  send
process orders      CONSUMER  send                              send
ack orders          CLIENT    the current span, else `send`     send           also retry
store orders        SERVER    send                              -              in a server, of a client's message
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT = "traceparent"
SYSTEM = "rocketmq"
_propagator = TraceContextTextMapPropagator()
_processing: ContextVar[Span | None] = ContextVar("checkback_processing", default=None)


class SpanOperation(NamedTuple):
    """One kind of span."""

    name: str  # messaging.operation.name, and the begin of the span's name
    type: str  # messaging.operation.type
    kind: SpanKind


CREATE = SpanOperation("create", "create", SpanKind.PRODUCER)
SEND = SpanOperation("send", "send", SpanKind.PRODUCER)
SEND_ON = SpanOperation("send", "send", SpanKind.CLIENT)  # of messages that have a context before
COMMIT = SpanOperation("commit", "settle", SpanKind.CLIENT)
ROLLBACK = SpanOperation("rollback", "settle", SpanKind.CLIENT)
PARK = SpanOperation("park", "settle", SpanKind.CLIENT)
STORE = SpanOperation("store", "store", SpanKind.SERVER)
RECEIVE = SpanOperation("receive", "receive", SpanKind.CLIENT)
PROCESS = SpanOperation("process", "process", SpanKind.CONSUMER)
ACK = SpanOperation("ack", "settle", SpanKind.CLIENT)
RETRY = SpanOperation("retry", "settle", SpanKind.CLIENT)


class Spans:
    """Makes spans with one tracer. Threads share it."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextlib.contextmanager
    def span(
        self,
        operation: SpanOperation,
        topic: str,
        attributes: Mapping[str, Any],
        *,
        links: Sequence[SpanContext] = (),
        parent: Context | None = None,
    ) -> Iterator[Span]:
        """A span that is the current one in its block, and fails with it."""
        with self._tracer.start_as_current_span(
            f"{operation.name} {topic}", parent, operation.kind, _attributes(operation, topic, attributes),
            [Link(one) for one in links],
        ) as span:  # fmt: skip
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    def past(
        self,
        operation: SpanOperation,
        topic: str,
        attributes: Mapping[str, Any],
        links: Sequence[SpanContext],
        begun_ns: int,
        *,
        parent: SpanContext | None = None,
        error: str = "",
    ) -> None:
        """A span of something that is over, and failed if there is an error."""
        span = self._tracer.start_span(
            f"{operation.name} {topic}", None if parent is None else _context(parent), operation.kind,
            _attributes(operation, topic, attributes), [Link(one) for one in links], start_time=begun_ns,
        )  # fmt: skip
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end()

    @contextlib.contextmanager
    def settling(
        self, operation: SpanOperation, topic: str, properties: Mapping[str, str], attributes: Mapping[str, Any]
    ) -> Iterator[Span]:
        """The span of an end, an ack or a retry: in the current trace, else in that of the message."""
        created = creation(properties)
        links = [] if created is None else [created]
        parent = None if created is None or get_current_span().get_span_context().is_valid else _context(created)
        with self.span(operation, topic, attributes, links=links, parent=parent) as span:
            yield span

    @contextlib.contextmanager
    def process(self, topic: str, properties: Mapping[str, str], attributes: Mapping[str, Any]) -> Iterator[Span]:
        """The span in which a message is processed; it continues the trace of its send."""
        created = creation(properties)
        links = [] if created is None else [created]
        parent = None if created is None else _context(created)
        with self.span(PROCESS, topic, attributes, links=links, parent=parent) as span:
            token = _processing.set(span)
            try:
                yield span
            finally:
                _processing.reset(token)


def fail_processing(reason: str) -> None:
    """The message that is being processed goes back: its span has failed, whatever its handler's caller does."""
    span = _processing.get()
    if span is not None:
        span.set_status(Status(StatusCode.ERROR, reason))


def context_of(span: Span) -> dict[str, str]:
    """What a message carries of the span that made it."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, set_span_in_context(span))
    return carrier


def creation(properties: Mapping[str, str]) -> SpanContext | None:
    """The span that made a message; None when the message does not say."""
    if TRACEPARENT not in properties:
        return None
    found = get_current_span(_propagator.extract(properties, Context())).get_span_context()
    return found if found.is_valid else None


def _context(created: SpanContext) -> Context:
    from opentelemetry.trace import NonRecordingSpan

    return set_span_in_context(NonRecordingSpan(created), Context())


def _attributes(operation: SpanOperation, topic: str, more: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        "messaging.system": SYSTEM, "messaging.operation.name": operation.name,
        "messaging.operation.type": operation.type, "messaging.destination.name": topic,
    }  # fmt: skip
    return found | {name: value for name, value in more.items() if value not in (None, "", ())}
