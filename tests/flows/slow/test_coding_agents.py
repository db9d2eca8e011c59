"""Coding agents that call chat completions finish a task through a gateway, with the settings of their pages:
Continue's command line, opencode and aider. Every record agrees with the upstream's ledger."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import ROOT
from tests.fakes.scripted import dead_port
from tests.flows.chat_agent import ChatAgent, recorded
from tests.flows.gateway_process import Gateway, eventually, key, secret, settings
from tests.snippets.pages import only_snippet

SERVERS = ROOT / ".venv/servers"
PROGRAMS = {
    "continue": SERVERS / "continue/node_modules/.bin/cn",
    "opencode": SERVERS / "opencode/node_modules/opencode-linux-x64/bin/opencode",
    "aider": SERVERS / "aider/bin/aider",
}
PROMPT, FILE, WORDS = "Write the note.", "note.txt", "written by the agent"
DOUBLE = f"cat {FILE} {FILE} > twice.txt"
TOO_SLOW_S = 120.0
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(settings(shared_upstream.url, keys=[key(name) for name in PROGRAMS]))


def of_page(name: str, language: str, gateway: Gateway) -> str:
    """The settings on the page of this agent, with the address and the key of the test."""
    found = only_snippet(f"docs/clients/{name}.md", language)
    assert "http://HOST:8080/v1" in found
    return found.replace("http://HOST:8080", gateway.url).replace("sk-gw-...", secret(name))


def run(name: str, script: str, folder: Path) -> str:
    """What the agent prints. It has this folder and nothing outside of this machine."""
    program = PROGRAMS[name]
    assert program.exists(), f"{program} is not there, and this test needs it: run `make servers`."
    home = folder / "home"
    home.mkdir()
    env = {
        "PATH": os.pathsep.join([str(program.parent), str(SERVERS / "node-sdk"), os.environ["PATH"]]),
        "HOME": str(home), "GATEWAY_KEY": secret(name),
        "HTTPS_PROXY": f"http://127.0.0.1:{dead_port()}", "NO_PROXY": "127.0.0.1",
        "CONTINUE_CLI_ENABLE_TELEMETRY": "0", "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder, env=env, capture_output=True, text=True, timeout=TOO_SLOW_S, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_records(gateway: Gateway, name: str, agent: ChatAgent) -> None:
    """One record for each request of the upstream, equal to the last token."""
    records = eventually(lambda: len(found := gateway.calls(name)) >= len(agent.ledger) and found)
    assert recorded(records) == agent.reported()
    assert {(each["endpoint"], each["stream"], each["ended"], each["usage_source"]) for each in records} == {
        ("chat", True, "done", "reported")
    }


def with_continue(gateway: Gateway, folder: Path) -> tuple[ChatAgent, str]:
    (folder / "config.yaml").write_text(of_page("continue", "yaml", gateway))
    calls = [("Write", {"filepath": FILE, "content": WORDS}), ("Bash", {"command": DOUBLE})]
    return ChatAgent(calls), f"cn -p '{PROMPT}' --config config.yaml --auto"


def with_opencode(gateway: Gateway, folder: Path) -> tuple[ChatAgent, str]:
    (folder / "opencode.json").write_text(of_page("opencode", "json", gateway))
    calls = [
        ("write", {"filePath": str(folder / FILE), "content": WORDS}),
        ("bash", {"command": DOUBLE, "description": "Doubles the file"}),
    ]
    return ChatAgent(calls), f"opencode run '{PROMPT}'"


def with_aider(gateway: Gateway, _: Path) -> tuple[ChatAgent, str]:
    """Which edits by text, without tools."""
    script = of_page("aider", "sh", gateway).rstrip()
    quiet = "--no-git --no-check-update --no-show-model-warnings --analytics-disable --yes-always"
    return ChatAgent([], f"{FILE}\n```\n{WORDS}\n```\n"), f"{script} {quiet} --message '{PROMPT}'"


@pytest.mark.parametrize("prepare", [with_continue, with_opencode, with_aider])
def test_a_task(
    gateway: Gateway,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    prepare: Callable[[Gateway, Path], tuple[ChatAgent, str]],
) -> None:
    name = prepare.__name__.removeprefix("with_")
    agent, script = prepare(gateway, tmp_path)
    upstream.answer_with(always=agent.behaviour)
    printed = run(name, script, tmp_path)
    assert (tmp_path / FILE).read_text().rstrip() == WORDS
    if agent.calls:
        assert (tmp_path / "twice.txt").read_text() == WORDS * 2
    assert agent.said.split("\n")[0] in printed
    assert len(agent.ledger) > len(agent.calls)
    check_records(gateway, name, agent)
