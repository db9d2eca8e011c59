"""Streams of Messages as gateways and other vendors really send them: passed on as they came, translated, and made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows.gateway_process import Gateway, secret

from .played import COUNTS, as_stream, ask, chat_chunk, chat_stream, configuration, counted, named, usage_chunk

if TYPE_CHECKING:
    import anthropic
    import openai

HEAD = {"id": "msg_1", "type": "message", "role": "assistant", "model": "up", "content": [], "stop_reason": None,
        "stop_sequence": None}  # fmt: skip
START = {"type": "message_start", "message": {**HEAD, "usage": {"input_tokens": 30, "output_tokens": 1}}}
ENDED = {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
         "usage": {"output_tokens": 25}}  # fmt: skip
STOP = {"type": "message_stop"}
HERE, THERE = {"at": "here"}, {"at": "there"}


def begin(index: int, call_id: str, given: Any = None) -> dict[str, Any]:
    block = {"type": "tool_use", "id": call_id, "name": "look", "input": {} if given is None else given}
    return {"type": "content_block_start", "index": index, "content_block": block}


def piece(index: int, text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": text}}


def end(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


TEXT_START = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I look."}}
THOUGHT_START = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}
THOUGHT = {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}

STREAMS: dict[str, tuple[tuple[dict[str, Any], ...], list[Any]]] = {
    "input in the start [anomalyco/opencode#38733]": ((begin(0, "toolu_1", HERE), end(0)), [HERE]),
    "no input [kittors/CliRelay#739]": ((begin(0, "toolu_1"), end(0)), [{}]),
    "a piece without text [kittors/CliRelay#739]": (
        (begin(0, "toolu_1"), piece(0, ""), piece(0, '{"at":'), piece(0, '"here"}'), end(0)), [HERE],
    ),
    "no ends of blocks [xemantic/anthropic-sdk-kotlin#147]": (
        (begin(0, "toolu_1"), piece(0, json.dumps(HERE)), begin(1, "toolu_2"), piece(1, json.dumps(THERE))),
        [HERE, THERE],
    ),
    "text and thought under one index, and no end between [ollama/ollama#17101]": (
        (TEXT_START, TEXT, THOUGHT_START, THOUGHT, end(0), begin(1, "toolu_1"), piece(1, json.dumps(HERE)), end(1)),
        [HERE],
    ),
    "one index for all calls [ollama/ollama#17101]": (
        (begin(0, "toolu_1"), piece(0, json.dumps(HERE)), end(0), begin(0, "toolu_2"), piece(0, json.dumps(THERE)),
         end(0)),
        [HERE, THERE],
    ),
    "indexes with gaps, and ends of blocks that never began [QuantumNous/new-api#5482]": (
        (TEXT_START, TEXT, end(0), end(1), begin(3, "toolu_1"), piece(3, json.dumps(HERE)), end(3), end(4)), [HERE],
    ),
    "by turns [orangeboyChen/codebuddy2api#11]": (
        (begin(0, "toolu_1"), begin(1, "toolu_2"), piece(0, '{"at":'), piece(1, '{"at":'), piece(0, '"here"}'),
         piece(1, '"there"}'), end(0), end(1)),
        [HERE, THERE],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.fixture(scope="module")
def of_openai(gateway: Gateway) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0)


@pytest.fixture(scope="module")
def of_anthropic(gateway: Gateway) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=gateway.url, api_key=secret("alice"), max_retries=0)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("tail", [b"", b"data: [DONE]\n\n"], ids=["", "Alishahryar1/free-claude-code#43"])
def test_each_call_is_one_of_a_chat(
    name: str, tail: bytes, gateway: Gateway, of_openai: openai.OpenAI, upstream: ScriptedUpstream
) -> None:
    events, calls = STREAMS[name]
    upstream.answer_with(as_stream(named(START, *events, ENDED, STOP) + tail))
    with of_openai.chat.completions.stream(
        model="chat-over-messages", messages=[{"role": "user", "content": "Look."}],
        tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    ) as stream:  # fmt: skip
        choice = stream.get_final_completion().choices[0]
    assert [json.loads(each.function.arguments) for each in choice.message.tool_calls or ()] == calls
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("tail", [b"", b"data: [DONE]\n\n"], ids=["", "Alishahryar1/free-claude-code#43"])
def test_it_is_passed_on_as_it_came(name: str, tail: bytes, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    body = named(START, *STREAMS[name][0], ENDED, STOP)
    upstream.answer_with(as_stream(body + tail))
    answer = ask(gateway, "messages", is_stream=True)
    assert answer.body == body
    assert counted(gateway, answer) == (*COUNTS, "reported")


def test_a_delta_without_usage(gateway: Gateway, of_openai: openai.OpenAI, upstream: ScriptedUpstream) -> None:
    """earendil-works/pi#6567, karthink/gptel#1331: MiniMax and Bedrock leave counts of `message_delta` out."""
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}}
    upstream.answer_with(as_stream(named(START, TEXT_START, TEXT, end(0), ended, STOP)))
    with of_openai.chat.completions.stream(
        model="chat-over-messages", messages=[{"role": "user", "content": "Look."}]
    ) as stream:
        choice = stream.get_final_completion().choices[0]
    assert (choice.message.content, choice.finish_reason) == ("I look.", "stop")


