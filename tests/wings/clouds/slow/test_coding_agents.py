"""Claude Code and Codex themselves through one configuration of three clouds and OpenAI (`config/clouds.yaml`): each
begins its task at one cloud, which then goes away, and ends it at another.

The clouds refuse what is not authorized, and what they do not know: betas, and members of other APIs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.wings.clouds.betas import KNOWN
from tests.fakes.scripted import Behaviour, Scripted, Wire, answer, error_json
from tests.flows import claude_code
from tests.flows.chat_agent import ChatAgent
from tests.flows.claude_code import FILE, MODEL, WORDS, Agent
from tests.flows.gateway_process import Gateway, eventually, secret
from tests.flows.slow import test_codex as codex
from tests.wings.clouds.fakes import chunk_of

from .test_three_clouds import Clouds, clouds, configured, servers, started, streamed

__all__ = ["clouds", "servers", "started"]


@dataclass
class Written(Wire):
    """A wire that keeps what is written."""

    data: bytes = b""

    async def write(self, data: bytes) -> None:
        self.data += data


def first_then_away(clouds: Clouds, cloud: str, behaviour: Callable[[Wire], Awaitable[None]]) -> Behaviour:
    """The behaviour of a cloud that is away from the end of its first answer on."""

    async def once(wire: Wire) -> None:
        clouds.away.add(cloud)
        await behaviour(wire)

    return once


def upstreams_of(gateway: Gateway, endpoint: str) -> list[str]:
    """The upstreams that served, in order, without repetitions."""
    calls = [each for each in gateway.calls("alice") if each["endpoint"] == endpoint]
    assert {call["status"] for call in calls} <= {200}
    return list(dict.fromkeys(call["upstream"] for call in reversed(calls)))


def as_claude(agent: Agent, clouds: Clouds) -> Callable[[str, Any], Behaviour]:
    """Claude at Bedrock by InvokeModel, and at Vertex AI."""

    def reply(path: str, body: Any) -> Behaviour:
        at_bedrock = path.startswith("/model/")

        async def behaviour(wire: Wire) -> None:
            named = wire.request.headers.get("anthropic-beta", "").split(",")
            betas = {*named, *body.get("anthropic_beta", [])} - {""}
            if betas - {*KNOWN["bedrock" if at_bedrock else "vertex"]} or "model" in body:
                await answer(b'{"message": "invalid beta flag"}', 400)(wire)
                return
            given = {**body, "model": "claude", "stream": "stream" in path}
            where = "/count_tokens" if "count-tokens" in path else "/messages"
            asked = replace(wire.request, path=where, body=json.dumps(given).encode())
            written = Written(asked, wire.reader, wire.writer, wire.upstream)
            await agent.behaviour(written)
            if agent.ledger and agent.ledger[-1].number == 0 and at_bedrock:
                clouds.away.add("aws")
            if not (at_bedrock and given["stream"]):
                await wire.write(written.data)
                return
            events = [json.loads(each) for each in re.findall(rb"^data: (.*)$", written.data, re.MULTILINE)]
            await streamed("application/vnd.amazon.eventstream", [chunk_of(each) for each in events])(wire)

        return behaviour

    return reply


def test_claude_code_goes_from_bedrock_to_vertex(started: Any, clouds: Clouds, tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    clouds.reply = as_claude(agent, clouds)
    gateway = started()
    ran = claude_code.run(tmp_path, gateway.url, secret("alice"), "Write and double the note.")
    assert (ran.code, ran.received["result"], ran.received["is_error"]) == (0, "All done.", False), ran
    assert ((tmp_path / FILE).read_text(), (tmp_path / "twice.txt").read_text()) == (WORDS, WORDS * 2)
    eventually(lambda: len(gateway.calls("alice")) >= len(agent.ledger))
    assert upstreams_of(gateway, "messages") == ["bedrock", "vertex-claude"]
    assert clouds.refused == []


def test_claude_code_goes_from_azure_to_openai(
    started: Any, clouds: Clouds, servers: dict[str, Scripted], tmp_path: Path
) -> None:
    """Neither has Messages, so both get chats."""
    agent = ChatAgent([
        ("Write", {"file_path": str(tmp_path / FILE), "content": WORDS}),
        ("Bash", {"command": f"cat {FILE} {FILE} > twice.txt", "description": "Doubles the file"}),
    ])  # fmt: skip
    servers["openai"]._always = agent.behaviour
    clouds.reply = lambda path, body: first_then_away(clouds, "azure", agent.behaviour)
    config = configured(servers, tmp_path)
    for name in ("azure", "openai"):
        config["upstreams"][name]["capabilities"] = {"messages": "via_chat"}
    models = {MODEL: {**config["models"]["gpt-5-mini"], "endpoints": ["messages"]}}
    gateway = started(upstreams=config["upstreams"], models=models)
    ran = claude_code.run(tmp_path, gateway.url, secret("alice"), "Write and double the note.")
    assert (ran.code, ran.received["result"], ran.received["is_error"]) == (0, "All done.", False), ran
    assert (tmp_path / "twice.txt").read_text() == WORDS * 2
    eventually(lambda: len(gateway.calls("alice")) >= len(agent.ledger))
    assert upstreams_of(gateway, "messages") == ["azure", "openai"]
    assert clouds.refused == []


def run_codex(gateway: Gateway, folder: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codex, "MODEL", model)
    folder.mkdir()
    code, events, work = codex.run_codex(gateway, folder)
    assert (code, events[-1]["type"]) == (0, "turn.completed"), events
    assert (work / "notes.txt").read_text() == "one two"


def test_codex_goes_from_azure_to_openai_and_from_bedrock_to_vertex(
    started: Any, clouds: Clouds, servers: dict[str, Scripted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = codex.Script()
    commands = [("exec_command", {"cmd": each, "login": False}) for each in codex.COMMANDS.values()]
    agent = ChatAgent(commands)
    servers["openai"]._always = script

    def reply(path: str, body: Any) -> Behaviour:
        if path.endswith("/responses"):
            return first_then_away(clouds, "azure", script)
        if path.endswith("/chat/completions"):
            at_bedrock = path.startswith("/openai/v1")
            return first_then_away(clouds, "aws", agent.behaviour) if at_bedrock else agent.behaviour
        return error_json(404)

    clouds.reply = reply
    gateway = started()
    run_codex(gateway, tmp_path / "azure", "gpt-5-mini", monkeypatch)
    eventually(lambda: len(gateway.calls("alice")) >= len(script.ledger))
    assert upstreams_of(gateway, "responses") == ["azure", "openai"]
    run_codex(gateway, tmp_path / "bedrock", "gpt-oss-120b", monkeypatch)
    eventually(lambda: len(gateway.calls("alice")) >= len(script.ledger) + len(agent.ledger))
    assert upstreams_of(gateway, "responses") == ["azure", "openai", "bedrock-openai", "vertex-openai"]
    assert clouds.refused == []
