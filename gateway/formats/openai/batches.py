"""OpenAI's batches (openai-openapi, CreateBatchRequest, Batch, BatchRequestOutput): many requests in an
input file, answered in an output file within a day, at their own price (the variant `batch`).

The requests are validated when their file is uploaded (`web/batch_file.py`).
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal, get_args

from pydantic import Field

from gateway import untrusted_json
from gateway.api import json_document, validate
from gateway.api.prompt_tokens import FindsCounter
from gateway.api.schema import Part
from gateway.formats.format import BatchFormat, BatchLine, BatchState, Format, PlainFacts, no_usage
from gateway.formats.reader import text_of
from gateway.records import Ended, Endpoint, Params

from .completions import CHAT, COMPLETIONS, EMBEDDINGS
from .moderations import MODERATIONS
from .responses import MAX_METADATA, RESPONSES

VARIANT = "batch"

BatchUrl = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/moderations"]
LINE_FORMATS = {spec.path: spec for spec in (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MODERATIONS)}
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
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None = None


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


def facts_when_made(body: bytes) -> PlainFacts:
    """Facts of a new batch of OpenAI or Anthropic; its progress is polled later. Raises `ValueError`."""
    batch = untrusted_json.parse_object(body)
    made = batch.get("id")
    is_error = bool(batch.get("error")) or not isinstance(made, str)
    return PlainFacts(is_error=is_error, is_pending=True, kept_id=None if is_error else made)


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


def answered(custom_id: object, answer: object, spec: Format) -> BatchLine:
    """The line of an answered request. Raises `ValueError`."""
    body = json.dumps(answer).encode()
    return BatchLine(custom_id if isinstance(custom_id, str) else None, spec.facts(body), body)


def _line(data: bytes, endpoint: Endpoint) -> BatchLine:
    """One line of an output or error file: a request that was not answered with 200 is free."""
    line = untrusted_json.parse_object(data)
    response = line.get("response")
    if not isinstance(response, dict) or response.get("status_code") != 200:
        return BatchLine(None)
    return answered(line.get("custom_id"), response.get("body"), _OF_ENDPOINT[endpoint])


BATCHES = Format(
    name="batches",
    path="/v1/batches",
    operation="batch",
    read=_read,
    facts=facts_when_made,
    usage=no_usage,
    batch=BatchFormat("batch", frozenset(_OF_ENDPOINT), _state, _line),
)
