"""Several gateways, as on several machines, that share one Redis: to their callers they have one set of limits."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Wire, ok_json
from tests.flows.crowd import Call, statuses
from tests.flows.gateway_process import COMPLETIONS, EMBEDDINGS, Gateway, eventually, key, model, secret, settings

REPLICAS = 3
PROCESSES = 4

DAY = "day"
CREW = [f"crew-{number}" for number in range(REPLICAS)]


def config(upstream: str, redis: RedisServer, limit_of_two_minds: int = 10) -> dict[str, Any]:
    keys = [
        key("hundred", quotas=[{"requests": 100, "per": DAY}]),
        key("reader", quotas=[{"tokens": 1000, "per": DAY}]),
        key("writer", quotas=[{"tokens": 1000, "per": DAY}]),
        key("payer", quotas=[{"usd": 0.001, "per": "month"}]),
        key("two-minds", quotas=[{"requests": limit_of_two_minds, "per": per} for per in (DAY, "hour")]),
        key("patient", quotas=[{"requests": 100, "per": DAY}]),
        key("narrow", max_parallel=REPLICAS),
        *[key(name, team="crew") for name in CREW],
    ]
    return settings(
        upstream,
        store={"url": redis.url},
        keys=keys,
        teams={"crew": {"quotas": [{"requests": 40, "per": DAY}]}},
        models={COMPLETIONS: model("completions", price={"input": 1, "output": 2})},
    )


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def gateways(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, redis: RedisServer
) -> list[Gateway]:
    """Each with a folder and a journal of its own; the last one has another idea of one key's limits."""
    made = [
        start_shared_gateway(config(shared_upstream.url, redis, limit), is_awaited=False)
        for limit in [10] * (REPLICAS - 1) + [5]
    ]
    for gateway in made:
        gateway.wait_until_ready()
    return made


def tokens(count: int) -> list[int]:
    """A prompt of exactly so many tokens."""
    return list(range(1, count + 1))


async def count_exactly(wire: Wire) -> None:
    """Reports the prompt that was sent, and half of the output that it might have made."""
    asked = wire.request.json
    prompt = asked.get("prompt") or asked["input"]
    prompt_tokens = len(prompt) if isinstance(prompt, list) else 2
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": asked.get("max_tokens", 0) // 2}
    usage["total_tokens"] = sum(usage.values())
    text = "a" if usage["completion_tokens"] else ""  # what is reported as nothing and is something is not believed
    await ok_json({"model": "up", "choices": [{"text": text, "index": 0}], "usage": usage})(wire)


def window(gateway: Gateway, who: str, **where: Any) -> tuple[Any, Any]:
    """Used and reserved, as its owner sees it."""
    (found,) = [quota for quota in gateway.get("/v1/key", key=who).json["quotas"] if where.items() <= quota.items()]
    return found["used"], found["reserved"]


def the_same_everywhere(gateways: list[Gateway], who: str, **where: Any) -> Any:
    """What is used, which all gateways have to agree on, with nothing reserved."""
    (found,) = {window(gateway, who, **where) for gateway in gateways}
    used, reserved = found
    assert reserved == 0
    for gateway in gateways:
        assert [row for row in gateway.admin("quotas").json["data"] if row["reserved"]] == []
    return used


def completion(gateway: Gateway, who: str, **more: Any) -> Call:
    return gateway.port, "/v1/completions", secret(who), {"model": COMPLETIONS, "prompt": "Hello"} | more


def test_exactly_100_of_500_over_three_gateways(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=count_exactly)
    calls = [completion(gateways[number % REPLICAS], "hundred") for number in range(500)]
    made, received = Counter(port for port, *_ in calls), statuses(calls, PROCESSES)
    for _ in range(20):
        if not (again := [number for number, status in enumerate(received) if status == 503]):
            break
        # A busy machine: Redis has needed longer than it may. They come again, as the SDKs do.
        made += Counter(calls[number][0] for number in again)
        for number, status in zip(again, statuses([calls[number] for number in again], 1), strict=True):
            received[number] = status
    assert Counter(received) == {200: 100, 429: 400}
    assert upstream.hits == 100
    assert the_same_everywhere(gateways, "hundred") == 100
    for gateway in gateways:
        assert len(gateway.calls("hundred", limit=1000)) == 100
        (row,) = [row for row in gateway.usage(group_by="key") if row["key"] == "hundred"]
        assert row["requests"] == 100
    counted = [gateway.metric("gateway_requests_total", key="hundred") for gateway in gateways]
    assert counted == [made[gateway.port] for gateway in gateways]
    assert sum(gateway.metric("gateway_requests_total", key="hundred", status="200") for gateway in gateways) == 100


