"""Calls at their limits: the refusals, the charges, and that no limit is ever exceeded."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest

from tests.amounts import amount
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, Wire, error_json, ok_json, stream

from .client import Answer
from .gateway_process import CHAT, COMPLETIONS, EMBEDDINGS, Gateway, eventually, key, secret, settings

DAY = "day"


def requests_per(per: str | int, limit: int, **more: Any) -> dict[str, Any]:
    return {"requests": limit, "per": per, **more}


def tokens_per(per: str | int, limit: int, **more: Any) -> dict[str, Any]:
    return {"tokens": limit, "per": per, **more}


KEYS = [
    key("minute", quotas=[requests_per("minute", 3)]),
    key("second", quotas=[requests_per("second", 2)]),
    key("seven", quotas=[requests_per(7, 1)]),
    key("day", quotas=[requests_per(DAY, 2)]),
    key("month", quotas=[requests_per("month", 1)]),
    key("tokens", quotas=[tokens_per(DAY, 1000)]),
    key("spent", quotas=[tokens_per(DAY, 1000)]),
    key("overrun", quotas=[tokens_per(DAY, 1000)]),
    key("token-rate", quotas=[tokens_per("minute", 6000)]),
    key("small", quotas=[tokens_per(DAY, 100)]),
    key("bounded", quotas=[tokens_per(DAY, 100_000)], limits={"max_tokens": 50}),
    key("parallel", max_parallel=2),
    key("shadow", quotas=[requests_per(DAY, 1), tokens_per(DAY, 10)], max_parallel=1, on_exceeded="shadow"),
    key("by-model", quotas=[requests_per(DAY, 1, model="gpt-4*"), tokens_per(DAY, 10_000, model="gpt-3.5*")]),
    key("crew-1", team="crew"),
    key("crew-2", team="crew"),
    key("both", quotas=[requests_per("minute", 100), requests_per(DAY, 1)]),
    key("free"),
    key("headers", quotas=[requests_per("minute", 60), requests_per(DAY, 10), tokens_per("hour", 36_000)]),
]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(
        settings(shared_upstream.url, keys=KEYS, teams={"crew": {"quotas": [requests_per(DAY, 3)]}})
    )


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=used(10, 5))
    yield
    upstream.answer_with()


def used(prompt: int, completion: int) -> Behaviour:
    """An answer that reports these tokens."""
    return ok_json({"model": "up", "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def window(gateway: Gateway, who: str, unit: str = "tokens", **where: Any) -> dict[str, Any]:
    """One window as its owner sees it."""
    found = [
        quota
        for quota in gateway.get("/v1/key", key=who).json["quotas"]
        if quota["unit"] == unit and where.items() <= quota.items()
    ]
    (only,) = found
    return dict(only)


def go_seconds(duration: str) -> float:
    """OpenAI's way of writing durations, read back."""
    total, number = 0.0, ""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    if duration.endswith("ms"):
        return float(duration[:-2]) / 1000
    for letter in duration:
        if letter in units:
            total += float(number) * units[letter]
            number = ""
        else:
            number += letter
    return total


def is_rate_limited(answer: Answer, unit: str = "requests") -> float:
    """A 429 that ends by itself; returns in how many seconds."""
    assert answer.refusal == (429, unit, None, "rate_limit_exceeded")
    wait_s = int(answer.headers["retry-after-ms"]) / 1000
    assert answer.headers.get("x-should-retry") == ("false" if wait_s > 120 else None)  # no SDK sits out more
    assert wait_s > 0
    assert int(answer.headers["retry-after"]) == math.ceil(wait_s)
    assert "Please try again in " in answer.error["message"]
    return wait_s


def is_spent(answer: Answer) -> None:
    """A 429 that no retry can mend."""
    assert answer.refusal == (429, "insufficient_quota", None, "insufficient_quota")
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert "retry-after-ms" not in answer.headers


# ------------------------------------------------------------------------------------------------------------ requests


