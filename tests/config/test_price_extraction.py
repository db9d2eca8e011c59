"""The whole way from a vendor's answer to its cost, held against the package's own `extract_usage` and `calc_price`.

For each way in which the package reads a provider's answers, answers are made from its own table of paths. They are
read by the gateway's format, and priced by the table's price of several models of the provider.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, Provider, UsageExtractor

from gateway.config import Price
from gateway.config.price_table import Unpriced
from gateway.formats import reported_usage
from gateway.formats.table import FORMATS
from gateway.quota.pricing import cost_nusd
from gateway.records import Usage
from gateway.wings.realtime import formats as realtime

from .test_price_table import NOW, TABLE, is_silent

SAMPLES = 12
MODELS = 4
"""Of each provider, besides those with prices of sound, images or searches."""

NOT_SPOKEN: Mapping[tuple[str, str], str] = {
    ("aws", "default"): "Bedrock's Converse",
    ("cloudflare", "decisions"): "no answer of a model that is asked in a format of the gateway",
    ("cloudflare", "default"): "the answers of Workers AI, inside `result`",
    ("cohere", "default"): "Cohere's own chat, `/v2/chat`",
    ("cohere", "embeddings"): "Cohere's own embeddings, `/v2/embed`",
    ("cohere", "tokens"): "Cohere's own chat, `/v2/chat`",
    ("cursor", "usage-event"): "events of an editor",
    ("mistral", "ocr"): "pages of a document",
    ("mistral", "ocr_annotated"): "pages of a document",
    ("openai", "live"): "seconds of a call, beside tokens",
    ("x-ai", "realtime"): "a report of seconds and messages; Realtime is priced by tokens",
}
"""Answers that come in no format of the gateway, and what they are."""


def format_of(extractor: UsageExtractor) -> str:
    """The format of the gateway in which such answers come."""
    paths = {mapping.path if isinstance(mapping.path, str) else str(mapping.path[0]) for mapping in extractor.mappings}
    if extractor.root == "usageMetadata":
        return "generate_content"
    if extractor.root == ["response", "usage"]:
        return "realtime"
    if extractor.api_flavor in ("embeddings", "images"):
        return extractor.api_flavor
    if "prompt_tokens" in paths:
        return "chat"
    return "messages" if "cache_read_input_tokens" in paths else "responses"


def ways() -> Iterator[Any]:
    for provider in get_snapshot().providers:
        for extractor in provider.extractors or ():
            name = provider.id, extractor.api_flavor
            if name not in NOT_SPOKEN:
                yield pytest.param(provider, extractor, id="-".join(name))


# ------------------------------------------------------------------------------------------------- answers by the table


def meant(choose: random.Random, dests: set[str]) -> dict[str, int]:
    """Counts by the package's names, each part within its whole; only what the extractor can read is not 0."""

    def some(name: str, most: int = 3_000) -> int:
        return choose.choice([0, 1, choose.randrange(most)]) if name in dests else 0

    found = {name: some(name) for name in (
        "input_tool_tokens", "cache_text_read_tokens", "cache_audio_read_tokens", "cache_image_read_tokens",
        "cache_write_5m_tokens", "cache_write_1h_tokens", "output_reasoning_tokens", "output_citation_tokens",
        "output_audio_tokens", "output_image_tokens",
    )}  # fmt: skip
    cached = sum([found[f"cache_{kind}_read_tokens"] for kind in ("text", "audio", "image")])
    if "cache_text_read_tokens" not in dests:
        cached += some("cache_read_tokens")
    found["cache_read_tokens"] = cached if "cache_read_tokens" in dests else 0
    writes = found["cache_write_5m_tokens"] + found["cache_write_1h_tokens"]
    found["cache_write_tokens"] = writes if "cache_write_1h_tokens" in dests else some("cache_write_tokens")
    # The package cannot price cached sound of which it is not said that it is both.
    says_both = "cache_audio_read_tokens" in dests or not found["cache_read_tokens"]
    for kind in ("audio", "image", "video"):
        fresh = some(f"input_{kind}_tokens") if says_both else 0
        found[f"input_{kind}_tokens"] = fresh + found.get(f"cache_{kind}_read_tokens", 0)
    text = choose.randrange(1, 50_000)
    found["input_text_tokens"] = text + found["cache_text_read_tokens"] + found["input_tool_tokens"]
    found["input_text_tool_tokens"] = found["input_tool_tokens"]
    sounds = sum([found[f"input_{kind}_tokens"] for kind in ("audio", "image", "video")])
    of_text_cache = found["cache_read_tokens"] - found["cache_audio_read_tokens"] - found["cache_image_read_tokens"]
    found["input_tokens"] = text + sounds + of_text_cache + found["cache_write_tokens"] + found["input_tool_tokens"]
    found["output_text_tokens"] = choose.randrange(1, 5_000)
    parts = ("text", "audio", "image", "reasoning", "citation")
    found["output_tokens"] = sum([found[f"output_{kind}_tokens"] for kind in parts])
    if "output_tokens" not in dests:
        found["output_tokens"] = 0
    found["web_searches"] = some("web_searches", 9)
    return found


