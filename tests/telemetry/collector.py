"""A collector of OpenTelemetry: an OTLP/HTTP endpoint that decodes the real protobuf."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

KEYS = "messaging.rocketmq.message.keys"


@dataclass(frozen=True)
class Seen:
    """One span, as it arrived."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[tuple[str, str], ...]  # trace id and span id of each
    attributes: dict[str, Any]
    error: str | None  # None: the span has not failed

    @property
    def place(self) -> tuple[str, str]:
        return self.trace_id, self.span_id


class Collector:
    """Listens on a port of its own; `spans` are those that arrived."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        spans = self.spans

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                spans.extend(_decoded(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def named(self, name: str) -> list[Seen]:
        return [one for one in self.spans if one.name == name]

    def of(self, key: int) -> dict[str, Seen]:
        """The spans of the messages with a key, the last of each name."""
        return {one.name: one for one in self.spans if one.attributes.get(KEYS) == [str(key)]}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _decoded(body: bytes) -> Sequence[Seen]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Seen(
            service=_values(resource.resource.attributes)["service.name"],
            name=span.name,
            kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            links=tuple([(link.trace_id.hex(), link.span_id.hex()) for link in span.links]),
            attributes=_values(span.attributes),
            error=span.status.message if span.status.code == Status.STATUS_CODE_ERROR else None,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        if scope.scope.name in ("checkback", "shop")
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
