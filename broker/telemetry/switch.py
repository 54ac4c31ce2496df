"""Switch telemetry on and off, and send its spans to a collector."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from broker import observing
from broker.errors import BrokerError
from broker.message import ReceivedMessage
from broker.producing.destination import Destination
from broker.receiving import Receiver
from broker.transaction.service import Half, HalfMessageService, LocalTransactionState

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import TracerProvider as AnyProvider

    from broker.telemetry.spans import Spans

_SCOPE = "checkback"
_HOST = re.compile(r"[^\s/?#]+")
_Receiver = TypeVar("_Receiver", bound=Receiver)
_Service = TypeVar("_Service", bound=HalfMessageService)


class Tracing:
    """Implements `broker.observing.MessageObserver` with OpenTelemetry."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._kinds: dict[type[Receiver], type[Receiver]] = {}

    def destination(self, inner: Destination, producer_group: str) -> Destination:
        from broker.telemetry.sending import ObservedDestination

        return ObservedDestination(inner, producer_group, self._spans)

    def ending(self, inner: _Service, *, for_client: bool) -> _Service:
        from broker.telemetry.sending import ObservedEnds, ServedEnds

        return cast(_Service, (ServedEnds if for_client else ObservedEnds)(inner, self._spans))

    def answering(self, half: Half, decision: LocalTransactionState) -> contextlib.AbstractContextManager[object]:
        from broker.telemetry.sending import span_of_answer

        return span_of_answer(half, decision, self._spans)

    def receiver(self, kind: type[_Receiver]) -> type[_Receiver]:
        from broker.telemetry.receiving import ObservedReceiver

        known = self._kinds.get(kind)
        if known is None:
            known = type(f"Observed{kind.__name__}", (ObservedReceiver, kind), {"spans": self._spans})
            self._kinds[kind] = known
        return cast("type[_Receiver]", known)

    def stored(self, message: observing.StoredForClient) -> None:
        from broker.telemetry.sending import span_of_store

        span_of_store(message, self._spans)

    def handling(self, run: observing.Run, consumer_group: str) -> observing.Run:
        def observed(message: ReceivedMessage) -> None:
            with self.processing(message, consumer_group):
                run(message)

        return observed

    @contextlib.contextmanager
    def processing(self, message: ReceivedMessage, consumer_group: str) -> Iterator[None]:
        from broker.telemetry.receiving import attributes_of

        with self._spans.process(message.topic, message.properties, attributes_of(message, consumer_group)):
            yield


_tracing: Tracing | None = None


def switch_on(tracer_provider: AnyProvider | None = None) -> None:
    """Give producers, consumers and check-backs that are made from now on their spans, and the requests of servers.

    `tracer_provider` is the application's; by default the one that it set globally. Switching on twice changes nothing
    but the provider. Raises BrokerError when OpenTelemetry is not installed.
    """
    global _tracing  # noqa: PLW0603 - one for the process
    try:
        from opentelemetry import trace

        from broker.telemetry.spans import Spans
    except ModuleNotFoundError as error:
        raise BrokerError(f"telemetry needs {error.name}: install checkback with its extra 'telemetry'") from None
    _tracing = Tracing(Spans(trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)))
    observing.observe(_tracing)


def switch_off() -> None:
    """What is made from now on has no spans."""
    global _tracing  # noqa: PLW0603
    _tracing = None
    observing.observe(None)


@contextlib.contextmanager
def processing(message: ReceivedMessage, consumer_group: str = "") -> Iterator[None]:
    """A `process` span around what a loop of the application's own does with a message; nothing when switched off.

    `consumer.process(message, session)` and the handlers of a `broker.App` have theirs.
    """
    if _tracing is None:
        yield
        return
    with _tracing.processing(message, consumer_group):
        yield


def export_to(url: str, *, service: str) -> Callable[[], None]:
    """Switch on, and send the spans to an OTLP collector over HTTP: `http://127.0.0.1:4318`.

    Returns what flushes and ends it; it is also called at the process's exit. A collector that does not answer costs
    its spans, and the end of the process 10 s (OTEL_EXPORTER_OTLP_TIMEOUT); it delays nothing else. Raises BrokerError
    for an address that is none, or without OpenTelemetry's SDK.
    """
    if not _is_address(url):
        raise BrokerError(f"{url!r} is not the address of an OTLP collector, such as http://127.0.0.1:4318")
    provider = _provider(url, service)
    switch_on(provider)

    def close() -> None:
        switch_off()
        provider.shutdown()

    return close


def _is_address(url: str) -> bool:
    """Whether a URL names a host, and no port that cannot be: the exporter would say so at the end, when spans go."""
    try:
        parts = urlsplit(url)
        is_host = _HOST.fullmatch(parts.hostname or "") is not None
        return parts.scheme in ("http", "https") and is_host and parts.port != 0
    except ValueError:  # a port that is not a number, or above 65535
        return False


def _provider(url: str, service: str) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider as Provider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise BrokerError(f"telemetry needs {error.name}: install checkback with its extra 'telemetry'") from None
    provider = Provider(resource=Resource.create({"service.name": service}))
    exporter: Any = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
