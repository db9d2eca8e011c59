"""Span attributes of a call and of an attempt: the one table of their names.

Most of them are OpenTelemetry's: the registry of the semantic conventions 1.44.0 has them all, those for generative AI
(`gen_ai.*`) with the note that they go on in a repository of their own (open-telemetry/semantic-conventions-genai),
where they are still called experimental. When they move, this file is all that has to. Names that begin with `gateway.`
are the gateway's own.

A call is one operation however often it is tried, so it bears what was used; an attempt below it is an HTTP request.
Tokens in both places would be counted twice. Prompts, answers and secrets are never attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.config import Route
from gateway.formats.table import FORMATS
from gateway.quota.pricing import usd
from gateway.records import Call, Endpoint, Record

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"

Value = str | int | float | bool
Attributes = Mapping[str, Value]

PROVIDER = "openai"
"""The provider of the API format, as the conventions require, not the provider that serves the call."""

BEGUN: Mapping[str, Callable[[Endpoint, str], Value | None]] = {
    "gen_ai.operation.name": lambda endpoint, _: FORMATS[endpoint].operation,
    "gen_ai.provider.name": lambda *_: PROVIDER,
    "http.request.method": lambda *_: "POST",
    "gateway.request_id": lambda _, request_id: request_id,
}
"""Known when a call comes in."""

RECORDED: Mapping[str, Callable[[Record], Value | None]] = {
    "gen_ai.request.model": lambda record: record.model,
    "gen_ai.request.stream": lambda record: record.stream,
    "gen_ai.response.model": lambda record: record.returned_model,
    "gen_ai.response.time_to_first_chunk": lambda record: record.first_byte_s if record.stream else None,
    "gen_ai.usage.input_tokens": lambda record: _used(record, record.usage.prompt_tokens),
    "gen_ai.usage.output_tokens": lambda record: _used(record, record.usage.completion_tokens),
    "gen_ai.usage.cache_read.input_tokens": lambda record: _used(record, record.usage.cached_tokens),
    "gen_ai.usage.reasoning.output_tokens": lambda record: _used(record, record.usage.reasoning_tokens),
    "http.response.status_code": lambda record: record.status,
    "gateway.key": lambda record: record.key,
    "gateway.team": lambda record: record.team,
    "gateway.upstream": lambda record: record.upstream or None,
    "gateway.attempts": lambda record: record.attempts,
    "gateway.ended": lambda record: record.ended,
    "gateway.truncated": lambda record: record.truncated,
    "gateway.usage_source": lambda record: record.usage.source,
    "gateway.cost_usd": lambda record: None if record.cost_nusd is None else usd(record.cost_nusd),
    "gateway.client_request_id": lambda record: record.client_request_id,
}
"""Known of a call that was carried, at its end."""

REFUSED = {
    "key": "gateway.key", "model": "gen_ai.request.model", "status": "http.response.status_code",
}  # fmt: skip
"""The attributes of a refused request, from the access line's fields. The model is a configured name, or `other`."""

TRIED: Mapping[str, Callable[[Call, Route, str, int, int], Value | None]] = {
    "gen_ai.operation.name": lambda call, *_: FORMATS[call.endpoint].operation,
    "gen_ai.provider.name": lambda *_: PROVIDER,
    "gen_ai.request.model": lambda call, route, *_: route.model or call.params.model,
    "http.request.method": lambda *_: "POST",
    "http.request.resend_count": lambda _call, _route, _host, _port, number: number - 1 or None,
    "server.address": lambda _call, _route, host, *_: host,
    "server.port": lambda _call, _route, _host, port, *_: port,
    "gateway.upstream": lambda _call, route, *_: route.upstream,
}
"""Known when an attempt begins: of the call, its route, the upstream's host and port, and its number among the
attempts."""

ASKED = "gateway.asked"
"""The name of another than an upstream that was asked about the call."""

STATUS, ERROR = "http.response.status_code", "error.type"
"""Known at the end of an attempt; ERROR is a fault (records.Fault), for a call the code of the error object."""


def name(attributes: Attributes) -> str:
    return f"{attributes['gen_ai.operation.name']} {attributes.get('gen_ai.request.model', '')}".rstrip()


def begun(endpoint: Endpoint, request_id: str) -> Attributes:
    return _known(BEGUN, endpoint, request_id)


def recorded(record: Record) -> Attributes:
    return _known(RECORDED, record)


def refused(fields: Mapping[str, Value | None]) -> Attributes:
    """Returns the attributes of a call that was refused, from the fields of its access line."""
    return {span: value for field, span in REFUSED.items() if (value := fields.get(field)) is not None}


def tried(call: Call, route: Route, host: str, port: int, number: int) -> Attributes:
    """Returns the attributes of an attempt that begins; `number` counts from 1."""
    return _known(TRIED, call, route, host, port, number)


def _known(table: Mapping[str, Callable[..., Value | None]], *facts: Any) -> dict[str, Value]:
    return {name: value for name, of in table.items() if (value := of(*facts)) is not None}


def _used(record: Record, tokens: int) -> int | None:
    return None if record.usage.source == "none" else tokens
