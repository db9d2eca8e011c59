"""Commands over the network: `--url` and a token do what `--config` does, within the role of the token."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from gateway.commands.remote import RemoteRegistry
from gateway.keys.registry import Registry
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import dead_port, ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, eventually, key, run, settings

LEAD = "lead-token-that-nobody-may-see"
QUOTAS = [{"requests": 100, "per": "day"}]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    shared_upstream.answer_with(always=ok_json({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}))
    made = start_shared_gateway(settings(
        shared_upstream.url, keys=[key("alice", team="crew", quotas=QUOTAS), key("bob")],
        teams={"crew": {"quotas": QUOTAS}}, admin={"tokens": {"head": {"token": LEAD, "role": "lead", "team": "crew"}}},
    ))  # fmt: skip
    made.complete("alice")
    assert made.complete("bob", n=1000).status == 400
    eventually(lambda: len(made.calls()) >= 1)
    return made


def ask(gateway: Gateway, *words: str, token: str = ADMIN_TOKEN, code: int = 0) -> str:
    """What a command says with the address and the token in the environment."""
    done = run(*words, env={"GATEWAY_URL": gateway.url, "GATEWAY_TOKEN": token, "GATEWAY_CONFIG": ""})
    assert done.returncode == code, (done.stdout, done.stderr)
    assert token not in done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def test_every_command_with_and_without_the_network_says_the_same(gateway: Gateway) -> None:
    config = str(gateway.folder / "gateway.yaml")
    for words in (
        ["keys", "list", "--json"], ["keys", "show", "alice", "--json"], ["teams", "list", "--json"],
        ["teams", "show", "crew"], ["audit", "--json"], ["usage", "--format", "json"],
        ["usage", "--by", "key,day,model"],
        ["calls", "--json"], ["refusals", "--json"], ["keys", "list", "--csv"], ["calls", "--csv"],
        ["usage", "--key", "alice", "--team", "crew", "--upstream", "main", "--csv"],
        ["usage", "--model", "x", "--json"],
        ["refusals", "--user", "ann", "--json"], ["refusals", "--tag", "project:atlas", "--csv"],
    ):  # fmt: skip
        done = run(*words, "--config", config)
        assert done.returncode == 0, done.stderr
        assert ask(gateway, *words) == done.stdout, words
    (call,) = json.loads(ask(gateway, "calls", "--json"))
    assert (
        ask(gateway, "calls", "--id", call["id"], "--json")
        == run("calls", "--id", call["id"], "--json", "--config", config).stdout
    )


def test_keys_and_teams_are_managed(gateway: Gateway) -> None:
    secret = ask(gateway, "keys", "create", "--name", "carol", "--team", "crew", "--tokens", "1000/day",
                 "--owner", "c@x.org", "--label", "cost-center=x", "--expires", "30d", "--quiet").strip()  # fmt: skip
    assert gateway.get("/v1/key", key=None, headers={"Authorization": f"Bearer {secret}"}).status == 200
    shown = json.loads(ask(gateway, "keys", "show", "carol", "--json"))
    assert (shown["owner"], shown["labels"]) == ("c@x.org", {"cost-center": "x"})
    waiting = ["--priority", "batch", "--weight", "3", "--max-wait", "20s"]
    shown = json.loads(ask(gateway, "keys", "update", "carol", *waiting, "--json"))
    assert (shown["priority"], shown["weight"], shown["max_wait_s"]) == ("batch", 3, 20)
    assert json.loads(ask(gateway, "keys", "update", "carol", "--max-wait", "none", "--json"))["max_wait_s"] is None
    assert "argument --weight" in ask(gateway, "keys", "update", "carol", "--weight", "many", code=2)
    assert json.loads(ask(gateway, "keys", "update", "carol", "--tokens", "2000/day", "--json"))["quotas"] == [
        {"tokens": 2000, "per": "day"}
    ]
    assert "3,000" in ask(gateway, "keys", "top-up", "carol", "--tokens", "1000/day")
    ask(gateway, "keys", "reset", "carol")
    assert json.loads(ask(gateway, "keys", "pause", "carol", "--json"))["status"] == "paused"
    assert json.loads(ask(gateway, "keys", "resume", "carol", "--json"))["status"] == "active"
    assert ask(gateway, "keys", "rotate", "carol", "--overlap", "1h", "--quiet").startswith("sk-gw-carol-")
    assert "is gone" in ask(gateway, "keys", "delete", "carol")
    ask(gateway, "keys", "create", "--id", "carol", "--quiet")
    assert json.loads(ask(gateway, "keys", "revoke", "carol", "--json"))["status"] == "revoked"
    ask(gateway, "teams", "create", "--id", "pair", "--usd", "5/month")
    ask(gateway, "teams", "update", "pair", "--usd", "8/month")
    shown = json.loads(ask(gateway, "teams", "update", "pair", "--member-keys", "2", "--json"))
    assert shown["members"]["max_keys"] == 2
    shown = json.loads(ask(gateway, "teams", "update", "pair", "--member-models", "gpt-4*", "--json"))
    assert shown["members"] == {"max_keys": 2, "models": ["gpt-4*"], "by_key": []}
    assert json.loads(ask(gateway, "teams", "update", "pair", "--member-keys", "none", "--json"))["members"] is None
    ask(gateway, "teams", "delete", "pair")
    assert "is over" in ask(gateway, "people", "end-sessions", "c@x.org")
    assert json.loads(ask(gateway, "people", "end-sessions", "c@x.org", "--json"))["name"] == "c@x.org"
    actors = {change["actor"] for change in json.loads(ask(gateway, "audit", "--json"))}
    assert actors == {"admin.token from 127.0.0.1"}


def test_the_role_of_the_token_decides(gateway: Gateway) -> None:
    assert [each["id"] for each in json.loads(ask(gateway, "keys", "list", "--json", token=LEAD))] == ["alice"]
    assert "There is no key 'bob'" in ask(gateway, "keys", "show", "bob", token=LEAD, code=1)
    assert "Your role does not allow this" in ask(gateway, "audit", token=LEAD, code=1)
    assert "Your role does not allow this" in ask(gateway, "people", "end-sessions", "c@x.org", token=LEAD, code=1)
    assert "Incorrect token" in ask(gateway, "keys", "list", token="wrong-token-0123456789", code=1)


def test_faults_are_plain_lines(gateway: Gateway, tmp_path: Path) -> None:
    assert "expected --config FILE or --url URL" in run("keys", "list", env={"GATEWAY_CONFIG": ""}).stderr
    away = run("usage", "--url", f"http://127.0.0.1:{dead_port()}", env={"GATEWAY_TOKEN": "t" * 20})
    assert (away.returncode, "does not answer" in away.stderr) == (1, True)
    assert "Traceback" not in away.stderr
    for words, said in (
        (["--url", gateway.url], "a token is needed"),
        (["--url", "gateway.example.org"], "expected an address"),
        (["--url", gateway.url, "--token-file", str(tmp_path / "absent")], "cannot read"),
        (["--url", gateway.url, "--config", "x"], "not allowed with"),
    ):
        done = run("keys", "list", *words, env={"GATEWAY_TOKEN": ""})
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert run("keys", "show", "no-such", "--url", gateway.url, env={"GATEWAY_TOKEN": ADMIN_TOKEN}).returncode == 1
    limit = run("keys", "create", "--id", "Not A Name", "--url", gateway.url, env={"GATEWAY_TOKEN": ADMIN_TOKEN})
    assert limit.returncode == 2


def test_a_token_file_and_a_config_of_the_environment(gateway: Gateway, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{ADMIN_TOKEN}\n")
    done = run("keys", "list", "--url", gateway.url, "--token-file", str(token), env={"GATEWAY_TOKEN": "wrong"})
    assert done.returncode == 0, done.stderr
    config = {"GATEWAY_CONFIG": str(gateway.folder / "gateway.yaml")}
    for words in (["keys", "list"], ["check"], ["usage"]):
        assert run(*words, env=config).returncode == 0, words


def test_the_methods_are_those_of_the_registry() -> None:
    """Commands call both in the same way."""
    for name, method in inspect.getmembers(RemoteRegistry, inspect.iscoroutinefunction):
        if name.startswith("_") or name in ("ask", "change", "usage", "newest", "request", "upstreams"):
            continue
        theirs = inspect.signature(getattr(Registry, name)).parameters
        mine = inspect.signature(method).parameters
        assert list(theirs)[: len(mine)] == list(mine), name
        assert all(each.default is not each.empty for each in list(theirs.values())[len(mine) :]), name


def test_upstreams_are_listed_with_their_health_and_limits(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream
) -> None:
    limits = {
        "requests": ["100/hour", "9000/day"],
        "per_key": {"parallel": 5, "tokens": "1M/min"},
        "per_model": {"gpt-*": {"tokens": "1M/min"}},
    }
    up = {"base_url": shared_upstream.url, "api_keys": ["sk-1", "sk-2"], "limits": limits}
    upstreams = {"limited": up, "dead": {"base_url": f"http://127.0.0.1:{dead_port()}/v1"}}
    models = {
        "limited": {"endpoints": ["completions"], "routes": [{"upstream": "limited"}]},
        "gone": {"endpoints": ["completions"], "routes": [{"upstream": "dead"}], "max_attempts": 1},
    }
    made = start_shared_gateway(settings(shared_upstream.url, upstreams=upstreams, models=models))
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    shared_upstream.answer_with(
        always=ok_json({"choices": [], "usage": usage}, headers=[("x-ratelimit-limit-tokens", "250000")])
    )
    assert made.complete(model="limited").status == 200
    assert [made.complete(model="gone").status for _ in range(5)] == [502] * 5
    received = eventually(lambda: "open" in (text := ask(made, "upstreams")) and text)
    lines = [line.split() for line in received.splitlines()]
    (dead,) = [line for line in lines if line[:2] == ["dead", "open"] or line[:2] == ["dead", "half-open"]]
    assert dead[2].isdecimal()
    assert ["limited", "requests", "per", "hour", "-", "100", "=", "1", "1"] in lines
    assert ["limited", "requests", "per", "86400", "-", "9,000", "=", "1", "0"] in lines
    assert ["limited", "key", "1:", "parallel", "-", "5", "=", "0", "0"] in lines
    assert ["limited", "key", "1:", "tokens", "per", "minute", "-", "1,000,000", "250,000", "0", "0"] in lines
    row = json.loads(ask(made, "upstreams", "--json"))
    assert sorted(each["name"] for each in row) == ["dead", "limited", "main"]
    stored = run("upstreams", "--config", str(made.folder / "gateway.yaml"))
    assert ["limited", "requests", "per", "hour", "-", "100", "=", "1", "1"] in [
        line.split() for line in stored.stdout.splitlines()
    ]
    assert "dead" not in stored.stdout
