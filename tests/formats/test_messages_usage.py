"""Usage reports of Anthropic's Messages API, as a table."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from gateway.formats.anthropic.reader import merged, reported
from gateway.records import Usage

FIVE, HOUR = "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"


def run(kind: str, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "input_tokens": prompt, "output_tokens": output} | more


def part(prompt: int, output: int, model: str = "") -> Usage:
    return Usage(prompt, output, source="reported", model=model)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"input_tokens": 3, "output_tokens": 4}, Usage(3, 4, source="reported")),
        (
            {"input_tokens": 3, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 4},
            Usage(15, 4, 7, source="reported", more=(("cache_write", 5),)),
        ),
        (
            {"input_tokens": 3, "cache_creation_input_tokens": 5, "cache_creation": {FIVE: 1, HOUR: 4}},
            Usage(8, 0, source="reported", more=(("cache_write", 1), ("cache_write_1h", 4))),
        ),
        (
            {"input_tokens": 3, "cache_creation": {FIVE: 1, HOUR: 4}},  # without the sum
            Usage(8, 0, source="reported", more=(("cache_write", 1), ("cache_write_1h", 4))),
        ),
        (
            {"input_tokens": 3, "cache_creation_input_tokens": 5, "cache_creation": {HOUR: 9}},  # more than the sum
            Usage(8, 0, source="reported", more=(("cache_write_1h", 5),)),
        ),
        (
            {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 6}, "service_tier": "priority"},
            Usage(0, 9, 0, 6, "reported", variant="priority"),
        ),
        (
            {"input_tokens": 1, "output_tokens": 2, "speed": "fast", "server_tool_use": {"web_search_requests": 3}},
            Usage(1, 2, source="reported", more=(("web_searches", 3),), variant="fast"),
        ),
        (
            {"input_tokens": 10, "output_tokens": 2, "iterations": [run("message", 10, 2), run("compaction", 90, 8)]},
            Usage(100, 10, source="reported", parts=(part(10, 2), part(90, 8))),
        ),
        (
            {
                "input_tokens": 10,
                "output_tokens": 2,
                "iterations": [run("message", 10, 2), run("advisor_message", 5, 1)],
            },
            Usage(15, 3, source="reported", parts=(part(10, 2), part(5, 1, "?"))),
        ),
        (
            {
                "input_tokens": 10,
                "output_tokens": 2,
                "iterations": [run("message", 4, 2), run("advisor_message", 5, 1, model="claude-haiku-4-5")],
            },
            Usage(10, 3, source="estimated"),  # not all of it is among the runs, so that nothing says whose the rest is
        ),
        (
            {
                "input_tokens": 10, "output_tokens": 2, "speed": "fast", "server_tool_use": {"web_search_requests": 1},
                "iterations": [
                    run("message", 10, 2, cache_read_input_tokens=3),
                    run("fallback_message", 20, 5, model="claude-haiku-4-5", cache_creation_input_tokens=7),
                ],
            },
            Usage(
                40, 7, 3, source="reported", more=(("cache_write", 7), ("web_searches", 1)), variant="fast",
                parts=(
                    Usage(13, 2, 3, source="reported", variant="fast"),
                    Usage(27, 5, 0, 0, "reported", (("cache_write", 7),), "fast", model="claude-haiku-4-5"),
                    Usage(source="reported", more=(("web_searches", 1),), variant="fast"),
                ),
            ),
        ),
        ({"input_tokens": 9, "output_tokens": 2, "iterations": [run("message", 4, 1)]}, Usage(9, 2, source="reported")),
        ({"input_tokens": 10, "output_tokens": 2, "iterations": []}, Usage(10, 2, source="reported")),
        ({"input_tokens": True, "output_tokens": "2"}, Usage(0, 2, source="reported")),
        ({"input_tokens": -1}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)  # fmt: skip
def test_reports(report: Any, expected: Usage | None) -> None:
    assert reported(report) == expected


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([{"input_tokens": 9, "output_tokens": 1}, {"output_tokens": 7}], (9, 7, 0)),
        ([{"input_tokens": 9, "output_tokens": 1}, {"input_tokens": None, "output_tokens": 7}], (9, 7, 0)),
        ([{"input_tokens": 9, "output_tokens": 0}, {"input_tokens": 0, "output_tokens": 7}], (9, 7, 0)),
        ([{"input_tokens": 0, "output_tokens": 0}, {"input_tokens": 9, "output_tokens": 7}], (9, 7, 0)),
        ([{"input_tokens": 9, "output_tokens": 8}, {"output_tokens": 7}], (9, 8, 0)),
        # Kimi: the first counts the cache in input_tokens, the last does not.
        (
            [{"input_tokens": 70, "cache_read_input_tokens": 60}, {"input_tokens": 10, "cache_read_input_tokens": 60}],
            (70, 0, 60),
        ),
        # A smaller set with less of the cache replaces none.
        (
            [{"input_tokens": 10, "cache_read_input_tokens": 60}, {"input_tokens": 10, "cache_read_input_tokens": 0}],
            (70, 0, 60),
        ),
        ([{"input_tokens": 70}, {"input_tokens": 10, "cache_read_input_tokens": 60}], (70, 0, 60)),
        ([{"input_tokens": 10, "cache_read_input_tokens": 100}, {"input_tokens": 10}], (110, 0, 100)),
        ([{"input_tokens": 10}, {"cache_read_input_tokens": 100}], (110, 0, 100)),
        # Each count that is given replaces its own (anthropic-sdk, `accumulate_event`); zeros alone replace none.
        ([{"input_tokens": 10, "cache_read_input_tokens": 1}, {"cache_read_input_tokens": 100}], (110, 0, 100)),
        ([{"input_tokens": 10, "cache_read_input_tokens": 100}, {"cache_read_input_tokens": 0}], (110, 0, 100)),
    ],
)  # fmt: skip
def test_reports_of_a_stream_are_cumulative(reports: list[dict[str, Any]], expected: tuple[int, int, int]) -> None:
    usage = reported(reduce(merged, reports, {}))
    assert usage is not None
    assert usage[:3] == expected


def test_the_part_that_lasts_an_hour_is_that_of_the_first_report() -> None:
    first = {"input_tokens": 1, "cache_creation_input_tokens": 5, "cache_creation": {FIVE: 1, HOUR: 4}}
    usage = reported(merged(first, {"input_tokens": 1, "cache_creation_input_tokens": 7, "output_tokens": 1}))
    assert usage is not None
    assert usage.more == (("cache_write", 3), ("cache_write_1h", 4))
