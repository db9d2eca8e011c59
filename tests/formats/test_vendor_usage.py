"""Reports of usage under names and by sums that are not OpenAI's: each row of the table, and the rules of the sums."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats import reported_usage
from gateway.formats.openai import completions
from gateway.formats.openai.completions import EMBEDDINGS
from gateway.formats.openai.reader import OWN, ChatReader, Own, reported
from gateway.records import Usage
from gateway.units import UNITS, counts
from gateway.wings.media import rerank

PLAIN = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
MEANT = {
    "prompt": Usage(60, 0, source="reported"),
    "completion": Usage(0, 60, source="reported"),
    "cached": Usage(1000, 100, 60, source="reported"),
    "written": Usage(1000, 100, source="reported", more=(("cache_write", 60),)),
    "written_1h": Usage(1000, 100, source="reported", more=(("cache_write_1h", 60),)),
    "reasoning": Usage(1000, 100, 0, 60, source="reported"),
    "citations": Usage(1000, 160, source="reported", more=(("citations", 60),)),
    "audio_s": Usage(1000, 100, source="reported", more=(("audio_ms", 60_000),)),
}


def at(path: tuple[str, ...], count: int) -> dict[str, Any]:
    name, *rest = path
    return {name: at(tuple(rest), count) if rest else count}


@pytest.mark.parametrize("row", OWN, ids=[".".join(row.path) for row in OWN])
def test_each_name_of_the_table_is_read(row: Own) -> None:
    counted = {} if row.meaning in ("prompt", "completion") else PLAIN
    paid = Usage(1000, 100, source="reported", more=((row.meaning, 60),))
    assert reported({**counted, **at(row.path, 60)}) == MEANT.get(row.meaning, paid)
    assert row.meaning in MEANT or row.meaning in UNITS
    assert row.source
    assert row.vendor


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        # OpenAI's own name wins, also with 0 (openai-openapi; router-for-me/CLIProxyAPI#5817).
        ({**PLAIN, "prompt_cache_hit_tokens": 80, "prompt_tokens_details": {"cached_tokens": 0}}, (1000, 100, 0, 0)),
        # LiteLLM writes a cache under both names, within the prompt; Anthropic counts it beside.
        (
            {**PLAIN, "cache_read_input_tokens": 700, "prompt_tokens_details": {"cached_tokens": 700}},
            (1000, 100, 700, 0),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 5, "cache_read_input_tokens": 700}, (709, 5, 700, 0)),
        (
            {"prompt_tokens": 800, "completion_tokens": 5, "total_tokens": 1505, "cache_read_input_tokens": 700},
            (1500, 5, 700, 0),
        ),
        # Gemini's chat endpoint: thoughts only in the total (discuss.ai.google.dev/t/98760).
        ({"prompt_tokens": 758, "completion_tokens": 102, "total_tokens": 1725}, (758, 967, 0, 865)),
        # Databricks: reasoning within; Perplexity: reasoning and citations beside (genai-prices, both providers).
        ({**PLAIN, "reasoning_tokens": 60}, (1000, 100, 0, 60)),
        ({**PLAIN, "reasoning_tokens": 600, "citation_tokens": 7, "num_search_queries": 0}, (1000, 707, 0, 600)),
        # Voxtral has the tokens of sound in the total alone: they are no output (laravel/ai#1025).
        ({"prompt_tokens": 4, "completion_tokens": 10, "total_tokens": 154, "prompt_audio_seconds": 11}, (4, 10, 0, 0)),
        # A total that is less, or none, changes nothing.
        ({"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 15}, (10, 10, 0, 0)),
        ({"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": None}, (10, 10, 0, 0)),
        ({"prompt_tokens": 30, "total_tokens": 90}, (30, 0, 0, 0)),
    ],
)
def test_sums(report: dict[str, Any], expected: tuple[int, ...]) -> None:
    found = reported(report)
    assert found is not None
    assert found[:4] == expected


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [{"index": 0, "finish_reason": "stop", "usage": PLAIN}]},  # Moonshot (northes/go-moonshot#17)
        {"choices": [], "x_groq": {"id": "req", "usage": {**PLAIN, "queue_time": 0.1}}},  # groq-sdk
        {
            "choices": [],
            "timings": {"cache_n": 300, "prompt_n": 700, "prompt_ms": 1.5, "predicted_n": 100},
        },  # llama.cpp
    ],
)
def test_reports_beside_the_usage(chunk: dict[str, Any]) -> None:
    found = ChatReader().facts({**chunk, "usage": None})
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (1000, 100)
    assert found.cached_tokens == (300 if "timings" in chunk else 0)
    assert completions.facts(json.dumps(chunk).encode()).usage == found  # of a plain answer too


def test_each_choice_has_a_report_of_its_own() -> None:
    """Moonshot's streams (northes/go-moonshot#17): the same prompt, and the output of one choice each."""
    reader = ChatReader()
    for index, made in ((0, 100), (1, 113), (1, 113), (0, 90)):
        usage = {"prompt_tokens": 19, "completion_tokens": made, "total_tokens": 19 + made, "cached_tokens": 7}
        found = reader.facts({"choices": [{"index": index, "delta": {}, "finish_reason": "stop", "usage": usage}]})
    assert found is not None
    assert found[:4] == (19, 213, 7, 0)


