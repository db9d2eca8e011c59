"""A chat call without a limit gets what its quota has left, in both stores, and the quota holds."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, Request, error_json, ok_json

from .client import Answer
from .gateway_process import CHAT, Gateway, key, model, settings

HEADER = "x-gateway-output-limit"


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    day = [{"tokens": 1000, "per": "day"}]
    keys = [
        key("small", quotas=day), key("spent", quotas=day), key("crowd", quotas=day), key("poor", quotas=day),
        key("limited", quotas=day), key("money", quotas=[{"usd": 0.001, "per": "day"}]), key("full", quotas=day),
        key("thinker", quotas=day),
    ]  # fmt: skip
    models = {
        CHAT: model("chat", min_output_tokens=50, max_attempts=1, fallbacks=["big"], price={"input": 1, "output": 1}),
        "big": model("chat", "limited", price={"input": 1, "output": 2}), "plain": model("chat"),
        "bounded": model("chat", "limited", min_output_tokens=50),
        "answers": model("responses", min_output_tokens=50),
    }  # fmt: skip
    upstreams = {"limited": {"base_url": shared_upstream.url, "limits": {"tokens": "10k/min"}}}
    return start_shared_gateway(
        settings(shared_upstream.url, store={"url": store_url}, keys=keys, models=models, upstreams=upstreams)
    )


def used(tokens: int) -> Behaviour:
    return ok_json({"model": "up", "usage": {"prompt_tokens": 1, "completion_tokens": tokens - 1}})


def sent_limit(upstream: ScriptedUpstream) -> Any:
    requests: list[Request] = upstream.requests
    return requests[-1].json.get("max_completion_tokens")


def left(gateway: Gateway, who: str) -> int:
    quota = gateway.get("/v1/key", key=who).json["quotas"][0]
    return quota["limit"] - quota["used"] - quota["reserved"]


def test_a_quota_below_the_default_serves(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(used(700), used(100), used(1))
    first = gateway.chat("small")
    assert first.status == 200
    limit = int(first.headers[HEADER])
    assert 900 < limit < 1000
    assert sent_limit(upstream) == limit
    assert gateway.call(first.headers["x-request-id"])["prompt_tokens"] == 1
    second = gateway.chat("small")
    assert (second.status, int(second.headers[HEADER])) == (200, limit - 700)
    assert sent_limit(upstream) == limit - 700
    own = gateway.chat("small", max_tokens=20)
    assert (own.status, HEADER in own.headers) == (200, False)


def test_too_little_left_is_refused_as_ever(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(used(960))
    assert gateway.chat("spent").status == 200
    refused = gateway.chat("spent")
    assert (refused.status, refused.json["error"]["code"], HEADER in refused.headers) == (
        429, "insufficient_quota", False)  # fmt: skip
    plain = gateway.chat("poor", model="plain")
    assert (plain.status, plain.json["error"]["code"]) == (400, "quota_too_small")


def test_money_is_left_as_well(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(used(400), used(1))
    assert 450 < int(gateway.chat("money").headers[HEADER]) < 500  # by the price of the fallback, which is dearer
    assert 250 < int(gateway.chat("money").headers[HEADER]) < 300


def test_a_fallback_has_the_same_limit(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(error_json(503, message="overloaded"), used(10))
    found = gateway.chat("full")
    assert (found.status, found.headers["x-gateway-model"]) == (200, "big")
    assert sent_limit(upstream) == int(found.headers[HEADER])


def test_a_responses_call_is_reduced_too(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json({"object": "response", "status": "completed", "output": []}))
    found = gateway.post("/v1/responses", {"model": "answers", "input": "hi"}, key="thinker")
    assert found.status == 200
    requests: list[Request] = upstream.requests
    assert 900 < requests[-1].json["max_output_tokens"] == int(found.headers[HEADER]) < 1000


def test_limits_of_an_upstream_count_beside(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(used(700), used(1))
    assert 900 < int(gateway.chat("limited", model="bounded").headers[HEADER]) < 1000
    assert 200 < int(gateway.chat("limited", model="bounded").headers[HEADER]) < 300


def test_many_at_once_never_exceed_the_quota(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=used(60))
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(gateway.chat("crowd"))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status for answer in answers} <= {200, 429}
    served = [answer for answer in answers if answer.status == 200]
    assert served
    assert left(gateway, "crowd") == 1000 - 60 * len(served)
