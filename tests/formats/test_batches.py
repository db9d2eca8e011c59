"""Batches of OpenAI and Anthropic: what their objects and the lines of their results say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import formats
from gateway.api import large_body
from gateway.formats import FORMATS
from gateway.formats.ceilings import ADDED_TEXT_TOKENS, OUTPUT_ALLOWANCE, PROMPT_ALLOWANCE
from gateway.records import Endpoint, LineCeilings

ANTHROPIC_ERROR = {"type": "error", "error": {"type": "invalid_request_error", "message": "No."}}


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


def message(text: str, limit: int, **members: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": limit, "messages": [{"role": "user", "content": text}], **members}


def test_the_ceilings_of_a_message_batch_follow_from_its_requests() -> None:
    each = [message("x" * 500, 100), message("Hi", 4000), message("Hi", 1, tools=[{"type": "web_search_20250305"}])]
    requests = [{"custom_id": str(at), "params": params} for at, params in enumerate(each)]
    body = json.dumps({"requests": requests}).encode()
    asked = formats.read("message_batches", body)
    sizes = [len(json.dumps(params)) + PROMPT_ALLOWANCE for params in each]
    sizes[2] += ADDED_TEXT_TOKENS
    outputs = [2 * limit + OUTPUT_ALLOWANCE for limit in (100, 4000, 1)]
    assert asked.line_ceilings == LineCeilings(max(sizes), max(outputs), sum(sizes), sum(outputs))
    seen = large_body.from_brief(json.loads(large_body.brief(asked)), [body])  # as the reader of large bodies says it
    assert seen.line_ceilings == asked.line_ceilings
