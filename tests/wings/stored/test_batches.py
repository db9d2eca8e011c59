"""Batches of OpenAI and Anthropic: what their objects and the lines of their results say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api import large_body
from gateway.formats import table
from gateway.formats.ceilings import ADDED_TEXT_TOKENS, OUTPUT_ALLOWANCE, PROMPT_ALLOWANCE
from gateway.formats.format import BatchState
from gateway.formats.table import FORMATS
from gateway.records import Endpoint, LineCeilings
from tests.test_floors import complaints_of, impure

ANTHROPIC_ERROR = {"type": "error", "error": {"type": "invalid_request_error", "message": "No."}}


def test_the_formats_and_the_form_are_pure() -> None:
    assert complaints_of(impure, ["gateway.wings.stored.formats", "gateway.wings.stored.file_form"]) == ""


@pytest.mark.parametrize("name", ["batches", "message_batches"])
@pytest.mark.parametrize(
    ("made", "kept_id"),
    [({"id": "batch_1", "error": None}, "batch_1"), (ANTHROPIC_ERROR, None), ({"error": {"message": "No."}}, None),
     ({"id": 5}, None), ({}, None)],
)  # fmt: skip
def test_a_batch_that_was_made_is_pending_and_another_answer_is_an_error(
    name: Endpoint, made: dict[str, Any], kept_id: str | None
) -> None:
    facts = FORMATS[name].facts(json.dumps(made).encode())
    assert (facts.is_pending, facts.is_error, facts.kept_id) == (True, kept_id is None, kept_id)


def ended(**more: Any) -> dict[str, Any]:
    return {"id": "msgbatch_1", "processing_status": "ended", **more}


RESULTS = ("/messages/batches/msgbatch_1/results",)
GONE = ("client_gone", 499)


@pytest.mark.parametrize(
    ("name", "batch", "expected"),
    [
        ("batches", {"status": "cancelling"}, BatchState(False)),
        ("batches", {"status": "completed"}, BatchState(True)),
        ("batches", {"status": "completed", "output_file_id": "out-1", "error_file_id": "err-1"},
         BatchState(True, "done", 200, ("/files/out-1/content",), ("/files/err-1/content",))),
        ("batches", {"status": "expired", "output_file_id": "out-1"},
         BatchState(True, "done", 200, ("/files/out-1/content",))),
        ("batches", {"status": "cancelled", "output_file_id": "out-1"},
         BatchState(True, *GONE, ("/files/out-1/content",))),
        ("batches", {"status": "failed"}, BatchState(True, "error", 400)),
        ("batches", {"status": "completed", "output_file_id": "../batches/other"}, BatchState(True)),
        ("message_batches", {"processing_status": "canceling"}, BatchState(False)),
        ("message_batches", ended(), BatchState(True)),
        ("message_batches", ended(results_url="https://elsewhere.invalid"), BatchState(True, results=RESULTS)),
        ("message_batches", ended(results_url="x", cancel_initiated_at="now"), BatchState(True, *GONE, RESULTS)),
    ],
)  # fmt: skip
def test_how_a_batch_stands(name: Endpoint, batch: dict[str, Any], expected: BatchState) -> None:
    read = FORMATS[name].batch
    assert read is not None
    assert read.state(json.dumps(batch).encode()) == expected


def message(text: str, limit: int, **members: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": limit, "messages": [{"role": "user", "content": text}], **members}


def test_the_ceilings_of_a_message_batch_follow_from_its_requests() -> None:
    each = [message("x" * 500, 100), message("Hi", 4000), message("Hi", 1, tools=[{"type": "web_search_20250305"}])]
    requests = [{"custom_id": str(at), "params": params} for at, params in enumerate(each)]
    body = json.dumps({"requests": requests}).encode()
    asked = table.read("message_batches", body)
    sizes = [len(json.dumps(params)) + PROMPT_ALLOWANCE for params in each]
    sizes[2] += ADDED_TEXT_TOKENS
    outputs = [2 * limit + OUTPUT_ALLOWANCE for limit in (100, 4000, 1)]
    assert asked.line_ceilings == LineCeilings(max(sizes), max(outputs), sum(sizes), sum(outputs))
    seen = large_body.from_brief(json.loads(large_body.brief(asked)), [body])  # as the reader of large bodies says it
    assert seen.line_ceilings == asked.line_ceilings
