"""What a call is charged when its upstream reports nonsense, or does not answer wholly: through whole gateways."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import (
    CHUNKED,
    Behaviour,
    Scripted,
    Wire,
    answer,
    chunk,
    close_without_answer,
    cut_mid_body,
    cut_stream,
    dead_port,
    error_json,
    ok_json,
    raw,
    silent,
    stalled_stream,
    stream,
)

from .gateway_process import CHAT, COMPLETIONS, Gateway, eventually, key, model, secret, settings

PRICE = {"input": 1, "output": 2}
LIMIT = 1000
REPEATED, ELSEWHERE, NOWHERE, SINGLE = "repeated", "elsewhere", "nowhere", "single"
HASTY = "hasty"
"""A model of an upstream with short time limits, for answers that never come: no good one is lost to them."""
QUICK = {"head_s": 0.4, "idle_s": 0.4}
QUOTAS = [{"tokens": 10**9, "per": "month"}, {"usd": 10**6, "per": "month"}]
POOR = [{"tokens": 5000, "per": "month"}, {"usd": 0.01, "per": "month"}]


def config(url: str, **more: Any) -> dict[str, Any]:
    upstream = {"base_url": url, "max_connection_age_s": 1}
    hasty = upstream | {"timeouts": QUICK}
    late = upstream | {"timeouts": {"head_s": 3}}
    nowhere = {"base_url": f"http://127.0.0.1:{dead_port()}/v1"}
    single = hasty | {"capabilities": {"prompt_arrays": False}}

    def routes(*names: str) -> list[dict[str, Any]]:
        return [{"upstream": name, "priority": number} for number, name in enumerate(names, 1)]

    return settings(
        url,
        upstreams={
            "main": upstream,
            "other": upstream,
            "nowhere": nowhere,
            "single": single,
            "hasty": hasty,
            "late": late,
        },
        models={
            COMPLETIONS: model("completions", price=PRICE),
            CHAT: model("chat", price=PRICE),
            HASTY: model("completions", price=PRICE, routes=routes("hasty")),
            REPEATED: model("completions", price=PRICE, repeat_when_waiting=True, routes=routes("late")),
            ELSEWHERE: model("completions", price=PRICE, repeat_when_waiting=True, routes=routes("late", "other")),
            NOWHERE: model("completions", price=PRICE, routes=routes("nowhere")),
            SINGLE: model("completions", price=PRICE, routes=routes("single")),
        },
        keys=[key("alice", quotas=QUOTAS), key("poor", quotas=POOR), key("poor-stream", quotas=POOR)],
        server={"max_response_bytes": 20_000},
        **more,
    )


@pytest.fixture(scope="module", params=["embedded", "redis"])
def gateway(
    request: pytest.FixtureRequest,
    start_shared_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    if request.param == "embedded":
        yield start_shared_gateway(config(shared_upstream.url))
        return
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        made = start_shared_gateway(config(shared_upstream.url, store={"url": server.url}))
        yield made
        made.stop()


def used(gateway: Gateway) -> tuple[int, float]:
    """Tokens and US dollars of alice's windows."""
    windows = gateway.get("/v1/key").json["quotas"]
    assert all(window["reserved"] == 0 for window in windows)
    found = {window["unit"]: window["used"] for window in windows}
    return found["tokens"], found["usd"]


def check(gateway: Gateway, before: tuple[int, float], record: dict[str, Any]) -> None:
    """The windows agree with the record."""
    prompt, completion = record["prompt_tokens"], record["completion_tokens"]
    tokens, usd = used(gateway)
    assert tokens - before[0] == prompt + completion
    assert usd - before[1] == pytest.approx(record["cost_usd"], abs=1e-9)
    assert record["cost_usd"] == pytest.approx((prompt + 2 * completion) / 1e6)


def test_a_zero_report_behind_a_good_one_changes_nothing(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    said = {"choices": [{"index": 0, "text": "one", "finish_reason": "stop"}]}
    upstream.answer_with(
        stream([
            said | {"usage": {"prompt_tokens": 10, "completion_tokens": 7}},
            {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}},
        ])
    )  # fmt: skip
    before = used(gateway)
    with gateway.stream() as raw:
        answer = raw.read_head()
        assert raw.read_chunks().endswith(b"data: [DONE]\n\n")
    record = gateway.call(answer.headers["x-request-id"])
    assert (record["usage_source"], record["prompt_tokens"], record["completion_tokens"]) == ("reported", 10, 7)
    check(gateway, before, record)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_senseless_report_is_charged_up_to_the_ceiling(
    gateway: Gateway, upstream: ScriptedUpstream, is_stream: bool
) -> None:
    usage = {"prompt_tokens": 2**50, "completion_tokens": 2**50}
    said = {"choices": [{"index": 0, "text": "one", "finish_reason": "stop"}], "usage": usage}
    upstream.answer_with(stream([said]) if is_stream else ok_json(said))
    before = used(gateway)
    counted = gateway.metric("gateway_usage_implausible_total", upstream="main", model=COMPLETIONS)
    if is_stream:
        with gateway.stream() as raw:
            answer_id = raw.read_head().headers["x-request-id"]
            raw.read_chunks()
    else:
        answer_id = gateway.complete().id
    record = gateway.call(answer_id)
    assert record["usage_source"] == "estimated"
    assert 32_768 < record["prompt_tokens"] < 40_000
    assert 4_096 < record["completion_tokens"] < 5_000
    check(gateway, before, record)
    assert gateway.metric("gateway_usage_implausible_total", upstream="main", model=COMPLETIONS) == counted + 2
    assert gateway.stderr.count("more prompt tokens than the call can have used") == 1


