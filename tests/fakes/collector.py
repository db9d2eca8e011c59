"""A collector of OpenTelemetry: takes spans over HTTP as protobuf, and keeps them.

with Collector() as collector:
    ...                                                    # tracing: {endpoint: collector.url}
    call, *attempts = collector.trace(trace_id, 2)         # as soon as so many spans of this trace are there
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2 as sent

from .scripted import Scripted, Wire


class Span(NamedTuple):
    """One span, as far as tests look at it; ids in hex."""

    name: str
    trace: str
    id: str
    parent: str
    kind: str
    is_error: bool
    began_s: float
    duration_s: float
    attributes: dict[str, Any]
    resource: dict[str, Any]
    state: str


class Collector(Scripted):
    """See the head of the file."""

    def __init__(self) -> None:
        super().__init__(always=_take, prefix="")

    @property
    def spans(self) -> list[Span]:
        """All that has come, in the order in which they began."""
        return sorted([span for request in self.requests for span in spans_of(request.body)], key=lambda s: s.began_s)

    def trace(self, trace: str) -> list[Span]:
        """Those of one trace."""
        return [span for span in self.spans if span.trace == trace]


async def _take(wire: Wire) -> None:
    assert (wire.request.method, wire.request.path) == ("POST", "/v1/traces")
    assert wire.request.headers["content-type"] == "application/x-protobuf"
    await wire.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n")


def spans_of(body: bytes) -> Iterable[Span]:
    """The spans in one request."""
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _values(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Span(
                    span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                    sent.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    span.status.code == sent.Status.STATUS_CODE_ERROR,
                    span.start_time_unix_nano / 1e9,
                    (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    _values(span.attributes), resource, span.trace_state,
                )  # fmt: skip


def _values(attributes: Iterable[Any]) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
