"""Which service a Messages report names: it decides the price."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.formats.anthropic.reader import reported


@pytest.mark.parametrize(
    ("more", "variant"),
    [
        ({}, ""),
        ({"service_tier": None, "speed": None}, ""),
        ({"service_tier": "standard"}, "standard"),
        ({"service_tier": "batch", "speed": "standard"}, "batch"),
        ({"service_tier": "standard", "speed": "fast"}, "fast"),
        ({"service_tier": 7}, ""),
        ({"service_tier": "standard", "inference_geo": "us"}, "us"),
        ({"service_tier": "standard", "inference_geo": "global"}, "standard"),
        ({"inference_geo": "not_available"}, ""),
        ({"service_tier": "batch", "inference_geo": "us"}, "batch-us"),
        ({"speed": "fast", "inference_geo": "us"}, "fast-us"),
        ({"inference_geo": 7}, ""),
    ],
)
def test_the_service_of_a_report(more: dict[str, Any], variant: str) -> None:
    usage = reported({"input_tokens": 3, "output_tokens": 4, **more})
    assert usage is not None
    assert usage.variant == variant


def test_a_retry_that_was_credited_is_an_estimate() -> None:
    """Its counts do not say by how much it was cheaper."""
    usage = reported({"input_tokens": 3, "output_tokens": 4, "fallback_credit": {"status": "applied"}})
    assert usage is not None
    assert usage.source == "estimated"
    usage = reported({"input_tokens": 3, "output_tokens": 4, "fallback_credit": None})
    assert usage is not None
    assert usage.source == "reported"
