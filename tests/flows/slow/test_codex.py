"""Codex itself (`codex exec`) on a task of three turns with tools, through two workers.

The upstream is scripted: it makes Codex run two commands and then end. It keeps a ledger of what it reported for each
turn, and the gateway's records have to agree with it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.scripted import CHUNKED, Wire, chunk
from tests.flows.chat_agent import ChatAgent, recorded
from tests.flows.gateway_process import Gateway, eventually, key, model, secret, settings
from tests.snippets.pages import only_snippet

CODEX = Path(__file__).parents[3] / ".venv" / "servers" / "codex" / "node_modules" / ".bin" / "codex"
MODEL = "gpt-4.1"
COMMANDS = {0: "printf one > notes.txt", 1: "printf ' two' >> notes.txt"}
TOO_SLOW_S = 120
ACCOUNTS = ["sk-first-account-of-the-upstream", "sk-second-account-of-the-upstream"]


@pytest.fixture(autouse=True)
def codex_is_there() -> None:
    assert CODEX.exists(), "Codex is not installed: make servers"


class Script:
    """The upstream: what it answers depends on how many results of tools the request has."""

    def __init__(self, prompt_tokens: int = 1000) -> None:
        self.ledger: list[dict[str, Any]] = []
        self.bodies: list[dict[str, Any]] = []
        self.states: list[str | None] = []
        self._prompt_tokens = prompt_tokens

    async def __call__(self, wire: Wire) -> None:
        body = wire.request.json
        turn = sum(item.get("type") == "function_call_output" for item in body["input"])
        number = len(self.ledger) + 1
        usage = {
            "input_tokens": self._prompt_tokens * number, "output_tokens": 10 + number,
            "total_tokens": self._prompt_tokens * number + 10 + number,
            "input_tokens_details": {"cached_tokens": 100 * number, "cache_write_tokens": 7 * number},
            "output_tokens_details": {"reasoning_tokens": number},
        }  # fmt: skip
        if turn < len(COMMANDS):
            output = [api.function_call("exec_command", json.dumps({"cmd": COMMANDS[turn], "login": False}), turn + 1)]
        else:
            output = [api.message("Both words are in notes.txt.")]
        end = api.response(output, usage, id=f"resp_{number}", instructions=body.get("instructions"))
        self.ledger.append(usage)
        self.bodies.append(body)
        self.states.append(wire.request.headers.get("x-codex-turn-state"))
        head = CHUNKED.removesuffix(b"\r\n") + f"x-codex-turn-state: state-{number}\r\n\r\n".encode()
        await wire.write(head + chunk(api.written(api.events(output, end))) + b"0\r\n\r\n")


def start(start_shared_gateway: StartsGateways, url: str, way: bool | str = True, **quota: Any) -> Gateway:
    return start_shared_gateway(
        settings(
            url,
            server={"workers": 2},
            upstreams={"main": {"api_key": None, "api_keys": ACCOUNTS, "capabilities": {"responses": way}}},
            models={MODEL: model("responses", price={"input": 2, "output": 8, "cached_input": 1, "cache_write": 3})},
            keys=[key("alice", quotas=[{"tokens": 10**8, "per": "month"}]), key("poor", **quota)],
        )
    )


def run_codex(gateway: Gateway, folder: Path, who: str = "alice") -> tuple[int, list[dict[str, Any]], Path]:
    """Its exit code, its events and the folder in which it worked."""
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    page = only_snippet("docs/clients/codex.md", "toml")
    assert ("https://gateway.example/v1" in page, "gpt-5" in page) == (True, True)
    (home / "config.toml").write_text(page.replace("https://gateway.example", gateway.url).replace("gpt-5", MODEL))
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home), "GATEWAY_API_KEY": secret(who)}
    done = subprocess.run(
        [CODEX, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json",
         "Write the words one and two to notes.txt."],
        cwd=work, env=env, capture_output=True, text=True, timeout=TOO_SLOW_S, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, events, work


def check_books(gateway: Gateway, script: Script) -> None:
    """One record for each turn, in which every number is the ledger's."""
    records = eventually(lambda: len(found := gateway.calls("alice")) == len(script.ledger) and found)
    found = [
        (
            each["prompt_tokens"], each["cached_tokens"], each["units"]["cache_write"],
            each["completion_tokens"], each["reasoning_tokens"], each["usage_source"], each["ended"],
        )
        for each in sorted(records, key=lambda each: each["prompt_tokens"])
    ]  # fmt: skip
    assert found == [
        (
            usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"],
            usage["input_tokens_details"]["cache_write_tokens"], usage["output_tokens"],
            usage["output_tokens_details"]["reasoning_tokens"], "reported", "done",
        )
        for usage in script.ledger
    ]  # fmt: skip
    window = gateway.get("/v1/key").json["quotas"][0]
    assert (window["reserved"], window["used"]) == (
        0, sum(usage["input_tokens"] + usage["output_tokens"] for usage in script.ledger),
    )  # fmt: skip


