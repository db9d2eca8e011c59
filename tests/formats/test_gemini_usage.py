"""Reports of Gemini: the tier that served, the parts of the prompt, and what is paid beside tokens."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.formats.gemini.usage import reported
from gateway.records import Usage

COUNTS = {"promptTokenCount": 1000, "candidatesTokenCount": 10}


@pytest.mark.parametrize(
    ("members", "variant"),
    [
        ({}, ""),
        # ai.google.dev, "Priority inference"; google-genai, `ServiceTier`; discuss.ai.google.dev/t/174074
        ({"serviceTier": "flex"}, "flex"),
        ({"serviceTier": "SERVICE_TIER_PRIORITY"}, "priority"),
        ({"serviceTier": "standard"}, "standard"),
        # google-genai, `TrafficType`
        ({"trafficType": "ON_DEMAND_FLEX"}, "flex"),
        ({"trafficType": "ON_DEMAND_PRIORITY"}, "priority"),
        ({"trafficType": "ON_DEMAND"}, "on_demand"),
        ({"trafficType": "PROVISIONED_THROUGHPUT"}, "provisioned_throughput"),
        ({"serviceTier": "standard", "trafficType": "ON_DEMAND_PRIORITY"}, "standard"),
        ({"serviceTier": None, "trafficType": 7}, ""),
    ],
)
def test_the_tier_that_served(members: dict[str, Any], variant: str) -> None:
    assert reported({**COUNTS, **members}) == Usage(1000, 10, source="reported", variant=variant)