def path_of(path: Any) -> tuple[Any, ...]:
    return (path,) if isinstance(path, str) else tuple(
        step if isinstance(step, str) else (step.field, step.match.equals) for step in path
    )  # fmt: skip


def report_of(extractor: UsageExtractor, counts: Mapping[str, int]) -> dict[str, Any]:
    """The report that the extractor reads as these counts."""
    dests: dict[tuple[Any, ...], list[str]] = {}
    for mapping in extractor.mappings:
        dests.setdefault(path_of(mapping.path), []).append(mapping.dest)
    values: dict[tuple[Any, ...], int] = {}
    for path, meanings in dests.items():
        if len(meanings) > 1:  # a part that is beside its whole: the part is what it holds
            parts = [name for name in meanings if name not in ("input_tokens", "output_tokens")]
            values[path] = counts.get(parts[-1], 0)
    for path, meanings in dests.items():
        if len(meanings) == 1:
            others = sum([values.get(other, 0) for other, names in dests.items() if meanings[0] in names])
            values[path] = counts.get(meanings[0], 0) - others
    report: dict[str, Any] = {}
    for path, value in values.items():
        put(report, path, value)
    return report


def put(into: dict[str, Any], path: tuple[Any, ...], value: int) -> None:
    for at, step in enumerate(path[:-1]):
        following = path[at + 1]
        if isinstance(step, tuple):
            continue
        if isinstance(following, tuple):
            field, name = following
            items = into.setdefault(step, [])
            found = next((each for each in items if each[field] == name), None)
            if found is None:
                items.append(found := {field: name})
            into = found
        else:
            into = into.setdefault(step, {})
    into[path[-1]] = value