def test_requests_per_minute(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    remaining = []
    for _ in range(3):
        answer = gateway.complete("minute")
        assert answer.status == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        remaining.append(answer.headers["x-ratelimit-remaining-requests"])
    assert remaining == ["2", "1", "0"]
    refused = gateway.complete("minute")
    assert 10 < is_rate_limited(refused) <= 20
    message = refused.error["message"]
    assert message.startswith(
        "Rate limit reached for your key on requests per minute: Limit 3, Used 3, Reserved 0, Requested 1."
    )
    assert 50 < go_seconds(refused.headers["x-ratelimit-reset-requests"]) <= 60
    assert upstream.hits == 3
    line = gateway.line(id=refused.id)
    assert (line["status"], line["error"], line["key"]) == (429, "rate_limit_exceeded", "minute")
    assert gateway.metric("gateway_rejections_total", reason="rate_limited") >= 1
    assert len(gateway.calls("minute")) == 3


def test_rate_refills(gateway: Gateway) -> None:
    assert [gateway.complete("second").status for _ in range(2)] == [200, 200]
    # Half a second makes room for one more, so that on a slow machine the next one may be served, too.
    wait_s = is_rate_limited(eventually(lambda: (answer := gateway.complete("second")).status != 200 and answer))
    assert wait_s <= 0.5
    time.sleep(wait_s)
    assert gateway.complete("second").status == 200


def test_rate_of_a_number_of_seconds(gateway: Gateway) -> None:
    began = time.monotonic()
    assert gateway.complete("seven").status == 200
    refused = gateway.complete("seven")
    assert is_rate_limited(refused) + time.monotonic() - began > 6
    assert is_rate_limited(refused) <= 7
    assert "requests per 7 seconds" in refused.error["message"]


@pytest.mark.parametrize(("who", "limit", "longest_s"), [("day", 2, 86_400), ("month", 1, 31 * 86_400)])
def test_spent_calendar_window(gateway: Gateway, who: str, limit: int, longest_s: int) -> None:
    assert [gateway.complete(who).status for _ in range(limit)] == [200] * limit
    refused = gateway.complete(who)
    is_spent(refused)
    assert refused.error["message"].startswith(
        f"You exceeded the quota of your key of requests per {who}: "
        f"Limit {limit}, Used {limit}, Reserved 0, Requested 1."
    )
    assert 0 < go_seconds(refused.headers["x-ratelimit-reset-requests"]) <= longest_s
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert gateway.metric("gateway_rejections_total", reason="quota_spent") >= 1


def test_refused_body_costs_no_request(gateway: Gateway) -> None:
    for _ in range(5):
        assert gateway.complete("both", n=500).status == 400
        assert gateway.complete("both", model="no-such-model").status == 404
    assert gateway.complete("both").status == 200
    is_spent(gateway.complete("both"))
    assert window(gateway, "both", "requests", per="minute")["used"] == 1  # all windows of a call are drawn on, or none


def test_call_that_the_upstream_refuses_costs_its_request(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    before = window(gateway, "headers", "requests", per="day")["used"]
    upstream.answer_with(error_json(400), error_json(500))
    assert [gateway.complete("headers").status for _ in range(2)] == [400, 502]
    assert window(gateway, "headers", "requests", per="day")["used"] == before + 2


# -------------------------------------------------------------------------------------------------------------- tokens


@contextmanager
def held(upstream: ScriptedUpstream, then: Behaviour) -> Iterator[Callable[[], None]]:
    """The upstream answers when the test says so."""
    let_go = threading.Event()

    async def behaviour(wire: Wire) -> None:
        await asyncio.to_thread(let_go.wait)
        await then(wire)

    upstream.answer_with(behaviour, always=used(10, 5))
    try:
        yield let_go.set
    finally:
        let_go.set()


class Under:
    """A call under way in a thread."""

    def __init__(self, call: Callable[[], Answer]) -> None:
        self.answer: Answer | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.answer = self._call()

    def end(self) -> Answer:
        self._thread.join(60)
        assert self.answer is not None
        return self.answer


def test_tokens_are_reserved_and_then_settled(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with held(upstream, used(12, 30)) as let_go:
        call = Under(lambda: gateway.complete("tokens", prompt="x" * 40, max_tokens=500))
        eventually(lambda: upstream.hits == 1)
        now = window(gateway, "tokens")
        assert (now["limit"], now["used"], now["reserved"], now["remaining"]) == (1000, 0, 510, 490)
        refused = gateway.complete("tokens", max_tokens=500)
        assert is_rate_limited(refused, "tokens") == 1  # full because of a reservation, whose end is unknown
        assert "Limit 1000, Used 0, Reserved 510, Requested 502." in refused.error["message"]
        let_go()
        answer = call.end()
    assert answer.status == 200
    assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
    now = window(gateway, "tokens")
    assert (now["used"], now["reserved"], now["remaining"]) == (42, 0, 958)
    assert 0 < now["reset_s"] <= 86_400


def test_spent_tokens(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(used(100, 850), always=used(1, 1))
    assert gateway.complete("spent", max_tokens=900).status == 200
    refused = gateway.complete("spent", max_tokens=900)
    is_spent(refused)
    assert "tokens per day: Limit 1000, Used 950, Reserved 0, Requested 902." in refused.error["message"]
    assert gateway.complete("spent", max_tokens=40).status == 200  # what is left may still be used
    assert window(gateway, "spent")["used"] == 952


def test_prompt_that_was_longer_than_estimated_is_charged_in_full(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(used(2000, 5))
    assert gateway.complete("overrun", max_tokens=10).status == 200
    assert window(gateway, "overrun")["used"] == 2005
    is_spent(gateway.complete("overrun"))


def test_rate_of_tokens_gives_back_what_was_not_used(gateway: Gateway) -> None:
    assert gateway.complete("token-rate", max_tokens=5000).status == 200
    assert window(gateway, "token-rate")["used"] <= 15
    assert gateway.complete("token-rate", max_tokens=5900).status == 200


def test_streamed_tokens_are_settled_before_the_end_leaves(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    choice = {"text": "a", "index": 0, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    upstream.answer_with(stream([{"choices": [choice]}, {"choices": [], "usage": usage}]))
    with gateway.stream("bounded") as client:
        client.read_head()
        while client.read_chunk() != b"data: [DONE]\n\n":
            pass
        now = window(gateway, "bounded")
    assert (now["used"], now["reserved"]) == (7, 0)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"max_tokens": 101}, "max_tokens"),
        ({"max_tokens": 51, "n": 2}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 101}, "max_tokens"),
        ({"max_tokens": 101, "max_completion_tokens": 5}, "max_tokens"),
        ({"max_tokens": 26, "n": 1, "best_of": 4}, "max_tokens"),
        ({"max_tokens": 26, "prompt": ["a", "b", "c", "d"]}, "max_tokens"),
        ({"prompt": [5] * 85}, "max_tokens"),
        ({"prompt": ["a"] * 7}, "max_tokens"),
    ],
)
def test_completion_that_can_never_fit(
    gateway: Gateway, upstream: ScriptedUpstream, changes: dict[str, Any], param: str
) -> None:
    refused = gateway.complete("small", **changes)
    assert refused.refusal == (400, "invalid_request_error", param, "quota_too_small")
    assert "quota of 100 tokens per day of your key" in refused.error["message"]
    assert upstream.hits == 0


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"max_tokens": 101}, "max_tokens"),
        ({"max_completion_tokens": 101}, "max_completion_tokens"),
        ({}, "max_completion_tokens"),
    ],
)
def test_chat_that_can_never_fit(
    gateway: Gateway, upstream: ScriptedUpstream, changes: dict[str, Any], param: str
) -> None:
    refused = gateway.chat("small", **changes)
    assert refused.refusal == (400, "invalid_request_error", param, "quota_too_small")
    assert upstream.hits == 0


