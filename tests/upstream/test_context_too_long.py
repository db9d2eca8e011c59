"""Refusals of a prompt that is too long for a model, as upstreams word them."""

from __future__ import annotations

import pytest

from gateway.errors import UpstreamRefused
from gateway.upstream.refusal import is_context_too_long

INVALID = "invalid_request_error"


@pytest.mark.parametrize(
    ("message", "error_type", "code", "expected"),
    [
        ("This model's maximum context length is 4097 tokens. However, ...", INVALID, "context_length_exceeded", True),
        ("Too long.", INVALID, "context_length_exceeded", True),
        ("This model's maximum context length is 8192 tokens.", "BadRequestError", None, True),
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", INVALID, None, True),
        ("prompt is too long: 210000 tokens > 200000 maximum", INVALID, None, True),
        ("The input token count (99) exceeds the maximum number of tokens allowed (9).", INVALID, None, True),
        ("the request exceeds the available context size. try increasing it", "exceed_context_size_error", None, True),
        (
            "request (9021 tokens) exceeds the available context size (8192 tokens), try increasing it",
            "invalid_request_error",
            None,
            True,
        ),
        ("This model's maximum prompt length is 131072 but the request contains 200000 tokens.", INVALID, None, True),
        ("Invalid value 'prompt is too long: 5 tokens'", INVALID, None, False),
        ("max_tokens is too large: 99999.", INVALID, "invalid_value", False),
        ("", INVALID, None, False),
    ],
)
def test_is_context_too_long(message: str, error_type: str, code: str | None, expected: bool) -> None:
    assert is_context_too_long(UpstreamRefused(400, message, error_type, None, code)) is expected
