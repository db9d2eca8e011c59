"""A second route for a call whose first byte is late: who answers, what is charged, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.wings.hedging.first_bytes import MIN_SAMPLES
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, Wire, error_json, ok_json, silent, stream
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, eventually, key, settings

USED = {"prompt_tokens": 10, "completion_tokens": 5}
GOOD = ok_json({"model": "up", "usage": USED})
CHUNK = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
STREAM = stream([CHUNK, {"choices": [], "usage": USED}])
LIMIT = 50
"""Output tokens that a call without a limit reserves."""
REFUSALS = (400, 429, 500)
QUOTAS = [{"tokens": 10**9, "per": "month"}, {"usd": 10**6, "per": "month"}]
PRICE = {"input": 1, "output": 2}


@pytest.fixture(scope="module")
def other_upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture
def second(other_upstream: ScriptedUpstream) -> Iterator[ScriptedUpstream]:
    """The upstream of the second route."""
    other_upstream.answer_with(always=GOOD)
    yield other_upstream
    other_upstream.check()
    other_upstream.answer_with()


@pytest.fixture(scope="module")
def gateway(
    start_shared_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    other_upstream: ScriptedUpstream,
    store_url: str,
) -> Gateway:
    slow = {"base_url": shared_upstream.url, "api_key": "sk-slow"}
    fast = {"base_url": other_upstream.url, "api_key": "sk-fast"}
    failing = {f"fails-{status}": fast for status in REFUSALS}  # each with a health of its own
    upstreams = {"slow": slow, "fast": fast, **failing, "full": fast | {"limits": {"requests": "1/hour"}}}

    def hedged(*names: str, **more: Any) -> dict[str, Any]:
        routes = [{"upstream": name, "priority": place} for place, name in enumerate(names, 1)]
        return {"routes": routes, "max_output_tokens": LIMIT, "price": PRICE, "hedge_after": "100ms"} | more

    models = {
        "hedged": hedged("slow", "fast"), "p95": hedged("slow", "fast", hedge_after="p95"),
        **{name: hedged("slow", name) for name in failing}, "full": hedged("slow", "full"),
        "off": hedged("slow", "fast", hedge_after=None),
    }  # fmt: skip
    keys = [key("alice", quotas=QUOTAS), key("leaver")]
    return start_shared_gateway(
        settings("", upstreams=upstreams | {"main": slow}, models=models, keys=keys, store={"url": store_url})
    )


def ask(gateway: Gateway, model: str = "hedged", **more: Any) -> Answer:
    return gateway.chat(model=model, **more)


def record_of(gateway: Gateway, got: Answer) -> dict[str, Any]:
    return gateway.call(got.headers["x-request-id"])


def after_hit(stage: ScriptedUpstream, behaviour: Behaviour) -> Behaviour:
    """It begins when the other upstream has been asked once more."""
    hits = stage.hits

    async def late(wire: Wire) -> None:
        await asyncio.to_thread(eventually, lambda: stage.hits > hits)
        await behaviour(wire)

    return late


class Watched:
    """Never answers, and sees when the gateway hangs up."""

    def __init__(self) -> None:
        self.inside, self.left = threading.Event(), threading.Event()

    async def __call__(self, wire: Wire) -> None:
        self.inside.set()
        await wire.until_gone()
        self.left.set()


def used(gateway: Gateway) -> tuple[int, float]:
    """Tokens and US dollars of alice's windows."""
    windows = gateway.get("/v1/key").json["quotas"]
    assert all(window["reserved"] == 0 for window in windows)
    found = {window["unit"]: window["used"] for window in windows}
    return found["tokens"], found["usd"]


def check(gateway: Gateway, before: tuple[int, float], record: dict[str, Any]) -> None:
    """The windows agree with the record."""
    tokens, usd = used(gateway)
    prompt, completion = record["prompt_tokens"], record["completion_tokens"]
    assert tokens - before[0] == prompt + completion
    assert usd - before[1] == pytest.approx(record["cost_usd"], abs=1e-9)
    assert record["cost_usd"] == pytest.approx((prompt + 2 * completion) / 1e6)