def test_long_text_alone_is_no_reason_to_refuse_for_ever(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Its length in tokens is an estimate: within eight times the quota it makes no refusal that no wait can end."""
    assert gateway.complete("small", prompt="x" * 3200, max_tokens=20).status == 200


# --------------------------------------------------------------------------------------- the output limit that is added


@pytest.mark.parametrize(
    ("who", "changes", "added"),
    [
        ("headers", {}, {"max_completion_tokens": 4096}),
        ("headers", {"max_tokens": 9}, {}),
        ("headers", {"max_completion_tokens": 9}, {}),
        ("headers", {"max_tokens": None}, {"max_completion_tokens": 4096}),
        ("bounded", {}, {"max_completion_tokens": 50}),
        ("bounded", {"max_tokens": 9}, {}),
        ("free", {}, {}),
        ("by-model", {}, {}),  # its token quota counts other models
    ],
)
def test_chat_under_a_token_quota_is_sent_with_a_limit(
    gateway: Gateway, upstream: ScriptedUpstream, who: str, changes: dict[str, Any], added: dict[str, Any]
) -> None:
    assert gateway.chat(who, **changes).status == 200
    messages = [{"role": "user", "content": "Hello"}]
    assert upstream.requests[0].json == {"model": CHAT, "messages": messages, **changes, **added}


def test_completion_keeps_openai_s_own_default(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    assert gateway.complete("tokens").status == 200
    assert upstream.requests[0].json == {"model": COMPLETIONS, "prompt": "Hello"}
    assert gateway.complete("bounded").status == 200
    assert upstream.requests[1].json == {"model": COMPLETIONS, "prompt": "Hello", "max_tokens": 50}


def test_field_of_the_limit_is_the_upstream_s(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    capabilities = {"max_tokens_field": "max_tokens", "stream_usage": False}
    gateway = start_gateway(
        settings(upstream.url, upstreams={"main": {"capabilities": capabilities}}, quotas=[tokens_per(DAY, 100_000)])
    )
    assert gateway.chat().status == 200
    assert upstream.requests[0].json["max_tokens"] == 4096
    upstream.answer_with(stream([{"choices": [{"text": "abcd", "index": 0, "finish_reason": "stop"}]}]))
    with gateway.stream() as client:
        client.read_head()
        client.read_chunks()
    assert "stream_options" not in upstream.requests[0].json


def test_embeddings_are_charged_their_prompt(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({"model": "up", "data": [], "usage": {"prompt_tokens": 8, "total_tokens": 8}}))
    before = window(gateway, "bounded")["used"]
    assert gateway.post("/v1/embeddings", {"model": EMBEDDINGS, "input": "Hello"}, key="bounded").status == 200
    assert window(gateway, "bounded")["used"] == before + 8
    assert upstream.requests[0].json == {"model": EMBEDDINGS, "input": "Hello"}


# ---------------------------------------------------------------------------------------------- other kinds of window


def test_parallel_calls(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    let_go = threading.Event()

    async def wait(wire: Wire) -> None:
        await asyncio.to_thread(let_go.wait)
        await used(1, 1)(wire)

    upstream.answer_with(wait, wait, always=used(1, 1))
    calls = [Under(lambda: gateway.complete("parallel")) for _ in range(2)]
    eventually(lambda: upstream.hits == 2)
    refused = gateway.complete("parallel")
    is_rate_limited(refused)
    assert "your key on parallel requests: Limit 2, Used 2" in refused.error["message"]
    assert window(gateway, "parallel", "parallel")["used"] == 2
    let_go.set()
    assert [call.end().status for call in calls] == [200, 200]
    assert window(gateway, "parallel", "parallel")["used"] == 0
    assert gateway.complete("parallel").status == 200


def test_shadow_counts_and_never_blocks(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    for _ in range(3):
        assert gateway.complete("shadow", max_tokens=500).status == 200
    assert window(gateway, "shadow", "requests")["used"] == 3
    assert window(gateway, "shadow", "tokens")["used"] == 45
    assert gateway.get("/v1/key", key="shadow").json["on_exceeded"] == "shadow"


def test_quota_of_some_models(gateway: Gateway) -> None:
    before = window(gateway, "by-model", "requests")["used"]
    assert before in (0, 1)
    if not before:
        assert gateway.chat("by-model").status == 200
    refused = gateway.chat("by-model")
    is_spent(refused)
    assert "requests per day for models gpt-4*" in refused.error["message"]
    assert [gateway.complete("by-model").status for _ in range(3)] == [200] * 3
    assert window(gateway, "by-model", "requests")["used"] == 1
    assert window(gateway, "by-model", "tokens")["used"] == 45


def test_team_window_is_shared(gateway: Gateway) -> None:
    assert [gateway.complete(who).status for who in ("crew-1", "crew-2", "crew-1")] == [200] * 3
    for who in ("crew-1", "crew-2"):
        refused = gateway.complete(who)
        is_spent(refused)
        assert "the quota of your team crew of requests per day" in refused.error["message"]
        assert window(gateway, who, "requests", scope="team:crew")["remaining"] == 0


def test_gateway_window_is_shared(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    gateway = start_gateway(settings(upstream.url, quotas=[requests_per(DAY, 3)]))
    assert [gateway.complete(who).status for who in ("alice", "bob", "carol")] == [200] * 3
    refused = gateway.complete("alice")
    is_spent(refused)
    assert "the quota of the whole gateway" in refused.error["message"]


def test_headers_show_the_tightest_window(gateway: Gateway) -> None:
    answer = gateway.complete("headers")
    assert answer.headers["x-ratelimit-limit-requests"] == "10"
    assert answer.headers["x-ratelimit-limit-tokens"] == "36000"
    assert 0 < go_seconds(answer.headers["x-ratelimit-reset-tokens"]) <= 3600
    assert not [name for name in gateway.complete("free").headers if name.startswith("x-ratelimit")]


def test_key_shows_its_limits(gateway: Gateway) -> None:
    shown = gateway.get("/v1/key", key="bounded").json
    assert {name: shown[name] for name in ("object", "id", "team", "models", "expires", "on_exceeded")} == {
        "object": "key", "id": "bounded", "team": None, "models": ["*"], "expires": None, "on_exceeded": "deny",
    }  # fmt: skip
    assert shown["limits"] == {"max_tokens": 50}
    (quota,) = shown["quotas"]
    assert (quota["scope"], quota["unit"], quota["per"], quota["limit"]) == ("key:bounded", "tokens", "day", 100_000)
    teamed = gateway.get("/v1/key", key="crew-1").json
    assert teamed["team"] == "crew"
    assert gateway.get("/v1/key", key=None).status == 401


def test_limits_survive_a_restart(start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Any) -> None:
    config = settings(
        upstream.url, store={"url": f"embedded:{tmp_path / 'kept'}"}, keys=[key("alice", quotas=[requests_per(DAY, 2)])]
    )
    first = start_gateway(config)
    assert first.complete().status == 200
    first.stop()
    config["keys"][0]["quotas"] = [requests_per(DAY, 3)]  # changing a limit keeps what was used
    second = start_gateway(config)
    assert [second.complete().status for _ in range(3)] == [200, 200, 429]
    assert len(second.calls()) == 3


# ---------------------------------------------------------------------------------------------------------- under load


async def burst(gateway: Gateway, who: str, count: int) -> list[int]:
    """So many calls at once; their statuses."""
    headers = {"Authorization": f"Bearer {secret(who)}", "Content-Type": "application/json"}
    body = json.dumps({"model": COMPLETIONS, "prompt": "Hi", "max_tokens": 10}).encode()

    async def one(session: aiohttp.ClientSession) -> int:
        async with session.post(f"{gateway.url}/v1/completions", data=body, headers=headers) as answer:
            await answer.read()
            return answer.status

    connector = aiohttp.TCPConnector(limit=100)
    async with aiohttp.ClientSession(connector=connector) as session:
        return await asyncio.gather(*[one(session) for _ in range(count)])


@pytest.mark.shortened
async def test_exactly_100_of_500(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    """On a calendar window, because a rate refills while we look."""
    keys = [key("alice", quotas=[requests_per(DAY, 100)]), key("bob", quotas=[tokens_per(DAY, 1500)])]
    gateway = start_gateway(settings(upstream.url, keys=keys, server={"workers": 2}))
    refused = amount(400, 100)
    statuses = await burst(gateway, "alice", 100 + refused)
    assert sorted(statuses) == [200] * 100 + [429] * refused
    assert upstream.hits == 100
    assert len(gateway.calls("alice", limit=1000)) == 100
    assert gateway.metric("gateway_requests_total", key="alice", status="200") == 100
    assert gateway.metric("gateway_requests_total", key="alice", status="429") == refused
    # Each call reserves 11 tokens and reports 6: no more than 1500 may be used, and none may be left reserved.
    upstream.answer_with(always=used(1, 5))
    statuses = await burst(gateway, "bob", 300)
    now = window(gateway, "bob")
    assert now["reserved"] == 0
    assert now["used"] == 6 * statuses.count(200) <= 1500
    assert sum(row["total_tokens"] for row in gateway.usage(group_by="key") if row["key"] == "bob") == now["used"]


@pytest.mark.shortened
def test_sums_agree_whenever_clients_leave(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    pieces: list[Any] = [{"choices": [{"text": "a b c ", "index": 0, "finish_reason": None}]}] * 5
    pieces += [{"choices": [{"text": "", "index": 0, "finish_reason": "stop"}]}]
    pieces += [{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 5}}]
    upstream.answer_with(always=stream(pieces, delay_s=0.005))
    keys = [key("alice", quotas=[tokens_per(DAY, 1_000_000)], max_parallel=50)]
    gateway = start_gateway(settings(upstream.url, keys=keys, server={"workers": 2}))

    def leave(times_s: list[float]) -> None:
        for time_s in times_s:
            with gateway.stream(max_tokens=50) as client:
                client.socket.settimeout(time_s)
                try:
                    while client.socket.recv(4096):
                        pass
                except OSError:
                    pass

    times_s = [[dice.uniform(0.001, 0.06) for _ in range(amount(30, 10))] for _ in range(4)]
    threads = [threading.Thread(target=leave, args=(each,)) for each in times_s]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: gateway.metric("gateway_in_flight_requests") == 0)
    eventually(lambda: window(gateway, "alice")["reserved"] == window(gateway, "alice", "parallel")["used"] == 0)
    calls = gateway.calls(limit=1000)
    assert {call["ended"] for call in calls} <= {"done", "client_gone"}
    charged = sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls)
    (row,) = gateway.usage(group_by="key")
    assert window(gateway, "alice")["used"] == charged == row["total_tokens"]
    assert len(calls) == row["requests"]
