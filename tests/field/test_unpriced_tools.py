"""Paid tools that an answer names outside its usage, or without a count that can be priced: they are never free."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, ok_json
from tests.flows.gateway_process import Gateway

from .reports import (
    STREAMED,
    Ask,
    asks_chat,
    asks_gemini,
    asks_responses,
    candidate,
    chat_answer,
    configuration,
    gemini,
    play,
    response,
    usd,
    ways,
)

TOKENS = {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150}
USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
METADATA = {"promptTokenCount": 100, "candidatesTokenCount": 50, "totalTokenCount": 150}
OF_TOKENS = usd(100, 0, 50)

CITED = {"annotations": [{"type": "url_citation", "url_citation": {
    "url": "https://a.example/", "title": "a", "start_index": 0, "end_index": 2}}]}  # fmt: skip


def said_with(**more: Any) -> Behaviour:
    """A plain answer of a chat whose message has further members."""
    message = {"role": "assistant", "content": "Hi", **more}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return ok_json({"object": "chat.completion", "model": "up", "choices": [choice], "usage": USAGE})


NAMED_ELSEWHERE = [
    pytest.param(asks_chat(), said_with(**CITED), id="BerriAI/litellm#10476: citations of a search model"),
    pytest.param(
        asks_chat(), said_with(executed_tools=[{"index": 0, "type": "browser_search", "arguments": "{}"}]),
        id="BerriAI/litellm#34971: tools that Groq ran",
    ),
    pytest.param(
        asks_chat(), chat_answer(USAGE, web_search=[{"title": "a", "link": "https://a.example/", "refer": "ref_1"}]),
        id="theopenco/llmgateway#1390: results of Z.AI's search",
    ),
    pytest.param(
        asks_chat(**STREAMED), ways("chat", {**USAGE, "num_sources_used": 4})["stream"][1],
        id="OpenGradient/tee-gateway#83: sources of xAI's live search",
    ),
    pytest.param(
        asks_chat(), chat_answer({**USAGE, "prompt_audio_seconds": 11}),
        id="anomalyco/models.dev#3930: seconds of sound in a chat of Voxtral",
    ),
    pytest.param(
        asks_responses(), ok_json(response({**TOKENS, "server_side_tool_usage_details": {"x_search_calls": 2}})),
        id="coder/xum#3798: searches of X",
    ),
    pytest.param(
        asks_gemini(tools=[{"googleMaps": {}}]),
        ok_json(gemini(METADATA, candidate(groundingMetadata={"googleMapsWidgetContextToken": "w"}))),
        id="BerriAI/litellm#35965: a widget of Google Maps",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.mark.parametrize(("ask", "said"), NAMED_ELSEWHERE)
def test_what_is_paid_and_named_elsewhere_is_never_free(
    gateway: Gateway, upstream: ScriptedUpstream, ask: Ask, said: Behaviour
) -> None:
    """It is counted, or the cost is unknown, or the usage an estimate (docs/prices.md)."""
    answer, record = play(gateway, upstream, ask, said)
    assert answer.status == 200
    cost = record["cost_usd"]
    assert cost is None or cost > OF_TOKENS + 1e-9 or record["usage_source"] == "estimated", record
