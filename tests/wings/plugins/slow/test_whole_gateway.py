"""Plug-ins in a gateway of several processes, called by openai-python: refusals, a fault that would end a process, and
a reload with a broken one."""

from __future__ import annotations

import os
from pathlib import Path

import openai
import pytest
import yaml

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json, stream
from tests.flows.gateway_process import ADMIN_TOKEN, CHAT, Gateway, eventually, key, secret, settings
from tests.wings.plugins.test_calls import CHAT as ANSWER
from tests.wings.plugins.test_calls import CHUNKS, MESSAGES
from tests.wings.plugins.test_example import FOLDER

EXITS = """
from gateway.wings.plugins import Plugin

class Exits(Plugin):
    interface, name = 1, "exits"

    def end(self, attempt, end):
        if "exit" in str(attempt.call.request["messages"]):
            raise SystemExit(3)
"""
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
GUARD = {"use": "marker_guard:MarkerGuard", "options": {"marker": "TOP SECRET"}}


@pytest.fixture
def gateway(start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path) -> Gateway:
    (tmp_path / "exits.py").write_text(EXITS)
    upstream.answer_with(always=ok_json(ANSWER))
    config = settings(
        upstream.url,
        server={"workers": 2, "reload_on_change": False},
        keys=[key("alice", team="red", quotas=[{"tokens": 10**6, "per": "day"}])],
        teams={"red": {}},
        plugins=["exits:Exits", GUARD],
    )
    return start_gateway(config, env={"PYTHONPATH": os.pathsep.join([str(FOLDER), str(tmp_path)])})


def test_with_openai_python_and_a_reload(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=secret("alice"), max_retries=0)
    chats = client.chat.completions
    assert chats.create(model=CHAT, messages=MESSAGES).choices[0].message.content == "hi"
    assert upstream.requests[-1].headers["x-team"] == "red"
    for is_stream in (False, True):
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            chats.create(model=CHAT, messages=[{"role": "user", "content": "TOP SECRET"}], stream=is_stream)
        assert refused.value.code == "marked_prompt"
    exit_ = [{"role": "user", "content": "exit"}]
    with pytest.raises(openai.InternalServerError, match="A plug-in of the gateway"):
        chats.create(model=CHAT, messages=exit_)
    upstream.answer_with(always=stream(CHUNKS))
    assert [each.choices[0].delta.content for each in chats.create(model=CHAT, messages=MESSAGES, stream=True)][:2] == [
        "one", "two",
    ]  # fmt: skip
    with pytest.raises(openai.APIError, match="A plug-in of the gateway"):
        list(chats.create(model=CHAT, messages=exit_, stream=True))

    workers = gateway.workers()
    gateway.file.write_text(yaml.safe_dump({**gateway.config, "plugins": ["exits:Exist"]}))
    reloaded = gateway.send("POST", "/admin/api/reload", key=None, headers=ADMIN)
    assert reloaded.status == 400, reloaded.body
    assert b"plugins[0]: exits:Exist: there is no 'Exist' in the module" in reloaded.body
    assert gateway.workers() == workers  # none has ended
    assert gateway.get("/readyz", key=None).json["plugins"] == [
        {"name": "exits", "version": ""}, {"name": "marker-guard", "version": "1.0"},
    ]  # fmt: skip
    assert len(list(chats.create(model=CHAT, messages=MESSAGES, stream=True))) == len(CHUNKS) - 1
    client.close()
    (window,) = eventually(lambda: [each for each in gateway.get("/v1/key").json["quotas"] if not each["reserved"]])
    assert window["used"] >= 4 * 15