def totalled(provider: str, kind: str, report: dict[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """The report with its total, as the vendors write it."""
    if kind == "chat":
        beside = report["completion_tokens"] if provider == "perplexity" else counts["output_tokens"]
        report["total_tokens"] = report["prompt_tokens"] + beside
    if kind == "generate_content":
        report["totalTokenCount"] = counts["input_tokens"] + counts["output_tokens"]
    return report


def wrapped(root: Any, report: dict[str, Any], model: str) -> dict[str, Any]:
    answer: dict[str, Any] = report
    for name in reversed([root] if isinstance(root, str) else list(root)):
        answer = {name: answer}
    return {**answer, "model": model, "modelVersion": model}


def read_by_us(kind: str, answer: dict[str, Any]) -> Usage | None:
    if kind == "realtime":
        return realtime.read_end(answer).usage
    more: Mapping[str, Any] = {"messages": {"type": "message"}}.get(kind, {})
    return FORMATS[kind].facts(json.dumps({**more, **answer}).encode()).usage  # type: ignore[index]


def models_of(provider: Provider) -> list[ModelInfo]:
    choose = random.Random(provider.id)
    priced = [model for model in provider.models if not isinstance(TABLE.find(provider.id, model.id), Unpriced)]
    rare = [model for model in priced if any(name in repr(model.prices) for name in ("audio", "image", "video", "_k"))]
    return rare + choose.sample(priced, min(MODELS, len(priced)))


@pytest.mark.parametrize(("provider", "extractor"), list(ways()))
def test_each_report_is_read_and_priced_as_the_package_does(provider: Provider, extractor: UsageExtractor) -> None:
    choose = random.Random(f"{provider.id}-{extractor.api_flavor}")
    kind, dests = format_of(extractor), {mapping.dest for mapping in extractor.mappings}
    models = models_of(provider)
    for _ in range(SAMPLES):
        counts = meant(choose, dests)
        report = totalled(provider.id, kind, report_of(extractor, counts), counts)
        answer = wrapped(extractor.root, report, "m")
        theirs = extractor.extract(answer)[1]
        usage = read_by_us(kind, answer)
        assert usage is not None, answer
        used = reported_usage.coherent(usage)
        seen = used.prompt_tokens, used.completion_tokens, used.cached_tokens, used.reasoning_tokens
        expected = theirs.input_tokens, theirs.output_tokens, theirs.cache_read_tokens, theirs.output_reasoning_tokens
        assert seen == tuple([count or 0 for count in expected]), answer
        assert used == usage._replace(more=used.more), answer
        for model in models:
            price = Price.model_validate(TABLE.find(provider.id, model.id))
            ours = cost_nusd(price, used, NOW.timestamp())
            calculated = model.calc_price(theirs, provider, genai_request_timestamp=NOW)
            if is_silent(used, calculated.model_price):
                assert ours is None, (model.id, answer, calculated.model_price)
                continue
            assert ours is not None, (model.id, answer, calculated.model_price)
            cost = calculated.total_price * 10**9
            assert 0 <= ours - cost < 1, (model.id, answer, used, ours, cost, calculated.model_price)


@pytest.mark.parametrize(
    ("provider", "model", "kind", "report", "usd"),
    [
        # 400 of 1,000 prompt tokens are cached sound, at 0.3: 200 sound at 10, 400 text at 0.6, 150 + 0 output.
        (
            "openai", "gpt-realtime-mini", "realtime",
            {"input_tokens": 1000, "output_tokens": 150, "input_token_details": {
                "text_tokens": 400, "audio_tokens": 600, "cached_tokens": 400,
                "cached_tokens_details": {"text_tokens": 0, "audio_tokens": 400}},
             "output_token_details": {"text_tokens": 150, "audio_tokens": 0}},
            (200 * 10 + 400 * 0.3 + 400 * 0.6 + 150 * 2.4) / 1e6,
        ),
        # Perplexity's reasoning, citations and searches have prices of their own.
        (
            "perplexity", "sonar-deep-research", "chat",
            {"prompt_tokens": 100, "completion_tokens": 400, "total_tokens": 500, "reasoning_tokens": 3000,
             "citation_tokens": 500, "num_search_queries": 3},
            (100 * 2 + 400 * 8 + 3000 * 3 + 500 * 2) / 1e6 + 3 * 5 / 1e3,
        ),
    ],
)  # fmt: skip
def test_costs_by_hand(provider: str, model: str, kind: str, report: dict[str, Any], usd: float) -> None:
    usage = read_by_us(kind, wrapped(["response", "usage"] if kind == "realtime" else "usage", report, model))
    assert usage is not None
    price = Price.model_validate(TABLE.find(provider, model))
    assert cost_nusd(price, reported_usage.coherent(usage), NOW.timestamp()) == pytest.approx(usd * 1e9, abs=1)