# -------------------------------------------------------------------------------------------------- made of chats

ORDERS: dict[str, list[str]] = {
    "text, thought, call [Wei-Shaw/sub2api#4286]": ["text", "thinking", "tool_use"],
    "thought, call, thought [musistudio/claude-code-router#1725]": ["thinking", "tool_use", "thinking"],
    "thought, text, thought [musistudio/claude-code-router#1725]": ["thinking", "text", "thinking"],
    "thought first [BerriAI/litellm#25212, BerriAI/litellm#33224]": ["thinking", "text", "tool_use"],
    "calls and text [kittors/CliRelay#739]": ["tool_use", "text", "tool_use"],
}
DELTAS = {
    "text": {"content": "I look."}, "thinking": {"reasoning_content": "hm"},
    "tool_use": {"tool_calls": [{"index": 0, "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_blocks_of_a_message_follow_each_other(
    name: str, gateway: Gateway, of_anthropic: anthropic.Anthropic, upstream: ScriptedUpstream
) -> None:
    """Claude Code refuses other streams with "Content block not found"; anthropic-sdk-python indexes a list."""
    chunks: list[Any] = []
    for number, kind in enumerate(ORDERS[name]):
        delta = json.loads(json.dumps(DELTAS[kind]))
        for each in delta.get("tool_calls", ()):
            each |= {"index": sum(chunk == "tool_use" for chunk in ORDERS[name][:number]), "id": f"call_{number}"}
        chunks.append(chat_chunk(delta))
    upstream.answer_with(chat_stream(*chunks, chat_chunk(None, "stop"), usage_chunk()))
    with of_anthropic.messages.stream(
        model="messages-over-chat", max_tokens=3000, messages=[{"role": "user", "content": "Look."}],
        thinking={"type": "enabled", "budget_tokens": 1024},
        tools=[{"name": "look", "input_schema": {"type": "object", "properties": {}}}],
    ) as stream:  # fmt: skip
        events = list(stream)
        message = stream.get_final_message()
    kinds = [block.type for block in message.content]
    assert kinds.count("tool_use") == ORDERS[name].count("tool_use")
    shown = {kind: "".join([getattr(block, kind) for block in message.content if block.type == kind])
             for kind in ("text", "thinking")}  # fmt: skip
    assert shown == {"text": "I look." * ORDERS[name].count("text"), "thinking": "hm" * ORDERS[name].count("thinking")}
    opened = [event.index for event in events if event.type == "content_block_start"]
    closed = [event.index for event in events if event.type == "content_block_stop"]
    assert opened == closed == list(range(len(kinds)))


def test_a_message_always_has_counts(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Alishahryar1/free-claude-code#209 and #123: Claude Code reads `usage.input_tokens` of each message."""
    upstream.answer_with(chat_stream(chat_chunk({"content": "Hi"}), chat_chunk(None, "stop")))
    answer = ask(gateway, "messages-over-chat", is_stream=True)
    events = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert next(each for each in events if each["type"] == "message_delta")["usage"]["output_tokens"] > 0
