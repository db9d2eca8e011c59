"""The usage that a client gets is the usage that is recorded, in however many reports an upstream gives it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, ok_json, stream
from tests.flows.gateway_process import Gateway

from .reports import (
    BLOCK,
    STOP,
    STREAMED,
    Ask,
    asks_chat,
    asks_messages,
    asks_responses,
    chat_answer,
    chat_chunk,
    check,
    configuration,
    message,
    message_delta,
    message_start,
    named,
    play,
)


class Counts(NamedTuple):
    """Counts in the terms of a record."""

    prompt: int
    output: int
    cached: int = 0
    written: int = 0


class Row(NamedTuple):
    """An upstream's reports, the clients that ask, and the counts that they get and that are recorded."""

    name: str
    source: str
    """Where people reported it: repositories and numbers."""
    rule: str
    """Who says what is right."""
    asks: Mapping[str, Ask]
    said: Behaviour
    shown: Counts


OF_MESSAGES = {
    "messages": asks_messages(stream=True),
    "chat over messages": asks_chat("chat-over-messages", **STREAMED),
}
WHOLE_OF_MESSAGES = {"messages": asks_messages(), "chat over messages": asks_chat("chat-over-messages")}
OF_CHAT = {
    "chat": asks_chat(**STREAMED),
    "messages over chat": asks_messages("messages-over-chat", stream=True),
    "responses over chat": asks_responses("responses-over-chat", stream=True),
}
WHOLE_OF_CHAT = {
    "chat": asks_chat(),
    "messages over chat": asks_messages("messages-over-chat"),
    "responses over chat": asks_responses("responses-over-chat"),
}
CUMULATIVE = "anthropic-sdk, `accumulate_event`: counts are cumulative, and each that is given replaces its own"


def messages_of(first: Any, *later: Any) -> Behaviour:
    """A stream with these reports; the last comes with the stop reason."""
    deltas = [message_delta(usage, None) for usage in later[:-1]]
    return named(message_start(first), *BLOCK, *deltas, message_delta(later[-1]), STOP)


def chat_of(*reports: Any, choices: Iterable[Any] = ()) -> Behaviour:
    """A stream with these reports in chunks of their own, behind the text."""
    chunks = [chat_chunk(choices=list(choices), usage=usage) for usage in reports]
    return stream([chat_chunk("Hi"), chat_chunk(finish="stop"), *chunks])


def usage_of(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **more}


