"""Claude Code and Codex themselves work while their calls are kept in files, the example plug-in is loaded, and a hook
gets their answers; and the request of a turn works plain, too."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import scripted
from tests.fakes.redis_servers import ROOT
from tests.fakes.scripted import Request, Scripted
from tests.flows import claude_code
from tests.flows.claude_code import FILE, WORDS, Agent
from tests.flows.gateway_process import Gateway, eventually, key, model, secret, settings
from tests.flows.slow import test_codex as codex
from tests.wings.content.kept_lines import lines
from tests.wings.plugins.test_example import FOLDER as PLUGIN

MARKER = "TOP SECRET"


def start(start_gateway: StartsGateways, url: str, hook: str, endpoint: str, name: str, folder: Path) -> Gateway:
    return start_gateway(
        settings(
            url,
            server={"workers": 2},
            upstreams={"main": {"capabilities": {endpoint: True}}},
            models={name: model(endpoint)},
            teams={"red": {}},
            keys=[key("alice", team="red")],
            content={"files": {"folder": str(folder)}, "keep": [{"teams": ["red"]}]},
            plugins=[{"use": "marker_guard:MarkerGuard", "options": {"marker": MARKER}}],
            hooks={"after_call": {"reads": {"url": hook, "answers_of": ["alice"]}}},
        ),
        env={"PYTHONPATH": os.pathsep.join([str(PLUGIN), str(ROOT)])},
    )


def check(gateway: Gateway, sent: list[Request], hook: Scripted, folder: Path, *, prompt: str, last: str) -> None:
    """Each call has been seen by the plug-in, is kept once, and has come to the hook once with its answer."""
    assert {each.headers["x-team"] for each in sent} == {"red"}
    number = len(sent) + 1  # one was refused
    records = eventually(lambda: len(found := gateway.calls("alice")) >= number and found)
    ids = sorted(each["id"] for each in records)
    assert Counter(each["status"] for each in records) == {200: len(sent), 422: 1}
    kept = eventually(lambda: len(found := lines(folder)) >= number and found)
    posted = eventually(lambda: hook.hits >= number and [each.json for each in hook.requests])
    assert sorted(each["call"] for each in kept) == ids == sorted(each["call"]["id"] for each in posted)

    attributes = [each["attributes"] for each in kept]
    assert all("gateway.content_cut" not in each for each in attributes)
    assert all(prompt in json.dumps(each["gen_ai.input.messages"]) for each in attributes)
    answers = [message for each in attributes for message in each.get("gen_ai.output.messages", ())]
    parts = [part for each in answers for part in each["parts"]]
    assert (len(answers), {part["type"] for part in parts}) == (len(sent), {"text", "tool_call"})
    texts = [text for each in posted for text in each["answer"]["texts"]]
    assert sorted(texts) == sorted(part["content"] for part in parts if part["type"] == "text")
    assert texts.count(last) == 2  # the last turn, streamed and plain


def plain(gateway: Gateway, path: str, turn: Request) -> str:
    """The answer to the request of this turn, which was streamed, as one document; and a refusal of the plug-in."""
    refused = gateway.post(path, {**turn.json, "stream": False, "metadata": {"user_id": MARKER}})
    assert (refused.status, MARKER in str(refused.body)) == (422, False)
    answer = gateway.post(path, {**turn.json, "stream": False})
    assert answer.status == 200, answer.body.decode()
    return answer.body.decode()


def test_claude_code_finishes_its_task(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.answer_with(always=Agent(tmp_path).behaviour)
    prompt, folder = "Write the note and double it.", tmp_path / "kept"
    with Scripted(always=scripted.ok_json({})) as hook:
        gateway = start(start_gateway, upstream.url, hook.url, "messages", claude_code.MODEL, folder)
        ran = claude_code.run(tmp_path, gateway.url, secret("alice"), prompt)
        assert (ran.code, ran.received["result"], ran.received["is_error"]) == (0, "All done.", False), ran
        assert ((tmp_path / FILE).read_text(), (tmp_path / "twice.txt").read_text()) == (WORDS, WORDS * 2)
        turns = [each for each in upstream.requests if b'"Write"' in each.body]
        assert "All done." in plain(gateway, "/v1/messages", turns[-1])
        check(gateway, upstream.requests, hook, folder, prompt=prompt, last="All done.")


def test_codex_finishes_its_task(start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.answer_with(always=codex.Script())
    last, folder = "Both words are in notes.txt.", tmp_path / "kept"
    with Scripted(always=scripted.ok_json({})) as hook:
        gateway = start(start_gateway, upstream.url, hook.url, "responses", codex.MODEL, folder)
        code, events, work = codex.run_codex(gateway, tmp_path)
        assert (code, events[-1]["type"]) == (0, "turn.completed"), events
        assert (work / "notes.txt").read_text() == "one two"
        assert last in plain(gateway, "/v1/responses", upstream.requests[-1])
        check(gateway, upstream.requests, hook, folder, prompt="Write the words one and two", last=last)
