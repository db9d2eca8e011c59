"""One channel of a reseller whose own account is refused or spent, behind a gateway that has nothing but this reseller:
its other models are served, and the channel's model is served again soon after it works."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.upstream.credentials import LAST_KEY_COOLDOWN_S, SOLE_KEY_UNAVAILABLE_AFTER
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Wire, error_json, ok_json
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway, eventually, model, settings

REFUSALS: dict[str, Any] = {
    "unauthorized": error_json(401, message="Incorrect API key provided: sk-no", code="invalid_api_key"),
    "quota": error_json(429, message="You exceeded your current quota", code="insufficient_quota"),
}
OWN = error_json(401, message="无效的令牌", type="one_api_error")
CALLS = 12
"""More than the sole key of an upstream may be refused in a row."""


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    names = [*REFUSALS, "own"]
    upstreams = {name: {"base_url": shared_upstream.url, "api_key": UPSTREAM_KEY} for name in names}
    models = {f"{name}-{which}": model("completions", name) for name in names for which in ("bad", "worse", "good")}
    return start_shared_gateway(settings(shared_upstream.url, upstreams=upstreams, models=models))


def refusing(refusal: Any, *which: str) -> Any:
    async def behaviour(wire: Wire) -> None:
        name = wire.request.json["model"].partition("-")[2]
        await (refusal if name in which else ok_json())(wire)

    return behaviour


@pytest.mark.parametrize("kind", REFUSALS)
def test_other_models_are_served(gateway: Gateway, upstream: ScriptedUpstream, kind: str) -> None:
    upstream.answer_with(always=refusing(REFUSALS[kind], "bad", "worse"))
    assert CALLS > SOLE_KEY_UNAVAILABLE_AFTER
    for _ in range(CALLS):
        assert gateway.complete(model=f"{kind}-bad").status == 502
    assert upstream.hits == SOLE_KEY_UNAVAILABLE_AFTER  # then the model is refused without a request
    assert gateway.complete(model=f"{kind}-good").status == 200
    for _ in range(CALLS):
        assert gateway.complete(model=f"{kind}-worse").status == 502
    assert gateway.complete(model=f"{kind}-good").status == 200
    assert f"upstream {kind}: key #1 in cooldown for model '{kind}-bad' for 5 s" in gateway.stderr
    upstream.answer_with(always=ok_json())
    eventually(lambda: gateway.complete(model=f"{kind}-bad").status == 200, timeout_s=LAST_KEY_COOLDOWN_S + 10)


def test_the_resellers_own_refusal_concerns_every_model(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=OWN)
    for _ in range(CALLS):
        assert gateway.complete(model="own-bad").status == 502
    refused = gateway.complete(model="own-good")
    assert (refused.status, refused.error["code"]) == (502, "upstream_auth_failed")
    assert upstream.hits == SOLE_KEY_UNAVAILABLE_AFTER
    assert "upstream own: key #1 in cooldown for 5 s: auth_failed" in gateway.stderr
    upstream.answer_with(always=ok_json())
    eventually(lambda: gateway.complete(model="own-good").status == 200, timeout_s=LAST_KEY_COOLDOWN_S + 10)
    assert gateway.complete(model="own-bad").status == 200
