"""What upstreams cannot do, through a whole gateway: refused by name, or sent to another that can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.scripted import Scripted, ok_json

from .client import Answer
from .house import Gateway, key, secret, settings

RESELLER = {"logprobs": False, "best_of": False, "echo": False, "suffix": False, "token_prompts": False}
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
def house(gateways: StartsGateways, theatre: Stage, other: Scripted) -> Gateway:
    able = {
        "reseller": RESELLER,
        "chat": {"completions": False},
        "text": {"chat": False},
        "bridge": {"completions": "via_chat"},
    }
    ups = {name: {"base_url": theatre.url, "capabilities": each} for name, each in able.items()}
    ups["whole"] = {"base_url": other.url}
    both = [{"upstream": "reseller", "priority": 1}, {"upstream": "whole", "priority": 2}]
    models = {name: {"routes": [{"upstream": name}], "max_output_tokens": 9} for name in able}
    models["both"] = {"routes": both, "max_output_tokens": 9}
    models["old"] = {"endpoints": ["completions"], "routes": [{"upstream": "reseller"}]}
    keys = [key("alice", quotas=[{"requests": 1000, "per": "day"}]), key("bob", models=["bridge"])]
    return gateways(settings(theatre.url, upstreams=ups, models=models, keys=keys))


def ask(house: Gateway, model: str, **members: Any) -> Answer:
    return house.post("/v1/completions", {"model": model, "prompt": "Hi", **members})


def requests_used(house: Gateway) -> int:
    (row,) = [row for row in house.get("/v1/key").json["quotas"] if row["unit"] == "requests"]
    used: int = row["used"] + row["reserved"]
    return used


@pytest.mark.parametrize("model", ["reseller", "bridge"])
@pytest.mark.parametrize(("members", "param", "code"), CANNOT)
def test_refused_before_a_quota_or_an_upstream_hears_of_it(
    house: Gateway, upstream: Stage, model: str, members: dict[str, Any], param: str, code: str
) -> None:
    before = requests_used(house)
    if (model, param) == ("bridge", "logprobs"):
        return  # which a chat has
    given = ask(house, model, **members)
    assert given.told == (400, "invalid_request_error", param, code)
    assert param in given.error["message"]
    assert requests_used(house) == before
    assert upstream.hits == 0
    line = house.line(id=given.id)
    assert line["status"] == 400


@pytest.mark.parametrize(("members", "param", "code"), CANNOT)
def test_sent_to_a_route_that_can(
    house: Gateway, upstream: Stage, other: Scripted, members: dict[str, Any], param: str, code: str
) -> None:
    before = other.hits
    given = ask(house, "both", **members)
    assert given.status == 200
    assert given.headers["x-gateway-upstream"] == "whole"
    assert other.hits == before + 1
    assert other.requests[-1].json == {"model": "both", "prompt": "Hi", **members}
    assert upstream.hits == 0
    upstream.play(ok_json())
    assert ask(house, "both").headers["x-gateway-upstream"] == "reseller"


def test_an_endpoint_that_no_upstream_has(house: Gateway, upstream: Stage) -> None:
    given = ask(house, "chat")
    assert given.told == (404, "invalid_request_error", "model", None)
    assert given.error["message"].endswith("Did you mean to use v1/chat/completions?")
    chat = {"model": "text", "messages": [{"role": "user", "content": "x"}]}
    given = house.post("/v1/chat/completions", chat)
    assert given.told == (404, "invalid_request_error", "model", None)
    assert given.error["message"].endswith("Did you mean to use v1/completions?")
    upstream.play(ok_json())
    assert house.post("/v1/chat/completions", chat | {"model": "bridge"}).status == 200


def test_what_a_model_can_do_is_shown(house: Gateway) -> None:
    listed = {each["id"]: each for each in house.get("/v1/models").json["data"]}
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
    shown = house.get("/v1/models/bridge", headers={"Authorization": f"Bearer {secret('bob')}"}, key=None).json
    assert shown == listed["bridge"]
