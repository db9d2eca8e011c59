"""What a call is charged when its upstream reports nonsense, or does not answer wholly: through whole gateways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import ok_json, stream

from .house import CHAT, COMPLETIONS, Gateway, key, model, settings

PRICE = {"input": 1, "output": 2}
QUOTAS = [{"tokens": 10**9, "per": "month"}, {"usd": 10**6, "per": "month"}]
CONFIG: dict[str, Any] = {
    "models": {COMPLETIONS: model("completions", price=PRICE), CHAT: model("chat", price=PRICE)},
    "keys": [key("alice", quotas=QUOTAS)],
}


@pytest.fixture(scope="module", params=["embedded", "redis"])
def house(
    request: pytest.FixtureRequest, gateways: StartsGateways, theatre: Stage, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    if request.param == "embedded":
        yield gateways(settings(theatre.url, **CONFIG))
        return
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        made = gateways(settings(theatre.url, store={"url": server.url}, **CONFIG))
        yield made
        made.stop()


def used(house: Gateway) -> tuple[int, float]:
    """Tokens and US dollars of alice's windows."""
    windows = house.get("/v1/key").json["quotas"]
    assert all(window["reserved"] == 0 for window in windows)
    found = {window["unit"]: window["used"] for window in windows}
    return found["tokens"], found["usd"]


def check(house: Gateway, before: tuple[int, float], record: dict[str, Any]) -> None:
    """The windows agree with the record."""
    prompt, completion = record["prompt_tokens"], record["completion_tokens"]
    tokens, usd = used(house)
    assert tokens - before[0] == prompt + completion
    assert usd - before[1] == pytest.approx(record["cost_usd"], abs=1e-9)
    assert record["cost_usd"] == pytest.approx((prompt + 2 * completion) / 1e6)


def test_a_zero_report_behind_a_good_one_changes_nothing(house: Gateway, upstream: Stage) -> None:
    said = {"choices": [{"index": 0, "text": "one", "finish_reason": "stop"}]}
    upstream.play(
        stream([
            said | {"usage": {"prompt_tokens": 10, "completion_tokens": 7}},
            {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}},
        ])
    )  # fmt: skip
    before = used(house)
    with house.stream() as raw:
        answer = raw.read_head()
        assert raw.read_chunks().endswith(b"data: [DONE]\n\n")
    record = house.call(answer.headers["x-request-id"])
    assert (record["usage_source"], record["prompt_tokens"], record["completion_tokens"]) == ("reported", 10, 7)
    check(house, before, record)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_senseless_report_is_charged_up_to_the_ceiling(house: Gateway, upstream: Stage, is_stream: bool) -> None:
    usage = {"prompt_tokens": 2**50, "completion_tokens": 2**50}
    said = {"choices": [{"index": 0, "text": "one", "finish_reason": "stop"}], "usage": usage}
    upstream.play(stream([said]) if is_stream else ok_json(said))
    before = used(house)
    counted = house.metric("gateway_usage_implausible_total", upstream="main", model=COMPLETIONS)
    if is_stream:
        with house.stream() as raw:
            answer_id = raw.read_head().headers["x-request-id"]
            raw.read_chunks()
    else:
        answer_id = house.complete().id
    record = house.call(answer_id)
    assert record["usage_source"] == "estimated"
    assert 32_768 < record["prompt_tokens"] < 40_000
    assert 4_096 < record["completion_tokens"] < 5_000
    check(house, before, record)
    assert house.metric("gateway_usage_implausible_total", upstream="main", model=COMPLETIONS) == counted + 2
    assert house.stderr.count("more prompt tokens than the call can have used") == 1


def test_parts_above_their_whole_are_clamped(house: Gateway, upstream: Stage) -> None:
    usage = {
        "prompt_tokens": 10, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 99},
        "completion_tokens_details": {"reasoning_tokens": 98},
    }  # fmt: skip
    upstream.play(ok_json({"choices": [{"message": {"content": "one"}}], "usage": usage}))
    record = house.call(house.chat(max_tokens=10).id)
    assert (record["usage_source"], record["cached_tokens"], record["reasoning_tokens"]) == ("reported", 10, 7)
    for kind in ("cached", "reasoning"):
        assert house.metric("gateway_usage_implausible_total", model=CHAT, type=kind) == 1
        assert f"more {kind} tokens than" in house.stderr