def test_codex_finishes_a_task_of_three_turns(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    script = Script()
    upstream.answer_with(always=script)
    gateway = start(start_shared_gateway, shared_upstream.url)
    code, events, work = run_codex(gateway, tmp_path)
    assert code == 0, events
    assert (work / "notes.txt").read_text() == "one two"
    assert events[-1]["type"] == "turn.completed"
    assert len(script.ledger) == 3
    assert script.states == [None, "state-1", "state-1"]  # Codex keeps the first one of its turn
    assert len({each.headers["authorization"] for each in upstream.requests}) == 1  # which reads what it has encrypted
    check_books(gateway, script)
    received = events[-1]["usage"]
    assert received["input_tokens"] == sum(usage["input_tokens"] for usage in script.ledger)


def test_codex_goes_on_after_a_worker_was_killed(
    start_shared_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    upstream: ScriptedUpstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command of the second turn kills it, so that no call is under way."""
    script = Script()
    upstream.answer_with(always=script)
    gateway = start(start_shared_gateway, shared_upstream.url)
    victim = gateway.workers()[0]
    monkeypatch.setitem(COMMANDS, 1, f"{COMMANDS[1]}; kill -9 {victim}")
    code, events, work = run_codex(gateway, tmp_path)
    assert code == 0, events
    assert (work / "notes.txt").read_text() == "one two"
    assert len(script.ledger) == 3
    eventually(lambda: len(gateway.workers()) == 2 and victim not in gateway.workers())
    check_books(gateway, script)


def test_codex_finishes_a_task_with_a_chat_model(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    agent = ChatAgent([("exec_command", {"cmd": command, "login": False}) for command in COMMANDS.values()])
    upstream.answer_with(always=agent.behaviour)
    gateway = start(start_shared_gateway, shared_upstream.url, "via_chat")
    code, events, work = run_codex(gateway, tmp_path)
    assert code == 0, events
    assert (work / "notes.txt").read_text() == "one two"
    assert len(agent.ledger) == 3
    records = eventually(lambda: len(found := gateway.calls("alice")) == 3 and found)
    assert recorded(records) == agent.reported()
    assert {(each["endpoint"], each["usage_source"], each["ended"]) for each in records} == {
        ("responses", "reported", "done")
    }


def test_a_rate_is_waited_for(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """Codex repeats a 429 after the time that `retry-after` names; each refusal is followed by an answer."""
    script = Script()
    upstream.answer_with(always=script)
    gateway = start(start_shared_gateway, shared_upstream.url, quotas=[{"requests": 1, "per": 8}])
    code, events, work = run_codex(gateway, tmp_path, "poor")
    assert code == 0, events
    assert (work / "notes.txt").read_text() == "one two"
    gateway.stop()  # then its access log is whole
    statuses = [line["status"] for line in gateway.lines() if line.get("key") == "poor"]
    assert statuses.count(200) == 3
    assert "429, 429" not in str(statuses)
    assert 429 in statuses


def test_a_spent_quota_ends_codex_with_one_request(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    script = Script(prompt_tokens=500_000)
    upstream.answer_with(always=script)
    gateway = start(start_shared_gateway, shared_upstream.url, quotas=[{"tokens": 500_000, "per": "month"}])
    code, events, _ = run_codex(gateway, tmp_path, "poor")
    assert code == 1
    assert len(script.ledger) == 1
    gateway.stop()  # then its access log is whole
    assert [line["status"] for line in gateway.lines() if line.get("key") == "poor"] == [200, 429]
    assert events[-1] == {
        "type": "turn.failed",
        "error": {"message": "Quota exceeded. Check your plan and billing details."},
    }


def test_a_stream_that_breaks_is_asked_for_once_more(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    output = [api.message("All of it.")]
    text = api.written(api.events(output, api.response(output)))
    calls = 0

    async def cut_once(wire: Wire) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            await wire.write(CHUNKED + chunk(text) + b"0\r\n\r\n")
            return
        await wire.write(CHUNKED + chunk(text[:-300]))
        wire.close()

    upstream.answer_with(always=cut_once)
    gateway = start(start_shared_gateway, shared_upstream.url)
    code, events, _ = run_codex(gateway, tmp_path)
    assert (code, calls) == (0, 2)
    said = [event["message"] for event in events if event["type"] == "error"]
    assert said == [
        "Reconnecting... 1/5 (stream disconnected before completion: The upstream for this model broke off its answer.)"
    ]
    records = eventually(lambda: len(found := gateway.calls("alice")) == 2 and found)
    assert {(each["ended"], each["usage_source"]) for each in records} == {("error", "estimated"), ("done", "reported")}
