"""Claude Code and Codex themselves go on when a cheaper model takes over in the middle of a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows import claude_code
from tests.flows.claude_code import FILE, MODEL, WORDS, Agent
from tests.flows.gateway_process import Gateway, eventually, key, model, secret, settings
from tests.flows.slow import test_codex as codex

CHEAPER = "the-cheaper-one"
QUOTA = "10 USD/month"


def price(usd: float) -> dict[str, float]:
    return {"input": usd, "output": usd, "cache_write": usd, "cache_write_1h": usd}


def start(start_gateway: StartsGateways, url: str, endpoint: str, name: str, share: str) -> Gateway:
    return start_gateway(
        settings(
            url,
            server={"workers": 2},
            upstreams={"main": {"capabilities": {endpoint: True}}},
            models={name: model(endpoint, price=price(100)), CHEAPER: model(endpoint, price=price(1))},
            people={"ann": {"quotas": [QUOTA]}},
            keys=[key("alice", owner="ann")],
            when_above={"people": {"ann": [{"share": share, "use": CHEAPER}]}},
        )
    )


def check_records(gateway: Gateway, endpoint: str, name: str, models: list[str]) -> None:
    """The first turns were served by the model that was asked for, the last one by the cheaper one; each record names
    the model that its upstream was sent, and the reason."""
    assert (models[0], models[-1]) == (name, CHEAPER)
    assert models == sorted(models, key=[name, CHEAPER].index)
    calls = eventually(lambda: len(found := of(gateway, endpoint)) >= len(models) and found)
    assert sorted(call["served_model"] for call in calls) == sorted(models)
    assert {call["model"] for call in calls} == {name}
    for call in calls:
        assert (call["status"], call["usage_source"]) == (200, "reported")
        said = "limit=person:ann; unit=usd; per=month" in call["model_reason"]
        assert said == (call["served_model"] == CHEAPER)


def of(gateway: Gateway, endpoint: str) -> list[dict[str, Any]]:
    return [call for call in gateway.calls("alice") if call["endpoint"] == endpoint]


def test_claude_code_finishes_its_task(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Each turn costs a ninth of the quota, and reserves at most a fifth more."""
    agent = Agent(tmp_path, more_tokens=10_000)
    upstream.answer_with(always=agent.behaviour)
    gateway = start(start_gateway, upstream.url, "messages", MODEL, "22%")
    ran = claude_code.run(
        tmp_path, gateway.url, secret("alice"), "Write and double the note.", CLAUDE_CODE_MAX_OUTPUT_TOKENS="2048"
    )
    assert (ran.code, ran.received["result"], ran.received["is_error"]) == (0, "All done.", False), ran
    assert ((tmp_path / FILE).read_text(), (tmp_path / "twice.txt").read_text()) == (WORDS, WORDS * 2)
    check_records(gateway, "messages", MODEL, [each.json["model"] for each in upstream.requests])


def test_codex_finishes_its_task(start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Its conversation has encrypted parts, which the only upstream of both models reads."""
    script = codex.Script(prompt_tokens=10_000)
    upstream.answer_with(always=script)
    gateway = start(start_gateway, upstream.url, "responses", codex.MODEL, "9%")
    code, events, work = codex.run_codex(gateway, tmp_path)
    assert (code, events[-1]["type"]) == (0, "turn.completed"), events
    assert (work / "notes.txt").read_text() == "one two"
    check_records(gateway, "responses", codex.MODEL, [body["model"] for body in script.bodies])
