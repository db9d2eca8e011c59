"""Traces: a span for each call, and one below it for each attempt at an upstream, and for others that are asked about
the call; OpenTelemetry, where it is wanted.

The packages are those of the extra `otel`. Without `tracing.endpoint` nothing of them is imported, a call has
`NO_TRACE`, which does nothing, and the client's trace headers go to the upstream untouched. With it, the client's
`traceparent` (W3C Trace Context) is continued with its sampling decision, and the upstream gets the attempt's span as
parent.

Spans wait in a queue of bounded length for a thread that sends them (OTLP over HTTP). A collector that is slow or away
costs spans, never a call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from multidict import MultiMapping

from gateway import __version__
from gateway.config import Route, TracingSettings
from gateway.records import Call, Endpoint, Record

from . import span_attributes

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Span

MAX_WAITING = 8192
"""Spans of a worker that wait for the collector; beyond, the oldest are lost."""
SEND_EVERY_S = 1.0
SEND_WITHIN_S = 5.0
CLOSE_WITHIN_S = 2.0

CLIENT_GONE = "client_gone"
"""The end of an attempt whose client left: not an error."""
HEDGED = "hedged"
"""The end of an attempt that was stopped because another route answered: not an error."""

Kind = TypeVar("Kind", bound="Trace")

PARENT, STATE = "traceparent", "tracestate"


class AttemptSpan:
    """The span of one attempt. Has to be ended. This one is not exported."""

    def ended(self, status: int | None, error: str | None) -> None:
        """`status` is the upstream's, where it gave one; `error` what went wrong."""


class Trace:
    """The span of one call. Has to be ended, once, by `recorded` or `refused`. This one is not exported."""

    id: str | None = None
    """Trace id in the form of the access line."""

    def attempt(self, call: Call, route: Route, url: str, number: int) -> tuple[Call, AttemptSpan]:
        """Begin the span of an attempt at the upstream with this address; `number` counts from 1. Returns also the call
        as it is sent: with that span as the upstream's parent."""
        return call, NO_SPAN

    def ask(self, whom: str) -> AttemptSpan:
        """Begin the span of a question about the call to another than an upstream, which has this name."""
        return NO_SPAN

    def recorded(self, record: Record, error: str | None) -> None:
        """The call has ended, and this is its record; `error` is the code that the client got, if any."""

    def refused(self, fields: Mapping[str, span_attributes.Value | None], error: str | None, status: int) -> None:
        """The call was not carried, and these are the fields of its access line."""

    def within(self, kind: type[Kind]) -> Kind | None:
        """This trace, or one that it passes everything on to, of this kind."""
        return self if isinstance(self, kind) else None


class PassingTrace(Trace):
    """The trace of a wing, which passes everything on to the trace before it."""

    def __init__(self, before: Trace) -> None:
        self._before = before
        self.id = before.id

    def attempt(self, call: Call, route: Route, url: str, number: int) -> tuple[Call, AttemptSpan]:
        return self._before.attempt(call, route, url, number)

    def ask(self, whom: str) -> AttemptSpan:
        return self._before.ask(whom)

    def recorded(self, record: Record, error: str | None) -> None:
        self._before.recorded(record, error)

    def refused(self, fields: Mapping[str, span_attributes.Value | None], error: str | None, status: int) -> None:
        self._before.refused(fields, error, status)

    def within(self, kind: type[Kind]) -> Kind | None:
        return super().within(kind) or self._before.within(kind)


class Tracer:
    """Makes the spans of one worker. `close` it, or the last ones are lost. This one exports none."""

    def begin(self, endpoint: Endpoint, request_id: str, headers: MultiMapping[str]) -> Trace:
        """Begin the span of a call, whose client sent these headers, among them those of W3C Trace Context.

        More than one `traceparent` counts as none. An unreadable one begins a new trace, without the client's state.
        """
        return NO_TRACE

    async def close(self) -> None:
        """Send waiting spans for a short time: a silent collector must not delay the end of the process."""


NO_SPAN, NO_TRACE, NO_TRACER = AttemptSpan(), Trace(), Tracer()


