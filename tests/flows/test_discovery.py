"""Models that an upstream lists, through a whole gateway: the simulator as upstream, and one that changes its list."""

from __future__ import annotations

from typing import Any

from tests.conftest import ScriptedUpstream, StartsGateways, StartsProcesses
from tests.fakes.scripted import Behaviour, Wire, dead_port, ok_json

from .gateway_process import COMPLETIONS, SIMULATOR, Gateway, eventually, key, settings

DEFAULTS = {"models": {"max_output_tokens": 100, "price": {"input": 2, "output": 4}}}


def config(url: str, discover: Any, **more: Any) -> dict[str, Any]:
    """Six lines, but for keys and ports: no model is named."""
    changes = {"upstreams": {"main": {"discover": discover}}, "defaults": DEFAULTS, **more}
    return settings(url, **changes) | {"models": more.get("models", {})}


def ids(gateway: Gateway, name: str = "alice") -> list[str]:
    return [row["id"] for row in gateway.get("/v1/models", key=name).json["data"]]


def test_a_gateway_serves_what_its_upstream_lists(start_gateway: StartsGateways, process: StartsProcesses) -> None:
    url = process(SIMULATOR, "--port", "0").wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]
    discover = {"include": ["gpt-*", "text-*"], "exclude": ["*4.1*"]}
    keys = [key("alice", quotas=[{"tokens": 10_000, "per": "day"}]), key("bob", models=["text-*"])]
    gateway = start_gateway(config(url, discover, keys=keys, aliases={"fast": "gpt-4o-mini"}, server={"workers": 2}))
    listed = ["gpt-4o-mini", "gpt-4o-mini-transcribe", "gpt-image-1", "gpt-realtime", "text-embedding-3-small"]
    assert ids(gateway) == ["fast", COMPLETIONS, *listed]
    assert ids(gateway, "bob") == ["text-embedding-3-small"]
    answers = [gateway.chat(), gateway.chat(model="fast"), gateway.complete()]
    assert [answer.status for answer in answers] == [200] * 3
    assert gateway.call(answers[1].headers["x-request-id"])["served_model"] == "gpt-4o-mini"
    assert gateway.call(answers[0].headers["x-request-id"])["cost_usd"] > 0
    assert [gateway.chat(model=name).status for name in ("gpt-4.1-mini", "deepseek-reasoner")] == [404, 404]
    rows = eventually(lambda: (found := gateway.usage(group_by="model")) and len(found) == 2 and found)
    assert {row["model"]: row["requests"] for row in rows} == {"gpt-4o-mini": 2, COMPLETIONS: 1}
    assert gateway.admin("live").json["generation"] == 1


def listing(*names: str) -> Behaviour:
    """An upstream that lists these models, and answers every call."""
    models = ok_json({"object": "list", "data": [{"id": name} for name in names]})
    answer = ok_json()

    async def behave(wire: Wire) -> None:
        await (models if wire.request.path.endswith("/models") else answer)(wire)

    return behave


def test_a_list_that_changes_is_applied_to_all_workers(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=listing("a", "b"))
    gateway = start_gateway(config(upstream.url, {"every_s": 1}, server={"workers": 2}))
    assert ids(gateway) == ["a", "b"]
    upstream.answer_with(always=listing("b", "c"))
    eventually(lambda: {tuple(ids(gateway)) for _ in range(8)} == {("b", "c")})
    assert [gateway.complete(model=name).status for name in "abc"] == [404, 200, 200]
    assert "upstream main lists other models: 1 new (c); 1 gone (a)" in gateway.stderr


def test_a_start_without_the_upstream_serves_the_last_list(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=listing("a", "b"))
    first = start_gateway(config(upstream.url, True))
    shared = {"store": first.config["store"] | {"journal_dir": str(first.folder / "gateway-journal")}}
    assert ids(first) == ["a", "b"]
    first.stop()
    upstream.answer_with(always=listing())  # an empty list is not believed
    gateway = start_gateway(config(upstream.url, True, **shared))
    assert ids(gateway) == ["a", "b"]
    assert gateway.complete(model="a").status == 200


def test_a_gateway_that_knows_no_list_starts_and_goes_on_asking(start_gateway: StartsGateways) -> None:
    gateway = start_gateway(config(f"http://127.0.0.1:{dead_port()}/v1", True))
    assert ids(gateway) == []
    assert gateway.complete(model="a").status == 404
    assert "nothing is known of its models" in gateway.stderr


def test_names_under_a_pattern_are_listed_and_have_its_settings(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=listing("gpt-4o", "o3"))
    models = {"gpt-*": {"routes": [{"upstream": "main"}], "endpoints": ["chat"], "max_output_tokens": 9}}
    gateway = start_gateway(config(upstream.url, True, models=models))
    shown = {row["id"]: "embeddings" in row["endpoints"] for row in gateway.get("/v1/models").json["data"]}
    assert shown == {"gpt-4o": False, "o3": True}
