"""Spans of what a producer does: send, and the ends of its half messages."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentelemetry.trace import SpanKind

from broker.database.bound_ledger import BoundLedger
from broker.format import properties as names
from broker.message import Message
from broker.observing import StoredForClient
from broker.producing.destination import Destination, SendResult
from broker.telemetry.spans import (
    COMMIT,
    CREATE,
    PARK,
    ROLLBACK,
    SEND,
    SEND_ON,
    STORE,
    TRACEPARENT,
    SpanOperation,
    Spans,
    context_of,
    creation,
)  # fmt: skip
from broker.transaction.events import BY
from broker.transaction.service import Ended, Half, HalfMessageService, LocalTransactionState

_ANSWERS = {LocalTransactionState.COMMIT_MESSAGE: COMMIT, LocalTransactionState.ROLLBACK_MESSAGE: ROLLBACK}
_BY_CHECK = "a check of its broker"


class ObservedDestination(Destination):
    """Another destination, with a span around each send; the message carries the span's context."""

    def __init__(self, inner: Destination, producer_group: str, spans: Spans) -> None:
        self._inner, self._group, self._spans = inner, producer_group, spans
        self._ends: ObservedEnds | None = None

    @property
    def prepare_waits(self) -> bool:
        return self._inner.prepare_waits

    @property
    def store_id(self) -> str:
        return self._inner.store_id

    @property
    def transactions(self) -> HalfMessageService:
        if self._ends is None:  # one object: messages of one service share a branch
            self._ends = ObservedEnds(self._inner.transactions, self._spans)
        return self._ends

    def open_plain(self) -> None:
        self._inner.open_plain()

    def open_transactional(self, topics: frozenset[str], ledger: BoundLedger | None, resolver: Any) -> None:
        self._inner.open_transactional(topics, ledger, resolver)

    def send(self, message: Message, extra_properties: Mapping[str, str], sharding_key: str | None) -> SendResult:
        kind = "fifo" if sharding_key is not None else "delay" if _is_delayed(extra_properties) else "normal"
        operation, links = _of(message)
        with self._spans.span(operation, message.topic, self._attributes(message, kind), links=links) as span:
            extra = {**extra_properties, **({} if links else context_of(span))}
            sent = self._inner.send(message, extra, sharding_key)
            span.set_attribute("messaging.message.id", sent.unique_key or sent.message_id)
            span.set_attribute("messaging.destination.partition.id", str(sent.queue_id))
            return sent

    def send_batch(self, messages: Sequence[Message]) -> list[SendResult]:
        topic, created, outgoing = messages[0].topic if messages else "", [], []
        for message in messages:
            known = creation(message.properties)
            if known is None:
                with self._spans.span(CREATE, topic, self._attributes(message, "normal")) as span:
                    message = replace(message, properties={**message.properties, **context_of(span)})
                    known = span.get_span_context()
            created.append(known)
            outgoing.append(message)
        attributes = {"messaging.batch.message_count": len(messages), "checkback.producer_group": self._group}
        with self._spans.span(SEND_ON, topic, attributes, links=created):
            return self._inner.send_batch(outgoing)

    def prepare(
        self, message: Message, extra_properties: Mapping[str, str], sharding_key: str | None, *, wait: bool
    ) -> Half:
        operation, links = _of(message)
        with self._spans.span(operation, message.topic, self._attributes(message, "transaction"), links=links) as span:
            extra = {**extra_properties, **({} if links else context_of(span))}
            half = self._inner.prepare(message, extra, sharding_key, wait=wait)
            span.set_attribute("messaging.message.id", half.unique_key or half.message_id)
            span.set_attribute("messaging.destination.partition.id", str(half.queue_id))
            return half

    def _attributes(self, message: Message, kind: str) -> dict[str, Any]:
        return {
            "messaging.message.body.size": len(message.body), "messaging.rocketmq.message.type": kind,
            "messaging.rocketmq.message.tag": message.tag, "messaging.rocketmq.message.keys": tuple(message.keys),
            "checkback.producer_group": self._group,
        }  # fmt: skip


class ObservedEnds(HalfMessageService):
    """Another service, with a span around each end. What it has besides is the other's."""

    kind = SpanKind.CLIENT

    def __init__(self, inner: HalfMessageService, spans: Spans) -> None:
        self._inner, self._spans = inner, spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin_flush(self, half: Half) -> bool:
        return self._inner.begin_flush(half)

    def wait_durable(self, half: Half) -> None:
        self._inner.wait_durable(half)

    def commit(self, half: Half, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        with self._span(COMMIT, half, extra_properties):
            return self._inner.commit(half, extra_properties=extra_properties)

    def rollback(self, half: Half, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        with self._span(ROLLBACK, half, extra_properties):
            return self._inner.rollback(half, extra_properties=extra_properties)

    def park(self, half: Half, why: str) -> bool:
        with self._span(PARK, half, {}):
            return self._inner.park(half, why)

    def _span(
        self, operation: SpanOperation, half: Half, extra: Mapping[str, str] | None
    ) -> contextlib.AbstractContextManager[object]:
        operation = operation._replace(kind=self.kind)
        return self._spans.settling(operation, half.topic, half.properties, _of_half(half, extra))


class ServedEnds(ObservedEnds):
    """Those that a server makes at the requests of clients, which have spans of their own around them."""

    kind = SpanKind.SERVER


def span_of_answer(
    half: Half, decision: LocalTransactionState, spans: Spans
) -> contextlib.AbstractContextManager[object]:
    """The span of the end that answers a check of a cluster's broker; none for "unknown", which ends nothing."""
    operation = _ANSWERS.get(decision)
    if operation is None:
        return contextlib.nullcontext()
    return spans.settling(operation, half.topic, half.properties, _of_half(half, {BY: _BY_CHECK}))


def span_of_store(message: StoredForClient, spans: Spans) -> None:
    """The span of what a server did for a message that a traced client sent; none for a message without a context."""
    created = creation(message.properties)
    if created is None:
        return
    attributes = {
        "messaging.message.id": message.properties.get(names.UNIQ_KEY, ""),
        "messaging.destination.partition.id": str(message.queue_id),
        "messaging.message.body.size": message.body_size,
        "messaging.rocketmq.message.tag": message.properties.get(names.TAGS, ""),
        "messaging.rocketmq.message.keys": tuple(message.properties.get(names.KEYS, "").split()),
        "checkback.producer_group": message.producer_group,
    }
    spans.past(STORE, message.topic, attributes, (), message.begun_ns, parent=created, error=message.error)


def _of(message: Message) -> tuple[SpanOperation, list[Any]]:
    """A message that brings a context of its own was created elsewhere: its send links to that."""
    known = creation(message.properties) if TRACEPARENT in message.properties else None
    return (SEND, []) if known is None else (SEND_ON, [known])


def _is_delayed(properties: Mapping[str, str]) -> bool:
    return names.DELAY in properties or names.TIMER_DELIVER_MS in properties


def _of_half(half: Half, extra: Mapping[str, str] | None) -> dict[str, Any]:
    return {
        "messaging.message.id": half.unique_key or half.message_id,
        "messaging.destination.partition.id": str(half.queue_id),
        "messaging.rocketmq.message.keys": half.keys,
        "checkback.producer_group": half.producer_group,
        "checkback.decided_by": (extra or {}).get(BY, ""),
    }
