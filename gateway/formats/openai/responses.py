"""OpenAI's Responses API (openai-openapi, CreateResponse).

A response that its upstream keeps is bound to the key that made it (`Params.is_kept`), with the items of its output,
and a call may continue it (`Params.refers_to`) or name such items (`Params.items`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

from gateway.api import other_models, prompt_tokens, validate, validation_errors
from gateway.api.prompt_tokens import Counter
from gateway.api.schema import Response
from gateway.config import Capabilities, Route
from gateway.errors import GatewayError, InvalidRequest, StreamInterrupted
from gateway.formats import gathered, sse
from gateway.formats.event_scan import parsed
from gateway.formats.events import Unfit
from gateway.formats.format import AnswerMembers, Format, PlainFacts, Scan, counted, counting, no_usage
from gateway.formats.member_reader import LongAnswer
from gateway.formats.reader import objects
from gateway.records import Call, Document, ItemRef, Params, Usage

from .responses_reader import RESPONSE_TEXT, WANTED, error_of_failure, ids_of, usage_of
from .responses_scan import ResponsesScan, failed_event, interrupted_event

MAX_METADATA = 16
WITH_MODELS = ("tools", "moderation")
_ENCRYPTED = "reasoning.encrypted_content"
_PENDING = ("queued", "in_progress")
_WHOLE = frozenset({
    None, "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
    "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call",
    "apply_patch_call_output", "computer_call", "computer_call_output", "compaction", "mcp_approval_response",
})  # fmt: skip
"""Types of items that are complete; of others the upstream keeps a part under their ids."""

_EVENTS = {status: f"response.{status}" for status in (*_PENDING, "incomplete")}
"""The event with a whole response, by its status; of others it is `response.completed`."""

_CLIENT_HEADERS = frozenset({
    "openai-beta", "originator", "session_id", "session-id", "thread-id", "conversation_id",
    "x-codex-turn-state", "x-codex-turn-metadata", "x-codex-beta-features", "x-codex-window-id",
})  # fmt: skip
"""Headers of the official clients: which beta, and which turn of which conversation."""
_UPSTREAM_HEADERS = frozenset({"x-codex-turn-state", "openai-model", "x-models-etag", "x-reasoning-included"})


class _Answer(AnswerMembers):
    status: Any = None
    tool_usage: Any = None
    service_tier: Any = None
    provider: Any = None
    output: Any = None
    id: Any = None
    store: Any = None


def _read(document: Document, body: Response, count: Counter | None) -> Params:
    _check(document, body)
    refers_to, refers_param = _reference(body)
    prompt = prompt_tokens.response(document, count)
    return Params(
        document=document,
        model=body.model,
        stream=bool(body.stream),
        prompt_tokens=prompt.tokens,
        is_prompt_exact=prompt.is_exact,
        output_limit=body.max_output_tokens,
        output_param="max_output_tokens",
        prompt_param="input",
        refers_to=refers_to,
        refers_param=refers_param,
        items=kept_items(body.input, "input"),
        other_models=other_models.named(document.members, WITH_MODELS),
        account_bound_by=_account_bound_by(body),
        is_kept=bool(body.background) or body.store is not False,
        is_deferred=bool(body.background),
    )


def _read_compact(document: Document, body: Response, count: Counter | None) -> Params:
    """It is never streamed, has no parameter for an output limit, and runs no tools."""
    return _read(document, body, count)._replace(
        stream=False, output_limit=None, is_kept=False, is_deferred=False, other_models=(),
        account_bound_by=_account_bound_by(body, asks=True),
    )  # fmt: skip


def _read_count(document: Document, body: Response, count: Counter | None) -> Params:
    _check(document, body)
    refers_to, refers_param = _reference(body)
    return counting(document, body.model, "input")._replace(
        refers_to=refers_to, refers_param=refers_param, items=kept_items(body.input, "input")
    )


def _check(document: Document, body: Response) -> None:
    if body.metadata and len(body.metadata) > MAX_METADATA:
        raise validation_errors.wrong_value("metadata", f"It may have at most {MAX_METADATA} pairs.")


def refuse_references(items: Sequence[Any], param: str) -> None:
    """Raises `InvalidRequest` for an item of this parameter that is nothing but an id."""
    for index, item in enumerate(items):
        if isinstance(item, dict) and (item.get("type") == "item_reference" or _is_bare_id(item)):
            raise InvalidRequest(
                f"Unsupported parameter: '{param}[{index}]' refers to state that is kept by the upstream, which the "
                "gateway does not carry. Send the item itself instead of its id.",
                param=f"{param}[{index}]",
                code="unsupported_parameter",
            )


_ITEM = frozenset({"id", "type"})


def kept_items(items: Any, param: str, *, with_whole: bool = False) -> tuple[ItemRef, ...]:
    """The items of this parameter that an upstream may look up by their ids, or all that have one. Raises
    `InvalidRequest` for an id or a type in another spelling, or in another type than text."""
    if not isinstance(items, list):
        return ()
    found = []
    for index, item in enumerate(items):
        place = f"{param}[{index}]"
        if not item.keys() <= _ITEM:
            validate.refuse_other_case(item, _ITEM, f"{place}.")
        name, kind = item.get("id"), item.get("type")
        is_sole = kind == "item_reference" or _is_bare_id(item)
        if is_sole and not isinstance(name, str):
            raise validation_errors.missing(f"{place}.id")
        if not isinstance(name, str | None):
            raise validation_errors.wrong_type(f"{place}.id", "a string", name)
        if isinstance(name, str) and (is_sole or with_whole or not _is_whole(item, kind)):
            found.append(ItemRef(name, place, is_sole))
    return tuple(found)


def _account_bound_by(body: Response, *, asks: bool = False) -> str:
    """The identity of a conversation with encrypted parts (reasoning, compactions): a digest of its
    `prompt_cache_key`, else of its beginning. Another account refuses such parts (`invalid_encrypted_content`). Empty:
    it has none, and asks for none."""
    turns = body.input if isinstance(body.input, list) else ()
    asks = asks or bool(body.context_management) or _ENCRYPTED in (body.include or ())
    if not asks and not any(turn.get("encrypted_content") for turn in turns):
        return ""
    shared: list[Any] = [body.prompt_cache_key]
    if not body.prompt_cache_key:
        shared.append(body.instructions)
        for turn in turns or (body.input,):
            shared.append(turn)
            if isinstance(turn, dict) and turn.get("role") == "user":
                break
    return blake2b(json.dumps(shared).encode(), digest_size=16).hexdigest()


def _is_whole(item: Mapping[str, Any], kind: Any) -> bool:
    if kind == "reasoning":
        return bool(item.get("encrypted_content") or item.get("content"))
    return (kind is None or isinstance(kind, str)) and kind in _WHOLE


def _reference(body: Response) -> tuple[str | None, str]:
    """The id of the response or conversation that the call continues, and the parameter that names it."""
    conversation = body.conversation
    if isinstance(conversation, dict):
        validate.refuse_other_case(conversation, _ITEM, "conversation.")
        conversation = conversation.get("id")
        if not isinstance(conversation, str):
            raise validation_errors.wrong_value("conversation", "It needs the id of a conversation as 'id'.")
    if body.previous_response_id is None:
        return conversation, "conversation"
    if conversation is not None:
        raise InvalidRequest(
            "Mutually exclusive parameters: 'conversation' and 'previous_response_id'. Ensure you are only providing "
            "one of them.",
            param="conversation",
            code="mutually_exclusive_parameters",
        )
    return body.previous_response_id, "previous_response_id"


def _is_bare_id(item: dict[str, Any]) -> bool:
    """Whether an input item is nothing but an id: the type of a reference may be left out."""
    return isinstance(item.get("id"), str) and item.keys() <= {"id", "type"} and item.get("type") is None


def facts(body: bytes) -> PlainFacts:
    """Returns the facts of a plain answer. Raises `ValueError` if it is not JSON."""
    answer = _Answer.read(body)
    output, error = objects(answer.output), answer.error
    has_failed, is_pending = answer.status == "failed", answer.status in _PENDING
    return answer.facts(
        usage_of(vars(answer)),
        is_error=has_failed,
        has_output=bool(output),
        error=error_of_failure(error if isinstance(error, dict) else {}) if has_failed else None,
        is_pending=is_pending,
        items=ids_of(output),
        is_cancelled=answer.status == "cancelled",
        kept_id=answer.id if isinstance(answer.id, str) and (is_pending or answer.store is not False) else None,
    )


def _changes(call: Call, route: Route, capabilities: Capabilities, added_limit: int | None) -> dict[str, Any]:
    changes: dict[str, Any] = {"max_output_tokens": added_limit} if added_limit is not None else {}
    if call.other_models:
        changes |= other_models.changes(call, route, WITH_MODELS)
    store = call.model.store_responses
    if store is not None and not call.params.is_deferred and call.params.document.members.get("store") is None:
        return changes | {"store": store}
    return changes


def _error_event(error: GatewayError, scan: Scan | None, request_id: str) -> bytes:
    if isinstance(error, StreamInterrupted):
        return interrupted_event(error, scan.last_number if isinstance(scan, ResponsesScan) else None)
    if isinstance(scan, ResponsesScan):
        return scan.failed(error, request_id)
    return failed_event(error, number=0, response_id=f"resp_{request_id}", model=None)


def as_events(answer: bytes, shows_usage: bool, charged: Usage) -> bytes:
    """A whole response as the events of a stream: created, each item of the output, and its state. Raises `Unfit`."""
    if (response := parsed(answer)) is None:
        raise Unfit("a plain answer that is no response")
    items = objects(response.get("output"))
    started = response | {"status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": started}]
    for index, item in enumerate(items):
        place = {"output_index": index, "item": item}
        events += [{"type": f"response.output_item.{what}", **place} for what in ("added", "done")]
    status = response.get("status")
    events.append({"type": _EVENTS.get(str(status), "response.completed"), "response": response})
    numbered = [{"type": each["type"], "sequence_number": number} | each for number, each in enumerate(events)]
    return b"".join(map(sse.typed_event, numbered))


_RESPONSES_FORMAT = partial(Format, is_optional=True, passes_query=True, request_headers=_CLIENT_HEADERS)
_GENERATED = partial(
    _RESPONSES_FORMAT, operation="chat", facts=facts, usage=lambda report: usage_of({"usage": report}), may_reason=True,
    response_headers=_UPSTREAM_HEADERS, long_reader=lambda: LongAnswer(facts, WANTED),
)  # fmt: skip

RESPONSES = _GENERATED(
    name="responses",
    path="/v1/responses",
    read=partial(validate.read, validate.Rules(Response, _read, with_models=WITH_MODELS)),
    scan=ResponsesScan,
    gather=partial(gathered.whole, gathered.GatheredResponse),
    kept_id=lambda scan: scan.reader.id if isinstance(scan, ResponsesScan) and scan.reader.is_stored else None,
    kept_items=lambda scan: scan.reader.items if isinstance(scan, ResponsesScan) else (),
    pending_id=lambda scan: scan.reader.id if isinstance(scan, ResponsesScan) and not scan.reader.has_ended else None,
    as_events=as_events,
    streams_only_events=True,
    changes=_changes,
    keeps=other_models.keeping(*WITH_MODELS),
    limit_fields=("max_output_tokens",),
    texts=RESPONSE_TEXT,
    error_event=_error_event,
    error_keeps_status=True,
)

INPUT_TOKENS = _RESPONSES_FORMAT(
    name="input_tokens",
    path="/v1/responses/input_tokens",
    operation="count_tokens",
    read=partial(validate.read, validate.Rules(Response, _read_count, with_models=WITH_MODELS)),
    facts=counted,
    usage=no_usage,
)

_COMPACT_TEXT = re.compile(RESPONSE_TEXT.pattern.replace(b"text|", b"text|encrypted_content|", 1))
"""A compaction has its text encrypted."""

COMPACT = _GENERATED(
    name="compact",
    path="/v1/responses/compact",
    read=partial(validate.read, validate.Rules(Response, _read_compact, with_models=WITH_MODELS)),
    texts=_COMPACT_TEXT,
)
