"""Prompts that the gateway counts itself, with the extra `tokens`; and that it goes by its rule without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Behaviour, ok_json, stalled_stream, stream
from tests.flows.gateway_process import (
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
def gateway(
    request: pytest.FixtureRequest,
    start_shared_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    config = settings(shared_upstream.url, keys=KEYS, models=MODELS)
    if request.param == "embedded":
        yield start_shared_gateway(config, env=WITH_TOKENS)
        return
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        gateway = start_shared_gateway({**config, "store": {"url": server.url}}, env=WITH_TOKENS)
        yield gateway
        gateway.stop()


def reported(prompt: int) -> Behaviour:
    return ok_json({"model": "up", "usage": {"prompt_tokens": prompt, "completion_tokens": 1}})


def test_what_the_upstream_reports_was_known_before(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """The counts are those of OpenAI's own examples."""
    upstream.answer_with(reported(5), reported(19), reported(8))
    embedded = {"model": EMBEDDINGS, "input": "The food was delicious and the waiter..."}
    count, error = (gateway.metric(f"gateway_estimate_error_tokens_{name}") for name in ("count", "sum"))
    for number, ask in enumerate(
        (
            lambda: gateway.complete("counted", prompt="Say this is a test"),
            lambda: gateway.chat("counted", messages=HELLO),
            lambda: gateway.post("/v1/embeddings", embedded, key="counted"),
        ),
        start=1,
    ):
        assert ask().status == 200
        eventually(lambda number=number: gateway.metric("gateway_estimate_error_tokens_count") == count + number)
        assert gateway.metric("gateway_estimate_error_tokens_sum") == error


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
    gateway: Gateway, upstream: ScriptedUpstream, changes: dict[str, Any], tokens: int | None
) -> None:
    upstream.answer_with(ok_json({"model": "up"}))
    answer = gateway.complete("silent", **changes)
    assert answer.status == 200
    record = gateway.call(answer.id)
    assert record["usage_source"] == "estimated"
    assert record["prompt_tokens"] == tokens or tokens is None


def test_client_that_leaves_pays_for_the_prompt_that_it_sent(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stalled_stream([{"choices": [{"index": 0, "text": "He", "finish_reason": None}]}]))
    with gateway.stream("leaver", prompt=ORDINARY, max_tokens=5) as raw:
        raw.read_head()
        raw.read_until(b"He")
        (window,) = gateway.get("/v1/key", key="leaver").json["quotas"]
        assert (window["used"], window["reserved"]) == (0, 91 + 5)
    call = eventually(lambda: next(iter(gateway.calls("leaver")), None))
    assert (call["ended"], call["usage_source"], call["prompt_tokens"]) == ("client_gone", "estimated", 91)


SAID = ["Say", " this is", " a", " te", "st", ", “please”", " 2 + 2 = 4"]
"""17 tokens of cl100k_base, however they are cut; 21 by the rule."""


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_without_usage_is_counted_by_the_gateway(
    gateway: Gateway, upstream: ScriptedUpstream, is_stream: bool
) -> None:
    if not is_stream:
        upstream.answer_with(ok_json({"model": "up", "choices": [{"index": 0, "text": "".join(SAID)}]}))
        record = gateway.call(gateway.complete("silent").id)
    else:
        pieces = [{"index": 0, "text": text, "finish_reason": None} for text in SAID]
        pieces[-1]["finish_reason"] = "stop"
        upstream.answer_with(stream([{"model": "up", "choices": [piece]} for piece in pieces]))
        with gateway.stream("silent") as raw:
            answer = raw.read_head()
            assert raw.read_chunks().endswith(b"data: [DONE]\n\n")
        record = gateway.call(answer.headers["x-request-id"])
    assert (record["usage_source"], record["ended"]) == ("estimated", "done")
    assert record["completion_tokens"] == 17


def test_a_prompt_that_the_upstream_does_not_count_is_counted_here(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(reported(0))
    record = gateway.call(gateway.complete("silent", prompt="Say this is a test").id)
    assert (record["usage_source"], record["prompt_tokens"], record["completion_tokens"]) == ("estimated", 5, 1)


def test_an_error_in_place_of_a_stream_costs_nothing(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stream([{"error": {"message": "Overloaded", "type": "server_error"}}]))
    with gateway.stream("silent") as raw:
        answer = raw.read_head()
        assert b"error" in raw.read_chunks()
    record = gateway.call(answer.headers["x-request-id"])
    assert (record["usage_source"], record["ended"]) == ("none", "error")
    assert (record["prompt_tokens"], record["completion_tokens"]) == (0, 0)


def test_a_prompt_is_refused_for_good_only_if_it_never_fits(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({"model": "up", "usage": {"prompt_tokens": 0, "completion_tokens": 0}}), reported(0))
    refused = gateway.complete("small", prompt=ORDINARY, max_tokens=10)
    assert refused.refusal == (400, "invalid_request_error", "max_tokens", "quota_too_small")
    assert "use up to 101 tokens, its prompt of 91 included" in refused.error["message"]
    assert upstream.hits == 0
    assert gateway.complete("small", prompt=ORDINARY, max_tokens=9).status == 200
    # Counted as text it would not fit. An upstream that takes it for special tokens counts 30.
    assert gateway.complete("small", prompt="<|endoftext|>" * 30, max_tokens=10).status == 200


def test_prompt_of_one_letter_is_no_work_without_end(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json({"model": "up"}))
    counted, by_rule = gateway.complete("long", prompt="a" * 60_000), gateway.complete("long", prompt="a" * 1_000_000)
    assert gateway.call(counted.id)["prompt_tokens"] == 7500
    assert gateway.call(by_rule.id)["prompt_tokens"] == 250_000
    many = gateway.complete("long", prompt=["-" * 1000] * 1000)
    assert gateway.call(many.id)["prompt_tokens"] == 250_000
    upstream.answer_with()


# ------------------------------------------------------------------------------------------------- without the package


def test_without_the_extra_the_rule_is_used(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    gateway = start_gateway(settings(upstream.url, keys=KEYS, models=MODELS))
    upstream.answer_with(ok_json({"model": "up"}), ok_json({"model": "up"}))
    assert gateway.call(gateway.complete("silent", prompt="お誕生日おめでとう").id)["prompt_tokens"] == 7
    long_text = gateway.complete("small", prompt="x" * 3000, max_tokens=10)
    assert long_text.status == 200, "its length is an estimate"


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (WITH_TOKENS, f"counted for {COMPLETIONS}, {CHAT}, {EMBEDDINGS}; estimated for {MYSTERY}"),
        (WITHOUT_TOKENS, "estimated: the optional extra 'tokens' is not installed"),
    ],
)
def test_check_says_what_is_counted(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path, env: dict[str, str], says: str
) -> None:
    gateway = start_gateway(settings(upstream.url, models=MODELS))
    done = run("check", "--config", str(gateway.file), env=env)
    assert f"  tokens     {says}\n" in done.stdout
