"""Prompts that the gateway counts itself, with the extra `tokens`; and that it goes by its rule without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Behaviour, ok_json, stalled_stream, stream
from tests.flows.house import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    WITH_TOKENS,
    WITHOUT_TOKENS,
    Gateway,
    eventually,
    key,
    model,
    run,
    settings,
)

MYSTERY = "nobody-knows-how-it-counts"
MODELS = {
    COMPLETIONS: model("completions"),
    CHAT: model("chat"),
    EMBEDDINGS: model("embeddings"),
    MYSTERY: model("completions"),
}
KEYS = [
    key("counted"),
    key("silent"),
    key("long"),
    key("small", quotas=[{"tokens": 100, "per": "day"}]),
    key("leaver", quotas=[{"tokens": 10000, "per": "day"}]),
]

HELLO = [
    {"role": "developer", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Hello!"},
]
"""What OpenAI's reference of chat completions sends in its first example, for 19 tokens."""

ORDINARY = "word " * 90
"""91 tokens: the last space is one of its own."""


@pytest.fixture(scope="module", params=["embedded", "redis"])
def house(
    request: pytest.FixtureRequest, gateways: StartsGateways, theatre: Stage, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    config = settings(theatre.url, keys=KEYS, models=MODELS)
    if request.param == "embedded":
        yield gateways(config, env=WITH_TOKENS)
        return
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        house = gateways({**config, "store": {"url": server.url}}, env=WITH_TOKENS)
        yield house
        house.stop()


def reported(prompt: int) -> Behaviour:
    return ok_json({"model": "up", "usage": {"prompt_tokens": prompt, "completion_tokens": 1}})


def test_what_the_upstream_reports_was_known_before(house: Gateway, upstream: Stage) -> None:
    """The counts are those of OpenAI's own examples."""
    upstream.play(reported(5), reported(19), reported(8))
    embedded = {"model": EMBEDDINGS, "input": "The food was delicious and the waiter..."}
    count, error = (house.metric(f"gateway_estimate_error_tokens_{name}") for name in ("count", "sum"))
    for number, ask in enumerate(
        (
            lambda: house.complete("counted", prompt="Say this is a test"),
            lambda: house.chat("counted", messages=HELLO),
            lambda: house.post("/v1/embeddings", embedded, key="counted"),
        ),
        start=1,
    ):
        assert ask().status == 200
        eventually(lambda number=number: house.metric("gateway_estimate_error_tokens_count") == count + number)
        assert house.metric("gateway_estimate_error_tokens_sum") == error


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"prompt": "お誕生日おめでとう"}, 9),
        ({"prompt": "<|endoftext|>"}, 7),
        ({"prompt": ["Say this is a test", "2 + 2 = 4"]}, 12),
        ({"prompt": "\x00\ufeff " * 3, "suffix": "<|fim_suffix|>"}, None),
        ({"model": MYSTERY, "prompt": "x" * 40}, 10),
        ({"model": MYSTERY, "prompt": "<|endoftext|>"}, 4),
    ],
)
def test_estimates_of_unreported_tokens_are_within_their_bounds(
    house: Gateway, upstream: Stage, changes: dict[str, Any], tokens: int | None
) -> None:
    upstream.play(ok_json({"model": "up"}))
    answer = house.complete("silent", **changes)
    assert answer.status == 200
    record = house.call(answer.id)
    assert record["usage_source"] == "estimated"
    assert record["prompt_tokens"] == tokens or tokens is None


def test_client_that_leaves_pays_for_the_prompt_that_it_sent(house: Gateway, upstream: Stage) -> None:
    upstream.play(stalled_stream([{"choices": [{"index": 0, "text": "He", "finish_reason": None}]}]))
    with house.stream("leaver", prompt=ORDINARY, max_tokens=5) as raw:
        raw.read_head()
        raw.read_until(b"He")
        (window,) = house.get("/v1/key", key="leaver").json["quotas"]
        assert (window["used"], window["reserved"]) == (0, 91 + 5)
    call = eventually(lambda: next(iter(house.calls("leaver")), None))
    assert (call["ended"], call["usage_source"], call["prompt_tokens"]) == ("client_gone", "estimated", 91)