def test_exactly_100_however_often_redis_is_blocked(
    gateways: list[Gateway], upstream: ScriptedUpstream, redis: RedisServer
) -> None:
    """Draws with an unknown result are voided; no call is served beyond the quota because of them."""
    upstream.answer_with(always=count_exactly)
    calls = [completion(gateways[number % REPLICAS], "patient") for number in range(60)]
    received: Counter[int] = Counter()
    is_over = threading.Event()

    def disturb() -> None:
        while not is_over.wait(0.1):
            redis.stop()
            is_over.wait(1.2)  # longer than a batch waits
            redis.cont()

    trouble = threading.Thread(target=disturb)
    trouble.start()
    try:
        for turn in range(20):
            received += Counter(statuses(calls, 2))
            if turn >= 2 and received[503] and received[200]:
                break
    finally:
        is_over.set()
        trouble.join()
    assert set(received) <= {200, 429, 503}
    assert received[503] > 0 < received[200]
    for gateway in gateways:
        eventually(lambda gateway=gateway: gateway.complete("patient").status != 503)
    received = Counter(statuses(calls * 2, PROCESSES))
    assert set(received) <= {200, 429}
    assert upstream.hits == 100
    eventually(lambda: window(gateways[0], "patient") == (100, 0))
    assert the_same_everywhere(gateways, "patient") == 100 == len(gateways[0].calls("patient", limit=1000))


def test_tokens_and_money_are_never_overspent_over_three_gateways(
    gateways: list[Gateway], upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=count_exactly)
    before = len(gateways[0].calls(limit=1000))
    calls: list[Call] = []
    for number in range(100):
        gateway = gateways[number % REPLICAS]
        embedding = {"model": EMBEDDINGS, "input": tokens(17)}
        calls += [
            (gateway.port, "/v1/embeddings", secret("reader"), embedding),
            completion(gateway, "writer", prompt=tokens(3), max_tokens=2 * (number % 20)),
            completion(gateway, "payer", prompt=tokens(6), max_tokens=10),  # $ 0.000026 at most, $ 0.000016 in the end
            completion(gateway, CREW[number % REPLICAS]),
        ]
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    random.Random(seed).shuffle(calls)
    received = statuses(calls, PROCESSES)
    assert set(received) == {200, 429}
    served = Counter(secret for (_, _, secret, _), status in zip(calls, received, strict=True) if status == 200)

    # What is reserved for an embedding is what it costs: 58 x 17 fit into 1000, and 59 x 17 do not.
    assert served[secret("reader")] == 58
    assert the_same_everywhere(gateways, "reader") == 58 * 17
    assert sum(served[secret(who)] for who in CREW) == 40
    assert the_same_everywhere(gateways, CREW[0], scope="team:crew") == 40
    # Of the others more is reserved than they cost; so how many are served depends on who comes when.
    used = the_same_everywhere(gateways, "writer")
    records = gateways[0].calls("writer", limit=1000)
    assert len(records) == served[secret("writer")]
    assert used == sum(record["prompt_tokens"] + record["completion_tokens"] for record in records) <= 1000
    used = the_same_everywhere(gateways, "payer")
    costs = [record["cost_usd"] for record in gateways[1].calls("payer", limit=1000)]
    assert costs == [16e-6] * served[secret("payer")]
    assert used == pytest.approx(sum(costs))
    assert used <= 1e-3
    assert upstream.hits == served.total() == len(gateways[2].calls(limit=1000)) - before


def test_places_for_parallel_calls_are_shared(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    let_go = threading.Event()

    async def wait(wire: Wire) -> None:
        await asyncio.to_thread(let_go.wait)
        await count_exactly(wire)

    upstream.answer_with(*[wait] * REPLICAS, always=count_exactly)
    with ThreadPoolExecutor(REPLICAS) as threads:
        running = [threads.submit(gateway.complete, "narrow") for gateway in gateways]
        try:
            eventually(lambda: upstream.hits == REPLICAS)
            for gateway in gateways:
                assert window(gateway, "narrow") == (REPLICAS, 0)
                refused = gateway.complete("narrow")
                assert refused.refusal == (429, "requests", None, "rate_limit_exceeded")
        finally:
            let_go.set()
        assert [each.result().status for each in running] == [200] * REPLICAS
    assert the_same_everywhere(gateways, "narrow") == 0
    assert [gateway.complete("narrow").status for gateway in gateways] == [200] * REPLICAS


def test_gateways_may_differ_about_a_limit_and_not_about_what_was_used(
    gateways: list[Gateway], upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=count_exactly)
    first, second, strict = gateways
    assert [gateway.complete("two-minds").status for gateway in (first, strict, second, strict)] == [200] * 4
    assert strict.complete("two-minds").status == 200
    refused = strict.complete("two-minds")
    assert (refused.status, refused.error["code"]) == (429, "insufficient_quota")
    assert "Limit 5, Used 5" in refused.error["message"]
    assert [gateway.complete("two-minds").status for gateway in (first, second) * 2] == [200] * 4
    assert strict.complete("two-minds").status == 429
    assert first.complete("two-minds").status == 200
    assert {gateway.complete("two-minds").status for gateway in gateways} == {429}
    assert the_same_everywhere(gateways, "two-minds", per=DAY) == 10