def test_parts_above_their_whole_are_clamped(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    usage = {
        "prompt_tokens": 10, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 99},
        "completion_tokens_details": {"reasoning_tokens": 98},
    }  # fmt: skip
    upstream.answer_with(ok_json({"choices": [{"message": {"content": "one"}}], "usage": usage}))
    record = gateway.call(gateway.chat(max_tokens=10).id)
    assert (record["usage_source"], record["cached_tokens"], record["reasoning_tokens"]) == ("reported", 10, 7)
    for kind in ("cached", "reasoning"):
        assert gateway.metric("gateway_usage_implausible_total", model=CHAT, type=kind) == 1
        assert f"more {kind} tokens than" in gateway.stderr


# ------------------------------------------------------------------------------------------- answers that are not whole

PROMPT_TOKENS = 2
"""Of `Hello`, at four bytes a token."""
ALL = ("estimated", PROMPT_TOKENS, LIMIT)
FREE = ("none", 0, 0)
WHOLE = b'{"choices": [{"index": 0, "text": "one", "finish_reason": "stop"}]}'


def said(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


async def stalled_body(wire: Wire) -> None:
    await wire.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    await wire.until_gone()


async def only_comments(wire: Wire) -> None:
    await wire.write(CHUNKED)
    for _ in range(100):
        await wire.write(chunk(b": patience\n\n"))
        await asyncio.sleep(0.05)


async def only_a_head(wire: Wire) -> None:
    await wire.write(CHUNKED)
    await wire.until_gone()


STALLED = stalled_stream([said("one")])
SILENT = (silent, stalled_body, only_comments, only_a_head, STALLED)


def model_for(behaviour: Behaviour) -> str:
    """The model to ask when the upstream does this."""
    return HASTY if behaviour in SILENT else COMPLETIONS


def ask(gateway: Gateway, who: str = "alice", *, to: str = COMPLETIONS, is_stream: bool = False, **more: Any) -> str:
    """The id of a call of at most `LIMIT` tokens, which has ended."""
    members = {"model": to, "max_tokens": LIMIT} | more
    if not is_stream:
        return gateway.complete(who, **members).id
    with gateway.stream(who, **members) as client:
        head = client.read_head()
        if head.headers.get("transfer-encoding") == "chunked":
            client.read_chunks()
        return head.headers["x-request-id"]


def received(record: dict[str, Any]) -> tuple[str, int, int]:
    return record["usage_source"], record["prompt_tokens"], record["completion_tokens"]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "charged"),
    [
        (silent, ALL),
        (close_without_answer, ALL),
        (answer(WHOLE, headers=[("Content-Encoding", "unknown")]), ALL),
        (error_json(504), ALL),
        (error_json(500), FREE),
        (error_json(429), FREE),
        (error_json(400), FREE),
        (ok_json({"error": {"message": "no"}}), FREE),
    ],
)
def test_an_answer_that_is_not_one_is_charged_what_it_may_have_cost(
    gateway: Gateway, upstream: ScriptedUpstream, behaviour: Behaviour, charged: tuple[str, int, int], is_stream: bool
) -> None:
    upstream.answer_with(always=behaviour)
    before = used(gateway)
    record = gateway.call(ask(gateway, to=model_for(behaviour), is_stream=is_stream))
    assert received(record) == charged
    check(gateway, before, record)
    revive(gateway, upstream, model_for(behaviour))


@pytest.mark.parametrize(
    "behaviour",
    [
        cut_mid_body,
        stalled_body,
        answer(WHOLE + b"x"),
        answer(b"{" + b" " * 30_000 + b"}"),
        answer(b"", 204),
        answer(b"<html>"),
        raw(b"HTTP/1.1 429 No\r\nContent-Length: 100\r\n\r\n{", then_close=True),
    ],
)
def test_a_plain_answer_that_cannot_be_read_is_charged_its_reservation(
    gateway: Gateway, upstream: ScriptedUpstream, behaviour: Behaviour
) -> None:
    upstream.answer_with(always=behaviour)
    before = used(gateway)
    record = gateway.call(ask(gateway, to=model_for(behaviour)))
    assert received(record) == ALL
    check(gateway, before, record)
    revive(gateway, upstream, model_for(behaviour))


