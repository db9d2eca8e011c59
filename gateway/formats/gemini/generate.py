"""Gemini's native API: generateContent, streamGenerateContent, countTokens and models. Embeddings are in
`embeddings.py`.

Sources: Google's API reference ("Generating content", "Counting tokens", "Models"), its error model (google.rpc.Status,
error_details.proto) and its official SDK, google-genai.

A stream is always asked for as events (`alt=sse`). A client that did not ask for events gets them as one JSON array.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from pydantic import Field

from gateway.config import Capabilities, Route
from gateway.errors import GatewayError, InvalidRequest, QuotaSpent
from gateway.formats import gathered
from gateway.formats.format import AnswerMembers, Format, PlainFacts, Scan, counted, no_usage
from gateway.formats.member_reader import EACH, LongAnswer
from gateway.formats.reader import objects
from gateway.records import Call, Endpoint, Usage

from . import reader, request

_STATUSES: Mapping[int, str] = {
    401: "UNAUTHENTICATED", 402: "FAILED_PRECONDITION", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    405: "UNIMPLEMENTED", 408: "DEADLINE_EXCEEDED", 409: "ABORTED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL",
    504: "DEADLINE_EXCEEDED",
}  # fmt: skip
"""Names of errors by their status; else `INVALID_ARGUMENT` below 500 and `UNAVAILABLE` from there."""

_DETAIL = "type.googleapis.com/google.rpc."


def status_of(status: int) -> str:
    return _STATUSES.get(status) or ("INVALID_ARGUMENT" if status < 500 else "UNAVAILABLE")


def error_body(error: GatewayError, request_id: str) -> bytes:
    """Google's error object. The gateway's code is the reason of its `ErrorInfo`."""
    fields = {
        "code": error.status,
        "message": error.message,
        "status": status_of(error.status),
        "details": list(_details(error, request_id)),
    }
    return json.dumps({"error": fields}, ensure_ascii=False).encode("utf-8", "replace")


def _details(error: GatewayError, request_id: str) -> Iterator[dict[str, Any]]:
    """The details that Google's clients read. A spent quota is reported as one of a day, because they do not try again
    then."""
    yield {"@type": f"{_DETAIL}ErrorInfo", "reason": error.name.upper(), "domain": "gateway"}
    yield {"@type": f"{_DETAIL}RequestInfo", "requestId": request_id}
    if error.param is not None:
        fault = {"field": error.param, "description": error.message}
        yield {"@type": f"{_DETAIL}BadRequest", "fieldViolations": [fault]}
    if isinstance(error, QuotaSpent):
        spent = {"subject": "key", "description": error.message, "quotaId": "GatewayQuotaPerDay"}
        yield {"@type": f"{_DETAIL}QuotaFailure", "violations": [spent]}
    elif (ms := error.headers.get("Retry-After-Ms")) is not None:
        yield {"@type": f"{_DETAIL}RetryInfo", "retryDelay": f"{int(ms) / 1000:g}s"}


def error_event(error: GatewayError, scan: Scan | None, request_id: str) -> bytes | None:
    """The chunk that ends a stream with an error. Without a scan nothing is known of what the client has."""
    return None if scan is None else reader.chunk(error_body(error, request_id))


# ------------------------------------------------------------------------------------------------------- the models

DEFAULT_PAGE, MAX_PAGE = 50, 1000
"""Models of one page of the list."""


_METHODS: Mapping[Endpoint, tuple[str, ...]] = {
    "generate_content": ("generateContent", "countTokens"),
    "embed_content": ("embedContent",),
}
"""Google's names of the methods of a model, by the endpoints that serve them."""


def show_model(name: str, endpoints: Collection[Endpoint]) -> dict[str, Any]:
    methods = [method for endpoint, methods in _METHODS.items() if endpoint in endpoints for method in methods]
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}


