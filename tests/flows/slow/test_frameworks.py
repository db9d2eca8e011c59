"""Frameworks as people have them, default retries and all, through a gateway, on Responses, Messages and chat:
LangChain, OpenAI's Agents SDK, Vercel's AI SDK and LlamaIndex answer, stream, call a tool, wait for a rate, and end at
a spent quota and at a stream that breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.redis_servers import ROOT
from tests.fakes.scripted import CHUNKED, Wire, chunk, event, ok_json
from tests.flows.gateway_process import Gateway, key, model, secret, settings

SERVERS = ROOT / ".venv/servers"
HERE = Path(__file__).parent.parent
MODEL = "gpt-4.1"
WITHIN_S = 90.0
"""For the calls of one process. Each imports for seconds, and AI SDK waits up to six between attempts."""
pytestmark = pytest.mark.timeout(150)

TEXT = "It is rain in Oslo, and it will stay so."
CITY = {"city": "Oslo"}
RESPONSES_USED, MESSAGES_USED, CHAT_USED = (30, 12), (40, 9), (50, 7)
"""Input and output tokens of every answer."""

Received = dict[str, Any]


class Framework(NamedTuple):
    """How it is started, where it has to be installed, and what it asks for."""

    command: Sequence[Path | str]
    package: Path
    """Below the folder of its modules, which is the PYTHONPATH of those in Python."""
    used: tuple[int, int] = RESPONSES_USED
    spent_requests: int = 1
    """How often it asks for what a spent quota refuses."""
    reads_code: bool = True
    """Whether its error shows the code of a spent quota."""


PYTHON, LLAMAINDEX = SERVERS / "python-clients", SERVERS / "llamaindex"
NODE, AI_SDK = SERVERS / "node-sdk/node", SERVERS / "ai-sdk/node_modules"
FRAMEWORKS = {
    "langchain": Framework([sys.executable, HERE / "langchain_client.py"], PYTHON / "langchain_openai"),
    "agents": Framework([sys.executable, HERE / "agents_client.py"], PYTHON / "agents"),
    "ai-sdk-openai": Framework(
        [NODE, HERE / "ai_sdk_node.mjs", AI_SDK, "openai"], AI_SDK / "@ai-sdk/openai", spent_requests=3
    ),
    "ai-sdk-anthropic": Framework(
        [NODE, HERE / "ai_sdk_node.mjs", AI_SDK, "anthropic"], AI_SDK / "@ai-sdk/anthropic", MESSAGES_USED,
        spent_requests=3, reads_code=False,
    ),
    "llamaindex": Framework(
        [sys.executable, HERE / "llamaindex_client.py"], LLAMAINDEX / "llama_index", CHAT_USED, spent_requests=3
    ),
}  # fmt: skip


def ask(gateway: Gateway, name: str, *tasks: tuple[str, str]) -> list[Received]:
    """One process that makes these calls: each by a key, and of a kind."""
    framework = FRAMEWORKS[name]
    assert framework.package.exists(), f"{framework.package} is not there, and this test needs it: run `make servers`."
    asked = [{"url": f"{gateway.url}/v1", "key": secret(who), "model": MODEL, "kind": kind} for who, kind in tasks]
    done = subprocess.run(
        [*framework.command], input=json.dumps(asked), capture_output=True, text=True, timeout=WITHIN_S, check=False,
        env={**os.environ, "PYTHONPATH": str(framework.package.parent), "NO_PROXY": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[Received] = json.loads(done.stdout)
    return answers


# --------------------------------------------------------------------------------------------------------- the upstream


async def upstream_with_a_tool(wire: Wire) -> None:
    """Calls the tool if there is one, and then says what it said."""
    asked = wire.request.json
    writes = WRITERS[wire.request.path]
    is_done = "rain in Oslo" in json.dumps(asked)
    whole, events = writes(calls_tool=bool(asked.get("tools")) and not is_done)
    if asked.get("stream"):
        await wire.write(CHUNKED + b"".join(map(chunk, events)) + b"0\r\n\r\n")
    else:
        await ok_json(whole)(wire)


async def upstream_that_breaks_off(wire: Wire) -> None:
    """Before the events that end the stream."""
    writes = WRITERS[wire.request.path]
    *events, _, _, _ = writes(calls_tool=False)[1]
    await wire.write(CHUNKED + b"".join(map(chunk, events)))
    wire.close()


def _response(*, calls_tool: bool) -> tuple[Received, Iterable[bytes]]:
    item = api.function_call("weather", json.dumps(CITY)) if calls_tool else api.message(TEXT)
    whole = api.response([item])
    return whole, map(api.one, api.events([item], whole))


def _message(*, calls_tool: bool) -> tuple[Received, Iterable[bytes]]:
    prompt, output = MESSAGES_USED
    block: Received = {"type": "text", "text": TEXT}
    if calls_tool:
        block = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": CITY}
    whole = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "stop_sequence": None,
        "stop_reason": "tool_use" if calls_tool else "end_turn", "content": [block],
        "usage": {"input_tokens": prompt, "output_tokens": output},
    }  # fmt: skip
    words = [{"type": "text_delta", "text": f"{word} "} for word in TEXT.split()]
    events = [
        {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *[{"type": "content_block_delta", "index": 0, "delta": delta} for delta in words],
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": output}},
        {"type": "message_stop"},
    ]
    return whole, map(api.one, events)


def _chat(*, calls_tool: bool) -> tuple[Received, Iterable[bytes]]:
    prompt, output = CHAT_USED
    message: Received = {"role": "assistant", "content": TEXT}
    if calls_tool:
        called = {"name": "weather", "arguments": json.dumps(CITY)}
        message = {
            "role": "assistant", "content": None,
            "tool_calls": [{"id": "call_1", "index": 0, "type": "function", "function": called}],
        }  # fmt: skip
    reason = "tool_calls" if calls_tool else "stop"
    answer = {"id": "chatcmpl-1", "created": 1700000000, "model": MODEL}
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    deltas = [{"content": f"{word} "} for word in TEXT.split()]
    choices = [
        *[[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas],
        [{"index": 0, "delta": {}, "finish_reason": reason}],
        [],
    ]
    chunks = [answer | {"object": "chat.completion.chunk", "choices": each, "usage": None} for each in choices]
    chunks[-1]["usage"] = usage
    return (
        answer | {"object": "chat.completion", "choices": [choice], "usage": usage},
        [*map(event, chunks), event("[DONE]")],
    )


WRITERS = {"/v1/responses": _response, "/v1/messages": _message, "/v1/chat/completions": _chat}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    keys = [key("alice")]
    for name in FRAMEWORKS:
        keys.append(key(f"paced-{name}", quotas=[{"requests": 1, "per": "second"}]))
        keys.append(key(f"spent-{name}", quotas=[{"requests": 1, "per": "month"}]))
    config = settings(shared_upstream.url, keys=keys, upstreams={"main": {"capabilities": {"messages": True}}})
    endpoint = {"endpoints": ["responses", "messages", "chat"]}
    return start_shared_gateway(config | {"models": {MODEL: model("responses") | endpoint}})


# ------------------------------------------------------------------------------------------------------------ the tests


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_answers_streams_and_tools(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    upstream.answer_with(always=upstream_with_a_tool)
    plain, stream, tool = ask(gateway, name, ("alice", "plain"), ("alice", "stream"), ("alice", "tool"))
    assert [received.get("error") for received in (plain, stream, tool)] == [None] * 3
    assert plain["text"] == tool["text"] == stream["text"].strip() == TEXT
    assert stream["pieces"] > 3
    prompt, output = FRAMEWORKS[name].used
    for received, calls in ((plain, 1), (stream, 1)):
        assert (received["usage"]["input_tokens"], received["usage"]["output_tokens"]) == (
            prompt * calls,
            output * calls,
        )
    assert upstream.hits == 4
    records = gateway.calls("alice", limit=4)
    found = {(each["status"], each["ended"], each["prompt_tokens"], each["completion_tokens"]) for each in records}
    assert found == {(200, "done", prompt, output)}
    assert sum(each["stream"] for each in records) == 1


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_rate_is_waited_for(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    upstream.answer_with(always=upstream_with_a_tool)
    answers = ask(gateway, name, *[(f"paced-{name}", "plain")] * 2)
    assert [received.get("text") for received in answers] == [TEXT] * 2


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_used_up_quota_is_reported(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    framework = FRAMEWORKS[name]
    upstream.answer_with(always=upstream_with_a_tool)
    before = gateway.metric("gateway_rejections_total", reason="quota_spent")
    first, refused = ask(gateway, name, *[(f"spent-{name}", "plain")] * 2)
    assert first["text"] == TEXT
    assert "exceeded the quota of your key of requests per month" in refused["error"]["message"]
    if framework.reads_code:
        assert refused["error"]["code"] == "insufficient_quota"
    asked = gateway.metric("gateway_rejections_total", reason="quota_spent") - before
    assert (asked, upstream.hits) == (framework.spent_requests, 1)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_stream_that_breaks(gateway: Gateway, upstream: ScriptedUpstream, name: str) -> None:
    upstream.answer_with(always=upstream_that_breaks_off)
    (received,) = ask(gateway, name, ("alice", "stream"))
    assert "The upstream for this model broke off its answer." in received["error"]["message"]
    assert upstream.hits == 1  # none of them asks again
    (record,) = gateway.calls("alice", limit=1)
    assert (record["ended"], record["usage_source"]) == ("error", "estimated")
