"""What "Connect a tool" prints is copied from the page and run, with the real tool.

The key may call a chat model, one of Responses and one of Messages, of different names, so that a tool that is given a
model which does not serve it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.conftest import StartsGateways
from tests.fakes.redis_servers import ROOT
from tests.fakes.scripted import dead_port
from tests.flows.claude_code import PROGRAM as CLAUDE
from tests.flows.gateway_process import CHAT, Gateway, eventually, key, model, secret, settings
from tests.flows.slow.test_sdk import simulated

SERVERS = ROOT / ".venv/servers"
PROGRAMS = {
    "node": SERVERS / "node-sdk/node",
    "codex": SERVERS / "codex/node_modules/.bin/codex",
    "claude": CLAUDE,
    "cn": SERVERS / "continue/node_modules/.bin/cn",
}
TOO_SLOW_S = 120.0
CHATS, ANSWERS, MESSAGES = CHAT, "gpt-4.1-mini", "claude-sonnet-5"
SERVED = {"chat": CHATS, "responses": ANSWERS, "messages": MESSAGES}

BY_SDK = f"""
import openai

answer = openai.OpenAI().chat.completions.create(model="{CHATS}", messages=[{{"role": "user", "content": "Hello!"}}])
print(answer.choices[0].message.content)
"""
BY_WEBUI = """
import os, openai

client = openai.OpenAI(base_url=os.environ["OPENAI_API_BASE_URL"])
name = [each.id for each in client.models.list() if each.id.startswith("gpt-4o")][0]
print(client.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hello!"}]).choices[0])
"""
"""What Open WebUI does with its two variables; it is too large to be installed for a test."""

RUNS = {
    "curl": ("chat", "{shell}"),
    "python": ("chat", f"{sys.executable} hello.py"),
    "node": ("chat", f"ln -s {SERVERS / 'node-sdk/node_modules'} node_modules; node hello.mjs"),
    "environment": ("chat", f"{{shell}}\n{sys.executable} by_sdk.py"),
    "codex": ("responses", "{shell} exec --skip-git-repo-check 'Say hello.'"),
    "claude": ("messages", "{shell} -p 'Say hello.'"),
    "continue": ("chat", "cn -p 'Say hello.' --config ~/.continue/config.yaml"),
    "webui": ("chat", f"set -a\n{{shell}}\n{sys.executable} by_webui.py"),
}
"""By tool: the endpoint that it calls, and the command that runs it, `{shell}` for what the page prints for the shell.
The packages that the page has installed are those of the tests."""


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with simulated(tmp_path_factory) as address:
        yield address


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, simulator: str) -> Gateway:
    config = settings(
        simulator,
        upstreams={"main": {"capabilities": {"messages": True, "responses": True}}},
        keys=[key(tool) for tool in RUNS],
    )
    config["models"] = {name: model(endpoint) for endpoint, name in SERVED.items()}
    return start_shared_gateway(config)


def printed(page: Page, tool: str) -> Mapping[str, str]:
    """The texts of this tool, by the place that the page names."""
    page.click(f"[data-choice={tool}]")
    texts = page.all(".settings .setting")
    return {str(each.get_attribute("data-place")): each.find_element("css selector", "pre").text for each in texts}


@pytest.mark.changes
@pytest.mark.parametrize("tool", RUNS)
def test_what_the_page_prints_for_a_tool_works(page: Page, gateway: Gateway, tmp_path: Path, tool: str) -> None:
    endpoint, command = RUNS[tool]
    page.open(token=secret(tool))
    page.see(".may-call tr[data-name]")
    texts = {place: text.replace("YOUR_KEY", secret(tool)) for place, text in printed(page, tool).items()}
    assert all("YOUR_MODEL" not in text for text in texts.values())
    shell = next((text for place, text in texts.items() if place.startswith(("In the shell", "Its environment"))), "")
    for place, text in texts.items():
        if not place.startswith(("In the shell", "Its environment")):
            file = tmp_path / place.replace("~/", "")
            file.parent.mkdir(exist_ok=True)
            file.write_text(text + "\n")
    (tmp_path / "by_sdk.py").write_text(BY_SDK)
    (tmp_path / "by_webui.py").write_text(BY_WEBUI)
    done = subprocess.run(
        ["bash", "-euc", command.format(shell=shell)],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=TOO_SLOW_S,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"error"' not in done.stdout
    calls = eventually(lambda: gateway.calls(tool))
    assert {(call["endpoint"], call["model"]) for call in calls} == {(endpoint, SERVED[endpoint])}
    assert {call["status"] for call in calls} == {200}


def environment(home: Path) -> dict[str, str]:
    """A home of its own, the real programs, and no way out of this machine."""
    missing = [str(program) for program in PROGRAMS.values() if not program.exists()]
    assert not missing, f"these programs are not there: {', '.join(missing)}: run `make servers`"
    folders = [str(program.parent) for program in PROGRAMS.values()]
    return {
        "PATH": os.pathsep.join([*folders, os.environ["PATH"]]), "HOME": str(home), "IS_SANDBOX": "1",
        "HTTPS_PROXY": f"http://127.0.0.1:{dead_port()}", "NO_PROXY": "127.0.0.1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
        "CONTINUE_CLI_ENABLE_TELEMETRY": "0",
    }  # fmt: skip