class _ExportedSpan(AttemptSpan):
    def __init__(self, tracer: OpenTelemetryTracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    def ended(self, status: int | None, error: str | None) -> None:
        if status is not None:
            self._span.set_attribute(span_attributes.STATUS, status)
        self._tracer.end(self._span, error, is_failure=error not in (None, CLIENT_GONE, HEDGED))


class _ExportedTrace(Trace):
    def __init__(
        self, tracer: OpenTelemetryTracer, span: Span, context: Context, begun: span_attributes.Attributes
    ) -> None:
        self._tracer = tracer
        self._span = span
        self._context = context
        self._begun = begun
        self.id = f"{span.get_span_context().trace_id:032x}"

    def attempt(self, call: Call, route: Route, url: str, number: int) -> tuple[Call, AttemptSpan]:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        attributes = span_attributes.tried(call, route, parts.hostname or "", port, number)
        span, headers = self._tracer.begin_attempt(attributes, self._context)
        kept = [(name, value) for name, value in call.forwarded_headers if name.lower() not in (PARENT, STATE)]
        return call._replace(forwarded_headers=(*kept, *headers.items())), _ExportedSpan(self._tracer, span)

    def ask(self, whom: str) -> AttemptSpan:
        return _ExportedSpan(self._tracer, self._tracer.begin_question(whom, self._context))

    def recorded(self, record: Record, error: str | None) -> None:
        self._end(span_attributes.recorded(record), error, record.status)

    def refused(self, fields: Mapping[str, span_attributes.Value | None], error: str | None, status: int) -> None:
        self._end(span_attributes.refused(fields), error, status)

    def _end(self, attributes: span_attributes.Attributes, error: str | None, status: int) -> None:
        self._span.update_name(span_attributes.name({**self._begun, **attributes}))
        self._span.set_attributes(attributes)
        # A server's span has an error status for its own failures only, not for the client's faults.
        self._tracer.end(self._span, error, is_failure=status >= 500)


class OpenTelemetryTracer(Tracer):
    """Sends them to a collector. Making one loads the packages, which takes half a second."""

    def __init__(self, settings: TracingSettings) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        exporter = OTLPSpanExporter(settings.address, headers=headers, timeout=SEND_WITHIN_S)
        self._provider = TracerProvider(
            resource=_named(Resource.create({"service.version": __version__})),
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, MAX_WAITING, SEND_EVERY_S * 1000))
        self._tracer = self._provider.get_tracer("gateway", __version__, schema_url=span_attributes.SCHEMA)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace
        self._no_context = Context()

    def begin(self, endpoint: Endpoint, request_id: str, headers: MultiMapping[str]) -> Trace:
        parents, states = headers.getall(PARENT, []), headers.getall(STATE, [])
        given = {PARENT: [*parents], STATE: [*states]} if len(parents) == 1 else {}
        parent = self._propagator.extract(given, self._no_context)
        begun = span_attributes.begun(endpoint, request_id)
        span = self._tracer.start_span(span_attributes.name(begun), parent, self._trace.SpanKind.SERVER, begun)
        return _ExportedTrace(self, span, self._trace.set_span_in_context(span, parent), begun)

    def begin_attempt(self, attributes: span_attributes.Attributes, context: Context) -> tuple[Span, dict[str, str]]:
        """Begin a span below its call's span, which has this context. Returns it, and the headers that name it as a
        parent."""
        span = self._tracer.start_span(
            span_attributes.name(attributes), context, self._trace.SpanKind.CLIENT, attributes
        )
        fields: dict[str, str] = {}
        self._propagator.inject(fields, self._trace.set_span_in_context(span, context))
        return span, fields

    def begin_question(self, whom: str, context: Context) -> Span:
        """Begin such a span below its call's span."""
        return self._tracer.start_span(whom, context, self._trace.SpanKind.CLIENT, {span_attributes.ASKED: whom})

    def end(self, span: Span, error: str | None, *, is_failure: bool) -> None:
        """End a span; `error` is the name of its error, if it has one."""
        if error is not None:
            span.set_attribute(span_attributes.ERROR, error)
        if is_failure:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    async def close(self) -> None:
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, CLOSE_WITHIN_S)


def open_tracer(settings: TracingSettings) -> Tracer:
    return NO_TRACER if settings.endpoint is None else OpenTelemetryTracer(settings)


def _named(resource: Resource) -> Resource:
    """Returns the resource with the gateway's name if the environment sets none (OTEL_SERVICE_NAME,
    OTEL_RESOURCE_ATTRIBUTES)."""
    is_named = not str(resource.attributes["service.name"]).startswith("unknown_service")
    return resource if is_named else resource.merge(type(resource)({"service.name": "completions-gateway"}))
