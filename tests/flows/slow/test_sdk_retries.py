"""How often the official SDKs knock, with their default two retries: once where a quota is spent, and once again, in
time, where a rate has run out. Counted at the gateway's door, by its access lines, on each kind of store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Wire, ok_json, stream
from tests.flows.gateway_process import CHAT, COMPLETIONS, Gateway, eventually, key, model, secret, settings
from tests.flows.sdks import Call, Received, ask_with

CHATTING = Call("chat.completions", {"model": CHAT, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9})
COMPLETING = Call("completions", {"model": COMPLETIONS, "prompt": [7], "max_tokens": 9})
STREAMING = Call("completions", {**COMPLETING.body, "stream": True})

USAGE = {"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10}
CHUNK = {"id": "c", "object": "text_completion", "created": 1, "model": "up"}
PLAIN = ok_json(CHUNK | {"choices": [], "usage": USAGE})
EVENTS = stream([
    CHUNK | {"choices": [{"text": "Hello", "index": 0, "finish_reason": "stop"}]},
    CHUNK | {"choices": [], "usage": USAGE},
])  # fmt: skip

SPENT: dict[str, tuple[Call, dict[str, Any]]] = {
    "requests": (CHATTING, {"requests": 1, "per": "day"}),
    "tokens": (COMPLETING, {"tokens": 12, "per": "month"}),
    "usd": (STREAMING, {"usd": 0.000012, "per": "month"}),
    "team": (COMPLETING, {"requests": 1, "per": "day"}),
}
RATES: dict[str, tuple[Call, dict[str, Any]]] = {
    "requests": (CHATTING, {"requests": 1, "per": 2}),
    "tokens": (STREAMING, {"tokens": 10, "per": 2}),
    "usd": (COMPLETING, {"usd": 0.00001, "per": 2}),
}
BUSY: dict[str, dict[str, Any]] = {
    "parallel": {"max_parallel": 1},
    "reserved": {"quotas": [{"tokens": 25, "per": "day"}]},
}


def keys() -> Iterator[dict[str, Any]]:
    for sdk in map(short, ask_with):
        for kind, (_, quota) in SPENT.items():
            own = {"team": f"team-{sdk}"} if kind == "team" else {"quotas": [quota]}
            yield key(f"{sdk}-spent-{kind}", **own)
        for kind, (_, quota) in RATES.items():
            yield key(f"{sdk}-rate-{kind}", quotas=[quota])
        yield key(f"{sdk}-hour", quotas=[{"requests": 1, "per": "hour"}])
        yield from (key(f"{sdk}-{kind}", **more) for kind, more in BUSY.items())


def short(sdk: str) -> str:
    return sdk.replace(" ", "-")


@pytest.fixture(scope="module", params=["embedded", "redis"])
def gateway(
    request: pytest.FixtureRequest,
    start_shared_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    price = {"input": 1, "output": 1}
    config = settings(
        shared_upstream.url,
        models={COMPLETIONS: model("completions", price=price), CHAT: model("chat", price=price)},
        keys=list(keys()),
        teams={f"team-{short(sdk)}": {"quotas": [SPENT["team"][1]]} for sdk in ask_with},
    )
    if request.param == "embedded":
        yield start_shared_gateway(config)
        return
    with RedisServer(tmp_path_factory.mktemp("redis"), appendonly="everysec") as server:
        yield start_shared_gateway(config | {"store": {"url": server.url}})


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=answered)
    yield
    upstream.answer_with()


async def answered(wire: Wire) -> None:
    await (EVENTS if wire.request.json.get("stream") else PLAIN)(wire)


def ask(gateway: Gateway, sdk: str, who: str, *calls: Call) -> list[Received]:
    return ask_with[sdk](f"{gateway.url}/v1", secret(f"{short(sdk)}-{who}"), calls)


def knocks(gateway: Gateway, sdk: str, who: str, served: int) -> list[int]:
    """The status of every request of this key, in their order, as soon as so many of them were served, and the log has
    all lines of requests that have ended by now."""
    last = gateway.get("/v1/models").headers["x-request-id"]

    def look() -> list[int]:
        lines = gateway.lines()
        found = [line["status"] for line in lines if line.get("key") == f"{short(sdk)}-{who}"]
        return found if found.count(200) == served and any(line["id"] == last for line in lines) else []

    return eventually(look)


# --------------------------------------------------------------------------------------------- what no wait can mend


@pytest.mark.parametrize("sdk", ask_with)
def test_a_spent_quota_is_asked_exactly_once(gateway: Gateway, sdk: str) -> None:
    for kind, (call, _) in SPENT.items():
        who = f"spent-{kind}"
        first, second = ask(gateway, sdk, who, call, call)
        assert "error" not in first, first
        assert knocks(gateway, sdk, who, 1) == [200, 429], kind
        error = second["error"]
        assert (error["name"], error["status"]) == ("RateLimitError", 429)
        assert (error["type"], error["code"], error["param"]) == ("insufficient_quota", "insufficient_quota", None)
        assert error["request_id"].startswith("req_")


@pytest.mark.parametrize("sdk", ask_with)
def test_a_rate_that_no_sdk_sits_out_is_asked_exactly_once(gateway: Gateway, sdk: str) -> None:
    """The answer has a retry time of an hour, which is longer than any SDK waits."""
    first, second = ask(gateway, sdk, "hour", CHATTING, CHATTING)
    assert "error" not in first, first
    assert knocks(gateway, sdk, "hour", 1) == [200, 429]
    assert (second["error"]["type"], second["error"]["code"]) == ("requests", "rate_limit_exceeded")
    assert "Please try again in 59m" in second["error"]["message"]


# ----------------------------------------------------------------------------------------------- what ends by itself


@pytest.mark.parametrize("sdk", ask_with)
def test_a_rate_is_asked_exactly_once_more_and_then_answers(gateway: Gateway, sdk: str) -> None:
    """An SDK that came a moment too early would be refused again, and so would one that makes its own wait (0.5 s)."""
    with ThreadPoolExecutor(len(RATES)) as pool:
        received = list(pool.map(lambda kind: (kind, *run_into(gateway, sdk, kind)), RATES))
    for kind, answers, statuses in received:
        assert not [each for each in answers if "error" in each], (kind, answers)
        pairs = list(zip(statuses, [*statuses[1:], 0], strict=True))
        assert 429 in statuses, kind
        assert {after for status, after in pairs if status == 429} == {200}, (kind, statuses)


def run_into(gateway: Gateway, sdk: str, kind: str) -> tuple[list[Received], list[int]]:
    """Two calls, of which the second has to wait; again if the machine was so slow that it had not."""
    answers: list[Received] = []
    statuses: list[int] = []
    for _ in range(3):
        answers += ask(gateway, sdk, f"rate-{kind}", *[RATES[kind][0]] * 2)
        statuses = knocks(gateway, sdk, f"rate-{kind}", len(answers))
        if 429 in statuses:
            break
    return answers, statuses


@contextmanager
def held(upstream: ScriptedUpstream) -> Iterator[threading.Event]:
    """The first call is answered when the test says so, the others at once."""
    let_go = threading.Event()

    async def behaviour(wire: Wire) -> None:
        await asyncio.to_thread(let_go.wait, 30)
        await answered(wire)

    upstream.answer_with(behaviour, always=answered)
    try:
        yield let_go
    finally:
        let_go.set()


@pytest.mark.parametrize("sdk", ask_with)
@pytest.mark.parametrize("kind", BUSY)
def test_reserved_is_not_spent(gateway: Gateway, upstream: ScriptedUpstream, sdk: str, kind: str) -> None:
    """An open call's reservation fills the quota for an unknown time, so the SDK tries again after a second."""
    who = f"{short(sdk)}-{kind}"
    with ThreadPoolExecutor(2) as pool, held(upstream) as let_go:
        holding = pool.submit(gateway.complete, who, prompt=[7], max_tokens=20)
        eventually(lambda: upstream.hits == 1)
        asking = pool.submit(ask, gateway, sdk, kind, COMPLETING)
        refused = gateway.line(key=who, status=429)
        assert refused["error"] == "rate_limit_exceeded"
        let_go.set()
        assert holding.result().status == 200
        (received,) = asking.result()
    assert "error" not in received, received
    assert knocks(gateway, sdk, kind, 2).count(429) in (1, 2)  # two if the release of the reservation took a second
