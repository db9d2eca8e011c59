"""Models that an upstream lists, through a whole gateway: the simulator as upstream, and one that changes its list."""

from __future__ import annotations

from typing import Any

from tests.conftest import Stage, StartsGateways, StartsProcesses
from tests.fakes.scripted import Behaviour, Wire, dead_port, ok_json

from .house import COMPLETIONS, Gateway, eventually, key, settings

DEFAULTS = {"models": {"max_output_tokens": 100, "price": {"input": 2, "output": 4}}}


def config(url: str, discover: Any, **more: Any) -> dict[str, Any]:
    """Six lines, but for keys and ports: no model is named."""
    changes = {"upstreams": {"main": {"discover": discover}}, "defaults": DEFAULTS, **more}
    return settings(url, **changes) | {"models": more.get("models", {})}


def ids(house: Gateway, name: str = "alice") -> list[str]:
    return [row["id"] for row in house.get("/v1/models", key=name).json["data"]]


def test_a_gateway_serves_what_its_upstream_lists(gateway: StartsGateways, process: StartsProcesses) -> None:
    url = process("simulate", "--port", "0").wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]
    discover = {"include": ["gpt-*", "text-*"], "exclude": ["*4.1*"]}
    keys = [key("alice", quotas=[{"tokens": 10_000, "per": "day"}]), key("bob", models=["text-*"])]
    house = gateway(config(url, discover, keys=keys, aliases={"fast": "gpt-4o-mini"}, server={"workers": 2}))
    listed = ["gpt-4o-mini", "gpt-4o-mini-transcribe", "gpt-image-1", "gpt-realtime", "text-embedding-3-small"]
    assert ids(house) == ["fast", COMPLETIONS, *listed]
    assert ids(house, "bob") == ["text-embedding-3-small"]
    answers = [house.chat(), house.chat(model="fast"), house.complete()]
    assert [answer.status for answer in answers] == [200] * 3
    assert house.call(answers[1].headers["x-request-id"])["served_model"] == "gpt-4o-mini"
    assert house.call(answers[0].headers["x-request-id"])["cost_usd"] > 0
    assert [house.chat(model=name).status for name in ("gpt-4.1-mini", "deepseek-reasoner")] == [404, 404]
    rows = eventually(lambda: (found := house.usage(group_by="model")) and len(found) == 2 and found)
    assert {row["model"]: row["requests"] for row in rows} == {"gpt-4o-mini": 2, COMPLETIONS: 1}
    assert house.admin("live").json["generation"] == 1


def listing(*names: str) -> Behaviour:
    """An upstream that lists these models, and answers every call."""
    models = ok_json({"object": "list", "data": [{"id": name} for name in names]})
    answer = ok_json()

    async def behave(wire: Wire) -> None:
        await (models if wire.request.path.endswith("/models") else answer)(wire)

    return behave


def test_a_list_that_changes_is_applied_to_all_workers(gateway: StartsGateways, upstream: Stage) -> None:
    upstream.play(always=listing("a", "b"))
    house = gateway(config(upstream.url, {"every_s": 1}, server={"workers": 2}))
    assert ids(house) == ["a", "b"]
    upstream.play(always=listing("b", "c"))
    eventually(lambda: {tuple(ids(house)) for _ in range(8)} == {("b", "c")})
    assert [house.complete(model=name).status for name in "abc"] == [404, 200, 200]
    assert "upstream main lists other models: 1 new (c); 1 gone (a)" in house.stderr


def test_a_start_without_the_upstream_serves_the_last_list(gateway: StartsGateways, upstream: Stage) -> None:
    upstream.play(always=listing("a", "b"))
    first = gateway(config(upstream.url, True))
    shared = {"store": first.config["store"] | {"journal_dir": str(first.folder / "gateway-journal")}}
    assert ids(first) == ["a", "b"]
    first.stop()
    upstream.play(always=listing())  # an empty list is not believed
    house = gateway(config(upstream.url, True, **shared))
    assert ids(house) == ["a", "b"]
    assert house.complete(model="a").status == 200


def test_a_gateway_that_knows_no_list_starts_and_goes_on_asking(gateway: StartsGateways) -> None:
    house = gateway(config(f"http://127.0.0.1:{dead_port()}/v1", True))
    assert ids(house) == []
    assert house.complete(model="a").status == 404
    assert "nothing is known of its models" in house.stderr


def test_names_under_a_pattern_are_listed_and_have_its_settings(gateway: StartsGateways, upstream: Stage) -> None:
    upstream.play(always=listing("gpt-4o", "o3"))
    models = {"gpt-*": {"routes": [{"upstream": "main"}], "endpoints": ["chat"], "max_output_tokens": 9}}
    house = gateway(config(upstream.url, True, models=models))
    shown = {row["id"]: "embeddings" in row["endpoints"] for row in house.get("/v1/models").json["data"]}
    assert shown == {"gpt-4o": False, "o3": True}
