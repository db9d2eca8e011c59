"""Every refusal can be found: in the admin API and by the commands, by its key, its code and its request id."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json

from .gateway_process import CHAT, Gateway, eventually, key, model, run, secret, settings


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    keys = [key("alice", team="red"), key("bob", quotas=[{"requests": 1, "per": "day"}]), key("narrow", models=["x-*"])]
    models = {CHAT: model("chat")}
    return start_shared_gateway(
        settings(shared_upstream.url, store={"url": store_url}, keys=keys, models=models, teams={"red": {}})
    )


def found(gateway: Gateway, request_id: str) -> dict[str, object] | None:
    rows: list[dict[str, object]] = gateway.admin("refusals", id=request_id).json["data"]
    return next(iter(rows), None)


def test_each_refusal_is_found_by_its_id(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    good = gateway.chat("bob")
    assert good.status == 200
    answers = {
        ("bob", "insufficient_quota", 429): gateway.chat("bob"),
        ("narrow", "model_not_found", 404): gateway.chat("narrow"),
        ("alice", "decimal_above_max_value", 400): gateway.chat("alice", temperature=9),
        (None, "invalid_api_key", 401): gateway.post("/v1/chat/completions", {}, key=None, headers={
            "Authorization": f"Bearer {secret('nobody')}"}),
        ("alice", "missing_required_parameter", 400): gateway.post("/v2/rerank", {}),
        ("alice", "invalid_request_error", 404): gateway.post("/v1/audio/voices", {}),
    }  # fmt: skip
    for (owner, code, status), answer in answers.items():
        assert answer.status == status
        request_id = answer.headers["x-request-id"]
        row = eventually(lambda wanted=request_id: found(gateway, wanted))  # type: ignore[misc]
        is_known = answer.status != 404 or code == "model_not_found"
        assert (row["key"], row["code"], row["status"]) == (owner if is_known else None, code, status)
        assert row["team"] == ("red" if row["key"] == "alice" else None)
        assert secret("nobody") not in json.dumps(row)
        shown = gateway.admin(f"requests/{request_id}").json
        assert (shown["call"], shown["refusal"]["id"]) == (None, request_id)
    call_id = good.headers["x-request-id"]
    shown = eventually(lambda: (got := gateway.admin(f"requests/{call_id}")).status == 200 and got.json)
    assert (shown["call"]["key"], shown["refusal"]) == ("bob", None)
    assert gateway.admin("requests/req_0").status == 404


def test_the_model_is_kept_as_the_client_named_it(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with()
    own = secret("narrow")
    names = ["gpt-5-typo", "gpt\n5 \u2028x", f"ft:{own}", own, "x" * 30, "a-" * 120, CHAT]
    kept = ["gpt-5-typo", "gpt 5  x", "ft:***", "***", "***", "a-" * 100, None]
    answers = [gateway.chat("narrow", model=name) for name in names]
    for name, shown, refused in zip(names, kept, answers, strict=True):
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")
        row = eventually(lambda wanted=refused.headers["x-request-id"]: found(gateway, wanted))  # type: ignore[misc]
        assert (row["model"], row["requested_model"]) == (CHAT if name == CHAT else "other", shown)
        assert own not in json.dumps(row)
    for wanted in ("gpt-5-typo", "other"):
        codes = {row["code"] for row in gateway.admin("refusals", model=wanted).json["data"]}
        assert codes == {"model_not_found"}, wanted
    config = ("--config", str(gateway.file))
    assert "gpt-5-typo" in run("refusals", *config).stdout
    listed = json.loads(run("refusals", *config, "--model", "gpt-5-typo", "--json").stdout)
    assert {(row["model"], row["requested_model"]) for row in listed} == {("other", "gpt-5-typo")}
    assert "gpt-5-typo" not in gateway.get("/metrics", key=None).body.decode()


def test_lists_are_by_key_code_and_time(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    ids = [gateway.chat("alice", temperature=9).headers["x-request-id"] for _ in range(3)]
    eventually(lambda: found(gateway, ids[-1]))
    rows = gateway.admin("refusals", key="alice", since="1h", limit="2").json
    assert [row["id"] for row in rows["data"]] == [ids[2], ids[1]]
    rest = gateway.admin("refusals", key="alice", since="1h", limit="2", before=rows["next"]).json
    assert rest["data"][0]["id"] == ids[0]
    assert {row["code"] for row in gateway.admin("refusals", code="insufficient_quota").json["data"]} <= {
        "insufficient_quota"
    }
    assert gateway.admin("refusals", since="2099-01-01").json["data"] == []
    assert [row["id"] for row in gateway.admin("refusals", id=ids[1]).json["data"]] == [ids[1]]
    assert {row["status"] for row in gateway.admin("refusals", status="4xx", key="alice").json["data"]} == {400}
    assert gateway.admin("refusals", status="5xx").json["data"] == []
    for name, value in (
        ("since", "soon"),
        ("until", "x"),
        ("status", "6xx"),
        ("before", "x"),
        ("limit", "0"),
        ("nothing", "1"),
    ):
        answer = gateway.admin("refusals", **{name: value})
        assert (answer.status, answer.error["param"]) == (400, name)


def test_they_are_found_by_what_the_client_said_of_them(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    headers = {"x-gateway-tag-project": "atlas", "x-gateway-tag-stage": "test"}
    body = {"model": CHAT, "messages": [{"role": "user", "content": "Hi"}], "user": "ada"}
    gateway.post("/v1/chat/completions", body, key="bob", headers=headers)
    refused = gateway.post("/v1/chat/completions", body, key="bob", headers=headers)
    assert refused.status == 429
    row = eventually(lambda: found(gateway, refused.id))
    assert (row["user"], row["tags"]) == ("ada", {"project": "atlas", "stage": "test"})
    for name, value in (("user", "ada"), ("tag", "project:atlas"), ("tag", "stage:test")):
        rows = gateway.admin("refusals", **{name: value}).json["data"]
        assert (rows[0]["id"], {each["user"] for each in rows}) == (refused.id, {"ada"})
        said = run("refusals", "--config", str(gateway.file), f"--{name}", value, "--json")
        assert json.loads(said.stdout) == rows
        assert gateway.admin("refusals", **{name: f"{value}2"}).json["data"] == []
    listed = run("refusals", "--config", str(gateway.file), "--user", "ada", "--csv").stdout
    assert "project=atlas stage=test" in listed
    assert gateway.admin("refusals", tag="atlas").status == 400
    assert run("refusals", "--config", str(gateway.file), "--tag", "atlas").returncode == 2


@pytest.mark.rest
def test_commands_show_them(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    refused = gateway.chat("narrow").headers["x-request-id"]
    eventually(lambda: found(gateway, refused))
    config = ("--config", str(gateway.file))
    listed = run("refusals", *config, "--key", "narrow", "--json")
    assert listed.returncode == 0, listed.stderr
    assert refused in [row["id"] for row in json.loads(listed.stdout)]
    table = run("refusals", *config, "--since", "1h")
    assert "model_not_found" in table.stdout
    one = run("calls", *config, "--id", refused)
    assert one.returncode == 0
    assert "refusal" in one.stdout
    assert "model_not_found" in one.stdout
    call = gateway.chat("alice").headers["x-request-id"]
    gateway.call(call)
    at = gateway.call(call)["time"]
    listed_at = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    assert re.search(rf"^{listed_at} +{call} ", run("calls", *config, "--key", "alice").stdout, re.MULTILINE)
    assert re.search(rf"^time +{listed_at}$", run("calls", *config, "--id", call).stdout, re.MULTILINE)
    assert [row["time"] for row in json.loads(run("calls", *config, "--json").stdout) if row["id"] == call] == [at]
    assert (
        call
        in run(
            "calls", *config, "--status", "2xx", "--since", "1h", "--upstream", gateway.call(call)["upstream"]
        ).stdout
    )
    assert call not in run("calls", *config, "--status", "5xx").stdout
    assert run("calls", *config, "--status", "good").returncode == 2
    assert refused not in run("refusals", *config, "--until", "1h").stdout
    assert json.loads(run("calls", *config, "--id", call, "--json").stdout)["is"] == "call"
    unknown = run("calls", *config, "--id", "req_unknown")
    assert (unknown.returncode, unknown.stderr.count("no call and no refusal")) == (2, 1)
    assert run("refusals", *config, "--since", "soon").returncode == 2


def test_a_flood_of_unknown_keys_leaves_room(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    wrong = {"Authorization": "Bearer sk-wrong-0123456789"}
    for _ in range(150):
        assert gateway.post("/v1/chat/completions", {}, key=None, headers=wrong).status == 401
    mine = gateway.chat("alice", temperature=9).headers["x-request-id"]
    assert eventually(lambda: found(gateway, mine))
