"""Batches as formats: many requests at once, answered within a day, at a price of their own (the variant `batch`).

OpenAI's (openai-openapi, CreateBatchRequest, Batch, BatchRequestOutput) have their requests in an input file, and the
answers in an output file. The requests are validated when their file is uploaded (`batch_file.py`). Anthropic's message
batches (anthropic-sdk-python, `types/messages/batch_create_params.py`) have them in the body: each is checked as a body
of /v1/messages. All of one batch name the same model, because a batch has one record and one reservation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, get_args

from pydantic import Field

from gateway import untrusted_json
from gateway.api import json_document, validate
from gateway.api.prompt_tokens import FindsCounter
from gateway.api.schema import Messages, Part
from gateway.config import Limits
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.anthropic import messages
from gateway.formats.anthropic.request import reworded
from gateway.formats.ceilings import output_ceiling, prompt_ceiling
from gateway.formats.format import VARIANT, BatchFormat, BatchLine, BatchState, Format, PlainFacts, no_usage
from gateway.formats.member_reader import LongAnswer
from gateway.formats.openai import completions, moderations, responses
from gateway.formats.reader import text_of, value_at
from gateway.records import Document, Ended, Endpoint, LineCeilings, Params


def facts_when_made(body: bytes) -> PlainFacts:
    """Facts of a new batch; its progress is polled later. Raises `ValueError`."""
    batch = untrusted_json.parse_object(body)
    made = batch.get("id")
    is_error = bool(batch.get("error")) or not isinstance(made, str)
    return PlainFacts(is_error=is_error, is_pending=True, kept_id=None if is_error else made)


def _answered(custom_id: object, answer: object, spec: Format) -> BatchLine:
    """The line of an answered request. Raises `ValueError`."""
    body = json.dumps(answer).encode()
    return BatchLine(custom_id if isinstance(custom_id, str) else None, spec.facts(body), body)


# ------------------------------------------------------------------------------------------------------------- OpenAI

BatchUrl = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/moderations"]
LINE_FORMATS = {
    spec.path: spec
    for spec in (
        completions.CHAT, completions.COMPLETIONS, completions.EMBEDDINGS, responses.RESPONSES, moderations.MODERATIONS
    )
}  # fmt: skip
"""The formats of requests in batches, by `url`."""

_OF_ENDPOINT = {spec.name: spec for spec in LINE_FORMATS.values()}
_ENDS: dict[str, tuple[Ended, int]] = {
    "completed": ("done", 200), "expired": ("done", 200), "cancelled": ("client_gone", 499), "failed": ("error", 400),
}  # fmt: skip
"""`ended` and status of a batch's record, by the last status of the batch."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,256}")
_PENDING = frozenset({"validating", "in_progress", "finalizing", "cancelling"})

assert set(get_args(BatchUrl)) == LINE_FORMATS.keys()


class CreateBatch(Part):
    """Fields follow CreateBatchRequest of the OpenAI API."""

    input_file_id: Annotated[str, Field(min_length=1, max_length=256)]
    endpoint: BatchUrl
    completion_window: Literal["24h"]
    metadata: Annotated[dict[str, str], Field(max_length=responses.MAX_METADATA)] | None = None


_NAMES = frozenset(CreateBatch.model_fields)


def _read(raw: bytes, find_counter: FindsCounter) -> Params:
    document = json_document.parse(raw)
    validate.refuse_other_case(document.members, _NAMES)
    body = validate.checked(CreateBatch, document.members)
    return Params(
        document=document,
        model="",
        output_param="input_file_id",
        prompt_param="input_file_id",
        variant=VARIANT,
        refers_to=body.input_file_id,
        refers_param="input_file_id",
        is_kept=True,
        is_deferred=True,
        lines_endpoint=LINE_FORMATS[body.endpoint].name,
    )


def _state(body: bytes) -> BatchState:
    batch = untrusted_json.parse_object(body)
    if (status := text_of(batch.get("status"))) in _PENDING:
        return BatchState(is_over=False)
    if status not in _ENDS:
        raise ValueError("no status of a batch")
    return BatchState(
        True, *_ENDS[status], _contents(batch.get("output_file_id")), _contents(batch.get("error_file_id"))
    )


def _contents(file_id: object) -> tuple[str, ...]:
    return (f"/files/{file_id}/content",) if isinstance(file_id, str) and _ID.fullmatch(file_id) else ()