@pytest.mark.parametrize(
    ("behaviour", "charged"),
    [
        (only_a_head, ALL),
        (only_comments, ALL),
        (stream([]), ALL),
        (cut_stream([]), ALL),
        (STALLED, ALL),
        (cut_stream([said("one")]), ("estimated", PROMPT_TOKENS, 1)),
        (stream([said("one"), {"error": {"message": "no"}}]), ("estimated", PROMPT_TOKENS, 1)),
        (stream([{"error": {"message": "no"}}]), FREE),
    ],
)
def test_a_stream_without_an_end(
    gateway: Gateway, upstream: ScriptedUpstream, behaviour: Behaviour, charged: tuple[str, int, int]
) -> None:
    upstream.answer_with(always=behaviour)
    before = used(gateway)
    record = gateway.call(ask(gateway, to=model_for(behaviour), is_stream=True))
    assert received(record) == charged
    check(gateway, before, record)
    revive(gateway, upstream, model_for(behaviour))


def revive(gateway: Gateway, upstream: ScriptedUpstream, to: str = COMPLETIONS) -> None:
    """Good answers until the circuit is closed again."""
    upstream.answer_with(always=ok_json(said("one", "stop") | {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}))
    eventually(lambda: gateway.complete("alice", model=to).status == 200)


def test_what_was_never_sent_costs_nothing(gateway: Gateway) -> None:
    before = used(gateway)
    record = gateway.call(ask(gateway, to=NOWHERE))
    assert (received(record), record["cost_usd"]) == (FREE, 0)
    check(gateway, before, record)


@pytest.mark.parametrize("to", [REPEATED, ELSEWHERE])
def test_several_attempts_are_several_costs(gateway: Gateway, upstream: ScriptedUpstream, to: str) -> None:
    good = ok_json(said("one", "stop") | {"usage": {"prompt_tokens": 9, "completion_tokens": 4}})
    upstream.answer_with(silent, good)
    before = used(gateway)
    record = gateway.call(ask(gateway, to=to))
    assert (record["status"], record["attempts"]) == (200, 2)
    assert received(record) == ("estimated", PROMPT_TOKENS + 9, LIMIT + 4)
    check(gateway, before, record)
    revive(gateway, upstream, to)
    upstream.answer_with(error_json(500), good)
    record = gateway.call(ask(gateway, to=ELSEWHERE))
    assert received(record) == ("reported", 9, 4)  # a refusal has cost nothing


def test_a_prompt_of_the_bridge_that_is_not_answered_is_charged(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=silent)
    before = used(gateway)
    record = gateway.call(ask(gateway, to=SINGLE, prompt=["Hello", "World"]))
    source, prompt, completion = received(record)
    assert (source, prompt) == ("estimated", 2 * PROMPT_TOKENS)
    assert LIMIT < completion <= 2 * LIMIT
    check(gateway, before, record)
    revive(gateway, upstream, SINGLE)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_small_quota_runs_dry(gateway: Gateway, upstream: ScriptedUpstream, is_stream: bool) -> None:
    """The upstream bills each call it got; the key has 5,000 tokens and a cent."""
    who = "poor-stream" if is_stream else "poor"
    behaviour = only_a_head if is_stream else answer(WHOLE + b"x")
    upstream.answer_with(always=behaviour)
    members = {"model": model_for(behaviour), "max_tokens": LIMIT, "stream": is_stream}
    statuses = [gateway.complete(who, **members).status for _ in range(10)]
    assert statuses.count(429) >= 6
    assert upstream.hits * LIMIT <= 5000
    window = next(each for each in gateway.get("/v1/key", key=who).json["quotas"] if each["unit"] == "tokens")
    assert window["used"] >= upstream.hits * LIMIT
    revive(gateway, upstream, model_for(behaviour))


def test_a_client_that_leaves_a_stream_before_its_first_output_is_charged_for_the_time(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    """At most 200 tokens for each second; the answer of a plain call is read to its end."""
    upstream.answer_with(always=stalled_stream([{"choices": [{"index": 0, "text": "", "finish_reason": None}]}]))
    before = used(gateway)
    with gateway.stream(max_tokens=LIMIT) as client:
        answer_id = client.read_head().headers["x-request-id"]
    record = gateway.call(answer_id)
    source, prompt, completion = received(record)
    assert (record["ended"], source, prompt) == ("client_gone", "estimated", PROMPT_TOKENS)
    assert 0 < completion < LIMIT
    check(gateway, before, record)


def test_a_call_that_the_end_of_the_gateway_cuts_off_is_charged_its_reservation(
    start_gateway: StartsGateways, store_url: str
) -> None:
    with Scripted(always=silent) as upstream:
        settings_of = config(upstream.url, store={"url": store_url})
        settings_of["server"] |= {"drain_timeout_s": 0.2}
        made = start_gateway(settings_of)
        body = json.dumps({"model": COMPLETIONS, "prompt": "Hello", "max_tokens": LIMIT}).encode()
        with made.connect() as client:
            client.post("/v1/completions", body, secret("alice"), "1.1")
            eventually(lambda: upstream.hits == 1)
            made.kill(signal.SIGTERM)
            assert made.wait() == 0
        (record,) = start_gateway(made.config).calls("alice")
        assert (record["status"], record["ended"], received(record)) == (503, "error", ALL)
