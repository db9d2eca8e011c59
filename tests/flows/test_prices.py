"""Prices by unit and from the table, as a caller and an operator see them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config.price_table import PriceTable
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, ok_json, stream

from .gateway_process import Gateway, eventually, key, model, settings
from .test_money import purse
from .test_quota import Under, held

TABLED = "gpt-5.6"
"""In the table: input 4, cached 0.4, cache writes 5, output 20; flex half of it; above 272,000 tokens twice."""
OWN = "own-price"
DAY = {"usd": 5, "per": "day"}

MODELS = {
    TABLED: model("chat"),
    OWN: model("chat", price={"input": 1, "output": 2}),
    "some/*": model("chat", strip_prefix="some/"),
}
KEYS = [key("payer", quotas=[DAY]), key("reserver", quotas=[DAY]), key("searcher", quotas=[DAY])]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    upstreams = {"main": {"provider": "openai"}}
    return start_shared_gateway(settings(shared_upstream.url, keys=KEYS, models=MODELS, upstreams=upstreams))


@pytest.fixture(autouse=True)
def nothing_left(upstream: ScriptedUpstream) -> Iterator[None]:
    yield
    upstream.answer_with()


def usage_of(prompt: int, completion: int, **details: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}


def answer(usage: dict[str, Any], **more: Any) -> Behaviour:
    message = {"role": "assistant", "content": "one"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return ok_json({"model": "up", "choices": choices, "usage": usage, **more})


def test_a_call_is_charged_by_the_table(gateway: Gateway, upstream: ScriptedUpstream, source: str) -> None:
    upstream.answer_with(answer(usage_of(1000, 100, cached_tokens=200, cache_write_tokens=300)))
    call = gateway.call(gateway.chat("payer", model=TABLED).id)
    assert call["cost_usd"] == (500 * 4 + 200 * 0.4 + 300 * 5 + 100 * 20) / 1e6
    assert (call["price_source"], call["price_tier"], call["price_variant"]) == (source, None, None)
    assert (call["price"]["cache_write"], call["units"]) == (5, {"cache_write": 300})
    assert purse(gateway, "payer")["used"] == call["cost_usd"]


@pytest.fixture
def source() -> str:
    return f"table {PriceTable(datetime.now(UTC)).name}"


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_answer_names_the_service_that_was_paid_for(
    is_stream: bool, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    usage = usage_of(1000, 100)
    chunk = {"choices": [{"index": 0, "delta": {"content": "one"}, "finish_reason": "stop"}]}
    events = [chunk, {"choices": [], "usage": usage, "service_tier": "flex"}]
    upstream.answer_with(stream(events) if is_stream else answer(usage, service_tier="flex"))
    call = gateway.call(gateway.chat("payer", model=TABLED, stream=is_stream).id)
    assert (call["cost_usd"], call["price_variant"]) == ((1000 * 2 + 100 * 10) / 1e6, "flex")


def test_a_long_prompt_has_the_prices_of_its_tier(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(usage_of(272_001, 100)))
    call = gateway.call(gateway.chat("payer", model=TABLED, prompt="x" * 1_100_000).id)
    assert (call["cost_usd"], call["price_tier"]) == ((272_001 * 8 + 100 * 30) / 1e6, 272_000)


def test_a_name_under_a_pattern_has_its_own_price(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(answer(usage_of(1000, 100)))
    assert gateway.call(gateway.chat("payer", model="some/gpt-4o").id)["cost_usd"] == (1000 * 2.5 + 100 * 10) / 1e6
    refused = gateway.chat("payer", model="some/unheard-of")
    assert (refused.status, refused.error["code"]) == (403, "model_not_priced")


def test_what_is_reserved_is_the_most_that_it_can_cost(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Every prompt token may be written to the cache, which is dearer than reading it anew."""
    with held(upstream, answer(usage_of(10, 5))) as let_go:
        call = Under(lambda: gateway.chat("reserver", model=TABLED, max_tokens=1000))
        eventually(lambda: upstream.hits == 1)
        reserved = purse(gateway, "reserver")["reserved"] - 1000 * 20 / 1e6
        let_go()
        assert call.end().status == 200
    assert reserved > 0
    assert round(reserved * 1e6 / 5, 6).is_integer()
    assert purse(gateway, "reserver")["used"] == (10 * 4 + 5 * 20) / 1e6


def test_a_unit_without_a_price_makes_the_cost_unknown_and_the_quota_pays_what_was_reserved(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(answer(usage_of(10, 5, cache_write_tokens=3)))
    reply = gateway.chat("searcher", model=OWN, max_tokens=1000)
    call = gateway.call(reply.id)
    assert (call["cost_usd"], call["units"]) == (None, {"cache_write": 3})
    assert call["price"] == {"input": 1, "cached_input": 1, "output": 2}
    assert purse(gateway, "searcher")["used"] >= 1000 * 2 / 1e6
