"""Claude Code and Codex themselves work with a hook that replaces each body, and with parameters of their model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hook_server
import redactor

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows import claude_code
from tests.flows.claude_code import FILE, WORDS, Agent
from tests.flows.gateway_process import Gateway, eventually, key, model, secret, settings
from tests.flows.slow import test_codex as codex
from tests.wings.hooks.test_examples import running
from tests.wings.hooks.test_hooks import SECRET

SERVED = "the-model-behind-the-alias"


def start(
    start_gateway: StartsGateways, url: str, hook: str, endpoint: str, alias: str, parameters: dict[str, Any]
) -> Gateway:
    asked = {"url": hook, "secret": SECRET, "sees": "body", "endpoints": [endpoint], "timeout_ms": 20_000}
    return start_gateway(
        settings(
            url,
            server={"workers": 2},
            upstreams={"main": {"capabilities": {endpoint: True}}},
            models={SERVED: model(endpoint)},
            aliases={alias: SERVED},
            keys=[key("alice")],
            parameters={"models": {alias: {"endpoints": [endpoint], **parameters}}},
            hooks={"before_call": {"guard": asked}},
        )
    )


def check_records(gateway: Gateway, number: int, parameters: str) -> None:
    """Each call has its record, with both changes and the time of the hook."""
    calls = eventually(lambda: len(found := gateway.calls("alice")) >= number and found)
    assert len(calls) == number
    for call in calls:
        assert (call["status"], call["served_model"]) == (200, SERVED)
        assert call["amended"].startswith(parameters)
        assert call["timeline"][0]["upstream"] == "hook/guard"
    assert any(call["amended"].endswith("hook guard replaced the body") for call in calls)


def test_claude_code_finishes_its_task(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    agent = Agent(tmp_path)
    upstream.answer_with(always=agent.behaviour)
    with running(redactor.decide) as hook:
        parameters = {"set": {"metadata": {"user_id": "the-team"}}}
        gateway = start(start_gateway, upstream.url, hook, "messages", claude_code.MODEL, parameters)
        ran = claude_code.run(tmp_path, gateway.url, secret("alice"), "Write and double the note of ann@mail.example.")
    assert (ran.code, ran.received["result"], ran.received["is_error"]) == (0, "All done.", False), ran
    assert ((tmp_path / FILE).read_text(), (tmp_path / "twice.txt").read_text()) == (WORDS, WORDS * 2)
    sent = [each for each in upstream.requests if each.path.partition("?")[0].endswith("/messages")]
    assert {each.json["metadata"]["user_id"] for each in sent} == {"the-team"}
    assert all(b"ann@mail.example" not in each.body for each in sent)
    assert any(b"the note of [e-mail address]" in each.body for each in sent)
    check_records(gateway, len(sent), "parameters set metadata")


def test_codex_finishes_its_task(start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    def decide(question: dict[str, Any]) -> dict[str, Any]:
        body = hook_server.with_texts(question["body"], lambda text: text.replace("Write the words", "Note the words"))
        return {"action": "replace", "body": body}

    script = codex.Script()
    upstream.answer_with(always=script)
    with running(decide) as hook:
        parameters = {"set": {"reasoning.effort": "high"}}
        gateway = start(start_gateway, upstream.url, hook, "responses", codex.MODEL, parameters)
        code, events, work = codex.run_codex(gateway, tmp_path)
    assert (code, events[-1]["type"]) == (0, "turn.completed"), events
    assert (work / "notes.txt").read_text() == "one two"
    assert all(body["reasoning"]["effort"] == "high" for body in script.bodies)
    assert all("Note the words" in str(body["input"]) for body in script.bodies)
    check_records(gateway, len(script.bodies), "parameters set reasoning.effort")
