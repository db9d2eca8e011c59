"""What upstreams cannot do, through a whole gateway: refused by name, or sent to another that can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Scripted, ok_json

from .client import Answer
from .gateway_process import Gateway, key, secret, settings

RESELLER = {"logprobs": False, "best_of": False, "echo": False, "suffix": False, "token_prompts": False}
DROPPED = ["service_tier", "tools.function.strict", "response_format.json_schema.strict"]
CANNOT: list[tuple[dict[str, Any], str, str]] = [
    ({"logprobs": 5}, "logprobs", "unsupported_parameter"),
    ({"best_of": 3}, "best_of", "unsupported_value"),
    ({"echo": True}, "echo", "unsupported_parameter"),
    ({"suffix": "."}, "suffix", "unsupported_parameter"),
    ({"prompt": [1, 2]}, "prompt", "unsupported_value"),
    ({"prompt": [[1], [2]]}, "prompt", "unsupported_value"),
]


@pytest.fixture(scope="module")
def other() -> Iterator[Scripted]:
    """An upstream that takes everything."""
    with Scripted(always=ok_json()) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, other: Scripted) -> Gateway:
    able = {
        "reseller": RESELLER,
        "chat": {"completions": False},
        "text": {"chat": False},
        "bridge": {"completions": "via_chat"},
        "dropper": {"drops": DROPPED, "messages": True},
    }
    ups = {name: {"base_url": shared_upstream.url, "capabilities": each} for name, each in able.items()}
    ups["whole"] = {"base_url": other.url}
    both = [{"upstream": "reseller", "priority": 1}, {"upstream": "whole", "priority": 2}]
    models = {name: {"routes": [{"upstream": name}], "max_output_tokens": 9} for name in able}
    models["dropper"]["endpoints"] = ["completions", "chat", "responses", "messages"]
    models["either"] = {"routes": [{"upstream": "dropper", "priority": 1}, {"upstream": "whole", "priority": 2}]}
    models["both"] = {"routes": both, "max_output_tokens": 9}
    models["old"] = {"endpoints": ["completions"], "routes": [{"upstream": "reseller"}]}
    keys = [key("alice", quotas=[{"requests": 1000, "per": "day"}]), key("bob", models=["bridge"])]
    return start_shared_gateway(settings(shared_upstream.url, upstreams=ups, models=models, keys=keys))


def ask(gateway: Gateway, model: str, **members: Any) -> Answer:
    return gateway.post("/v1/completions", {"model": model, "prompt": "Hi", **members})


def requests_used(gateway: Gateway) -> int:
    (row,) = [row for row in gateway.get("/v1/key").json["quotas"] if row["unit"] == "requests"]
    used: int = row["used"] + row["reserved"]
    return used


@pytest.mark.parametrize("model", ["reseller", "bridge"])
@pytest.mark.parametrize(("members", "param", "code"), CANNOT)
def test_refused_before_a_quota_or_an_upstream_hears_of_it(
    gateway: Gateway, upstream: ScriptedUpstream, model: str, members: dict[str, Any], param: str, code: str
) -> None:
    before = requests_used(gateway)
    if (model, param) == ("bridge", "logprobs"):
        return  # which a chat has
    given = ask(gateway, model, **members)
    assert given.refusal == (400, "invalid_request_error", param, code)
    assert param in given.error["message"]
    assert requests_used(gateway) == before
    assert upstream.hits == 0
    line = gateway.line(id=given.id)
    assert line["status"] == 400


@pytest.mark.parametrize(("members", "param", "code"), CANNOT)
def test_sent_to_a_route_that_can(
    gateway: Gateway, upstream: ScriptedUpstream, other: Scripted, members: dict[str, Any], param: str, code: str
) -> None:
    before = other.hits
    given = ask(gateway, "both", **members)
    assert given.status == 200
    assert given.headers["x-gateway-upstream"] == "whole"
    assert other.hits == before + 1
    assert other.requests[-1].json == {"model": "both", "prompt": "Hi", **members}
    assert upstream.hits == 0
    upstream.answer_with(ok_json())
    assert ask(gateway, "both").headers["x-gateway-upstream"] == "reseller"


HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STRICT_TOOL = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
SCHEMA = {"name": "s", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": HI, "service_tier": "flex"}, "service_tier"),
        ("completions", {"prompt": "Hi", "service_tier": "flex"}, "service_tier"),
        ("responses", {"input": "Hi", "service_tier": "flex"}, "service_tier"),
        ("messages", {"messages": HI, "max_tokens": 5, "service_tier": "standard_only"}, "service_tier"),
        ("chat/completions", {"messages": HI, "tools": [TOOL, STRICT_TOOL]}, "tools.function.strict"),
        (
            "chat/completions",
            {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {**SCHEMA, "strict": True}}},
            "response_format.json_schema.strict",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x" * 400_000}], "tools": [STRICT_TOOL]},
            "tools.function.strict",
        ),
    ],
)
def test_what_an_upstream_drops_is_refused_by_name_or_takes_another_route(
    gateway: Gateway, upstream: ScriptedUpstream, other: Scripted, path: str, body: dict[str, Any], param: str
) -> None:
    before = requests_used(gateway)
    refused = gateway.post(f"/v1/{path}", {"model": "dropper", **body})
    assert refused.status == 400
    if path == "messages":
        assert param in refused.json["error"]["message"]
    else:
        assert refused.refusal == (400, "invalid_request_error", param, "unsupported_parameter")
    assert (requests_used(gateway), upstream.hits) == (before, 0)
    if path == "chat/completions":
        hits = other.hits
        assert gateway.post(f"/v1/{path}", {"model": "either", **body}).status == 200
        assert (other.hits, upstream.hits) == (hits + 1, 0)


def test_what_asks_for_nothing_that_is_dropped_is_served(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    for more in ({}, {"service_tier": None}, {"tools": [TOOL]}, {"metadata": {"service_tier": "x"}}):
        upstream.answer_with(ok_json())
        assert gateway.post("/v1/chat/completions", {"model": "dropper", "messages": HI, **more}).status == 200
        assert upstream.hits == 1


def test_an_endpoint_that_no_upstream_has(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    given = ask(gateway, "chat")
    assert given.refusal == (404, "invalid_request_error", "model", None)
    assert given.error["message"].endswith("Did you mean to use v1/chat/completions?")
    chat = {"model": "text", "messages": [{"role": "user", "content": "x"}]}
    given = gateway.post("/v1/chat/completions", chat)
    assert given.refusal == (404, "invalid_request_error", "model", None)
    assert given.error["message"].endswith("Did you mean to use v1/completions?")
    upstream.answer_with(ok_json())
    assert gateway.post("/v1/chat/completions", chat | {"model": "bridge"}).status == 200


def test_what_a_model_can_do_is_shown(gateway: Gateway) -> None:
    listed = {each["id"]: each for each in gateway.get("/v1/models").json["data"]}
    endpoints = {name: each["endpoints"] for name, each in listed.items() if name in ("chat", "text", "bridge", "old")}
    assert endpoints == {
        "chat": ["chat", "embeddings", "responses"],
        "text": ["completions", "embeddings", "responses"],
        "bridge": ["completions", "chat", "embeddings", "responses"],
        "old": ["completions"],
    }
    assert listed["bridge"]["unsupported"] == ["token_prompts", "echo", "suffix", "best_of"]
    assert listed["old"]["unsupported"] == ["token_prompts", "echo", "suffix", "best_of", "logprobs"]
    assert listed["both"]["unsupported"] == []
    shown = gateway.get("/v1/models/bridge", headers={"Authorization": f"Bearer {secret('bob')}"}, key=None).json
    assert shown == listed["bridge"]
