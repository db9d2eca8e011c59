"""Paid searches and other paid tools: each that was used is counted as its vendor bills it, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, ok_json
from tests.flows.gateway_process import Gateway

from .reports import (
    BLOCK,
    STOP,
    Ask,
    asks_gemini,
    asks_messages,
    asks_responses,
    candidate,
    check,
    configuration,
    gemini,
    gemini_events,
    message,
    message_delta,
    message_start,
    named,
    play,
    response,
    response_events,
    usd,
    ways,
)

TOKENS = {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150}
USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
METADATA = {"promptTokenCount": 100, "candidatesTokenCount": 50, "totalTokenCount": 150}
OF_TOKENS = usd(100, 0, 50)
DECLARED = [{"type": "web_search"}]
GOOGLE: list[dict[str, Any]] = [{"googleSearch": {}}]


class Row(NamedTuple):
    """An answer that names what was used, and what has to be recorded."""

    name: str
    source: str
    """Where people reported it: repositories and numbers."""
    rule: str
    """Who says what is right."""
    cases: Mapping[str, tuple[Ask, Behaviour]]
    recorded: Mapping[str, Any]


def searched(count: int, source: str = "reported") -> dict[str, Any]:
    return {"prompt_tokens": 100, "completion_tokens": 50, "units": {"web_searches": count} if count else {},
            "usage_source": source, "cost_usd": usd(100, 0, 50, web_searches_per_1000=count)}  # fmt: skip


def search(action: str | None = "search", status: str = "completed") -> dict[str, Any]:
    """An item of a response."""
    details = {"search": {"query": "news"}, "open_page": {"url": "https://a.example/"},
               "find_in_page": {"url": "https://a.example/", "pattern": "x"}}  # fmt: skip
    named_action = {} if action is None else {"action": {"type": action, **details[action]}}
    return {"type": "web_search_call", "id": "ws_1", "status": status, **named_action}


def of_responses(*output: Mapping[str, Any], usage: Any = TOKENS, **more: Any) -> dict[str, tuple[Ask, Behaviour]]:
    whole = response(usage, output, **more)
    return {
        "plain": (asks_responses(tools=DECLARED), ok_json(whole)),
        "stream": (asks_responses(tools=DECLARED, stream=True), response_events(whole)),
    }


def of_items(*output: Mapping[str, Any], **more: Any) -> dict[str, tuple[Ask, Behaviour]]:
    """A stream that names the items of its output where they end, and not with its end; a plain call gets one too."""
    whole = response(TOKENS, output)
    ended = [{"type": "response.output_item.done", "output_index": number, "item": item}
             for number, item in enumerate(whole["output"])]  # fmt: skip
    stream = response_events({**whole, "output": [], **more}, *ended)
    return {
        "plain": (asks_responses(tools=DECLARED), stream),
        "stream": (asks_responses(tools=DECLARED, stream=True), stream),
    }


def of_gemini(*grounding: Mapping[str, Any], usage: Any = METADATA) -> dict[str, tuple[Ask, Behaviour]]:
    """Each grounding in a candidate's chunk of its own; a plain answer has the last."""
    chunks = [gemini(usage, candidate(groundingMetadata=each)) for each in grounding]
    begun = gemini(None, candidate(finish=None))
    return {
        "plain": (asks_gemini(tools=GOOGLE), ok_json(chunks[-1])),
        "stream": (asks_gemini(is_stream=True, tools=GOOGLE), gemini_events(begun, *chunks)),
    }


def of_messages(used: Any, reason: str = "end_turn") -> dict[str, tuple[Ask, Behaviour]]:
    usage = {**TOKENS, "server_tool_use": used}
    said = {**message(usage), "stop_reason": reason}
    first = message_start({**TOKENS, "output_tokens": 1, "server_tool_use": {"web_search_requests": 0}})
    return {
        "plain": (asks_messages(), ok_json(said)),
        "stream": (asks_messages(stream=True), named(first, *BLOCK, message_delta(usage, reason), STOP)),
    }


COMMUNITY = (
    "OpenAI's guide on web search, quoted at community.openai.com/t/1365861: search actions incur a tool call cost"
)

