"""Paid tools that answers of OpenAI's formats name: each is counted, plain and streamed, and nothing that is free."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.format import ScanInput
from gateway.formats.openai import completions
from gateway.formats.openai.reader import StreamScan, reported
from gateway.formats.openai.responses_reader import usage_of
from gateway.units import counts

USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
TOKENS = {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150}
CITED = [{"type": "url_citation", "url_citation": {"url": "https://a.example/", "title": "a"}}]
RAN = [{"index": 0, "type": "search"}, {"index": 1, "type": "python"}]

# What an answer has beside its text: members of the message, members of the answer, and the units that are paid.
NAMED = [
    pytest.param({"annotations": CITED}, {}, {"web_searches": 1}, id="citations"),
    pytest.param({"annotations": CITED * 3}, {}, {"web_searches": 1}, id="three citations of a search"),
    pytest.param({"annotations": []}, {}, {}, id="no citations"),
    pytest.param({"annotations": [{"type": "file_citation"}]}, {}, {}, id="a citation of a file"),
    pytest.param({"executed_tools": RAN}, {}, {"tool_calls": 2}, id="tools of Groq"),
    pytest.param({}, {"web_search": [{"link": "https://a.example/"}]}, {"web_searches": 1}, id="results of Z.AI"),
    pytest.param({}, {"web_search": []}, {}, id="no results of Z.AI"),
    pytest.param({}, {"model": "gpt-4o-search-preview-2025-03-11"}, {"web_searches": 1}, id="a model that searches"),
    pytest.param({}, {"model": "gpt-5-search-api"}, {"web_searches": 1}, id="another one"),
    pytest.param({}, {"model": "qwen-search-r1"}, {}, id="a model that is called so"),
    # Kimi bills each call; a function of the client's is free.
    pytest.param(
        {
            "tool_calls": [
                {"index": at, "function": {"name": name}} for at, name in enumerate(["$web_search", "f", "$web_search"])
            ]
        },
        {},
        {"web_searches": 2},
        id="searches of Kimi",
    ),
    pytest.param({"content": 'an "executed_tools": [1] and a "url_citation"'}, {}, {}, id="a text about it"),
]


@pytest.mark.parametrize(("said", "beside", "paid"), NAMED)
def test_what_a_chat_names_is_counted(said: dict[str, Any], beside: dict[str, Any], paid: dict[str, int]) -> None:
    message = {"role": "assistant", "content": "Hi", **said}
    whole = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **beside}
    usage = completions.facts(json.dumps({**whole, "usage": USAGE}).encode()).usage
    assert usage is not None
    assert usage.more == counts(paid)
    chunks: list[dict[str, Any]] = [
        {"model": "m", **beside, "choices": [{"index": 0, "delta": {"content": "H"}}]},
        {"choices": [{"index": 0, "delta": message}]},
        {"choices": [{"index": 0, "delta": said, "finish_reason": "stop"}]},  # some repeat them
        {"model": "m", **beside, "choices": [], "usage": USAGE},
    ]
    scan = StreamScan(ScanInput(shows_usage=True))
    for chunk in chunks:
        scan.feed(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    assert scan.usage is not None
    assert scan.usage.more == counts(paid)


def search(action: str | None = "search", status: str = "completed") -> dict[str, Any]:
    named = {} if action is None else {"action": {"type": action}}
    return {"type": "web_search_call", "id": "ws", "status": status, **named}


@pytest.mark.parametrize(
    ("response", "paid", "source"),
    [
        # OpenAI's guide on web search: search actions are billed.
        ({"output": [search(), search("open_page"), search("find_in_page"), search()]}, {"web_searches": 2}, "est"),
        ({"output": [search(None), search(status="failed")]}, {"web_searches": 1}, "est"),
        ({"output": [search("open_page")]}, {}, "rep"),
        ({"output": [search(), search()], "usage": None}, {"web_searches": 2}, "est"),
        ({"output": [search()], "tool_usage": {"web_search": {"num_requests": 3}}}, {"web_searches": 3}, "rep"),
        # docs.x.ai, pricing: by the calls that the usage counts, whatever items there are
        (
            {"output": [search()], "usage": {**TOKENS, "server_side_tool_usage_details": {
                "web_search_calls": 3, "x_search_calls": 2, "code_interpreter_calls": 1, "mcp_calls": 9}}},
            {"web_searches": 3, "tool_calls": 3}, "rep",
        ),
        (
            {"output": [search(), {"type": "x_search_call"}], "usage": {**TOKENS, "num_sources_used": 0}},
            {"web_searches": 1, "tool_calls": 1}, "est",
        ),
        # docs.qwencloud.com, web search
        (
            {"output": [], "usage": {**TOKENS, "x_tools": {"web_search": {"count": 3}, "web_extractor": {"count": 2}}}},
            {"web_searches": 3, "tool_calls": 2}, "rep",
        ),
        ({"usage": {**TOKENS, "plugins": {"search": {"count": 1, "strategy": "agent"}}}}, {"web_searches": 1}, "rep"),
        ({"output": [{"type": "openrouter:web_search", "status": "completed"}]}, {"web_searches": 1}, "est"),
        ({"usage": {**TOKENS, "num_sources_used": 4}}, {"search_sources": 4}, "rep"),
        ({"output": [search()], "usage": {**TOKENS, "num_sources_used": 0}}, {"web_searches": 1}, "est"),
        (
            {"output": [{"type": "image_generation_call"}] * 3, "usage": {**TOKENS, "server_side_tool_usage_details": {
                "image_generation_calls": 3}}}, {"images": 3}, "rep",
        ),
        # volcengine.com/docs/82379/1262333
        ({"output": [search()], "usage": {**TOKENS, "tool_usage": {"web_search": 4}}}, {"web_searches": 4}, "est"),
        # genai-prices, perplexity
        (
            {"usage": {**TOKENS, "tool_calls_details": {"search_web": {"invocation": 3}}}}, {"web_searches": 3}, "rep",
        ),
    ],
)  # fmt: skip
def test_what_a_response_names_is_counted(response: dict[str, Any], paid: dict[str, int], source: str) -> None:
    usage = usage_of({"usage": TOKENS, **response})
    assert usage is not None
    assert usage.more == counts(paid)
    assert usage.source.startswith(source)


def test_what_dashscope_writes_to_its_cache() -> None:
    """Model Studio, context cache: both times of life have prices of their own."""
    written = {"cache_creation_input_tokens": 30, "cache_creation": {"ephemeral_1h_input_tokens": 10}}
    details = {"cached_tokens": 0, "video_tokens": 7, **written}
    usage = reported({"prompt_tokens": 50, "completion_tokens": 2, "prompt_tokens_details": details})
    assert usage is not None
    assert (usage.prompt_tokens, usage.more) == (50, counts({"cache_write": 20, "cache_write_1h": 10, "video_in": 7}))


def test_a_response_with_counts_under_other_names() -> None:
    """Moonshot's `cached_tokens`; genai-prices, perplexity: `cache_read_input_tokens`."""
    for own in ({"cached_tokens": 40}, {"input_tokens_details": {"cache_read_input_tokens": 40}, "cost": 1}):
        usage = usage_of({"usage": {**TOKENS, **own}})
        assert usage is not None
        assert usage[:4] == (100, 50, 40, 0)
