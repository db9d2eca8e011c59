"""What a client lives through where an upstream's account has limits: another route, or a true time to come back."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Behaviour, Wire, error_json, ok_json, stream

from .client import Answer
from .gateway_process import Gateway, eventually, key, settings

USED = {"prompt_tokens": 10, "completion_tokens": 5}


def limited(url: str, **limits: Any) -> dict[str, Any]:
    return {"base_url": url, "api_key": "sk-up", "limits": limits}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    url = shared_upstream.url
    upstreams = {
        "first": limited(url, requests="2/hour"),
        "second": limited(url, per_model={"gpt*": {"requests": "1/hour"}}),
        "alone": limited(url, requests="1/90s"),
        "tokens": limited(url, tokens="150/hour"),
        "sized": limited(url, tokens="9999/hour"),
        "slots": limited(url, parallel=1),
        "learns": limited(url, tokens="1000/min"),
        "shared": limited(url, requests="100/min"),
        "keys": {"base_url": url, "api_keys": ["sk-1", "sk-2"], "limits": {"per_key": {"requests": "1/hour"}}},
        "adapts": limited(url, parallel=50, adaptive=True),
        "fails": limited(url, requests="9/hour"),
        "helps": limited(url, requests="1/hour"),
    }
    routes = {
        "pair": ["first", "second"], "alone": ["alone"], "tokens": ["tokens"], "sized": ["sized"], "learns": ["learns"],
        "shared": ["shared"],
        "slots": ["slots"], "keys": ["keys"], "adapts": ["adapts"], "retried": ["fails", "helps"],
    }  # fmt: skip
    models = {
        f"gpt-{name}": {
            "routes": [{"upstream": up, "priority": place} for place, up in enumerate(names, 1)],
            "max_output_tokens": 50,
        }
        for name, names in routes.items()
    }
    quotas = [{"requests": 1000, "per": "day"}]
    return start_shared_gateway(settings(url, upstreams=upstreams, models=models, keys=[key("alice", quotas=quotas)]))


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=ok_json({"model": "up", "usage": USED}))
    yield
    upstream.answer_with()


def ask(gateway: Gateway, model: str, **more: Any) -> Answer:
    return gateway.chat(model=f"gpt-{model}", **more)


def refused_for_ms(got: Answer) -> int:
    assert got.refusal == (429, "requests", None, "upstream_rate_limited"), got
    return int(got.headers["retry-after-ms"])


def test_the_next_route_is_taken_where_one_is_full(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    hits = upstream.hits
    assert [ask(gateway, "pair").headers["x-gateway-upstream"] for _ in range(3)] == ["first", "first", "second"]
    wait_ms = refused_for_ms(ask(gateway, "pair"))
    assert 1_700_000 < wait_ms <= 1_800_000  # one of two an hour, which is sooner than one of one
    assert upstream.hits == hits + 3


def test_a_full_upstream_is_no_matter_of_the_callers_own_limits(gateway: Gateway) -> None:
    good = ask(gateway, "alone")
    assert good.headers["x-ratelimit-limit-requests"] == "1000"
    bad = ask(gateway, "alone")
    assert 80_000 < refused_for_ms(bad) <= 90_000
    assert "x-ratelimit-limit-requests" not in bad.headers
    assert "account" in bad.error["message"]


def test_tokens_are_drawn_by_recent_use_and_charged_at_the_truth(gateway: Gateway) -> None:
    served = [ask(gateway, "tokens").status for _ in range(12)]  # 15 tokens each, while the first draws about 60
    assert served == [200] * 10 + [429] * 2


def test_the_output_is_limited_to_what_was_reserved(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    ask(gateway, "sized")
    assert upstream.requests[-1].json["max_completion_tokens"] == 50


def test_slots_are_free_again_when_the_call_ends(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    inside, leave = threading.Event(), threading.Event()

    async def hold(wire: Wire) -> None:
        inside.set()
        await asyncio.to_thread(leave.wait, 30)
        await good(wire)

    good: Behaviour = ok_json({"model": "up", "usage": USED})
    upstream.answer_with(hold, always=good)
    answers: list[Answer] = []
    caller = threading.Thread(target=lambda: answers.append(ask(gateway, "slots")))
    caller.start()
    assert inside.wait(30)
    try:
        assert refused_for_ms(ask(gateway, "slots")) > 0
    finally:
        leave.set()
        caller.join()
    assert answers[0].status == 200
    assert ask(gateway, "slots").status == 200


def test_each_key_of_an_upstream_has_its_own_limit(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    assert [ask(gateway, "keys").status for _ in range(3)] == [200, 200, 429]
    assert {request.headers["authorization"] for request in upstream.requests[-2:]} == {"Bearer sk-1", "Bearer sk-2"}


def test_another_attempt_needs_room_where_it_goes(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    good = ok_json({"model": "up", "usage": USED})
    upstream.answer_with(error_json(500), good, error_json(500), always=good)
    helped = ask(gateway, "retried")
    assert (helped.status, helped.headers["x-gateway-upstream"]) == (200, "helps")
    hits = upstream.hits
    full = ask(gateway, "retried")  # `helps` has served its one request of the hour
    assert full.refusal[0] == 429, full
    assert upstream.hits == hits + 1
    (failed, worked) = gateway.calls(limit=2)
    assert (failed["status"], worked["status"]) == (429, 200)


def test_a_429_lowers_what_is_assumed(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    def limit() -> tuple[int, int]:
        (row,) = next(row["limits"] for row in gateway.admin("upstreams").json["data"] if row["name"] == "learns")
        return row["configured"], row["limit"]

    assert limit() == (1000, 1000)
    good = ok_json({"model": "up", "usage": USED}, headers=[("x-ratelimit-limit-tokens", "800")])
    upstream.answer_with(good, error_json(429), always=good)
    assert ask(gateway, "learns").status == 200
    assert limit() == (1000, 800)
    ask(gateway, "learns")
    configured, assumed = limit()
    assert (configured, 560 <= assumed < 800) == (1000, True)


def test_what_others_use_of_the_account_lowers_what_is_assumed(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    def limit() -> dict[str, Any]:
        (row,) = next(row["limits"] for row in gateway.admin("upstreams").json["data"] if row["name"] == "shared")
        return {name: row[name] for name in ("configured", "limit", "used")}

    headers = [("x-ratelimit-limit-requests", "100"), ("x-ratelimit-reset-requests", "59s")]
    upstream.answer_with(
        ok_json({"model": "up", "usage": USED}, headers=[*headers, ("x-ratelimit-remaining-requests", "99")])
    )
    assert ask(gateway, "shared").status == 200
    assert limit() == {"configured": 100, "limit": 100, "used": 1}
    upstream.answer_with(
        ok_json({"model": "up", "usage": USED}, headers=[*headers, ("x-ratelimit-remaining-requests", "20")])
    )
    assert ask(gateway, "shared").status == 200
    now = limit()
    assert (now["configured"], 20 <= now["limit"] < 60) == (100, True)  # 78 by others


def test_the_limit_of_an_adaptive_upstream_rises_with_quick_streams(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    def allowed() -> tuple[int, int]:
        (row,) = [row for row in gateway.admin("upstreams").json["data"] if row["name"] == "adapts"]
        (limit,) = row["limits"]
        return limit["limit"], limit["configured"]

    assert allowed() == (4, 50)
    chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [
        {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}  # fmt: skip
    held = threading.Semaphore(0)

    async def slow(wire: Wire) -> None:
        assert await asyncio.to_thread(held.acquire, timeout=30)
        await stream([chunk])(wire)

    upstream.answer_with(always=slow)
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(ask(gateway, "adapts", stream=True).status)) for _ in "1234"
    ]
    for thread in threads:
        thread.start()
    eventually(
        lambda: (
            next(row for row in gateway.admin("upstreams").json["data"] if row["name"] == "adapts")["in_flight"] == 4
        )
    )
    assert ask(gateway, "adapts", stream=True).status == 429
    for _ in threads:
        held.release()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 4
    assert eventually(lambda: (now := allowed())[0] > 4 and now)[1] == 50


@pytest.mark.parametrize("queue", [{}, {"max_wait_s": 60}], ids=["refusing", "waiting"])
def test_limits_cost_a_call_no_round_trip(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, tmp_path: Path, queue: dict[str, Any]
) -> None:
    """The limits of an upstream are drawn on in the reservation of the call, and a queue without waiting calls sends
    nothing."""
    calls = 20
    with RedisServer(tmp_path) as server:
        upstreams = {
            "plain": {"base_url": shared_upstream.url, "api_key": "sk-up"},
            "limited": limited(shared_upstream.url, requests="1000/min", tokens="9M/min", parallel=9),
        }
        models = {f"m-{name}": {"routes": [{"upstream": name}], "max_output_tokens": 50} for name in upstreams}
        made = start_shared_gateway(
            settings(
                shared_upstream.url, upstreams=upstreams, models=models, queue=queue, store={"url": server.url},
                keys=[key("alice", quotas=[{"requests": 1000, "per": "day"}])], server={"workers": 1},
            )
        )  # fmt: skip

        def scripts(model: str) -> int:
            before = sum(map(int, re.findall(r"cmdstat_evalsha:calls=(\d+)", str(server.call("INFO", "commandstats")))))
            for _ in range(calls):
                assert made.chat(model=model).status == 200
            after = sum(map(int, re.findall(r"cmdstat_evalsha:calls=(\d+)", str(server.call("INFO", "commandstats")))))
            return after - before

        scripts("m-plain")
        plain, with_limits = scripts("m-plain"), scripts("m-limited")
        assert plain >= calls
        assert with_limits < plain + calls / 2, (plain, with_limits)  # one more for each call would be 20
        made.stop()
