"""Models by pattern: which settings serve a name, and what reports and metrics call it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import error_json, ok_json

from .client import Answer
from .gateway_process import ADMIN_TOKEN, CHAT, COMPLETIONS, EMBEDDINGS, Gateway, eventually, key, model, run, settings

PRICE = {"input": 2, "output": 4}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    routes = [{"upstream": "main"}]
    models: dict[str, Any] = {
        "gpt-4o*": {"routes": routes, "max_output_tokens": 100, "price": PRICE},
        "openai/*": {"routes": routes, "strip_prefix": "openai/", "max_output_tokens": 100},
        "*": {"routes": routes, "endpoints": ["completions"], "max_output_tokens": 100},
    }
    keys = [
        key("alice"), key("bob", models=["gpt-*"]), key("spender", quotas=[{"usd": 1, "per": "day"}]),
        key("fast", models=["fa?t"]), key("few", quotas=[{"requests": 1, "per": "day", "model": "gpt-4o-x"}]),
    ]  # fmt: skip
    aliases = {"fast": "gpt-4o-x", "instruct": COMPLETIONS, "best": "openai/o1"}
    return start_shared_gateway(
        settings(shared_upstream.url, models=models, aliases=aliases, keys=keys, metrics={"max_models": 5})
    )


def groups(gateway: Gateway, **query: str) -> dict[str, int]:
    return {row["model"]: row["requests"] for row in gateway.usage(group_by="model", **query)}


def test_a_name_under_a_pattern_is_reported_as_itself_when_it_was_served(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(error_json(404, message="no such model", code="model_not_found"), ok_json(), ok_json())
    answers = [gateway.complete(model="gpt-4o-2024") for _ in range(3)]
    assert [answer.status for answer in answers] == [404, 200, 200]
    assert [request.json["model"] for request in upstream.requests] == ["gpt-4o-2024"] * 3
    records = [gateway.call(answer.headers["x-request-id"]) for answer in answers]
    assert {record["model"] for record in records} == {"gpt-4o-2024"}
    assert [record["cost_usd"] for record in records] == [0, 6e-6, 6e-6]
    found = eventually(lambda: (seen := groups(gateway)).get("gpt-4o-2024") == 2 and seen)
    assert found["other"] == 1
    assert gateway.metric("gateway_requests_total", model="gpt-4o-2024", status="200") == 2
    assert gateway.metric("gateway_requests_total", model="other", status="404") == 1


def test_a_prefix_is_taken_off(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    answer = gateway.complete(model="openai/o3")
    assert answer.status == 200
    assert upstream.requests[0].json["model"] == "o3"
    record = gateway.call(answer.headers["x-request-id"])
    assert (record["model"], record["routed_model"]) == ("openai/o3", "o3")


def test_the_most_specific_pattern_decides_what_a_model_may(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    assert gateway.chat(model="unheard-of").status == 404  # "*" has completions alone
    upstream.answer_with(ok_json())
    assert gateway.chat(model="gpt-4o-mini").status == 200
    assert gateway.complete("bob", model="openai/gpt-4o").status == 404
    refused = gateway.complete("spender", model="openai/gpt-4o")
    assert (refused.status, refused.json["error"]["code"]) == (403, "model_not_priced")


def test_metrics_are_bounded_and_reports_are_not(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    names = [f"gpt-4o-{number}" for number in range(12)]
    assert {gateway.complete(model=name).status for name in names} == {200}
    found = eventually(lambda: (seen := groups(gateway)).keys() >= set(names) and seen)
    assert {found[name] for name in names} == {1}
    labels = {labels["model"] for name, labels, _ in gateway.metrics() if name == "gateway_tokens_total"}
    assert "other" in labels
    assert len(labels - {COMPLETIONS, CHAT, EMBEDDINGS, "other"}) == 2  # what room the configured names leave


def test_patterns_are_not_listed(gateway: Gateway) -> None:
    assert [row["id"] for row in gateway.get("/v1/models").json["data"]] == [
        "best", "fast", COMPLETIONS, CHAT, "instruct", EMBEDDINGS
    ]  # fmt: skip
    shown = gateway.get("/v1/models/gpt-4o")
    assert shown.status == 200
    assert "embeddings" in shown.json["endpoints"]


def test_an_alias_is_reported_as_both_names(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(), ok_json(), error_json(404, message="no o1 for you", code="model_not_found"))
    answers = [gateway.complete(model=alias) for alias in ("fast", "instruct", "best")]
    assert [answer.status for answer in answers] == [200, 200, 404]
    assert [request.json["model"] for request in upstream.requests] == ["gpt-4o-x", COMPLETIONS, "o1"]
    records = [gateway.call(answer.headers["x-request-id"]) for answer in answers]
    assert [(record["model"], record["served_model"], record["routed_model"]) for record in records] == [
        ("fast", "gpt-4o-x", "gpt-4o-x"), ("instruct", COMPLETIONS, COMPLETIONS), ("best", "openai/o1", "o1"),
    ]  # fmt: skip
    assert records[0]["cost_usd"] == 6e-6
    assert eventually(lambda: groups(gateway).get("openai/o1")) == 1  # a name of the configuration, served or not
    assert groups(gateway).keys().isdisjoint({"fast", "instruct", "best"})
    line = gateway.line(id=answers[0].headers["x-request-id"])
    assert (line["model"], line["served_model"]) == ("fast", "gpt-4o-x")


def test_a_key_may_use_an_alias_by_either_name(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    assert [gateway.complete("fast", model=name).status for name in ("fast", "gpt-4o-x", "best")] == [200, 404, 404]
    assert [gateway.complete("bob", model=name).status for name in ("fast", "gpt-4o-x", "best")] == [200, 200, 404]
    assert [row["id"] for row in gateway.get("/v1/models", key="fast").json["data"]] == ["fast"]
    assert [gateway.get(f"/v1/models/{name}", key="fast").status for name in ("fast", "gpt-4o-x")] == [200, 404]
    assert "completions" in gateway.get("/v1/models/instruct", key="bob").json["endpoints"]


def test_an_alias_is_no_way_around_a_quota(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    assert [gateway.complete("few", model=name).status for name in ("fast", "gpt-4o-x")] == [200, 429]


def test_configured_names_are_groups_before_they_are_served(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    gateway = start_gateway(settings(upstream.url, models={"*": model("chat")}))
    upstream.answer_with(error_json(404, message="no", code="model_not_found"))
    assert gateway.complete().status == 404
    assert eventually(lambda: groups(gateway)) == {COMPLETIONS: 1}


NO_QUOTAS = ("--tokens", "none/day", "--requests", "none/day")


def test_new_keys_and_models_have_the_defaults_of_the_file(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    models: dict[str, Any] = {name: {"routes": [{"upstream": "main"}]} for name in (COMPLETIONS, CHAT, EMBEDDINGS)}
    defaults = {
        "models": {"price": PRICE, "max_output_tokens": 100},
        "keys": {"models": ["gpt-*"], "quotas": [{"requests": 1, "per": "day"}, {"tokens": 9999, "per": "day"}]},
    }
    gateway = start_gateway(settings(upstream.url, defaults=defaults) | {"models": models})
    config = ("--config", str(gateway.file))
    made = run("keys", "create", *config, "--id", "made", "--quiet")
    assert (made.returncode, made.stderr) == (0, "")
    free = run("keys", "create", *config, "--id", "free", "--quiet", "--models", "none", *NO_QUOTAS)
    assert free.returncode == 0
    assert "may spend without limit" in free.stderr
    upstream.answer_with(always=ok_json())

    def call(secret: str, model: str = COMPLETIONS) -> Answer:
        headers = {"Authorization": f"Bearer {secret.strip()}"}
        return gateway.post("/v1/completions", {"model": model, "prompt": "x"}, key=None, headers=headers)

    assert eventually(lambda: (seen := call(made.stdout)).status != 401 and seen).status == 200
    assert [call(made.stdout, model).status for model in (COMPLETIONS, EMBEDDINGS)] == [429, 404]
    answers = [call(free.stdout, model) for model in (COMPLETIONS, EMBEDDINGS)]
    assert [answer.status for answer in answers] == [200, 200]
    assert gateway.call(answers[0].headers["x-request-id"])["cost_usd"] == 6e-6
    shown = gateway.send(
        "POST", "/admin/api/keys", {"id": "bare", "quotas": []}, key=None,
        headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
    )  # fmt: skip
    assert "may spend without limit" in shown.json["warnings"][0]
