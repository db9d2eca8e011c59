"""What clients live through where an upstream answers 429 with a Retry-After, and calls may wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.scripted import error_json, ok_json

from .client import Answer, Raw
from .house import Gateway, eventually, key, settings

GOOD = ok_json({"model": "up", "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
SOON = error_json(429, headers=[("retry-after-ms", "1200")])
"""Longer than a call pauses without waiting, shorter than it may wait."""
LATER = error_json(429, headers=[("retry-after", "500")])


@pytest.fixture(scope="module")
def house(gateways: StartsGateways, theatre: Stage, store_url: str) -> Gateway:
    url = theatre.url

    def limited(**limits: Any) -> dict[str, Any]:
        return {"base_url": url, "api_key": "sk-up", "limits": limits}

    names = ["counts", "pauses", "tires", "learns", "leaves", "again", "poor"]
    upstreams = {name: limited(requests="9/2h", parallel=3) for name in names}
    upstreams["again"] = limited(requests="500/min")
    upstreams |= {"free": {"base_url": url, "api_key": "sk-up"}, "other": {"base_url": url, "api_key": "sk-up"}}
    models = {f"m-{name}": {"routes": [{"upstream": name}], "max_output_tokens": 50} for name in upstreams}
    models["m-tires"]["max_wait_s"] = 60
    models["m-falls"] = {"routes": [{"upstream": "other"}], "fallbacks": ["m-counts"], "max_output_tokens": 50}
    keys = [
        key("alice", quotas=[{"requests": 100, "per": "day"}]),
        key("hurried", max_wait_s=0),
        key("poor", quotas=[{"requests": 1, "per": "day"}]),
    ]
    server, queue, store = {"workers": 1}, {"max_wait_s": 3600}, {"url": store_url}
    return gateways(
        settings(url, upstreams=upstreams, models=models, keys=keys, queue=queue, server=server, store=store)
    )


@pytest.fixture(autouse=True)
def good_upstream(upstream: Stage) -> Iterator[None]:
    upstream.play(always=GOOD)
    yield
    upstream.play()


def ask(house: Gateway, model: str, who: str = "alice", headers: Mapping[str, str] = {}) -> Answer:
    body = {"model": f"m-{model}", "messages": [{"role": "user", "content": "Hello"}]}
    return house.post("/v1/chat/completions", body, key=who, headers=headers)


def begin(house: Gateway, model: str) -> Raw:
    messages = [{"role": "user", "content": "hi"}]
    return house.stream(path="/v1/chat/completions", model=f"m-{model}", messages=messages)


def waiting(house: Gateway) -> int:
    return sum(row["waiting"] for row in house.admin("upstreams").json["data"])


def used(house: Gateway, upstream: str) -> dict[str, int]:
    (row,) = [row for row in house.admin("upstreams").json["data"] if row["name"] == upstream]
    return {limit["unit"]: limit["used"] for limit in row["limits"]}


def test_a_refused_call_waits_and_is_served(house: Gateway, upstream: Stage) -> None:
    left = house.get("/v1/key", key="alice").json["quotas"][0]["remaining"]
    upstream.play(SOON, always=GOOD)
    got = ask(house, "counts")
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "2")
    (record,) = house.calls(limit=1)
    assert (record["status"], record["attempts"]) == (200, 2)
    assert record["failed"] == [{"upstream": "counts", "fault": "rate_limited"}]
    times = record["timeline"]
    assert [(each["upstream"], each["fault"]) for each in times] == [
        ("counts", "rate_limited"), (None, None), ("counts", None),
    ]  # fmt: skip
    assert times[1]["ended_s"] - times[1]["began_s"] > 1  # it waited until the upstream could be asked again
    assert [each["began_s"] for each in times] == sorted(each["began_s"] for each in times)
    eventually(lambda: used(house, "counts") == {"requests": 2, "parallel": 0})  # the upstream has seen two
    assert house.get("/v1/key", key="alice").json["quotas"][0]["remaining"] == left - 1


def test_no_call_is_sent_before_the_time_is_over(house: Gateway, upstream: Stage) -> None:
    upstream.play(LATER, always=GOOD)
    hits = upstream.hits
    with begin(house, "pauses"):
        eventually(lambda: waiting(house) == 1)
        assert used(house, "pauses") == {"requests": 1, "parallel": 0}  # it holds nothing while it waits
        with begin(house, "pauses"), begin(house, "pauses"):
            eventually(lambda: waiting(house) == 3)
    eventually(lambda: waiting(house) == 0)
    assert upstream.hits == hits + 1


def test_a_call_that_may_not_wait_so_long_gets_the_429(house: Gateway, upstream: Stage) -> None:
    upstream.play(LATER, always=GOOD)
    hits = upstream.hits
    got = ask(house, "tires")
    assert got.told == (429, "requests", None, "upstream_rate_limited")
    assert 490_000 < int(got.headers["retry-after-ms"]) <= 500_000
    again = ask(house, "tires")
    assert again.told == (429, "requests", None, "upstream_rate_limited")
    assert 490_000 < int(again.headers["retry-after-ms"]) <= 500_000
    assert upstream.hits == hits + 1
    assert used(house, "tires") == {"requests": 1, "parallel": 0}


def test_a_call_that_may_not_wait_learns_the_time_without_being_sent(house: Gateway, upstream: Stage) -> None:
    upstream.play(LATER, always=GOOD)
    hits = upstream.hits
    for _ in range(2):
        got = ask(house, "learns", "hurried")
        assert got.told == (429, "requests", None, "upstream_rate_limited")
        assert 490_000 < int(got.headers["retry-after-ms"]) <= 500_000
    assert upstream.hits == hits + 1


def test_a_client_that_leaves_while_its_call_waits_again_is_recorded_once(house: Gateway, upstream: Stage) -> None:
    upstream.play(LATER, always=GOOD)
    with begin(house, "leaves"):
        eventually(lambda: waiting(house) == 1)
    eventually(lambda: waiting(house) == 0)

    def records() -> list[Any]:
        return [record for record in house.calls(limit=10) if record["model"] == "m-leaves"]

    (record,) = eventually(records)
    assert (record["status"], record["attempts"], record["prompt_tokens"]) == (499, 1, 0)
    assert used(house, "leaves") == {"requests": 1, "parallel": 0}


def test_attempts_that_wait_do_not_count_in_the_most_attempts(house: Gateway, upstream: Stage) -> None:
    briefly = error_json(429, headers=[("retry-after-ms", "300")])
    upstream.play(*[briefly] * 5, always=GOOD)
    got = ask(house, "again")
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "6")


def test_an_upstream_without_limits_is_waited_for_too(house: Gateway, upstream: Stage) -> None:
    upstream.play(SOON, always=GOOD)
    hits = upstream.hits
    with ThreadPoolExecutor(2) as crowd:
        calls = [crowd.submit(ask, house, "free")]
        eventually(lambda: waiting(house) == 1)
        calls.append(crowd.submit(ask, house, "free"))
        assert [call.result().status for call in calls] == [200, 200]
    assert upstream.hits == hits + 3


def test_a_fallback_serves_at_once(house: Gateway, upstream: Stage) -> None:
    upstream.play(LATER, always=GOOD)
    for attempts in ("2", "2"):
        got = ask(house, "falls")
        assert (got.status, got.headers["x-gateway-upstream"]) == (200, "counts")
        assert got.headers["x-gateway-attempts"] == attempts
        upstream.play(LATER, always=GOOD)


def test_the_callers_own_quota_ends_the_wait(house: Gateway, upstream: Stage) -> None:
    """While the call waits it holds nothing of its key's quotas either, as before its first attempt."""
    upstream.play(SOON, always=GOOD)
    with ThreadPoolExecutor(2) as crowd:
        first = crowd.submit(ask, house, "poor", "poor")
        eventually(lambda: waiting(house) == 1)
        assert ask(house, "free", "poor").status == 200
        assert first.result().told == (429, "insufficient_quota", None, "insufficient_quota")
    eventually(lambda: used(house, "poor") == {"requests": 1, "parallel": 0})