def _line(data: bytes, endpoint: Endpoint) -> BatchLine:
    """One line of an output or error file: a request that was not answered with 200 is free."""
    line = untrusted_json.parse_object(data)
    response = line.get("response")
    if not isinstance(response, dict) or response.get("status_code") != 200:
        return BatchLine(None)
    return _answered(line.get("custom_id"), response.get("body"), _OF_ENDPOINT[endpoint])


class _LongLine:
    """Reads such a line in pieces."""

    def __init__(self, answer: LongAnswer[PlainFacts]) -> None:
        self._answer = answer.inside(("response", "body"), (("custom_id",), ("response", "status_code")))

    def feed(self, data: bytes) -> None:
        self._answer.feed(data)

    def line(self, shown: bytes) -> BatchLine:
        found = self._answer.whole()
        if value_at(found, ("response", "status_code")) != 200:
            return BatchLine(None)
        name = found.get("custom_id")
        return BatchLine(name if isinstance(name, str) else None, self._answer.facts(), shown)


def _long_line(endpoint: Endpoint) -> _LongLine | None:
    make = _OF_ENDPOINT[endpoint].long_reader
    return None if make is None else _LongLine(make())


BATCHES = Format(
    name="batches",
    path="/v1/batches",
    operation="batch",
    read=_read,
    facts=facts_when_made,
    usage=no_usage,
    batch=BatchFormat("batch", frozenset(_OF_ENDPOINT), _state, _line, _long_line),
)

# ---------------------------------------------------------------------------------------------------------- Anthropic

MAX_REQUESTS = 10_000
"""Requests of one message batch, within `server.max_request_bytes`; Anthropic permits 100,000."""


class MessageOfBatch(Part):
    """One request of a batch; `params` is a body of /v1/messages."""

    custom_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: Messages


class CreateMessageBatch(Part):
    """The body, for the API document."""

    requests: Annotated[list[MessageOfBatch], Field(min_length=1, max_length=MAX_REQUESTS, fail_fast=True)]


_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAMES_OF_REQUEST = frozenset(MessageOfBatch.model_fields)


def _read_messages(raw: bytes, find_counter: FindsCounter) -> Params:
    try:
        document = json_document.parse(raw)
    except InvalidRequest as fault:
        raise reworded(fault) from None
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
        lines_endpoint=messages.MESSAGES.name,
        line_ceilings=_ceilings(each),
    )


def _ceilings(each: Sequence[Params]) -> LineCeilings:
    found = LineCeilings()
    for asked in each:
        prompt = prompt_ceiling(len(asked.document.text), asked)
        found = found.plus(prompt, output_ceiling(asked.output_limit or 0))
    return found


def _request(path: str, request: Any, seen: set[str], find_counter: FindsCounter) -> Params:
    if not isinstance(request, dict) or request.keys() != _NAMES_OF_REQUEST:
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
        asked = messages.MESSAGES.read(json.dumps(params).encode(), find_counter)
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


def _restrict(members: Mapping[str, Any], key: Limits, model: Limits) -> None:
    for place, request in enumerate(members["requests"]):
        given = request["params"]
        asked = Params(Document("", given), given["model"], output_limit=given["max_tokens"])
        try:
            validate.restrict(asked, key, model)
        except InvalidRequest as fault:
            fault.message = f"requests.{place}.params: {fault.message}"
            raise


def _state_of_messages(body: bytes) -> BatchState:
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


def _line_of_messages(data: bytes, endpoint: Endpoint) -> BatchLine:
    """One result: a request that has not succeeded is free."""
    line = untrusted_json.parse_object(data)
    result = line.get("result")
    if not isinstance(result, dict) or result.get("type") != "succeeded":
        return BatchLine(None)
    return _answered(line.get("custom_id"), result.get("message"), messages.MESSAGES)


MESSAGE_BATCHES: Format = messages.ANTHROPIC_FORMAT(
    name="message_batches",
    path="/v1/messages/batches",
    operation="batch",
    read=_read_messages,
    is_optional=True,
    facts=facts_when_made,
    usage=no_usage,
    rename=_renamed,
    restrict=_restrict,
    passed_statuses=messages.MESSAGES.passed_statuses,
    batch=BatchFormat("message_batch", frozenset({messages.MESSAGES.name}), _state_of_messages, _line_of_messages),
)
