"""What clients live through where an upstream answers 429 with a Retry-After, and calls may wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import error_json, ok_json
from tests.flows.client import Answer, Raw
from tests.flows.gateway_process import Gateway, eventually, key, settings

GOOD = ok_json({"model": "up", "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
SOON = error_json(429, headers=[("retry-after-ms", "1200")])
"""Longer than a call pauses without waiting, shorter than it may wait."""
LATER = error_json(429, headers=[("retry-after", "500")])


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    url = shared_upstream.url

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
    return start_shared_gateway(
        settings(url, upstreams=upstreams, models=models, keys=keys, queue=queue, server=server, store=store)
    )


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=GOOD)
    yield
    upstream.answer_with()


def ask(gateway: Gateway, model: str, who: str = "alice", headers: Mapping[str, str] = {}) -> Answer:
    body = {"model": f"m-{model}", "messages": [{"role": "user", "content": "Hello"}]}
    return gateway.post("/v1/chat/completions", body, key=who, headers=headers)


def begin(gateway: Gateway, model: str) -> Raw:
    messages = [{"role": "user", "content": "hi"}]
    return gateway.stream(path="/v1/chat/completions", model=f"m-{model}", messages=messages)


def waiting(gateway: Gateway) -> int:
    return sum(row["waiting"] for row in gateway.admin("upstreams").json["data"])


def used(gateway: Gateway, upstream: str) -> dict[str, int]:
    (row,) = [row for row in gateway.admin("upstreams").json["data"] if row["name"] == upstream]
    return {limit["unit"]: limit["used"] for limit in row["limits"]}


def test_a_refused_call_waits_and_is_served(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    left = gateway.get("/v1/key", key="alice").json["quotas"][0]["remaining"]
    upstream.answer_with(SOON, always=GOOD)
    got = ask(gateway, "counts")
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "2")
    (record,) = gateway.calls(limit=1)
    assert (record["status"], record["attempts"]) == (200, 2)
    assert record["failed"] == [{"upstream": "counts", "fault": "rate_limited"}]
    times = record["timeline"]
    assert [(each["upstream"], each["fault"]) for each in times] == [
        ("counts", "rate_limited"), (None, None), ("counts", None),
    ]  # fmt: skip
    assert times[1]["ended_s"] - times[1]["began_s"] > 1  # it waited until the upstream could be asked again
    assert [each["began_s"] for each in times] == sorted(each["began_s"] for each in times)
    eventually(lambda: used(gateway, "counts") == {"requests": 2, "parallel": 0})  # the upstream has seen two
    assert gateway.get("/v1/key", key="alice").json["quotas"][0]["remaining"] == left - 1


def test_no_call_is_sent_before_the_time_is_over(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(LATER, always=GOOD)
    hits = upstream.hits
    with begin(gateway, "pauses"):
        eventually(lambda: waiting(gateway) == 1)
        assert used(gateway, "pauses") == {"requests": 1, "parallel": 0}  # it holds nothing while it waits
        with begin(gateway, "pauses"), begin(gateway, "pauses"):
            eventually(lambda: waiting(gateway) == 3)
    eventually(lambda: waiting(gateway) == 0)
    assert upstream.hits == hits + 1


def test_a_call_that_may_not_wait_so_long_gets_the_429(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(LATER, always=GOOD)
    hits = upstream.hits
    got = ask(gateway, "tires")
    assert got.refusal == (429, "requests", None, "upstream_rate_limited")
    assert 490_000 < int(got.headers["retry-after-ms"]) <= 500_000
    again = ask(gateway, "tires")
    assert again.refusal == (429, "requests", None, "upstream_rate_limited")
    assert 490_000 < int(again.headers["retry-after-ms"]) <= 500_000
    assert upstream.hits == hits + 1
    assert used(gateway, "tires") == {"requests": 1, "parallel": 0}


def test_a_call_that_may_not_wait_learns_the_time_without_being_sent(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(LATER, always=GOOD)
    hits = upstream.hits
    for _ in range(2):
        got = ask(gateway, "learns", "hurried")
        assert got.refusal == (429, "requests", None, "upstream_rate_limited")
        assert 490_000 < int(got.headers["retry-after-ms"]) <= 500_000
    assert upstream.hits == hits + 1


def test_a_client_that_leaves_while_its_call_waits_again_is_recorded_once(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(LATER, always=GOOD)
    with begin(gateway, "leaves"):
        eventually(lambda: waiting(gateway) == 1)
    eventually(lambda: waiting(gateway) == 0)

    def records() -> list[Any]:
        return [record for record in gateway.calls(limit=10) if record["model"] == "m-leaves"]

    (record,) = eventually(records)
    assert (record["status"], record["attempts"], record["prompt_tokens"]) == (499, 1, 0)
    assert used(gateway, "leaves") == {"requests": 1, "parallel": 0}


def test_attempts_that_wait_do_not_count_in_the_most_attempts(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    briefly = error_json(429, headers=[("retry-after-ms", "300")])
    upstream.answer_with(*[briefly] * 5, always=GOOD)
    got = ask(gateway, "again")
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "6")


def test_an_upstream_without_limits_is_waited_for_too(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(SOON, always=GOOD)
    hits = upstream.hits
    with ThreadPoolExecutor(2) as crowd:
        calls = [crowd.submit(ask, gateway, "free")]
        eventually(lambda: waiting(gateway) == 1)
        calls.append(crowd.submit(ask, gateway, "free"))
        assert [call.result().status for call in calls] == [200, 200]
    assert upstream.hits == hits + 3


def test_a_fallback_serves_at_once(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(LATER, always=GOOD)
    for attempts in ("2", "2"):
        got = ask(gateway, "falls")
        assert (got.status, got.headers["x-gateway-upstream"]) == (200, "counts")
        assert got.headers["x-gateway-attempts"] == attempts
        upstream.answer_with(LATER, always=GOOD)


def test_the_callers_own_quota_ends_the_wait(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """While the call waits it holds nothing of its key's quotas either, as before its first attempt."""
    upstream.answer_with(SOON, always=GOOD)
    with ThreadPoolExecutor(2) as crowd:
        first = crowd.submit(ask, gateway, "poor", "poor")
        eventually(lambda: waiting(gateway) == 1)
        assert ask(gateway, "free", "poor").status == 200
        assert first.result().refusal == (429, "insufficient_quota", None, "insufficient_quota")
    eventually(lambda: used(gateway, "poor") == {"requests": 1, "parallel": 0})
