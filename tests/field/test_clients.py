"""Requests as clients really write them: what is good is served as it was meant, what is not is refused with the remedy
before it costs anything."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows.gateway_process import Gateway, secret

from .played import MESSAGES, chat_answer, chat_chunk, chat_stream, configuration, usage_chunk

BOM = b"\xef\xbb\xbf"
CALL = {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


class Body(NamedTuple):
    """Members of a chat call; `code`: None where it is served, else the error's code and what it names."""

    name: str
    source: str
    members: dict[str, Any]
    code: str | None = None
    param: str | None = None


BODIES = (
    Body("null for everything optional", "huggingface/text-generation-inference#3155", {
        "stream": False, "stream_options": None, "function_call": None, "functions": None, "tool_choice": None,
        "tools": None, "max_tokens": None, "stop": None, "user": None, "logit_bias": None, "seed": None, "n": None,
        "temperature": None, "top_p": None, "response_format": None, "metadata": None, "store": None,
    }),
    Body("max_tokens is null", "ztjhz/BetterChatGPT#248", {"max_tokens": None}),
    Body("tools and tool_choice are null", "plmbr/notebook-intelligence#55", {"tools": None, "tool_choice": None}),
    Body("stop is null", "ztjhz/BetterChatGPT#248", {"stop": None}),
    Body("temperature is a text", "instructlab/instructlab#3511", {"temperature": "0.7"}, "invalid_type",
         "temperature"),
    Body("max_tokens is a text", "instructlab/instructlab#3511", {"max_tokens": "100"}, "invalid_type", "max_tokens"),
    Body("temperature above OpenAI's range", "danny-avila/LibreChat#4027", {"temperature": 2.5},
         "decimal_above_max_value", "temperature"),
    Body("a reasoning text in the history", "NousResearch/hermes-agent#34182", {"messages": [
        *MESSAGES, {"role": "assistant", "content": "Hi", "reasoning_content": "They greet.", "reasoning": "hm"},
        *MESSAGES,
    ]}),
    Body("a system message in the middle and at the end", "raullenchai/Rapid-MLX#1543, microsoft/autogen#2914", {
        "messages": [*MESSAGES, {"role": "system", "content": "Be short."}, *MESSAGES,
                     {"role": "system", "content": "Be kind."}],
    }),
    Body("a developer message", "api7/aisix#1047", {"messages": [{"role": "developer", "content": "x"}, *MESSAGES]}),
    Body("an empty content", "microsoft/autogen#6083", {"messages": [{"role": "user", "content": ""}]}),
    Body("no content beside calls", "NousResearch/hermes-agent#11929", {"tools": [TOOL], "messages": [
        *MESSAGES, {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_a", "content": "seen"},
    ]}),
    Body("arguments of the history as an object", "isair/jarvis#560, openclaw/openclaw#97834", {
        "tools": [TOOL], "messages": [
            *MESSAGES, {"role": "assistant", "content": None, "tool_calls": [
                {**CALL, "function": {"name": "look", "arguments": {"at": "here"}}}]},
            {"role": "tool", "tool_call_id": "call_a", "content": "seen"},
        ],
    }),
    Body("an unknown member", "earendil-works/pi#2993", {"provider": {"order": ["x"]}, "reasoning": {"effort": "low"}}),
    Body("tags of a chat template", "sgl-project/sglang#35542", {"chat_template_kwargs": {"enable_thinking": False}}),
)  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{body.name} [{body.source}]")
def test_a_body_of_chat(body: Body, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    asked = {"model": "chat", "messages": MESSAGES} | body.members
    if body.code is None:
        upstream.answer_with(chat_answer())
    answer = gateway.post("/v1/chat/completions", asked)
    if body.code is not None:
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, body.code, body.param)
        assert upstream.hits == 0
        return
    assert answer.status == 200
    assert upstream.requests[0].json == asked


def test_null_stream_options_of_a_stream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """huggingface/text-generation-inference#3155: nothing of the usage is shown, and it is counted all the same."""
    upstream.answer_with(chat_stream(chat_chunk({"content": "Hi"}, "stop"), usage_chunk()))
    answer = gateway.chat(model="chat", stream=True, stream_options=None, tools=None)
    assert b'"prompt_tokens"' not in answer.body
    assert gateway.call(answer.id)["usage_source"] == "reported"


@pytest.mark.parametrize(
    ("asked", "accept", "is_stream"),
    [
        ({}, "*/*", False), ({}, "text/event-stream", False), ({"stream": False}, "text/event-stream", False),
        ({"stream": True}, "application/json", True), ({"stream": True}, "*/*", True),
    ],
)  # fmt: skip
def test_the_body_decides_whether_it_is_a_stream(
    asked: dict[str, Any], accept: str, is_stream: bool, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    """decolua/9router#3492 and #2070, Alishahryar1/free-claude-code#486: not the Accept header."""
    upstream.answer_with(chat_stream(chat_chunk({"content": "Hi"}, "stop")) if is_stream else chat_answer())
    answer = gateway.post(
        "/v1/chat/completions", {"model": "chat", "messages": MESSAGES, **asked}, headers={"Accept": accept}
    )
    assert answer.status == 200
    kind = "text/event-stream" if is_stream else "application/json"
    assert answer.headers["content-type"].startswith(kind)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions"),  # nbramia/LifeOS#708, AgentsKit-io/agentskit#1009
        ("/v1/v1/responses", "/v1/responses"),  # teabranch/open-responses-server#16
        ("/v1//chat/completions", "/v1/chat/completions"),  # BerriAI/litellm#8350
        ("/v1//models", "/v1/models"),  # cline/cline#12532
        ("/chat/completions", "/v1/chat/completions"),  # BadgerHobbs/OpenAI-API-Gateway#1, dbeaver/dbeaver#42156
        ("/v1/chat/completions/", "/v1/chat/completions"),  # sigoden/aichat#767
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),  # harry0703/MoneyPrinterTurbo#57
        ("/v1/chat/completions/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/models", "/v1/models"),
    ],
)
def test_a_wrong_base_url_is_explained(path: str, words: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    answer = gateway.send("GET" if path.endswith("models") else "POST", path, {"model": "chat", "messages": MESSAGES})
    assert answer.status == 404
    assert f"{words}" in answer.error["message"]
    assert "base URL" in answer.error["message"] or "slash" in answer.error["message"]
    assert upstream.hits == 0


@pytest.mark.parametrize("path", ["/", "/api/hello"])
def test_what_claude_code_asks_before_it_calls(path: str, gateway: Gateway) -> None:
    """headroomlabs-ai/headroom#2032, router-for-me/CLIProxyAPI#5905: an error there looks as if it were down."""
    answer = gateway.send("HEAD", path, key=None)
    assert (answer.status, answer.body) == (200, b"")
    assert not [line for line in gateway.lines() if line.get("id") == answer.id]


def test_two_keys_are_refused_with_the_remedy(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """ankitcharolia/kiro-gateway#61, langchain-ai/openwiki#448, musistudio/claude-code-router#214: an old x-api-key
    beside the gateway's own. Which of them counts is not guessed, and neither goes to the upstream."""
    answer = gateway.post(
        "/v1/chat/completions", {"model": "chat", "messages": MESSAGES}, headers={"x-api-key": "sk-ant-old-key-of-mine"}
    )
    assert answer.status == 401
    assert "Authorization, x-api-key" in answer.error["message"]
    assert upstream.hits == 0


@pytest.mark.parametrize("header", ["Authorization", "x-api-key", "api-key"])
def test_each_header_of_a_key(header: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """aws-samples/sample-kolya-br-proxy#35, getsentry/sentry-mcp#801: Messages with a bearer, chat with the other."""
    value = f"Bearer {secret('alice')}" if header == "Authorization" else secret("alice")
    upstream.answer_with(chat_answer(), chat_answer())
    for path, asked in (
        ("/v1/chat/completions", {"model": "chat", "messages": MESSAGES}),
        ("/v1/messages?beta=true", {"model": "messages-over-chat", "messages": MESSAGES, "max_tokens": 100}),
    ):
        assert gateway.post(path, asked, key=None, headers={header: value}).status == 200


def test_count_tokens_never_claims_zero(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Wei-Shaw/sub2api#657, BerriAI/litellm#13252: Claude Code believes a 200 and estimates itself behind any other."""
    asked = {"model": "messages-over-chat", "messages": [{"role": "user", "content": "Hello " * 100}]}
    answer = gateway.post("/v1/messages/count_tokens?beta=true", asked)
    if answer.status == 200:
        assert answer.json["input_tokens"] > 50
    else:
        assert answer.json["type"] == "error"
    assert upstream.hits == 0


@pytest.mark.parametrize("text", ["Hello", "Hello " * 20_000], ids=["short", "long"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_byte_order_mark_of_a_body(path: str, text: str, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """fastify/secure-json-parse#5, cloudflare/workerd#4977: RFC 8259, 8.1 lets a reader ignore it."""
    said = [{"role": "user", "content": text}]
    asked = {
        "/v1/chat/completions": {"model": "chat", "messages": said},
        "/v1/messages": {"model": "messages-over-chat", "messages": said, "max_tokens": 100},
        "/v1/responses": {"model": "responses-over-chat", "input": text},
    }[path]
    upstream.answer_with(chat_answer())
    answer = gateway.post(path, BOM + json.dumps(asked).encode())
    assert answer.status == 200
    assert upstream.requests[0].json["messages"] == said