ROWS = [
    Row(
        "a search that failed", "maximhq/bifrost#5099", "a call that was not completed is no search",
        of_responses(search(), search(status="failed")), searched(1, "estimated"),
    ),
    Row(
        "pages that were opened", "BerriAI/litellm#35949", COMMUNITY,
        of_responses(search(), search("open_page"), search("find_in_page"), search()), searched(2, "estimated"),
    ),
    Row(
        "items without an action", "BerriAI/litellm#31366, labring/aiproxy#542",
        "older models name no action: each item is a search", of_responses(search(None), search(None)),
        searched(2, "estimated"),
    ),
    Row(
        "items of a stream whose end has none",
        "BerriAI/litellm#32724, vllm-project/vllm#30223, QuantumNous/new-api#4362", COMMUNITY,
        of_items(search(), search("open_page"), search()), searched(2, "estimated"),
    ),
    Row(
        "items of a stream whose end does not have the member", "decolua/9router#705",
        COMMUNITY, of_items(search(), output=None), searched(1, "estimated"),
    ),
    Row(
        "a report beside the items", "BerriAI/litellm#39610",
        "Bedrock's and OpenAI's `tool_usage`: one search, though a page was opened too",
        of_responses(search(), search("open_page"), tool_usage={"web_search": {"num_requests": 1}}), searched(1),
    ),
    Row(
        "a tool that was offered and not used", "BerriAI/litellm#10384",
        "OpenAI's pricing: the fee is for calls", of_responses(), searched(0),
    ),
    Row(
        "searches of an answer without usage", "pydantic/pydantic-ai#8310",
        "the fee is for calls, whether tokens are reported or not", of_responses(search(), search(), usage=None),
        {"units": {"cache_write": 12, "web_searches": 2}, "usage_source": "estimated"},
    ),
    Row(
        "searches of xAI", "BerriAI/litellm#30817, BerriAI/litellm#39441",
        "docs.x.ai, pricing: each call of a server-side tool, by `server_side_tool_usage_details`",
        of_responses(usage={**TOKENS, "server_side_tool_usage_details": {
            "web_search_calls": 3, "x_search_calls": 0, "code_interpreter_calls": 0}}), searched(3),
    ),
    Row(
        "searches by Anthropic's name in a chat", "BerriAI/litellm#15227, BerriAI/litellm#16996",
        "LiteLLM's usage object: `server_tool_use.web_search_requests`",
        ways("chat", {**USAGE, "server_tool_use": {"web_search_requests": 2}}), searched(2),
    ),
    Row(
        "searches by OpenRouter's newer name", "openrouter.ai/docs, Server Tools",
        "`server_tool_use_details` beside the tokens of streams",
        ways("chat", {**USAGE, "server_tool_use_details": {"tool_calls_executed": 2, "web_search_requests": 2}}),
        searched(2),
    ),
    Row(
        "searches of Mistral", "docs.mistral.ai", "agents: connectors",
        ways("chat", {**USAGE, "connectors": {"web_search": 2}}), searched(2),
    ),
    Row(
        "searches in the details of a chat's prompt", "BerriAI/litellm#17919",
        "LiteLLM's usage object: `prompt_tokens_details.web_search_requests`",
        ways("chat", {**USAGE, "prompt_tokens_details": {"cached_tokens": 0, "web_search_requests": 2}}), searched(2),
    ),
    Row(
        "searches of Claude", "AnswerDotAI/fastllm#103, BerriAI/litellm#16996",
        "anthropic-sdk, ServerToolUsage", of_messages({"web_search_requests": 2}), searched(2),
    ),
    Row(
        "searches of a turn that Claude pauses", "BasedHardware/omi#10637, WordPress/ai-provider-for-anthropic#29",
        "Anthropic, stop reasons: `pause_turn` ends the answer, and its searches are billed",
        of_messages({"web_search_requests": 1}, "pause_turn"),
        {**searched(1), "ended": "done", "truncated": False},
    ),
    Row(
        "pages that Claude fetched", "strands-agents/harness-sdk#3568",
        "Anthropic, web fetch: no charge beside the tokens",
        of_messages({"web_search_requests": 0, "web_fetch_requests": 3}), searched(0),
    ),
    Row(
        "two queries of Gemini", "growthxai/output#317, langchain-ai/langsmith-sdk#2296, BerriAI/litellm#31363",
        "ai.google.dev, grounding: each query is billed", of_gemini({"webSearchQueries": ["a", "b"]}), searched(2),
    ),
    Row(
        "the same queries in two chunks", "BerriAI/litellm#17919",
        "google-genai, GroundingMetadata: of the candidate, which each chunk may repeat",
        of_gemini({"webSearchQueries": ["a", "b"]}, {"webSearchQueries": ["a", "b"]}), searched(2),
    ),
    Row(
        "queries of two chunks, repeated and empty ones among them", "BerriAI/litellm#17921, BerriAI/litellm#36397",
        "ai.google.dev, grounding: each unique query that is not empty is billed",
        {"stream": of_gemini({"webSearchQueries": ["a", "", "a"]}, {"webSearchQueries": ["a", "b"]})["stream"]},
        searched(2),
    ),
    Row(
        "pages by address, without a search", "BerriAI/litellm#36377",
        "ai.google.dev, URL context: no fee beside the tokens (its sources are chunks of `web` all the same)",
        of_gemini({"groundingChunks": [{"web": {"uri": "https://a.example/", "title": "a"}}]}), searched(0),
    ),
]  # fmt: skip
CASES = [pytest.param(row, *case, id=f"{row.name}-{way}") for row in ROWS for way, case in row.cases.items()]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.mark.parametrize(("row", "ask", "said"), CASES)
def test_what_is_billed_is_counted(
    gateway: Gateway, upstream: ScriptedUpstream, row: Row, ask: Ask, said: Behaviour
) -> None:
    answer, record = play(gateway, upstream, ask, said)
    assert answer.status == 200
    check(record, row.recorded)