ROWS = [
    Row(
        "a delta with zeros of input", "envoyproxy/ai-gateway#1631",
        "a set of zeros replaces none: some upstreams count only output in `message_delta`", OF_MESSAGES,
        messages_of({"input_tokens": 15, "output_tokens": 1}, {"input_tokens": 0, "output_tokens": 40}), Counts(15, 40),
    ),
    Row(
        "the input in both reports", "envoyproxy/ai-gateway#2239", CUMULATIVE, OF_MESSAGES,
        messages_of({"input_tokens": 15, "output_tokens": 1}, {"input_tokens": 15, "output_tokens": 40}),
        Counts(15, 40),
    ),
    Row(
        "all counts in the delta", "cline/cline#4346", CUMULATIVE, OF_MESSAGES,
        messages_of({"input_tokens": 0, "output_tokens": 0},
                    {"input_tokens": 10, "cache_creation_input_tokens": 400, "cache_read_input_tokens": 9000,
                     "output_tokens": 40}), Counts(9410, 40, 9000, 400),
    ),
    Row(
        "counts that are null in the delta", "huggingface/tau#617", CUMULATIVE, OF_MESSAGES,
        messages_of({"input_tokens": 10, "cache_creation_input_tokens": 400, "cache_read_input_tokens": 9000,
                     "output_tokens": 1},
                    {"input_tokens": None, "cache_creation_input_tokens": None, "cache_read_input_tokens": None,
                     "output_tokens": 40}), Counts(9410, 40, 9000, 400),
    ),
    Row(
        "three deltas, each with more output", "huggingface/tau#617", CUMULATIVE, OF_MESSAGES,
        messages_of({"input_tokens": 10, "output_tokens": 1}, {"output_tokens": 20}, {"output_tokens": 40},
                    {"output_tokens": 60}), Counts(10, 60),
    ),
    Row(
        "the cache in the delta alone, input in both", "cline/cline#4346", CUMULATIVE, OF_MESSAGES,
        messages_of({"input_tokens": 10, "output_tokens": 1},
                    {"input_tokens": 10, "cache_read_input_tokens": 500, "output_tokens": 40}), Counts(510, 40, 500),
    ),
    Row(
        "Bedrock's own counts beside the stop", "BerriAI/litellm#36878",
        "AWS, `amazon-bedrock-invocationMetrics`: the counts of the reports once more", OF_MESSAGES,
        named(message_start({"input_tokens": 10, "cache_read_input_tokens": 500, "output_tokens": 1}), *BLOCK,
              message_delta({"output_tokens": 40}),
              {**STOP, "amazon-bedrock-invocationMetrics": {
                  "inputTokenCount": 10, "outputTokenCount": 40, "cacheReadInputTokenCount": 500}}),
        Counts(510, 40, 500),
    ),
    Row(
        "the cache beside the stop alone", "BerriAI/litellm#36878, Alishahryar1/free-claude-code#904",
        "Bedrock's `message_stop` has a `usage`: a count that is there is used", OF_MESSAGES,
        named(message_start({"input_tokens": 10, "output_tokens": 1}), *BLOCK, message_delta({"output_tokens": 40}),
              {**STOP, "usage": {"input_tokens": 10, "cache_read_input_tokens": 500, "output_tokens": 40}}),
        Counts(510, 40, 500),
    ),
    Row(
        "cache writes through the chat", "mozilla-ai/otari#987",
        "Anthropic, Messages, usage: writes are part of the prompt and have a price of their own", WHOLE_OF_MESSAGES,
        ok_json(message({"input_tokens": 10, "cache_creation_input_tokens": 400, "cache_read_input_tokens": 9000,
                         "output_tokens": 40})), Counts(9410, 40, 9000, 400),
    ),
    Row(
        "a report in each chunk", "vllm-project/vllm#9357, cline/cline#9842, sgl-project/sglang#12241",
        "vLLM, `continuous_usage_stats`: cumulative, the last counts", OF_CHAT,
        chat_of(usage_of(30, 1), usage_of(30, 2), usage_of(30, 252)), Counts(30, 252),
    ),
    Row(
        "a report of the prompt alone before", "vercel/ai#2763",
        "LiteLLM leaves out `completion_tokens` where it is 0", OF_CHAT,
        chat_of({"prompt_tokens": 30, "total_tokens": 30}, usage_of(30, 252)), Counts(30, 252),
    ),
    Row(
        "a preview of the report", "vllm-project/semantic-router#2215", "the last report counts", OF_CHAT,
        chat_of(usage_of(30, 4), usage_of(30, 252)), Counts(30, 252),
    ),
    Row(
        "a lower report behind a good one", "BerriAI/litellm#17136",
        "docs/guarantees.md: a lower report behind the highest changes nothing", OF_CHAT,
        chat_of(usage_of(30, 252), usage_of(0, 0)), Counts(30, 252),
    ),
    Row(
        "cached tokens of a chat", "BerriAI/litellm#35127, vllm-project/vllm#45083",
        "Anthropic, Messages, usage: `input_tokens` is without the cache", WHOLE_OF_CHAT,
        chat_answer(usage_of(3000, 40, prompt_tokens_details={"cached_tokens": 2500})), Counts(3000, 40, 2500),
    ),
    Row(
        "the same, streamed", "BerriAI/litellm#35127, vllm-project/vllm#45083",
        "Anthropic, Messages, usage: `input_tokens` is without the cache", OF_CHAT,
        chat_of(usage_of(3000, 40, prompt_tokens_details={"cached_tokens": 2500})), Counts(3000, 40, 2500),
    ),
    Row(
        "cached and written tokens of a chat", "BerriAI/litellm#35127",
        "OpenAI's guide on prompt caching: both are part of the prompt", WHOLE_OF_CHAT,
        chat_answer(usage_of(3000, 40, prompt_tokens_details={"cached_tokens": 2500, "cache_write_tokens": 300})),
        Counts(3000, 40, 2500, 300),
    ),
    Row(
        "DeepSeek's cache hits", "mozilla-ai/any-llm#816, router-for-me/CLIProxyAPI#5817",
        "api-docs.deepseek.com, create chat completion", WHOLE_OF_CHAT,
        chat_answer(usage_of(100, 10, prompt_cache_hit_tokens=80, prompt_cache_miss_tokens=20)), Counts(100, 10, 80),
    ),
    Row(
        "the same, streamed", "NousResearch/hermes-agent#65678",
        "api-docs.deepseek.com, create chat completion", OF_CHAT,
        chat_of(usage_of(100, 10, prompt_cache_hit_tokens=80, prompt_cache_miss_tokens=20)), Counts(100, 10, 80),
    ),
    Row(
        "names of Responses in a chat", "earendil-works/pi#2326", "mlx-vlm's own chunk in the thread", OF_CHAT,
        chat_of({"input_tokens": 11, "output_tokens": 5, "total_tokens": 16}), Counts(11, 5),
    ),
    Row(
        "usage inside the choice", "earendil-works/pi#2017, northes/go-moonshot#17", "Moonshot's own chunk", OF_CHAT,
        stream([chat_chunk("Hi"), chat_chunk(choices=[
            {"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage_of(19, 13)}])]), Counts(19, 13),
    ),
    Row(
        "Claude's cache by its own names in a chat", "BerriAI/litellm#11364, mozilla-ai/otari#987",
        "LiteLLM's usage object: `prompt_tokens` includes both", WHOLE_OF_CHAT,
        chat_answer(usage_of(20_805, 512, cache_read_input_tokens=14_360, cache_creation_input_tokens=6435)),
        Counts(20_805, 512, 14_360, 6435),
    ),
]  # fmt: skip
CASES = [pytest.param(row, ask, id=f"{row.name}: {row.source}-{way}") for row in ROWS for way, ask in row.asks.items()]


def shown_usage(ask: Ask, body: bytes) -> Counts | None:
    """The usage that an SDK shows of an answer, plain or streamed."""
    data = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")] or [json.loads(body)]
    if "/chat/" in ask.path:
        found = [each["usage"] for each in data if each.get("usage")]
        return _of_chat(found[-1]) if found else None
    if "/responses" in ask.path:
        return _of_responses((data[-1].get("response") or data[-1])["usage"])
    known: dict[str, int] = {}
    for each in data:
        given = (each.get("message") or each).get("usage") or {}
        known |= {name: value for name, value in given.items() if value is not None}
    return _of_messages(known)


def _of_chat(usage: Mapping[str, Any]) -> Counts:
    details = usage.get("prompt_tokens_details") or {}
    counts = details.get("cached_tokens") or 0, details.get("cache_write_tokens") or 0
    return Counts(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), *counts)


def _of_responses(usage: Mapping[str, Any]) -> Counts:
    details = usage["input_tokens_details"]
    return Counts(
        usage["input_tokens"], usage["output_tokens"], details["cached_tokens"], details.get("cache_write_tokens") or 0
    )


def _of_messages(usage: Mapping[str, Any]) -> Counts:
    read, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    return Counts(usage["input_tokens"] + read + written, usage["output_tokens"], read, written)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.mark.parametrize(("row", "ask"), CASES)
def test_the_usage_shown_is_the_usage_recorded(
    gateway: Gateway, upstream: ScriptedUpstream, row: Row, ask: Ask
) -> None:
    answer, record = play(gateway, upstream, ask, row.said)
    assert answer.status == 200
    units = {"cache_write": row.shown.written} if row.shown.written else {}
    check(record, {
        "prompt_tokens": row.shown.prompt, "completion_tokens": row.shown.output, "cached_tokens": row.shown.cached,
        "units": units, "usage_source": "reported", "ended": "done",
    })  # fmt: skip
    if "-over-" in str(record["model"]):  # a translation: the gateway's own words
        assert shown_usage(ask, answer.body) == row.shown
