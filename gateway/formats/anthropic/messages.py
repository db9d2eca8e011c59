"""Anthropic's Messages API: messages, and the count of their tokens.

Sources: Anthropic's API reference ("Messages", "Errors", "Rate limits") and its official SDK.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from gateway.api import other_models
from gateway.config import Capabilities, Route
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats import gathered, sse
from gateway.formats.event_scan import parsed
from gateway.formats.format import AnswerMembers, Format, PlainFacts, Scan, counted, no_usage
from gateway.quota.limit_headers import anthropic_headers
from gateway.records import Call, Endpoint, Usage

from . import request as messages_request
from .reader import TEXT, MessagesReader, MessagesScan, reported

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Types of errors by their status; else `invalid_request_error` below 500 and `api_error` from there."""


OVERLOADED = 529
"""Anthropic's status for an API that is temporarily overloaded."""


def type_of(status: int) -> str:
    return _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def _error(error: GatewayError, request_id: str) -> dict[str, Any]:
    """Anthropic's error object. The gateway's code is in `error.details.error_code`, where the SDK shows it.

    The message of an unknown model begins with `model:`, by which Claude Code knows it.
    """
    message = error.message
    if error.status == 404 and (error.param == "model" or error.code == "model_not_found"):
        message = f"model: {message}"
    fields: dict[str, Any] = {"type": type_of(error.status), "message": message}
    if error.code is not None:
        fields["details"] = {"error_code": error.code}
    return {"type": "error", "error": fields, "request_id": request_id}


def error_body(error: GatewayError, request_id: str) -> bytes:
    return json.dumps(_error(error, request_id), ensure_ascii=False).encode("utf-8", "replace")


def error_event(error: GatewayError, scan: Scan | None, request_id: str) -> bytes:
    return sse.typed_event(_error(error, request_id))


# ------------------------------------------------------------------------------------------------------- the models

DEFAULT_PAGE, MAX_PAGE = 20, 1000
"""Models of one page of the list."""


def show_model(name: str, endpoints: Collection[Endpoint] = ()) -> dict[str, str]:
    """One model (anthropic-sdk, ModelInfo). The gateway does not know when it was made; it can be called."""
    return {
        "type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active",
    }  # fmt: skip


def list_models(served: Mapping[str, Collection[Endpoint]], query: Mapping[str, str]) -> dict[str, Any]:
    """A page of these models (`limit`, `after_id`, `before_id`). Raises `InvalidRequest` for a wrong limit."""
    given = query.get("limit", str(DEFAULT_PAGE))
    limit = int(given) if given.isdecimal() and len(given) < 5 else 0
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"limit: Input should be a number from 1 to {MAX_PAGE}", param="limit")
    left = list(served)
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None and after in left:
        left = left[left.index(after) + 1 :]
    is_backwards = before is not None and before in left
    if before is not None and is_backwards:
        left = left[: left.index(before)]
    page = left[-limit:] if is_backwards else left[:limit]
    return {
        "data": [show_model(name) for name in page],
        "has_more": len(left) > len(page),
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }


def _facts(body: bytes) -> PlainFacts:
    answer = AnswerMembers.read(body)
    return answer.facts(MessagesReader().facts(vars(answer)), has_output=b'"content"' in body)


def _as_events(answer: bytes, shows_usage: bool, charged: Usage) -> bytes:
    message = parsed(answer) or {}  # none of a number of thousands of digits
    return b"".join(map(sse.typed_event, _events_of(message)))


def _events_of(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    blocks = message.get("content")
    usage = message.get("usage")
    opening = message | {"content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": opening}
    for index, block in enumerate(blocks if isinstance(blocks, list) else []):
        if isinstance(block, dict):
            yield from _block_events(index, block)
    delta = {name: message.get(name) for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": delta, "usage": usage if isinstance(usage, dict) else {}}
    yield {"type": "message_stop"}


def _block_events(index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = block.get("type")
    texts = {"text": ("text",), "thinking": ("thinking", "signature")}.get(str(kind), ())
    start = block | dict.fromkeys(texts, "")
    deltas = [{"type": f"{name}_delta", name: block.get(name) or ""} for name in texts]
    if kind in ("tool_use", "server_tool_use"):
        start = block | {"input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block.get("input"), ensure_ascii=False)}]
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


# -------------------------------------------------------------------------------------------------------- the formats


def _changes(call: Call, route: Route, capabilities: Capabilities, added_limit: int | None) -> dict[str, Any]:
    return other_models.changes(call, route, messages_request.WITH_MODELS) if call.other_models else {}


ANTHROPIC_FORMAT = partial(
    Format,
    error_body=error_body,
    error_event=error_event,
    rate_headers=anthropic_headers,
    passes_query=True,
    request_headers=frozenset({"anthropic-version", "anthropic-beta"}),
    id_header="request-id",
)

MESSAGES = ANTHROPIC_FORMAT(
    name="messages",
    path="/v1/messages",
    operation="chat",
    read=partial(messages_request.read, messages_request.MESSAGES),
    facts=_facts,
    usage=reported,
    scan=MessagesScan,
    reader=MessagesReader,
    gather=partial(gathered.whole, gathered.GatheredMessage),
    streams_only_events=True,
    as_events=_as_events,
    changes=_changes,
    keeps=other_models.keeping(*messages_request.WITH_MODELS),
    limit_fields=("max_tokens",),
    texts=TEXT,
    may_reason=True,
    passed_statuses=frozenset({OVERLOADED}),
    keepalive=b'event: ping\ndata: {"type": "ping"}\n\n',
    unserved_paths=("/v1/complete", "/v1/skills"),
    list_models=list_models,
    show_model=show_model,
    client_header="anthropic-version",
)

COUNT_TOKENS = ANTHROPIC_FORMAT(
    name="count_tokens",
    path="/v1/messages/count_tokens",
    operation="count_tokens",
    read=partial(messages_request.read, messages_request.COUNT),
    is_optional=True,
    facts=counted,
    usage=no_usage,
)
