"""Calls that need another form are refused where no wing brings a bridge for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api.capabilities import fitting
from gateway.config import Config, build
from gateway.errors import NotFound
from gateway.formats import bridges, table
from gateway.records import Endpoint, Params

ROUTES = {"routes": [{"upstream": "without"}, {"upstream": "with"}]}


def config(**capabilities: Any) -> Config:
    ups: dict[str, Any] = {"without": {"capabilities": capabilities}, "with": {"capabilities": {"messages": True}}}
    whole = {name: {"base_url": f"http://{name}/v1", **each} for name, each in ups.items()}
    return build({"upstreams": whole, "models": {"m": ROUTES}})


def asked(endpoint: Endpoint, body: dict[str, Any]) -> Params:
    return table.read(endpoint, json.dumps({"model": "m", **body}).encode())


CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("endpoint", "body", "capabilities"),
    [
        ("messages", {"max_tokens": 9, **CHAT}, {"messages": "via_chat"}),
        ("chat", CHAT, {"chat": "via_messages", "messages": True}),
        ("responses", {"input": "x"}, {"responses": "via_chat"}),
        ("completions", {"prompt": "x"}, {"completions": "via_chat"}),
        ("completions", {"prompt": ["x", "y"]}, {"prompt_arrays": False}),
    ],
)
def test_a_call_goes_to_a_route_with_its_form(
    endpoint: Endpoint, body: dict[str, Any], capabilities: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridges, "by_way", dict)
    made, params = config(**capabilities), asked(endpoint, body)
    model = made.models["m"]
    assert [each.upstream for each in fitting(model, endpoint, params, made.upstreams, bridges.refusal)] == ["with"]
    alone = model.model_copy(update={"routes": model.routes[:1]})
    with pytest.raises(NotFound):
        fitting(alone, endpoint, params, made.upstreams, bridges.refusal)
    assert bridges.needed(endpoint, params, [alone], made.upstreams) == []
