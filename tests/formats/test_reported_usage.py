"""Tokens as reported, and as estimated."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import units
from gateway.formats import reported_usage
from gateway.formats.openai.reader import reported
from gateway.records import Usage


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, Usage(3, 4, source="reported")),
        ({"prompt_tokens": 3, "total_tokens": 3}, Usage(3, 0, source="reported")),  # embeddings
        ({"completion_tokens": 4}, Usage(0, 4, source="reported")),
        ({"prompt_tokens": 0, "completion_tokens": 0}, Usage(0, 0, source="reported")),
        (
            {
                "prompt_tokens": 30,
                "completion_tokens": 40,
                "prompt_tokens_details": {"cached_tokens": 20, "audio_tokens": 1},
                "completion_tokens_details": {"reasoning_tokens": 10},
                "cost": 0.01,
            },
            Usage(30, 40, 20, 10, source="reported", more=(("audio_in", 1),)),
        ),
        (
            {
                "prompt_tokens": 900,
                "completion_tokens": 90,
                "prompt_tokens_details": {
                    "cached_tokens": 100,
                    "cache_write_tokens": 500,
                    "cache_write_tokens_details": {"ttl_30m_tokens": 300, "ttl_12h_tokens": 200},
                    "image_tokens": 40,
                },
                "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 80, "image_tokens": "9"},
            },
            Usage(
                900,
                90,
                100,
                0,
                "reported",
                (("cache_write", 300), ("cache_write_1h", 200), ("audio_out", 80), ("image_in", 40), ("image_out", 9)),
            ),
        ),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cache_write_tokens": 5, "cache_write_tokens_details": 1}},
            Usage(9, source="reported", more=(("cache_write", 5),)),
        ),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"audio_tokens": 0, "cache_write_tokens": None}},
            Usage(9, source="reported"),
        ),
        (
            {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": None, "completion_tokens_details": 1},
            Usage(3, 4, source="reported"),
        ),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}, Usage(3, source="reported")),
        ({"prompt_tokens": "3", "completion_tokens": 4.0}, Usage(3, 4, source="reported")),
        ({"prompt_tokens": "3.5", "completion_tokens": 4}, Usage(0, 4, source="reported")),
        # xAI's own example: the reasoning is not in completion_tokens.
        (
            {
                "prompt_tokens": 32,
                "completion_tokens": 9,
                "total_tokens": 135,
                "completion_tokens_details": {"reasoning_tokens": 94},
            },
            Usage(32, 103, 0, 94, source="reported"),
        ),
        # What cannot be a count of tokens is no report.
        ({}, None),
        ({"total_tokens": 7}, Usage(0, 7, source="estimated")),  # how much of it is prompt, the relay estimates
        ({"prompt_tokens": -3, "completion_tokens": -4}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": 1.5}, None),
        ({"prompt_tokens": 2**53}, None),
        (None, None),
        ([], None),
        ("7", None),
    ],
)
def test_reported(report: Any, expected: Usage | None) -> None:
    assert reported(report) == expected


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists) | st.dictionaries(
    st.sampled_from(["prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"]),
    st.none() | st.integers() | st.floats() | st.dictionaries(st.just("cached_tokens"), st.integers()),
))  # fmt: skip
def test_no_report_hurts(report: Any) -> None:
    found = reported(report)
    if found is not None:
        assert min(found.prompt_tokens, found.completion_tokens, found.cached_tokens, found.reasoning_tokens) >= 0
        assert max(found.prompt_tokens, found.completion_tokens) < 2**53


def test_the_highest_of_two_reports_counts_unit_by_unit() -> None:
    one = Usage(10, 5, 4, 2, "reported", (("cache_write", 3), ("audio_out", 5)))
    other = Usage(9, 6, 5, 1, "reported", (("cache_write", 7), ("web_searches", 1)))
    assert reported_usage.highest(one, other) == Usage(
        10, 6, 5, 2, "reported", (("cache_write", 7), ("web_searches", 1), ("audio_out", 5))
    )
    assert reported_usage.highest(None, one) is one


def test_no_part_is_above_its_whole_and_no_token_is_in_two_of_them() -> None:
    report = Usage(10, 5, 40, 20, "reported", (("cache_write", 30), ("web_searches", 30), ("audio_out", 30)))
    assert reported_usage.coherent(report) == Usage(10, 5, 10, 5, "reported", (("web_searches", 30), ("audio_out", 5)))


@pytest.mark.parametrize(
    ("prompt", "cached", "more", "left"),
    [
        # Of 90 cached tokens and 80 of an image among 100, at least 70 are both (BerriAI/litellm#37281).
        (100, 90, {"image_in": 80}, {"image_in": 10}),
        (1000, 1000, {"audio_in": 600}, {}),
        (1000, 100, {"audio_in": 600}, {"audio_in": 600}),
        (100, 20, {"audio_in": 50, "image_in": 50, "cache_write": 10}, {"audio_in": 50, "image_in": 20,
                                                                       "cache_write": 10}),
        (100, 50, {"cached_audio": 30, "cached_image": 30, "audio_in": 50}, {"cached_audio": 30, "cached_image": 20,
                                                                            "audio_in": 50}),
    ],
)  # fmt: skip
def test_parts_of_a_prompt_do_not_overlap(prompt: int, cached: int, more: dict[str, int], left: dict[str, int]) -> None:
    found = reported_usage.coherent(Usage(prompt, 5, cached, source="reported", more=units.counts(more)))
    assert found == Usage(prompt, 5, cached, source="reported", more=units.counts(left))


def size_of(answer: bytes) -> int:
    """Bytes of generated text."""
    return sum(map(len, reported_usage.TEXT.findall(answer)))


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        ({"choices": [{"text": "abcd", "index": 0}, {"text": "ef"}]}, 6),
        ({"choices": [{"message": {"role": "assistant", "content": "abcd"}}]}, 4),
        ({"choices": [{"delta": {"content": "", "role": "assistant"}}]}, 0),
        ({"choices": [{"delta": {"content": None}}]}, 0),
        ({"choices": [{"delta": {"reasoning_content": "abc"}}]}, 3),
        ({"choices": [{"delta": {"reasoning": "abc"}}]}, 3),
        ({"choices": [{"delta": {"refusal": "no"}}]}, 2),
        ({"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}}]}, 11),
        ({"content": [{"type": "text", "text": "abc"}]}, 3),
        ({"model": "content", "id": "text"}, 0),
        ({"text": 'a "quoted" \\ text'}, 20),  # as it stands in the JSON, escapes and all
        ({"text": '"text": "no name, but a text"'}, 33),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", " : ")])
def test_texts(answer: Any, size: int, separators: tuple[str, str]) -> None:
    assert size_of(json.dumps(answer, separators=separators).encode()) == size


@given(st.text())
def test_text_is_found_whatever_stands_in_it(text: str) -> None:
    written = json.dumps(text)
    assert size_of(b'{"text": ' + written.encode() + b', "x": 1}') == len(written) - 2


@pytest.mark.parametrize("end", [b'"}', b"", b"\\"])
def test_a_long_text_costs_no_more_memory_than_itself(end: bytes) -> None:
    answer = b'{"content": "' + b"x\\n" * 1_000_000 + end
    tracemalloc.start()
    try:
        assert size_of(answer) in (3_000_000, 0)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
