"""Usage that an upstream nests deeply is no usage."""

from __future__ import annotations

import pytest

from gateway.formats import reported_usage
from gateway.formats.table import FORMATS


@pytest.mark.parametrize("endpoint", [name for name, spec in FORMATS.items() if spec.usage is not None])
def test_a_deep_report_at_the_end_of_a_broken_answer_is_none(endpoint: str) -> None:
    levels = 1000
    body = b'{"usage": {"prompt_tokens": ' + b"[" * levels + b"]" * levels + b"}} x"
    read = FORMATS[endpoint].usage
    assert read is not None
    assert reported_usage.found_in(body, read) is None
