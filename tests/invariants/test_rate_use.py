"""Calls that reserve much and use little get at least nine tenths of a rate, and never more than its stated bound."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gateway.quota import windows
from gateway.quota.recent_output import LEAST_PART, RecentOutput
from gateway.records import Key
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import eventually, key, model, settings
from tests.flows.test_quota import Under, held
from tests.store.changes import SECOND, Clock

from . import rate_load
from .rate_load import DOORS, LIMIT, LOADS, PER_S, Claims, Load, Rules


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
async def test_a_rate_is_used(load: Load, door: Callable[[], Claims]) -> None:
    clock = Clock()
    began_us = clock.now_us
    outcome = await rate_load.run(load, door(), Rules(clock), clock, 180, random.Random(1))
    used = outcome.used(began_us + 60 * SECOND, began_us + 180 * SECOND)
    assert used >= 0.9 * PER_S * 120
    assert outcome.refused
    assert outcome.excess(60 * SECOND) <= 0


async def test_who_suddenly_uses_everything_exceeds_the_bound_by_no_more_than_it_says() -> None:
    """A key of short answers begins as many long ones as it is admitted, and pays for them before the next."""
    recent = RecentOutput()
    recent.note(Key("k"), "m", 1)
    clock = Clock()
    began_us = clock.now_us
    load = Load(130, 10, 16_000, 16_000, 20, spread=0)
    outcome = await rate_load.run(load, rate_load.of_key(), Rules(clock), clock, 1200, random.Random(1), recent)
    burst = outcome.used(began_us, began_us + 2 * SECOND)
    assert 2 * LIMIT < burst <= LEAST_PART * (LIMIT + 2 * PER_S)
    assert outcome.excess(60 * SECOND) <= 0
    assert outcome.used(began_us, clock.now_us) <= burst + LIMIT + 1200 * PER_S


def test_what_is_expected_follows_what_was_used() -> None:
    recent, one, other = RecentOutput(most=2), Key("one"), Key("other")
    assert recent.expected(one, "m", 3200) == 3200
    recent.note(one, "m", 400)
    assert [recent.expected(one, "m", limit) for limit in (3200, 300, 32_000)] == [400, 300, 1000]
    assert (recent.expected(one, "n", 3200), recent.expected(other, "m", 3200)) == (3200, 3200)
    recent.note(one, "m", 800)
    assert recent.expected(one, "m", 3200) == 500
    recent.note(one, "m", 100)
    assert recent.expected(one, "m", 3200) == 475
    for number in range(3):
        recent.note(other, f"m{number}", 100)
    assert (recent.expected(one, "m", 3200), recent.expected(other, "m0", 3200)) == (3200, 3200)
    assert recent.expected(other, "m2", 3200) == 100


def test_only_rates_of_tokens_and_money_are_drawn_by_use() -> None:
    units = [("tokens", PER) for PER in (0, 60 * SECOND)] + [
        ("requests", 60 * SECOND),
        ("usd", 60 * SECOND),
        ("usd", 0),
    ]
    assert [windows.Limit("key:k", unit, "p", None, 9, period).is_by_use for unit, period in units] == [  # type: ignore[arg-type]
        False, True, False, True, False,
    ]  # fmt: skip


def test_a_gateway_draws_what_calls_used(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    """On hourly rates, so that what leaks during the test is little. A day's quota is reserved in full, and so is the
    first call of a key, of which nothing is known."""
    quotas = [
        {unit: limit, "per": per} for per in ("hour", "day") for unit, limit in (("tokens", 5000), ("usd", 0.005))
    ]
    upstreams = {
        "main": {"limits": {"tokens": "5000/3600s"}}, "nowhere": {"base_url": "http://127.0.0.1:9/v1"},
    }  # fmt: skip
    price = {"input": 1, "output": 1}
    models = {"m": model("chat", price=price), "tried": model("chat", "nowhere", price=price, fallbacks=["m"])}
    gateway = start_gateway(
        settings(upstream.url, keys=[key("ada", quotas=quotas)], models=models, upstreams=upstreams)
    )
    answer = ok_json({"model": "up", "usage": {"prompt_tokens": 1, "completion_tokens": 200}})
    for number, (name, output) in enumerate([("m", 4000), ("m", 200), ("tried", 4000), ("tried", 200)]):
        with held(upstream, answer) as let_go:
            running = Under(lambda name=name: gateway.chat("ada", model=name, max_tokens=4000))  # type: ignore[misc]
            eventually(lambda: upstream.hits == 1)
            rows = gateway.get("/v1/key", key="ada").json["quotas"]
            (at_upstream,) = gateway.admin("upstreams").json["data"][0]["limits"]
            let_go()
            assert running.end().status == 200
        tokens, usd, tokens_a_day, usd_a_day = rows
        before = 201 * number
        for used in (tokens["used"], usd["used"] * 1e6, at_upstream["used"]):
            assert before + output <= used + 20 <= before + output + 50
        assert [row["reserved"] for row in (tokens, usd)] == [0, 0]
        assert tokens_a_day["used"] == before
        assert tokens_a_day["reserved"] > 4000
        assert usd_a_day["reserved"] > 0.004


def test_a_fallback_draws_its_own_part_of_its_own_limit(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    """It may use all of that, and the bound of a rate holds for each model that may serve a call."""
    models = {
        "large": model("chat", max_output_tokens=32_000),
        "small": model("chat", "nowhere", max_output_tokens=100, fallbacks=["large"]),
    }
    upstreams = {"nowhere": {"base_url": "http://127.0.0.1:9/v1"}}
    keys = [key("ada", quotas=[{"tokens": 100_000, "per": "hour"}])]
    gateway = start_gateway(settings(upstream.url, keys=keys, models=models, upstreams=upstreams))
    answer = ok_json({"model": "up", "usage": {"prompt_tokens": 1, "completion_tokens": 10}})
    for least in (32_000, 32_000 // LEAST_PART):
        before = gateway.get("/v1/key", key="ada").json["quotas"][0]["used"]
        with held(upstream, answer) as let_go:
            running = Under(lambda: gateway.chat("ada", model="small"))
            eventually(lambda: upstream.hits == 1)
            drawn = gateway.get("/v1/key", key="ada").json["quotas"][0]["used"] - before
            let_go()
            assert running.end().status == 200
        assert least - 50 <= drawn <= least + 50
