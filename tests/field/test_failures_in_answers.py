"""Failures behind a status of 200: each is shown as one, and the usage that it reports counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, ok_json, stream
from tests.flows.gateway_process import Gateway

from .reports import (
    BLOCK,
    STREAMED,
    Ask,
    asks_chat,
    asks_gemini,
    asks_messages,
    asks_responses,
    candidate,
    chat_chunk,
    check,
    configuration,
    gemini,
    gemini_events,
    message_start,
    named,
    play,
    response,
    response_events,
    text_of,
)

FAULT = {"message": "Worker local total request limit reached", "code": 502, "type": "provider_unavailable"}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
TOKENS = {"input_tokens": 30, "output_tokens": 252, "total_tokens": 282}
METADATA = {"promptTokenCount": 30, "candidatesTokenCount": 252, "totalTokenCount": 282}
BROKEN = {"ended": "error", "truncated": True}
FREE = {"usage_source": "none", "prompt_tokens": 0, "completion_tokens": 0, "ended": "error"}
REPORTED = {"usage_source": "reported", "prompt_tokens": 30, "completion_tokens": 252}
ENDS = ("message_stop", "response.completed", "[DONE]", '"stop_reason":"end_turn"', '"status":"completed"')
"""Signs of an answer that has ended well."""

OF_CHAT = {
    "chat": asks_chat(**STREAMED),
    "messages": asks_messages("messages-over-chat", stream=True),
    "responses": asks_responses("responses-over-chat", stream=True),
}
OF_MESSAGES = {"messages": asks_messages(stream=True), "chat": asks_chat("chat-over-messages", **STREAMED)}


class Row(NamedTuple):
    """An answer that fails, the clients that ask, the text that they get, and what has to be recorded."""

    name: str
    source: str
    """Where people reported it: repositories and numbers."""
    rule: str
    """Who says what is right."""
    asks: Mapping[str, Ask]
    said: Behaviour
    text: str
    recorded: Mapping[str, Any]


OPENROUTER = (
    "openrouter.ai, errors: a failure behind the status is a chunk with `error`, and `finish_reason` is `error`"
)
GROWING = [
    chat_chunk(word, usage={"prompt_tokens": 30, "completion_tokens": count, "total_tokens": 30 + count})
    for word, count in (("Hel", 80), ("lo", 250))
]
ROWS = [
    Row(
        "an error in place of the first chunk", "diegosouzapw/OmniRoute#8210, fawney19/Aether#536", OPENROUTER, OF_CHAT,
        stream([{"object": "chat.completion.chunk", "model": "up", "choices": [], "error": FAULT}]), "", FREE,
    ),
    Row(
        "an error with the reason `error`", "damianvtran/local-operator#223", OPENROUTER, OF_CHAT,
        stream([chat_chunk("Hello"), {**chat_chunk("", "error"), "error": FAULT}]), "Hello", BROKEN,
    ),
    Row(
        "an error without [DONE]", "open-octo/octo-agent#910",
        "openai-python raises for an event with `error`", OF_CHAT,
        stream([chat_chunk("Hello"), {"error": FAULT}], done=False), "Hello", BROKEN,
    ),
    Row(
        "an error event of Anthropic", "brightwave-inc/tidebreak#1122, BerriAI/litellm#39589",
        "Anthropic, streaming: errors come as events", OF_MESSAGES,
        named(message_start({"input_tokens": 30, "output_tokens": 1}), *BLOCK, OVERLOADED), "Hi",
        {**BROKEN, "prompt_tokens": 30},
    ),
    Row(
        "a cut behind running totals", "tinfoilsh/confidential-model-router#479",
        "docs/guarantees.md: an estimate is never below a report on the way", OF_CHAT,
        stream(GROWING, done=False), "Hello",
        {**BROKEN, "prompt_tokens": 30, "completion_tokens": 250, "usage_source": "estimated"},
    ),
    Row(
        "a response that failed, with usage", "envoyproxy/ai-gateway#2184, openai/openai-agents-python#4901",
        "openai-openapi: `usage` of a failed response", {"responses": asks_responses(stream=True)},
        response_events(response(TOKENS, status="failed", error={"code": "server_error", "message": "no"}),
                        kind="response.failed"), "Hi",
        {**REPORTED, **BROKEN},
    ),
    Row(
        "a response that is incomplete, with usage", "QuantumNous/new-api#7241, envoyproxy/ai-gateway#2184",
        "openai-openapi: `usage` of an incomplete response", {"responses": asks_responses(stream=True)},
        response_events(response(TOKENS, status="incomplete", incomplete_details={"reason": "content_filter"}),
                        kind="response.incomplete"), "Hi",
        {**REPORTED, "ended": "done", "truncated": False},
    ),
    Row(
        "a response whose output was all thoughts", "openai/openai-agents-python#4901",
        "openai-openapi: `usage` of an incomplete response", {"responses": asks_responses()},
        ok_json({**response(TOKENS, status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
                 "output": [{"type": "reasoning", "id": "rs_1", "status": "incomplete", "summary": []}]}), "",
        {**REPORTED, "ended": "done", "truncated": False},
    ),
    Row(
        "all of the output was thoughts", "stanford-crfm/helm#3804",
        "google-genai, FinishReason: MAX_TOKENS ends an answer, also one without parts",
        {"gemini": asks_gemini(is_stream=True)},
        gemini_events(gemini({"promptTokenCount": 30, "thoughtsTokenCount": 252, "totalTokenCount": 282},
                             {"index": 0, "content": {"role": "model"}, "finishReason": "MAX_TOKENS"})), "",
        {**REPORTED, "reasoning_tokens": 252, "ended": "done", "truncated": False},
    ),
    Row(
        "an answer that a filter stopped", "amitbaz/job-hunter-bot#54",
        "google-genai: the tokens of a candidate are billed, whatever its reason",
        {"gemini": asks_gemini(is_stream=True)},
        gemini_events(gemini(METADATA, candidate("Hi", "SAFETY"))), "Hi",
        {**REPORTED, "ended": "done", "truncated": False},
    ),
]  # fmt: skip
CASES = [pytest.param(row, ask, id=f"{row.name}: {row.source}-{way}") for row in ROWS for way, ask in row.asks.items()]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.mark.parametrize(("row", "ask"), CASES)
def test_a_failure_is_shown_and_its_usage_counts(
    gateway: Gateway, upstream: ScriptedUpstream, row: Row, ask: Ask
) -> None:
    answer, record = play(gateway, upstream, ask, row.said)
    if record["ended"] == "error":
        shown = answer.body.decode().replace('": "', '":"')
        assert not [sign for sign in ENDS if sign in shown]
        assert "error" in shown
    if answer.status == 200:
        assert text_of(answer.body) == row.text
    check(record, row.recorded)
