"""Budgets of a label and of an upstream under a crowd: never exceeded over all workers and gateways on a store."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways, start_pair
from tests.fakes.scripted import ok_json
from tests.flows.crowd import Call, statuses
from tests.flows.gateway_process import COMPLETIONS, Gateway, key, model, secret, settings

CALLS, LIMIT = 300, 60
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
SMALL = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
"""No more than the estimate of the prompt, whose error may exceed a quota."""

FIXED = "fixed"


@pytest.fixture(scope="module")
def gateways(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> list[Gateway]:
    url = shared_upstream.url
    config = settings(
        url,
        server={"workers": 2},
        store={"url": store_url},
        quotas=[{"requests": LIMIT, "per": "day", "label": "project"}],
        upstreams={"paid": {"base_url": url, "quotas": ["0.0006 USD/day"]}, "free": {"base_url": url}},
        keys=[key("labelled", labels={"project": "web"}), key("tagged"), key("bob"), key("plain")],
        models={
            COMPLETIONS: model("completions"),
            FIXED: model(
                "completions", price={"input": 1, "output": 1},
                routes=[{"upstream": "paid", "priority": 1}, {"upstream": "free", "priority": 2}],
            ),
        },
    )  # fmt: skip
    return start_pair(start_shared_gateway, config, store_url)


def all_statuses(calls: list[Call]) -> list[int]:
    """The final statuses: calls of which a busy machine has refused the connection come again, as the SDKs do."""
    received = statuses(calls, 4)
    for _ in range(20):
        if not (again := [number for number, status in enumerate(received) if status == 503]):
            break
        for number, status in zip(again, statuses([calls[number] for number in again], 1), strict=True):
            received[number] = status
    return received


def window(gateway: Gateway, scope: str) -> dict[str, Any]:
    (row,) = [row for row in gateway.admin("quotas").json["data"] if row["scope"] == scope]
    return dict(row)


def test_a_project_has_exactly_its_budget_with_labels_and_with_tags(
    gateways: list[Gateway], upstream: ScriptedUpstream
) -> None:
    """Half of the calls have the value by their key's label, half by a tag that both gateways hear of at once: both
    have the budget."""
    upstream.answer_with(always=ok_json({"model": "up", "usage": USAGE, "choices": [{"text": "a", "index": 0}]}))
    body = {"model": COMPLETIONS, "prompt": "Hello", "max_tokens": 5}
    tagged = body | {"metadata": {"project": "web"}}
    calls: list[Call] = [
        (gateways[number // 2 % 2].port, "/v1/completions", secret("labelled"), body)
        if number % 2
        else (gateways[number // 2 % 2].port, "/v1/completions", secret("tagged"), tagged)
        for number in range(CALLS)
    ]
    assert Counter(all_statuses(calls)) == {200: 2 * LIMIT, 429: CALLS - 2 * LIMIT}
    assert upstream.hits == 2 * LIMIT
    for gateway in gateways:
        for scope in ("label:project=web", "tag:project=web"):
            row = window(gateway, scope)
            assert (row["used"], row["reserved"]) == (LIMIT, 0)
    assert gateways[0].complete("bob").status == 200


def test_an_upstream_is_paid_no_more_than_its_budget(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    """Every call is served: where the money is spent, or held by running calls, by the other upstream."""
    upstream.answer_with(always=ok_json({"model": "up", "usage": SMALL, "choices": [{"text": "a", "index": 0}]}))
    body = {"model": FIXED, "prompt": "Hello", "max_tokens": 5}
    calls: list[Call] = [
        (gateways[number % 2].port, "/v1/completions", secret("plain"), body) for number in range(CALLS)
    ]
    assert Counter(all_statuses(calls)) == {200: CALLS}
    usage = {row["upstream"]: row for row in gateways[0].usage(group_by="upstream", key="plain")}
    row = window(gateways[1], "upstream:paid")
    assert row["reserved"] == 0
    assert row["used"] <= row["limit"] == 0.0006
    assert round(row["used"] * 1e9) == round(usage["paid"]["cost_usd"] * 1e9) > 0
    assert usage["paid"]["requests"] + usage["free"]["requests"] == CALLS
