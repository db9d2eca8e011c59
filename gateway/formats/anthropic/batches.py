"""Anthropic's message batches (anthropic-sdk-python, `types/messages/batch_create_params.py`): many requests in one
body, answered within a day, at a price of their own (the variant `batch`).

Each request is checked as a body of /v1/messages. All of one batch name the same model, because a batch has one record
and one reservation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

from pydantic import Field

from gateway import untrusted_json
from gateway.api import json_document, validate
from gateway.api.prompt_tokens import FindsCounter
from gateway.api.schema import Messages, Part
from gateway.config import Limits
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.ceilings import output_ceiling, prompt_ceiling
from gateway.formats.format import BatchFormat, BatchLine, BatchState, Format, no_usage
from gateway.formats.openai.batches import VARIANT, answered, facts_when_made
from gateway.records import Document, Endpoint, LineCeilings, Params

from . import request as messages_request
from .messages import ANTHROPIC_FORMAT, MESSAGES

MAX_REQUESTS = 10_000
"""Requests of one batch, within `server.max_request_bytes`; Anthropic permits 100,000."""


class MessageOfBatch(Part):
    """One request of a batch; `params` is a body of /v1/messages."""

    custom_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: Messages


class CreateMessageBatch(Part):
    """The body, for the API document."""

    requests: Annotated[list[MessageOfBatch], Field(min_length=1, max_length=MAX_REQUESTS, fail_fast=True)]


_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAMES = frozenset({"custom_id", "params"})


def _read(raw: bytes, find_counter: FindsCounter) -> Params:
    try:
        document = json_document.parse(raw)
    except InvalidRequest as fault:
        raise messages_request.reworded(fault) from None
    requests = document.members.get("requests")
    if not isinstance(requests, list) or not 1 <= len(requests) <= MAX_REQUESTS:
        _refuse("requests", f"expected a list of 1 to {MAX_REQUESTS} requests")
    seen: set[str] = set()
    each = [_request(f"requests.{place}", request, seen, find_counter) for place, request in enumerate(requests)]
    for place, asked in enumerate(each):
        if asked.model != each[0].model:
            _refuse(f"requests.{place}.params.model", f"expected '{each[0].model[:64]}', as in the first request")
    return Params(
        document=document,
        model=each[0].model,
        prompt_tokens=sum([asked.prompt_tokens for asked in each]),
        output_limit=sum([asked.output_limit or 0 for asked in each]),
        output_param="requests",
        prompt_param="requests",
        variant=VARIANT,
        is_kept=True,
        is_deferred=True,
        lines=len(each),
        lines_endpoint=MESSAGES.name,
        line_ceilings=_ceilings(each),
    )


def _ceilings(each: Sequence[Params]) -> LineCeilings:
    found = LineCeilings()
    for asked in each:
        prompt = prompt_ceiling(len(asked.document.text), asked)
        found = found.plus(prompt, output_ceiling(asked.output_limit or 0))
    return found


def _request(path: str, request: Any, seen: set[str], find_counter: FindsCounter) -> Params:
    if not isinstance(request, dict) or request.keys() != _NAMES:
        _refuse(path, "expected an object with 'custom_id' and 'params'")
    name, params = request["custom_id"], request["params"]
    if not isinstance(name, str) or _CUSTOM_ID.fullmatch(name) is None:
        _refuse(f"{path}.custom_id", "expected 1 to 64 letters, digits, '-' or '_'")
    if name in seen:
        _refuse(f"{path}.custom_id", "another request has it")
    seen.add(name)
    if not isinstance(params, dict):
        _refuse(f"{path}.params", "expected an object")
    try:
        asked = MESSAGES.read(json.dumps(params).encode(), find_counter)
    except GatewayError as fault:
        _refuse(f"{path}.params", fault.message)
    if asked.stream:
        _refuse(f"{path}.params.stream", "a request in a batch is not streamed")
    if asked.other_models:
        _refuse(f"{path}.params", "a request in a batch names one model")
    return asked


def _refuse(path: str, what: str) -> NoReturn:
    raise InvalidRequest(f"{path}: {what}", param=path, code="invalid_batch_line")


def _renamed(members: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"requests": [each | {"params": each["params"] | {"model": name}} for each in members["requests"]]}


def restrict(members: Mapping[str, Any], key: Limits, model: Limits) -> None:
    """Raises `InvalidRequest` for a request of a batch that the limits of the key or the model refuse."""
    for place, request in enumerate(members["requests"]):
        given = request["params"]
        asked = Params(Document("", given), given["model"], output_limit=given["max_tokens"])
        try:
            validate.restrict(asked, key, model)
        except InvalidRequest as fault:
            fault.message = f"requests.{place}.params: {fault.message}"
            raise


def _state(body: bytes) -> BatchState:
    batch = untrusted_json.parse_object(body)
    status = batch.get("processing_status")
    if status in ("in_progress", "canceling"):
        return BatchState(is_over=False)
    made = batch.get("id")
    if status != "ended" or not isinstance(made, str) or _CUSTOM_ID.fullmatch(made) is None:
        raise ValueError("no status of a message batch")
    results = () if batch.get("results_url") is None else (f"{MESSAGE_BATCHES.upstream_path}/{made}/results",)
    if batch.get("cancel_initiated_at") is not None:
        return BatchState(True, "client_gone", 499, results)
    return BatchState(True, results=results)


def _line(data: bytes, endpoint: Endpoint) -> BatchLine:
    """One result: a request that has not succeeded is free."""
    line = untrusted_json.parse_object(data)
    result = line.get("result")
    if not isinstance(result, dict) or result.get("type") != "succeeded":
        return BatchLine(None)
    return answered(line.get("custom_id"), result.get("message"), MESSAGES)


MESSAGE_BATCHES: Format = ANTHROPIC_FORMAT(
    name="message_batches",
    path="/v1/messages/batches",
    operation="batch",
    read=_read,
    is_optional=True,
    facts=facts_when_made,
    usage=no_usage,
    rename=_renamed,
    passed_statuses=MESSAGES.passed_statuses,
    batch=BatchFormat("message_batch", frozenset({MESSAGES.name}), _state, _line),
)