def test_the_first_byte_of_the_call_is_that_of_the_route_that_serves(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    asked_at = 0.0

    async def answer_well(wire: Wire) -> None:
        nonlocal asked_at
        may_fail.set()
        await asyncio.to_thread(
            eventually, lambda: gateway.metric("gateway_upstream_attempts_total", **failed) > before
        )
        asked_at = time.time()
        await GOOD(wire)

    async def fail_late(wire: Wire) -> None:
        await asyncio.to_thread(may_fail.wait)
        await error_json(503)(wire)

    may_fail, failed = threading.Event(), {"upstream": "slow", "outcome": "status"}
    before = gateway.metric("gateway_upstream_attempts_total", **failed)
    upstream.answer_with(fail_late)
    second.answer_with(answer_well)
    record = record_of(gateway, ask(gateway))
    assert (record["upstream"], record["attempts"]) == ("fast", 2)
    assert record["time"] + record["first_byte_s"] >= asked_at


def test_a_late_plain_answer_comes_from_the_second_route_and_both_are_charged(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    upstream.answer_with(watched := Watched())
    before, tokens = used(gateway), gateway.metric("gateway_hedged_tokens_total", upstream="slow")
    got = ask(gateway)
    assert (got.status, got.headers["x-gateway-upstream"], got.headers["x-gateway-attempts"]) == (200, "fast", "2")
    assert watched.left.wait(30)
    record = record_of(gateway, got)
    assert record["failed"] == [{"upstream": "slow", "fault": "hedged"}]
    slow, fast = record["timeline"]
    assert (slow["upstream"], slow["fault"], fast["upstream"], fast["fault"]) == ("slow", "hedged", "fast", None)
    assert slow["began_s"] < fast["began_s"] < slow["ended_s"]  # they ran at the same time
    assert (record["upstream"], record["attempts"], record["usage_source"]) == ("fast", 2, "estimated")
    prompt = record["prompt_tokens"] - USED["prompt_tokens"]
    assert prompt > 0
    assert record["completion_tokens"] == USED["completion_tokens"] + LIMIT  # more may have been generated unseen
    check(gateway, before, record)
    assert gateway.metric("gateway_hedges_total", model="hedged", outcome="second") >= 1
    assert gateway.metric("gateway_upstream_attempts_total", upstream="slow", outcome="hedged") >= 1
    assert gateway.metric("gateway_hedged_tokens_total", upstream="slow") - tokens == prompt + LIMIT


def test_a_late_stream_comes_from_the_second_route_byte_by_byte(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    upstream.answer_with(STREAM, watched := Watched())
    second.answer_with(STREAM)
    plain = read_stream(gateway, "off")
    before = used(gateway)
    got = read_stream(gateway, "hedged")
    assert got[1] == plain[1]
    assert got[0].headers["x-gateway-upstream"] == "fast"
    assert watched.left.wait(30)
    record = record_of(gateway, got[0])
    assert record["failed"] == [{"upstream": "slow", "fault": "hedged"}]
    # Of a stream without output: what it can have generated until it was stopped.
    assert USED["completion_tokens"] < record["completion_tokens"] <= USED["completion_tokens"] + LIMIT
    check(gateway, before, record)


def read_stream(gateway: Gateway, model: str) -> tuple[Answer, bytes]:
    messages = [{"role": "user", "content": "Hello"}]
    with gateway.stream(path="/v1/chat/completions", model=model, messages=messages) as raw:
        head = raw.read_head()
        return head, raw.read_chunks()


def test_the_first_route_may_still_answer_first(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    second.answer_with(watched := Watched())
    upstream.answer_with(after_hit(second, GOOD), after_hit(second, STREAM))
    got = ask(gateway)
    assert (got.status, got.headers["x-gateway-upstream"]) == (200, "slow")
    assert watched.left.wait(30)
    assert record_of(gateway, got)["failed"] == [{"upstream": "fast", "fault": "hedged"}]
    second.answer_with(watched := Watched())
    upstream.answer_with(after_hit(second, STREAM))
    head, body = read_stream(gateway, "hedged")
    assert head.headers["x-gateway-upstream"] == "slow"
    assert body.endswith(b"data: [DONE]\n\n")
    assert watched.left.wait(30)
    assert gateway.metric("gateway_hedges_total", model="hedged", outcome="first") >= 2


@pytest.mark.parametrize("status", REFUSALS)
def test_a_failure_of_the_second_route_changes_nothing(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream, status: int
) -> None:
    async def well_after(wire: Wire) -> None:
        await asyncio.sleep(0.1)
        await GOOD(wire)

    second.answer_with(error_json(status))
    upstream.answer_with(after_hit(second, well_after))
    got = ask(gateway, f"fails-{status}")
    assert (got.status, got.headers["x-gateway-upstream"]) == (200, "slow")
    record = record_of(gateway, got)
    assert (record["prompt_tokens"], record["usage_source"]) == (USED["prompt_tokens"], "reported")


def test_where_both_fail_the_client_gets_the_failure_of_the_first(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    second.answer_with(error_json(503, message="second"))
    upstream.answer_with(after_hit(second, error_json(500, message="first")))
    got = ask(gateway)
    assert got.status == 502, got
    assert got.headers["x-gateway-upstream"] == "slow"
    record = record_of(gateway, got)
    assert [each["upstream"] for each in record["failed"]] == ["slow", "fast"]
    assert (record["attempts"], record["prompt_tokens"], record["usage_source"]) == (2, 0, "none")


def test_a_second_route_without_room_is_not_taken(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    async def in_time(wire: Wire) -> None:
        await asyncio.sleep(0.4)
        await GOOD(wire)

    upstream.answer_with(always=in_time)
    second.answer_with(GOOD)
    hits = second.hits
    assert ask(gateway, "full").status == 200
    assert eventually(lambda: second.hits == hits + 1)  # the only one of this hour
    assert ask(gateway, "full").headers["x-gateway-attempts"] == "1"
    assert second.hits == hits + 1


def test_a_client_that_leaves_leaves_neither(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    upstream.answer_with(one := Watched())
    second.answer_with(other := Watched())
    messages = [{"role": "user", "content": "Hello"}]
    raw = gateway.stream("leaver", path="/v1/chat/completions", model="hedged", messages=messages)
    assert one.inside.wait(30)
    assert other.inside.wait(30)
    raw.close()
    assert one.left.wait(30)
    assert other.left.wait(30)
    record = eventually(lambda: next(iter(gateway.calls("leaver")), None))
    assert (record["ended"], record["attempts"], record["usage_source"]) == ("client_gone", 2, "estimated")
    assert record["prompt_tokens"] % 2 == 0
    assert gateway.metric("gateway_hedges_total", model="hedged", outcome="client_gone") >= 1


@pytest.mark.parametrize("more", [{"store": True}, {"tools": [{"type": "mcp"}]}], ids=["stored", "acting tool"])
def test_what_must_not_be_done_twice_is_not_hedged(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream, more: dict[str, Any]
) -> None:
    async def late(wire: Wire) -> None:
        await asyncio.sleep(0.3)
        await GOOD(wire)

    upstream.answer_with(late)
    hits = second.hits
    assert ask(gateway, **more).headers["x-gateway-attempts"] == "1"
    assert second.hits == hits


def test_p95_is_learned_from_the_calls_of_the_model(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    async def late(wire: Wire) -> None:
        await asyncio.sleep(0.5)
        await GOOD(wire)

    upstream.answer_with(late, always=GOOD)
    hits = second.hits
    assert ask(gateway, "p95").headers["x-gateway-upstream"] == "slow"  # nothing is known yet
    for _ in range(4 * MIN_SAMPLES):  # of two workers
        ask(gateway, "p95")
    assert second.hits == hits
    upstream.answer_with(always=silent)
    assert ask(gateway, "p95").headers["x-gateway-upstream"] == "fast"


def test_nothing_of_it_shows_where_it_is_off(
    gateway: Gateway, upstream: ScriptedUpstream, second: ScriptedUpstream
) -> None:
    async def late(wire: Wire) -> None:
        await asyncio.sleep(0.3)
        await GOOD(wire)

    upstream.answer_with(late)
    hits = second.hits
    assert json.loads(ask(gateway, "off").body)["model"] == "up"
    assert second.hits == hits
