"""Claude Code in its mode for Bedrock, with the gateway as Bedrock and a key of the gateway as its API key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows import claude_code
from tests.flows.claude_code import FILE, MODEL, WORDS, Agent
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, eventually, key, secret

NAME = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


@pytest.fixture
def gateway(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> Gateway:
    own = {"base_url": f"http://127.0.0.1:{upstream.port}/v1", "api_key": "k", "capabilities": {"messages": True}}
    return start_gateway({
        "server": {"port": 0}, "admin": {"token": ADMIN_TOKEN}, "keys": [key("alice")],
        "upstreams": {"anthropic": own},
        "models": {MODEL: {"endpoints": ["messages"], "routes": [{"upstream": "anthropic"}]}},
        "aliases": {NAME: MODEL},
    })  # fmt: skip


def test_claude_code_ends_its_task(gateway: Gateway, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    upstream.answer_with(always=agent.behaviour)
    ran = claude_code.run(
        tmp_path, gateway.url, secret("alice"), "Write and double the note.",
        CLAUDE_CODE_USE_BEDROCK="1", ANTHROPIC_BEDROCK_BASE_URL=gateway.url, AWS_REGION="us-east-1",
        AWS_BEARER_TOKEN_BEDROCK=secret("alice"), ANTHROPIC_MODEL=NAME, ANTHROPIC_DEFAULT_HAIKU_MODEL=NAME,
        ANTHROPIC_BASE_URL="http://127.0.0.1:9", ANTHROPIC_AUTH_TOKEN="",
    )  # fmt: skip
    assert (ran.code, ran.received["result"], ran.received["is_error"]) == (0, "All done.", False), ran
    assert ((tmp_path / FILE).read_text(), (tmp_path / "twice.txt").read_text()) == (WORDS, WORDS * 2)
    eventually(lambda: len(gateway.calls("alice")) >= len(agent.ledger))
    assert {each["endpoint"] for each in gateway.calls("alice")} == {"messages"}
    for request in upstream.requests:
        assert request.path.startswith("/v1/messages")
        assert {"anthropic_version", "anthropic_beta"}.isdisjoint(request.json)
        assert request.json["model"] == MODEL
