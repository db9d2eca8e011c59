"""Reports of Gemini: the tier that served, the parts of the prompt, and what is paid beside tokens."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.formats.gemini.reader import GeminiReader, embedded, reported
from gateway.records import Usage

COUNTS = {"promptTokenCount": 1000, "candidatesTokenCount": 10}


@pytest.mark.parametrize(
    ("members", "variant"),
    [
        ({}, ""),
        # ai.google.dev, "Priority inference"; google-genai, `ServiceTier`; discuss.ai.google.dev/t/174074
        ({"serviceTier": "flex"}, "flex"),
        ({"serviceTier": "SERVICE_TIER_PRIORITY"}, "priority"),
        ({"serviceTier": "standard"}, "standard"),
        # google-genai, `TrafficType`
        ({"trafficType": "ON_DEMAND_FLEX"}, "flex"),
        ({"trafficType": "ON_DEMAND_PRIORITY"}, "priority"),
        ({"trafficType": "ON_DEMAND"}, "on_demand"),
        ({"trafficType": "PROVISIONED_THROUGHPUT"}, "provisioned_throughput"),
        ({"serviceTier": "standard", "trafficType": "ON_DEMAND_PRIORITY"}, "standard"),
        ({"serviceTier": None, "trafficType": 7}, ""),
    ],
)
def test_the_tier_that_served(members: dict[str, Any], variant: str) -> None:
    assert reported({**COUNTS, **members}) == Usage(1000, 10, source="reported", variant=variant)


def modes(**tokens: int) -> list[dict[str, Any]]:
    return [{"modality": name, "tokenCount": count} for name, count in tokens.items()]


@pytest.mark.parametrize(
    ("members", "more"),
    [
        # google-genai, `cache_tokens_details`: which of the cached tokens are of which kind
        (
            {"promptTokensDetails": modes(TEXT=100, AUDIO=400, IMAGE=300, VIDEO=200), "cachedContentTokenCount": 600,
             "cacheTokensDetails": modes(AUDIO=350, IMAGE=100, VIDEO=150)},
            {"audio_in": 50, "image_in": 200, "video_in": 50, "cached_audio": 350, "cached_image": 100},
        ),
        ({"promptTokensDetails": modes(TEXT=700, DOCUMENT=300)}, {"image_in": 300}),  # genai-prices, google
        ({"candidatesTokensDetails": modes(AUDIO=4, IMAGE=3, VIDEO=2)}, {"audio_out": 4, "image_out": 3,
                                                                         "video_out": 2}),
        ({"cacheTokensDetails": modes(AUDIO=5)}, {"cached_audio": 5}),
        ({"promptTokensDetails": [None, {"modality": 3}, {"modality": "AUDIO"}]}, {}),
    ],
)  # fmt: skip
def test_no_token_is_of_two_kinds(members: dict[str, Any], more: dict[str, int]) -> None:
    usage = reported({**COUNTS, **members})
    assert usage is not None
    assert dict(usage.more) == more


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"promptTokenCount": 10, "totalTokenCount": 110}, (10, 100, 0, 0)),  # agentscope-ai/agentscope-java#3033
        ({"promptTokenCount": 10, "candidatesTokenCount": 20, "totalTokenCount": 110}, (10, 100, 0, 80)),
        ({"promptTokenCount": 10, "totalTokenCount": 10}, (10, 0, 0, 0)),
        (
            {"promptTokenCount": 10, "candidatesTokenCount": 20, "toolUsePromptTokenCount": 5, "thoughtsTokenCount": 30,
             "totalTokenCount": 65},
            (15, 50, 0, 30),
        ),
        (
            {"promptTokenCount": 10, "candidatesTokenCount": 20, "thoughtsTokenCount": 0, "totalTokenCount": 65},
            (10, 20, 0, 0),
        ),
    ],
)  # fmt: skip
def test_the_total_has_what_no_count_has(report: dict[str, Any], expected: tuple[int, ...]) -> None:
    usage = reported(report)
    assert usage is not None
    assert usage[:4] == expected


def grounded(*grounding: dict[str, Any], model: str = "gemini-3-flash") -> dict[str, Any]:
    return {"modelVersion": model, "usageMetadata": COUNTS, "candidates": [
        {"index": place, "groundingMetadata": each} for place, each in enumerate(grounding)]}  # fmt: skip


MAPS = {"groundingChunks": [{"maps": {"placeId": "places/1"}}]}


@pytest.mark.parametrize(
    ("answers", "more"),
    [
        # ai.google.dev, grounding: each query that is not empty, once
        ([grounded({"webSearchQueries": ["a", "", "a", " ", "b", None]})], {"web_searches": 2}),
        ([grounded({"webSearchQueries": ["a"]}), grounded({"webSearchQueries": ["b", "a"]})], {"web_searches": 2}),
        ([grounded({"webSearchQueries": ["a"]}, {"webSearchQueries": ["a"]})], {"web_searches": 2}),  # two candidates
        ([grounded({"webSearchQueries": ["a"], "imageSearchQueries": ["b"]})], {"web_searches": 2}),
        # ai.google.dev, pricing: before Gemini 3 each grounded prompt
        ([grounded({"webSearchQueries": ["a", "b"]}, model="gemini-2.5-flash")], {"web_searches": 1}),
        ([grounded({"webSearchQueries": ["a", "b"]}, model="models/gemini-1.5-pro")], {"web_searches": 1}),
        ([grounded({"webSearchQueries": [""]}, model="gemini-2.5-flash")], {}),
        ([grounded({"webSearchQueries": ["a", "b"]}, model="my-gemini")], {"web_searches": 2}),
        # Vertex AI, one's own data: the prompt, however many queries it has
        ([grounded({"retrievalQueries": ["a", "b"]}), grounded({"retrievalQueries": ["a"]})], {"file_searches": 1}),
        ([grounded({"retrievalQueries": []})], {}),
        # Google Maps
        ([grounded(MAPS), grounded({})], {"maps_searches": 1}),
        ([grounded({"googleMapsWidgetContextToken": "w"})], {"maps_searches": 1}),
        ([grounded({"groundingChunks": [{"web": {"uri": "https://a.example/"}}]})], {}),
        ([grounded({"webSearchQueries": 5, "groundingChunks": 6})], {}),
    ],
)
def test_what_is_paid_beside_tokens(answers: list[dict[str, Any]], more: dict[str, int]) -> None:
    follows = GeminiReader()
    usage = [follows.facts(answer) for answer in answers][-1]
    assert usage is not None
    assert dict(usage.more) == more


def test_the_total_alone_is_the_prompt_of_embeddings_only() -> None:
    assert embedded({"totalTokenCount": 300}) == Usage(300, source="reported")
    assert embedded({"promptTokenCount": 7, "totalTokenCount": 7}) == Usage(7, source="reported")
    assert embedded({"totalTokenCount": 0}) is embedded(None) is None
    assert reported({"totalTokenCount": 300}) == Usage(0, 300, source="estimated")