SAID = ["Say", " this is", " a", " te", "st", ", “please”", " 2 + 2 = 4"]
"""17 tokens of cl100k_base, however they are cut; 21 by the rule."""


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_without_usage_is_counted_by_the_gateway(house: Gateway, upstream: Stage, is_stream: bool) -> None:
    if not is_stream:
        upstream.play(ok_json({"model": "up", "choices": [{"index": 0, "text": "".join(SAID)}]}))
        record = house.call(house.complete("silent").id)
    else:
        pieces = [{"index": 0, "text": text, "finish_reason": None} for text in SAID]
        pieces[-1]["finish_reason"] = "stop"
        upstream.play(stream([{"model": "up", "choices": [piece]} for piece in pieces]))
        with house.stream("silent") as raw:
            answer = raw.read_head()
            assert raw.read_chunks().endswith(b"data: [DONE]\n\n")
        record = house.call(answer.headers["x-request-id"])
    assert (record["usage_source"], record["ended"]) == ("estimated", "done")
    assert record["completion_tokens"] == 17


def test_a_prompt_that_the_upstream_does_not_count_is_counted_here(house: Gateway, upstream: Stage) -> None:
    upstream.play(reported(0))
    record = house.call(house.complete("silent", prompt="Say this is a test").id)
    assert (record["usage_source"], record["prompt_tokens"], record["completion_tokens"]) == ("estimated", 5, 1)


def test_an_error_in_place_of_a_stream_costs_nothing(house: Gateway, upstream: Stage) -> None:
    upstream.play(stream([{"error": {"message": "Overloaded", "type": "server_error"}}]))
    with house.stream("silent") as raw:
        answer = raw.read_head()
        assert b"error" in raw.read_chunks()
    record = house.call(answer.headers["x-request-id"])
    assert (record["usage_source"], record["ended"]) == ("none", "error")
    assert (record["prompt_tokens"], record["completion_tokens"]) == (0, 0)


def test_a_prompt_is_refused_for_good_only_if_it_never_fits(house: Gateway, upstream: Stage) -> None:
    upstream.play(ok_json({"model": "up", "usage": {"prompt_tokens": 0, "completion_tokens": 0}}), reported(0))
    refused = house.complete("small", prompt=ORDINARY, max_tokens=10)
    assert refused.told == (400, "invalid_request_error", "max_tokens", "quota_too_small")
    assert "use up to 101 tokens, its prompt of 91 included" in refused.error["message"]
    assert upstream.hits == 0
    assert house.complete("small", prompt=ORDINARY, max_tokens=9).status == 200
    # Counted as text it would not fit. An upstream that takes it for special tokens counts 30.
    assert house.complete("small", prompt="<|endoftext|>" * 30, max_tokens=10).status == 200


def test_prompt_of_one_letter_is_no_work_without_end(house: Gateway, upstream: Stage) -> None:
    upstream.play(always=ok_json({"model": "up"}))
    counted, by_rule = house.complete("long", prompt="a" * 60_000), house.complete("long", prompt="a" * 1_000_000)
    assert house.call(counted.id)["prompt_tokens"] == 7500
    assert house.call(by_rule.id)["prompt_tokens"] == 250_000
    many = house.complete("long", prompt=["-" * 1000] * 1000)
    assert house.call(many.id)["prompt_tokens"] == 250_000
    upstream.play()


# ------------------------------------------------------------------------------------------------- without the package


def test_without_the_extra_the_rule_is_used(gateway: StartsGateways, upstream: Stage) -> None:
    house = gateway(settings(upstream.url, keys=KEYS, models=MODELS))
    upstream.play(ok_json({"model": "up"}), ok_json({"model": "up"}))
    assert house.call(house.complete("silent", prompt="お誕生日おめでとう").id)["prompt_tokens"] == 7
    long_text = house.complete("small", prompt="x" * 4000, max_tokens=10)
    assert long_text.status == 200, "its length is an estimate"


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (WITH_TOKENS, f"counted for {COMPLETIONS}, {CHAT}, {EMBEDDINGS}; estimated for {MYSTERY}"),
        (WITHOUT_TOKENS, "estimated: the optional extra 'tokens' is not installed"),
    ],
)
def test_check_says_what_is_counted(
    gateway: StartsGateways, upstream: Stage, tmp_path: Path, env: dict[str, str], says: str
) -> None:
    house = gateway(settings(upstream.url, models=MODELS))
    done = run("check", "--config", str(house.file), env=env)
    assert f"  tokens     {says}\n" in done.stdout