def list_models(served: Mapping[str, Collection[Endpoint]], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of these models (`pageSize`, `pageToken`). Raises `InvalidRequest` for a wrong one."""
    size = _number(query, "pageSize", DEFAULT_PAGE)
    start = _number(query, "pageToken", 0)
    page = list(served.items())[start : start + min(size or DEFAULT_PAGE, MAX_PAGE)]
    end = start + len(page)
    more = {"nextPageToken": str(end)} if end < len(served) else {}
    return {"models": [show_model(name, endpoints) for name, endpoints in page], **more}


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    given = query.get(name) or str(default)
    if not (given.isascii() and given.isdecimal() and len(given) < 8):
        raise InvalidRequest(f"Invalid value for '{name}'. It has to be a number.", param=name, code="invalid_value")
    return int(given)


class GeminiAnswer(AnswerMembers):
    model: Any = Field(None, validation_alias="modelVersion")
    usage: Any = Field(None, validation_alias="usageMetadata")
    candidates: Any = None


def _facts(body: bytes) -> PlainFacts:
    answer = GeminiAnswer.read(body)
    read = {"candidates": answer.candidates, "modelVersion": answer.model, "usageMetadata": answer.usage}
    return answer.facts(reader.GeminiReader().facts(read), has_output=bool(objects(answer.candidates)))


def _as_events(answer: bytes, shows_usage: bool, charged: Usage) -> bytes:
    return reader.chunk(answer)


_WANTED = (*reader.GeminiReader.WANTED, ("type",), ("success",), ("candidates", EACH))


# -------------------------------------------------------------------------------------------------------- the formats


def _changes(call: Call, route: Route, capabilities: Capabilities, added_limit: int | None) -> dict[str, Any]:
    """The configuration with an output limit, where one has to be added."""
    if added_limit is None:
        return {}
    members = call.params.document.members
    name = request.name_in(members, request.CONFIG)
    config = members.get(name) or {}
    return {name: config | {request.name_in(config, "maxOutputTokens"): added_limit}}


def _count_renamed(members: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The request whose tokens are counted names its model too."""
    name = request.name_in(members, request.COUNTED)
    return {name: asked | {"model": f"models/{model}"}} if isinstance(asked := members.get(name), dict) else {}


def _paths(method: str) -> tuple[str, str]:
    """Google's own address, and the one that google-genai uses with a base URL of another host."""
    return f"/v1beta/models/{{model}}:{method}", f"/v1/models/{{model}}:{method}"


def method(name: str) -> dict[str, Any]:
    """The fields that the formats of Google's methods have in common, and the paths of one."""
    path, other_path = _paths(name)
    return {
        "path": path,
        "more_paths": (other_path,),
        "upstream_path": f"/models/{{model}}:{name}",
        "has_model_in_path": True,
        "error_body": error_body,
        "error_event": error_event,
        "request_headers": frozenset({"x-goog-api-client"}),
        "query_key": "key",
    }


GENERATE_CONTENT = Format(
    name="generate_content",
    **method("generateContent"),
    stream_paths=_paths("streamGenerateContent"),
    upstream_stream_path="/models/{model}:streamGenerateContent?alt=sse",
    operation="generate_content",
    read=request.read,
    keeps=request.config_names,
    facts=_facts,
    usage=reader.reported,
    tier_header=reader.TIER_HEADER,
    scan=reader.GeminiScan,
    gather=partial(gathered.whole, gathered.GatheredContent),
    long_reader=lambda: LongAnswer(_facts, _WANTED),
    framing=lambda query: None if "sse" in (query.get("alt"), query.get("$alt")) else reader.Items(),
    as_events=_as_events,
    streams_only_events=True,
    changes=_changes,
    texts=reader.TEXT,
    media=reader.MEDIA,
    may_reason=True,
    error_keeps_status=True,
    keepalive=b"",
    unserved_paths=("/v1beta",),
    list_models=list_models,
    show_model=show_model,
    listed=frozenset(_METHODS),
    client_header="x-goog-api-key",
)

COUNT_CONTENT_TOKENS = Format(
    name="count_content_tokens",
    **method("countTokens"),
    operation="count_tokens",
    is_optional=True,
    read=request.read_count,
    facts=counted,
    usage=no_usage,
    rename=_count_renamed,
)
