"""Batches of OpenAI and Anthropic: what their objects and the lines of their results say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats import FORMATS
from gateway.records import Endpoint

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
