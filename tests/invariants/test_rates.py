"""No quota is passed by more than its documented bound, and none is left unused without need."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows.gateway_process import Gateway, key, model, settings

PERIODS: tuple[str | int, ...] = ("second", "minute", "hour", 90, "day", "week", "month")
LIMITS = ({"tokens": 1000}, {"usd": 0.001})
TEXT = "word " * 20_000  # at least 3,125 tokens

DOORS: dict[str, tuple[str, dict[str, Any], str]] = {
    "completions": ("/v1/completions", {"prompt": TEXT, "max_tokens": 1}, "prompt"),
    "chat": (
        "/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1}, "messages",
    ),
    "responses": ("/v1/responses", {"input": TEXT, "max_output_tokens": 16}, "input"),
    "messages": (
        "/v1/messages", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1}, "messages",
    ),
    "embeddings": ("/v1/embeddings", {"input": TEXT}, "input"),
}  # fmt: skip
"""For each format: its path, a body with a long prompt, and the parameter that has it."""


def name_of(limit: dict[str, Any], per: str | int) -> str:
    return f"{next(iter(limit))}-{per}"


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    keys = [key(name_of(limit, per), quotas=[{**limit, "per": per}]) for limit in LIMITS for per in PERIODS]
    models = {f"m-{door}": model(door, price={"input": 1, "output": 1}) for door in DOORS}
    upstreams = {"main": {"capabilities": {"messages": True, "responses": True}}}
    return start_shared_gateway(settings(shared_upstream.url, keys=keys, models=models, upstreams=upstreams))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: next(iter(limit)))
def test_a_prompt_that_cannot_fit_is_refused_for_good(
    gateway: Gateway, shared_upstream: ScriptedUpstream, door: str, limit: dict[str, Any]
) -> None:
    path, body, param = DOORS[door]
    for per in PERIODS:
        refused = gateway.post(path, {"model": f"m-{door}", **body}, key=name_of(limit, per))
        assert refused.status == 400
        assert f"Waiting would not help: shorten '{param}'." in refused.json["error"]["message"]
        used = gateway.get("/v1/key", key=name_of(limit, per)).json["quotas"][0]
        assert (used["used"], used["reserved"]) == (0, 0)
    assert shared_upstream.hits == 0
