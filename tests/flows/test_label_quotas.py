"""Quotas of a label: a project has one budget, whatever keys call for it, by their labels or by a tag."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.quota.labels import MAX_VALUES_OF_A_KEY
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json

from .client import Answer
from .gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually, key, model, run, settings

TOKEN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    quotas = [{"requests": 2, "per": "day", "label": "project"}, {"usd": 1, "per": "month", "label": "project"}]
    config = settings(
        shared_upstream.url,
        store={"url": store_url},
        quotas=quotas,
        teams={"red": {"quotas": [{"requests": 1, "per": "day", "label": "stage"}]}},
        keys=[key("alice"), key("bob", labels={"project": "ops"}), key("carl", labels={"project": "ops"}),
              key("dora", team="red"), key("erin", labels={"project": "payroll"}), key("frank"), key("gina")],
        models={COMPLETIONS: model("completions", price={"input": 1, "output": 1})},
    )  # fmt: skip
    return start_shared_gateway(config)


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=ok_json())
    yield
    upstream.answer_with()


def ask(gateway: Gateway, who: str = "alice", **tags: str) -> Answer:
    headers = {f"x-gateway-tag-{name}": value for name, value in tags.items()}
    return gateway.post("/v1/completions", {"model": COMPLETIONS, "prompt": "Hello"}, key=who, headers=headers)


def windows(gateway: Gateway) -> dict[str, dict[str, Any]]:
    return {row["scope"]: row for row in gateway.admin("quotas").json["data"] if row["unit"] == "requests"}


def test_each_value_of_a_tag_has_a_budget_of_its_own(gateway: Gateway) -> None:
    assert [ask(gateway, project="web").status for _ in range(3)] == [200, 200, 429]
    assert [ask(gateway, project="api").status for _ in range(3)] == [200, 200, 429]
    assert ask(gateway).status == 200
    refused = ask(gateway, project="web")
    assert refused.refusal == (429, "insufficient_quota", None, "insufficient_quota")
    assert "the tag project=web" in refused.error["message"]
    assert refused.headers["x-gateway-limit"] == (
        "tag:project=web; unit=requests; per=day; limit=2; used=2; reserved=0; requested=1; raised-by=operator"
    )
    rows = windows(gateway)
    assert (rows["tag:project=web"]["used"], rows["tag:project=api"]["used"]) == (2, 2)
    assert gateway.metric("gateway_shared_quota_used", scope="tag:project=web", unit="requests", per="day") == 2


def test_the_label_of_a_key_counts_before_a_tag(gateway: Gateway) -> None:
    assert ask(gateway, "bob", project="web").status == 200
    assert ask(gateway, "carl", project="free").status == 200
    assert ask(gateway, "bob").headers["x-gateway-limit"].startswith("label:project=ops; unit=requests; per=day")
    of_key = [row for row in gateway.get("/v1/key", key="carl").json["quotas"] if row["unit"] == "requests"]
    assert [(row["scope"], row["used"]) for row in of_key] == [("label:project=ops", 2)]
    assert windows(gateway)["label:project=ops"]["used"] == 2


def test_a_key_sees_the_values_that_count_for_it(gateway: Gateway) -> None:
    def shown(who: str, **headers: str) -> list[tuple[str, float]]:
        answer = gateway.get("/v1/key", key=who, headers=headers).json
        return [(row["scope"], row["used"]) for row in answer["quotas"] if row["unit"] == "requests"]

    assert shown("gina") == []
    assert ask(gateway, "gina", project="seen-by-gina").status == 200
    assert shown("gina") == [("tag:project=seen-by-gina", 1)]
    assert ("tag:project=seen-by-gina", 1) in shown("alice", **{"x-gateway-tag-project": "seen-by-gina"})
    assert shown("gina", **{"x-gateway-tag-project": "not-seen"})[0] == ("tag:project=not-seen", 0)
    assert gateway.get("/v1/key", key="gina", headers={"x-gateway-tag-project": ""}).error["code"] == "invalid_tag"


def test_a_team_has_labels_of_its_own(gateway: Gateway) -> None:
    assert [ask(gateway, "dora", stage="test").status for _ in range(2)] == [200, 429]
    assert ask(gateway, "dora", stage="live").status == 200
    refused = ask(gateway, "dora", stage="live")
    assert "the tag stage=live in your team red" in refused.error["message"]
    assert ask(gateway, "alice", stage="live").status == 200
    row = windows(gateway)["team_tag:red/stage=live"]
    assert (row["team"], row["used"]) == ("red", 1)


def test_the_budget_of_a_value_is_topped_up_and_reset(gateway: Gateway) -> None:
    while ask(gateway, project="new").status == 200:
        pass
    topped = gateway.send(
        "POST", "/admin/api/quotas/top_up", {"scope": "tag:project=new", "requests": 1, "per": "day"}, headers=TOKEN
    )
    assert topped.status == 200, topped
    eventually(lambda: ask(gateway, project="new").status == 200)
    assert ask(gateway, project="new").status == 429
    env = {"GATEWAY_TOKEN": ADMIN_TOKEN}
    for scope, used in (("tag:project=new", 3), ("team_tag:red/stage=test", 1)):
        assert windows(gateway)[scope]["used"] == used
        done = run("quotas", "reset", scope, "--json", "--url", gateway.url, env=env)
        assert done.returncode == 0, done.stderr
        assert {row["used"] for row in json.loads(done.stdout)} == {0}
    assert ask(gateway, project="new").status == 200


def test_the_audit_log_has_each_value_once(gateway: Gateway) -> None:
    for _ in range(3):
        ask(gateway, project="audited")
    rows = [row for row in gateway.admin("audit").json["data"] if row["after"] == "audited"]
    assert [(row["kind"], row["name"], row["action"], row["actor"]) for row in rows] == [
        ("tag", "project", "note", "a tag of the key alice")
    ]


def test_a_client_does_not_spend_what_keys_with_a_label_have(gateway: Gateway) -> None:
    while ask(gateway, project="payroll").status == 200:
        pass
    assert ask(gateway, "erin").status == 200
    rows = windows(gateway)
    assert (rows["tag:project=payroll"]["used"], rows["label:project=payroll"]["used"]) == (2, 1)


def test_the_share_of_a_key_leaves_the_others_theirs(gateway: Gateway) -> None:
    """A client that makes up values shares one window with itself, and with others that do: `other` is none of it."""
    answers = [ask(gateway, "frank", project=f"made-up-{number}") for number in range(MAX_VALUES_OF_A_KEY + 3)]
    assert [each.status for each in answers] == [200] * (MAX_VALUES_OF_A_KEY + 2) + [429]
    assert answers[-1].headers["x-gateway-limit"].startswith("tag:project; unit=requests; per=day; limit=2; used=2")
    assert "the tag project of" in answers[-1].error["message"]
    assert [ask(gateway, project=value).status for value in ("other", "a-new-one")] == [200, 200]
    assert windows(gateway)["tag:project=other"]["used"] == 1
