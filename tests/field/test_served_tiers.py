"""The tier that served a call is the one that is charged, wherever a vendor names it, and whatever was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, ok_json, stream
from tests.flows.gateway_process import Gateway

from .reports import (
    STREAMED,
    Ask,
    asks_chat,
    asks_gemini,
    asks_messages,
    asks_responses,
    candidate,
    chat_answer,
    chat_chunk,
    configuration,
    gemini,
    gemini_events,
    message,
    message_events,
    play,
    response,
    response_events,
)

TOKENS = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
METADATA = {"promptTokenCount": 1000, "candidatesTokenCount": 100, "totalTokenCount": 1100}
COSTS = {None: 2000, "flex": 1000, "priority": 4000, "batch": 1000, "fast": 9000}
"""Of these tokens, in millionths of a dollar."""


class Row(NamedTuple):
    """What was asked for, where the answer names a tier, and the variant of the price that counts."""

    source: str
    """Where people reported it: repositories and numbers."""
    rule: str
    """Who says what is right."""
    cases: Mapping[str, tuple[Ask, Behaviour]]
    variant: str | None


def of_responses(asked: str | None, served: str | None) -> dict[str, tuple[Ask, Behaviour]]:
    tier = {} if asked is None else {"service_tier": asked}
    whole = response(TOKENS, service_tier=served)
    return {
        "plain": (asks_responses(**tier), ok_json(whole)),
        "stream": (asks_responses(stream=True, **tier), response_events(whole)),
    }


def of_chat(asked: str | None, *served: str | None) -> dict[str, tuple[Ask, Behaviour]]:
    """The tier of each chunk; a plain answer has the last."""
    tier = {} if asked is None else {"service_tier": asked}
    chunks = [chat_chunk("Hi", service_tier=each) for each in served[:-1]]
    last = chat_chunk(finish="stop", usage=USAGE, service_tier=served[-1])
    return {
        "plain": (asks_chat(**tier), chat_answer(USAGE, service_tier=served[-1])),
        "stream": (asks_chat(**STREAMED, **tier), stream([*chunks, last])),
    }


def of_messages(**service: Any) -> dict[str, tuple[Ask, Behaviour]]:
    usage = {**TOKENS, **service}
    return {
        "plain": (asks_messages(), ok_json(message(usage))),
        "stream": (asks_messages(stream=True), message_events({**usage, "output_tokens": 1}, TOKENS)),
        "translated": (asks_chat("chat-over-messages"), ok_json(message(usage))),
        "translated stream": (
            asks_chat("chat-over-messages", **STREAMED), message_events({**usage, "output_tokens": 1}, TOKENS),
        ),
    }  # fmt: skip


def of_gemini(asked: str | None = None, **service: Any) -> dict[str, tuple[Ask, Behaviour]]:
    tier: dict[str, Any] = {} if asked is None else {"serviceTier": asked}
    usage = {**METADATA, **service}
    events = gemini_events(gemini(None, candidate(finish=None)), gemini(usage, candidate(None)))
    return {
        "plain": (asks_gemini(**tier), ok_json(gemini(usage))),
        "stream": (asks_gemini(is_stream=True, **tier), events),
    }


def with_header(served: str) -> dict[str, tuple[Ask, Behaviour]]:
    """The tier is in a header alone, which only a plain answer has."""
    said = ok_json(gemini(METADATA), headers=[("x-gemini-service-tier", served)])
    return {"plain": (asks_gemini(serviceTier=served), said)}


OPENAI = "openai-openapi, `service_tier` of an answer: the mode that was used, which may differ from the one asked for"
GOOGLE = "ai.google.dev, priority inference: the served tier is named in the usage and in a header"
ROWS = [
    Row("BerriAI/litellm#31837, BerriAI/litellm#31961: priority asked, default served, a response", OPENAI,
        of_responses("priority", "default"), None),
    Row("promptfoo/promptfoo#10149: auto asked, priority served", OPENAI, of_responses("auto", "priority"), "priority"),
    Row("promptfoo/promptfoo#10149: nothing asked, priority served", OPENAI,
        of_responses(None, "priority"), "priority"),
    Row("BerriAI/litellm#13810, PostHog/posthog-js#2323: flex asked and served, a response", OPENAI,
        of_responses("flex", "flex"), "flex"),
    Row("ndycode/codex-multi-auth#686: flex in the response of the last event", OPENAI,
        of_responses(None, "flex"), "flex"),
    Row("Willxup/cpa-usage-keeper#394: priority asked, default served, a chat", OPENAI,
        of_chat("priority", "default", "default"), None),
    Row("PostHog/posthog#94200: the tier is in the last chunk alone", OPENAI, of_chat("flex", None, "flex"), "flex"),
    Row("PostHog/posthog#94200: a downgrade within a stream", OPENAI, of_chat("priority", "priority", "default"), None),
    Row("vercel/ai#18792, lidge-jun/opencodex#2072: priority of xAI, confirmed",
        "docs.x.ai, priority processing: the premium is billed when the answer names it",
        of_chat("priority", "priority", "priority"), "priority"),
    Row("vercel/ai#18792, can1357/oh-my-pi#8429: priority of xAI, not confirmed",
        "docs.x.ai, priority processing: the premium is billed when the answer names it",
        of_chat("priority", "default", "default"), None),
    Row("PrimeIntellect-ai/prime-agent#2144: flex through OpenRouter", OPENAI, of_chat("flex", "flex", "flex"), "flex"),
    Row("langchain-ai/langchain#38339, sashirestela/simple-openai#345: Groq's on_demand",
        "console.groq.com, service tiers: the standard price", of_chat("on_demand", "on_demand", "on_demand"), None),
    Row("langchain-ai/langchain#38339: Groq's performance",
        "console.groq.com, service tiers: no list price of its own", of_chat(None, "performance", "performance"), None),
    Row("experientiallabs/experiential#812: OpenAI's scale",
        "OpenAI's scale tier is paid beforehand: no price of its own", of_responses("scale", "scale"), None),
    Row("BerriAI/litellm#30558: priority of Claude", "anthropic-sdk, Usage: `service_tier`",
        of_messages(service_tier="priority"), "priority"),
    Row("earendil-works/pi#1381: standard of Claude, though auto was asked", "anthropic-sdk, Usage: `service_tier`",
        of_messages(service_tier="standard"), None),
    Row("pydantic/genai-prices#429: fast mode of Claude", "Anthropic's pricing, fast mode: `usage.speed`",
        of_messages(service_tier="standard", speed="fast"), "fast"),
    Row("pydantic/genai-prices#429: a batch of Claude", "anthropic-sdk, Usage: `service_tier`",
        of_messages(service_tier="batch"), "batch"),
    Row("BerriAI/litellm#21909, BerriAI/litellm#22948: priority of Vertex", "google-genai, TrafficType",
        of_gemini(trafficType="ON_DEMAND_PRIORITY"), "priority"),
    Row("BerriAI/litellm#37724: flex of Vertex", "google-genai, TrafficType",
        of_gemini(trafficType="ON_DEMAND_FLEX"), "flex"),
    Row("BerriAI/litellm#21909: the standard traffic of Vertex", "google-genai, TrafficType",
        of_gemini(trafficType="ON_DEMAND"), None),
    Row("gbaptista/gemini-ai#36: provisioned throughput", "google-genai, TrafficType: paid beforehand",
        of_gemini(trafficType="PROVISIONED_THROUGHPUT"), None),
    Row("affaan-m/ECC#3173, vercel/ai#15488: priority of Gemini, downgraded", GOOGLE,
        of_gemini("priority", serviceTier="standard"), None),
    Row("vercel/ai#15488: priority of Gemini", GOOGLE, of_gemini("priority", serviceTier="priority"), "priority"),
    Row("vercel/ai#14937: the tier of Gemini in the header alone", GOOGLE, with_header("flex"), "flex"),
]  # fmt: skip
CASES = [pytest.param(row, *case, id=f"{row.source}-{way}") for row in ROWS for way, case in row.cases.items()]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.mark.parametrize(("row", "ask", "said"), CASES)
def test_the_tier_that_served_is_charged(
    gateway: Gateway, upstream: ScriptedUpstream, row: Row, ask: Ask, said: Behaviour
) -> None:
    answer, record = play(gateway, upstream, ask, said)
    assert answer.status == 200
    seen = record["price_variant"], record["usage_source"], record["cost_usd"]
    assert seen == (row.variant, "reported", pytest.approx(COSTS[row.variant] / 1e6)), record
