"""Which service a Messages report names: it decides the price."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.formats.messages_usage import reported


@pytest.mark.parametrize(
    ("more", "variant"),
    [
        ({}, ""),
        ({"service_tier": None, "speed": None}, ""),
        ({"service_tier": "standard"}, "standard"),
        ({"service_tier": "batch", "speed": "standard"}, "batch"),
        ({"service_tier": "standard", "speed": "fast"}, "fast"),
        ({"service_tier": 7}, ""),
    ],
)
def test_the_service_of_a_report(more: dict[str, Any], variant: str) -> None:
    usage = reported({"input_tokens": 3, "output_tokens": 4, **more})
    assert usage is not None
    assert usage.variant == variant