def test_a_breakdown_by_model_is_not_counted_beside_the_usage() -> None:
    """groq-python, `ChatCompletion.usage_breakdown`, of Compound."""
    each = [{"model": "llama-3.3-70b-versatile", "usage": PLAIN}, {"model": "openai/gpt-oss-120b", "usage": PLAIN}]
    answer = {"choices": [], "usage": PLAIN, "usage_breakdown": {"models": each}}
    expected = reported(PLAIN)
    assert ChatReader().facts(answer) == completions.facts(json.dumps(answer).encode()).usage == expected


def test_the_total_alone_is_the_prompt_of_embeddings_only() -> None:
    answer = json.dumps({"data": [], "usage": {"total_tokens": 800}}).encode()
    assert EMBEDDINGS.facts(answer).usage == EMBEDDINGS.usage({"total_tokens": 800}) == Usage(800, source="reported")
    assert completions.facts(answer).usage == Usage(0, 800, source="estimated")


def test_writes_of_both_durations() -> None:
    report = {**PLAIN, "cache_creation_input_tokens": 90, "cache_creation": {"ephemeral_1h_input_tokens": 30}}
    found = reported(report)
    assert found is not None
    assert found.more == counts({"cache_write": 60, "cache_write_1h": 30})


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"billed_units": {"search_units": 3}, "tokens": {"input_tokens": 9}}, Usage(more=(("search_units", 3),))),
        ({"billed_units": {"total_tokens": 30}}, Usage(30)),
        ({"billed_units": {"input_tokens": 28, "search_units": 0}, "tokens": {"input_tokens": 28}}, Usage(28)),
        ({"total_tokens": 5000}, Usage(5000)),
        ({"tokens": {"input_tokens": 7}}, Usage(7)),
        ({"billed_units": {"search_units": 0}}, Usage()),
        ({"billed_units": None, "tokens": 4}, None),
    ],
)
def test_reports_of_reranks(report: dict[str, Any], expected: Usage | None) -> None:
    assert rerank.reported(report) == (expected and expected._replace(source="reported"))


@pytest.mark.parametrize("seconds", [10**400, float("inf"), float("nan"), "1e999", "x", -1, True, None, [1]])
def test_what_is_no_length_is_no_report(seconds: object) -> None:
    assert reported_usage.of_transcript({"type": "duration", "seconds": seconds}) is None


def test_seconds_of_mistral_are_what_it_bills() -> None:
    usage = reported_usage.of_transcript({**PLAIN, "prompt_audio_seconds": 11})
    assert usage == Usage(source="reported", more=(("audio_ms", 11_000),))
