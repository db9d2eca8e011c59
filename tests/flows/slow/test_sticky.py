"""Sticky routes through a whole gateway: conversations over upstreams that have prefix caches, with and without them.

The upstreams are simulated ones and llama.cpp's servers. What is asserted are cached tokens, as they report them and
the gateway's records count them.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartsGateways, StartsProcesses
from tests.fakes.llama_server import LlamaServer
from tests.flows.client import request
from tests.flows.gateway_process import Gateway, eventually, key, settings

CONVERSATIONS, TURNS = 24, 5
CACHE_BLOCKS = 150
"""Of 128 tokens, at each of three upstreams: enough for the conversations of one, and not for all."""
PROMPT = " ".join(f"word{number}" for number in range(1300))
LLAMA_CACHE_MIB = 13
"""A token of the tests' model takes 512 bytes: enough for 17 conversations, and not for all 24."""
LLAMA_PROMPT = "word " * 260
"""1300 tokens of that model, which has one for each byte."""


@pytest.fixture
def upstreams(process: StartsProcesses) -> list[str]:
    """Addresses of three simulated upstreams."""
    started = [process("simulate", "--port", "0", "--prefix-cache", str(CACHE_BLOCKS)) for _ in range(3)]
    return [each.wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1] for each in started]


def turn(gateway: Gateway, model: str, conversation: int, number: int, system: str = PROMPT) -> dict[str, Any]:
    messages = [{"role": "system", "content": f"{conversation} {system}"}]
    for earlier in range(number):
        messages += [{"role": "user", "content": f"question {earlier}"}, {"role": "assistant", "content": "answer"}]
    messages.append({"role": "user", "content": f"question {number}"})
    got = gateway.chat(model=model, messages=messages, max_tokens=5)
    assert got.status == 200
    return {"upstream": got.headers["x-gateway-upstream"], **got.json["usage"]}


def script(gateway: Gateway, model: str, system: str = PROMPT) -> tuple[float, list[set[str]]]:
    """The share of prompt tokens that were cached, and where the turns of each conversation went."""
    order = [(conversation, number) for number in range(TURNS) for conversation in range(CONVERSATIONS)]
    places: list[set[str]] = [set() for _ in range(CONVERSATIONS)]
    cached = prompt = 0
    for conversation, number in order:
        usage = turn(gateway, model, conversation + (1000 if model == "sticky" else 0), number, system)
        cached += usage["prompt_tokens_details"]["cached_tokens"]
        prompt += usage["prompt_tokens"]
        places[conversation].add(usage["upstream"])
    return cached / prompt, places


def both_ways(upstreams: list[str], served: str) -> dict[str, Any]:
    """A configuration with the model `served` of these addresses, `sticky` and `loose`."""
    names = [f"up-{number}" for number in range(len(upstreams))]
    routes = [{"upstream": name, "model": served} for name in names]
    models = {
        "sticky": {"endpoints": ["chat"], "routes": routes, "sticky": True, "max_output_tokens": 50},
        "loose": {"endpoints": ["chat"], "routes": routes, "max_output_tokens": 50},
    }
    ups = {name: {"base_url": url} for name, url in zip(names, upstreams, strict=True)}
    return settings(upstreams[0], models=models, keys=[key("alice")], upstreams=ups)


def compare(gateway: Gateway, upstreams: int, system: str = PROMPT) -> tuple[float, float]:
    """The shares that were cached, with sticky routes and without."""
    random.seed(1)
    loose, spread = script(gateway, "loose", system)
    stays, places = script(gateway, "sticky", system)
    print(f"cached: {stays:.0%} of prompt tokens with sticky routes, {loose:.0%} without")
    assert {len(place) for place in places} == {1}
    assert len(set.union(*places)) == upstreams
    assert any(len(place) > 1 for place in spread)
    return stays, loose


def test_conversations_that_stay_find_their_prefix_cached(start_gateway: StartsGateways, upstreams: list[str]) -> None:
    gateway = start_gateway(both_ways(upstreams, "gpt-4o-mini"))
    stays, loose = compare(gateway, len(upstreams))
    assert stays > 1.5 * loose
    # Every first turn is new, and all others find the system prompt, but for what the bounded caches have dropped.
    assert 0.6 < stays <= (TURNS - 1) / TURNS
    rows = eventually(
        lambda: (
            (found := gateway.usage(group_by="model")) and sum(row["requests"] for row in found) == 2 * 120 and found
        )
    )
    by_model = {row["model"]: row["cached_tokens"] / row["prompt_tokens"] for row in rows}
    assert by_model["sticky"] == pytest.approx(stays)
    assert by_model["loose"] == pytest.approx(loose)


@pytest.fixture
def llamas(tmp_path: Path) -> Iterator[list[str]]:
    """Addresses of two servers of llama.cpp, each with two slots and a bounded memory of other prompts."""
    limits = {"cache_prompt": 1, "cache_ram_mib": LLAMA_CACHE_MIB, "n_parallel": 2}
    with LlamaServer(tmp_path / "one", **limits) as one, LlamaServer(tmp_path / "two", **limits) as two:
        yield [one.url, two.url]


def test_llama_cpp_finds_the_prefix_of_a_conversation_that_stays(
    start_gateway: StartsGateways, llamas: list[str]
) -> None:
    gateway = start_gateway(both_ways(llamas, "words"))
    stays, loose = compare(gateway, len(llamas), LLAMA_PROMPT)
    assert stays > 1.25 * loose
    assert 0.6 < stays <= (TURNS - 1) / TURNS


def test_a_dead_upstream_is_left_and_taken_again(start_gateway: StartsGateways, process: StartsProcesses) -> None:
    started = [process("simulate", "--port", "0", "--prefix-cache", "4000") for _ in range(2)]
    urls = [each.wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1] for each in started]
    routes = [{"upstream": name, "model": "gpt-4o-mini"} for name in ("one", "two")]
    models = {"sticky": {"endpoints": ["chat"], "routes": routes, "sticky": True, "max_output_tokens": 50}}
    gateway = start_gateway(
        settings(
            urls[0], models=models,
            upstreams={name: {"base_url": url} for name, url in zip(("one", "two"), urls, strict=True)},
        )
    )  # fmt: skip
    first = turn(gateway, "sticky", 1, 0)["upstream"]
    assert {turn(gateway, "sticky", 1, number)["upstream"] for number in range(1, 4)} == {first}
    dead = started[0 if first == "one" else 1]
    dead.kill(signal.SIGKILL)
    dead.wait()  # before, its port takes connections
    (other,) = {"one", "two"} - {first}
    assert {turn(gateway, "sticky", 1, number)["upstream"] for number in range(3)} == {other}


def test_the_simulator_s_cache_belongs_to_one_api_key(process: StartsProcesses) -> None:
    found = process("simulate", "--port", "0", "--prefix-cache", "4000").wait_for(r"serves http://127\.0\.0\.1:(\d+)")
    body = json.dumps({"model": "gpt-4o-mini", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1})

    def cached(secret: str) -> int:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
        got = request(int(found[1]), "POST", "/v1/chat/completions", body.encode(), headers)
        return int(got.json["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached("sk-1"), cached("sk-1"), cached("sk-2")] == [0, 1280, 0]
