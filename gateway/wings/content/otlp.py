"""A kept call as a span of OTLP, in protobuf. Pure.

The structures of messages are JSON in a text: attributes of spans have no structures yet (the conventions, "Recording
content on attributes"). Several requests, one behind the other, are one request: so protobuf joins messages
(protobuf.dev, "Encoding", on last one wins and merging).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from gateway import __version__

NAME = "completions-gateway"


def request_of(call: Mapping[str, Any]) -> bytes:
    """The request that exports a call (`digest.exported`)."""
    began = int(datetime.fromisoformat(call["time"]).timestamp() * 1e6) * 1000
    codes = Status.StatusCode
    span = Span(
        name=call["name"],
        trace_id=bytes.fromhex(call["trace_id"]),
        span_id=bytes.fromhex(call["span_id"]),
        kind=Span.SpanKind.SPAN_KIND_CLIENT,
        start_time_unix_nano=began,
        end_time_unix_nano=began + int(call["duration_s"] * 1e9),
        attributes=_attributes(call["attributes"]),
        status=Status(code=codes.STATUS_CODE_ERROR if call["is_error"] else codes.STATUS_CODE_UNSET),
    )
    scope = InstrumentationScope(name="gateway", version=__version__)
    resource = Resource(attributes=_attributes({"service.name": NAME, "service.version": __version__}))
    spans = ScopeSpans(scope=scope, spans=[span], schema_url=call["schema_url"])
    request = ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=resource, scope_spans=[spans])])
    return bytes(request.SerializeToString())


def _attributes(given: Mapping[str, Any]) -> Iterable[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in given.items()]


def _value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=_text(value))
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return AnyValue(array_value=ArrayValue(values=[_value(each) for each in value]))
    return AnyValue(string_value=_text(json.dumps(value, ensure_ascii=False)))


def _text(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON may have and UTF-8 has not."""
    return text.encode("utf-8", "replace").decode()
