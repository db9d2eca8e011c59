"""Prices by unit: further units, tiers, variants, hours, dates, and what is drawn before a call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Price
from gateway.config.rates import rows_of
from gateway.quota.pricing import (
    PaidPrice,
    cost_nusd,
    cost_parts,
    current_rows,
    most_nusd,
    read_price,
    record_text,
    total_usage,
)
from gateway.records import Usage
from gateway.units import UNITS, counts

NOON = 1795176000.0
"""2026-11-20, 12:00 UTC."""
DAY = 86_400

CLAUDE: dict[str, Any] = {
    "input": 3, "output": 15, "cached_input": 0.3, "cache_write": 3.75, "cache_write_1h": 6,
    "web_searches_per_1000": 10,
    "tiers": [{"above": 200_000, "input": 6, "output": 22.5, "cached_input": 0.6, "cache_write": 7.5}],
    "variants": {"batch": {"input": 1.5, "output": 7.5}, "fast": {"input": 30, "tiers": [{"above": 9, "input": 60}]}},
}  # fmt: skip


def price(**changes: Any) -> Price:
    return Price.model_validate(changes)


def usage(prompt: int = 0, completion: int = 0, cached: int = 0, variant: str = "", **more: int) -> Usage:
    return Usage(prompt, completion, cached, 0, "reported", counts(more), variant)


@pytest.mark.parametrize(
    ("prices", "used", "nusd"),
    [
        (CLAUDE, usage(10, 5), 10 * 3_000 + 5 * 15_000),
        # Parts of the prompt cost their own price, the rest the plain one.
        (CLAUDE, usage(1000, 0, 100, cache_write=200), 700 * 3_000 + 100 * 300 + 200 * 3_750),
        (CLAUDE, usage(1000, 0, cache_write=200, cache_write_1h=300), 500 * 3_000 + 200 * 3_750 + 300 * 6_000),
        (CLAUDE, usage(10, 0, 10, cache_write=10), 10 * 300 + 10 * 3_750),  # no less than nothing is plain
        (CLAUDE, usage(10, web_searches=3), 10 * 3_000 + 30_000_000),
        # Above the start of a tier everything costs its rates; a row that it does not name costs as below.
        (CLAUDE, usage(200_000, 10), 200_000 * 3_000 + 10 * 15_000),
        (CLAUDE, usage(200_001, 10), 200_001 * 6_000 + 10 * 22_500),
        (CLAUDE, usage(200_001, cache_write_1h=1, web_searches=1), 200_000 * 6_000 + 6_000 + 10_000_000),
        # A variant's row is for prompts of every length, unless it has tiers of its own.
        (CLAUDE, usage(10, 5, variant="batch"), 10 * 1_500 + 5 * 7_500),
        (CLAUDE, usage(200_001, 5, 1, variant="batch"), 200_000 * 1_500 + 600 + 5 * 7_500),
        (CLAUDE, usage(9, 5, variant="fast"), 9 * 30_000 + 5 * 15_000),
        (CLAUDE, usage(10, 5, variant="fast"), 10 * 60_000 + 5 * 15_000),
        (CLAUDE, usage(10, 5, variant="standard"), 10 * 3_000 + 5 * 15_000),
        (CLAUDE, usage(10, 5, variant="on_demand"), 10 * 3_000 + 5 * 15_000),
        (CLAUDE, usage(10, 5, variant="priority"), None),  # it has variants, and this one is not among them
        ({"input": 1, "output": 2}, usage(10, 5, variant="priority"), 20_000),  # it has none
        # A unit without a price makes the cost unknown.
        (CLAUDE, usage(10, 5, file_searches=1), None),
        ({"input": 1, "output": 2}, usage(10, 5, cache_write=1), None),
        ({"input": 1, "output": 2}, usage(10, 5, audio_out=1), None),
        ({"input": 1, "output": 2}, usage(10, 5, image_in=3), 20_000),  # costs as other prompt tokens
        ({"input": 1, "output": 2, "image_in": 10}, usage(10, 5, image_in=3), 7_000 + 30_000 + 10_000),
        ({"input": 1, "output": 2}, usage(10, 5, of_tomorrow=1), None),
        ({"input": 1}, usage(10, 5), None),
        ({"input": 1}, usage(10), 10_000),
        ({"audio_per_hour": 0.36}, usage(audio_ms=1_000), 100_000),
        ({"audio_per_hour": 0.36}, usage(audio_ms=1), 100),
        ({"audio_per_hour": 0.111}, usage(audio_ms=1), 31),  # 30.8
        ({"audio_per_hour": 0.36}, usage(3, audio_ms=1), None),
        ({"characters_per_million": 15}, usage(characters=2), 30_000),
        ({"image": 0.04}, usage(images=2), 80_000_000),
        ({"container": 0.03, "input": 1}, usage(1, containers=2), 60_001_000),
        ({"search_units_per_1000": 2}, usage(search_units=1), 2_000_000),
        ({"call": 0.005}, usage(calls=3), 15_000_000),
        ({"call": 0.005, "input": 1, "output": 1}, usage(1, 1), 5_002_000),  # one, where none is counted
        ({"call": 0.005, "input": 1, "output": 1}, Usage(), 0),  # an attempt that cost nothing
        ({"input": 1, "output": 2, "reasoning": 3}, Usage(1, 10, 0, 4, "reported"), 1_000 + 6 * 2_000 + 4 * 3_000),
    ],
)
def test_cost(prices: dict[str, Any], used: Usage, nusd: int | None) -> None:
    assert cost_nusd(price(**prices), used, NOON) == nusd


def test_each_upstream_request_of_a_call_has_its_own_tier() -> None:
    """Two prompts of half the length are two short ones."""
    one = usage(150_000, 10)
    assert cost_nusd(price(**CLAUDE), total_usage([one, one]), NOON) == 2 * (150_000 * 3_000 + 10 * 15_000)
    assert cost_nusd(price(**CLAUDE), total_usage([one, total_usage([one, Usage(), one])]), NOON) == 3 * (
        150_000 * 3_000 + 10 * 15_000
    )
    assert cost_nusd(price(**CLAUDE), total_usage([one, one._replace(variant="batch")]), NOON) == (
        150_000 * 4_500 + 10 * 22_500
    )


def test_the_sum_is_rounded_up_once() -> None:
    made = price(input=0.0001, output=0.0001, cache_write=0.0001)
    assert cost_nusd(made, total_usage([usage(2, 3, cache_write=1)] * 2), NOON) == 1


HOURS = {"input": 1, "output": 1, "hours": [
    {"start": "12:00", "until": "16:30", "input": 2, "output": 1}, {"start": "23:00", "until": "01:00", "input": 3},
]}  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "usd"), [(-1, 1), (0, 2), (4.5 * 3600 - 1, 2), (4.5 * 3600, 1), (11 * 3600, 3), (12.5 * 3600, 3),
                         (13 * 3600, 1)],
)  # fmt: skip
def test_hours_of_the_day(seconds: float, usd: int) -> None:
    assert cost_nusd(price(**HOURS), usage(1), NOON + seconds) == usd * 1_000


def test_a_price_that_begins_on_a_day() -> None:
    later = [{"starts": "2026-11-22", "input": 2}, {"starts": "2026-11-24", "input": 3, "variants": {"flex": {}}}]
    made = price(input=1, output=1, later=later)
    costs = [cost_nusd(made, usage(1), NOON + day * DAY) for day in range(-1, 6)]
    assert costs == [1_000, 1_000, 1_000, 2_000, 2_000, 3_000, 3_000]
    assert cost_nusd(made, usage(1), NOON + 1.5 * DAY - 1) == 1_000
    assert cost_nusd(made, usage(1), NOON + 1.5 * DAY) == 2_000
    assert cost_nusd(made, usage(1, 1), NOON + 3 * DAY) is None  # a whole price, and it has no output


# ---------------------------------------------------------------------------------------------------------------- drawn

WRITES = {"cache_write"}


@pytest.mark.parametrize(
    ("prompt", "units", "variant", "nusd"),
    [
        (100, set(), "", 100 * 3_000 + 10 * 15_000),
        (100, WRITES, "", 100 * 3_750 + 10 * 15_000),
        (100, WRITES | {"cache_write_1h"}, "", 100 * 6_000 + 10 * 15_000),
        (200_001, set(), "", 200_001 * 6_000 + 10 * 22_500),
        (200_001, WRITES, "", 200_001 * 7_500 + 10 * 22_500),
        (100, set(), "batch", 100 * 1_500 + 10 * 7_500),
        (100, set(), "priority", None),  # which it has no row for
    ],
)
def test_what_is_drawn(prompt: int, units: set[str], variant: str, nusd: int | None) -> None:
    assert most_nusd(price(**CLAUDE), prompt, 10, NOON, variant, units.__contains__) == nusd


def test_what_is_drawn_of_sound_and_calls() -> None:
    made = price(input=1, output=2, audio_in=10, audio_out=20, call=1)
    assert most_nusd(made, 3, 4, NOON, "", lambda unit: False) == 3_000 + 8_000 + 10**9
    assert most_nusd(made, 3, 4, NOON) == 30_000 + 80_000 + 10**9
    assert most_nusd(None, 3, 4, NOON) is None


tokens = st.integers(0, 400_000)


@given(tokens, tokens, st.data())
def test_what_is_drawn_is_the_most_that_tokens_can_cost(prompt: int, completion: int, data: st.DataObject) -> None:
    made, left, more = price(**CLAUDE, audio_in=40, audio_out=80, image_in=1), prompt, {}
    for unit in ("cache_write", "cache_write_1h", "audio_in", "image_in"):
        more[unit] = data.draw(st.integers(0, left))
        left -= more[unit]
    more["audio_out"] = data.draw(st.integers(0, completion))
    cached = data.draw(st.integers(0, left))
    actual = cost_nusd(made, usage(prompt, completion, cached, **more), NOON)
    most = most_nusd(made, prompt, completion, NOON)
    assert actual is not None
    assert most is not None
    assert actual <= most


# ----------------------------------------------------------------------------------------------- what a record keeps


@pytest.mark.parametrize(
    ("prices", "used", "kept"),
    [
        ({"input": 1.5, "output": 2}, usage(1), PaidPrice({"input": 1.5, "cached_input": 1.5, "output": 2})),
        (
            CLAUDE, usage(1),
            PaidPrice({
                "input": 3, "cached_input": 0.3, "output": 15, "cache_write": 3.75, "cache_write_1h": 6,
                "web_searches_per_1000": 10,
            }),
        ),
        (
            CLAUDE, usage(200_001, variant="batch"),
            PaidPrice(
                {
                    "input": 1.5, "cached_input": 0.6, "output": 7.5, "cache_write": 7.5, "cache_write_1h": 6,
                    "web_searches_per_1000": 10,
                },
                200_000, "batch",
            ),
        ),
        ({"image": 0.04}, usage(1), PaidPrice({"image": 0.04})),
        (
            {"input": 0.000000001, "output": 100, "source": "table 2026-11-20"}, usage(1),
            PaidPrice({"input": 1e-9, "output": 100}, source="table 2026-11-20"),
        ),
    ],
)  # fmt: skip
def test_what_a_record_keeps(prices: dict[str, Any], used: Usage, kept: PaidPrice) -> None:
    assert read_price(record_text(price(**prices), used, NOON) or "") == kept


def test_the_rows_that_hold_now_are_those_that_a_record_keeps() -> None:
    made = price(**CLAUDE)
    assert current_rows(made, NOON) == read_price(record_text(made, usage(1), NOON) or "").rows
    assert rows_of("above=200000 variant=batch input=1.5") == {"above": "200000", "variant": "batch", "input": "1.5"}
    assert current_rows(None, NOON) is None


@pytest.mark.parametrize(
    ("prices", "used", "parts"),
    [
        (
            CLAUDE, usage(100, 10, 20, cache_write=30, web_searches=2),
            [("prompt", 50, 1_000_000, 3), ("cached", 20, 1_000_000, 0.3), ("completion", 10, 1_000_000, 15),
             ("cache_write", 30, 1_000_000, 3.75), ("web_searches", 2, 1_000, 10)],
        ),
        (CLAUDE, usage(200_001), [("prompt", 200_001, 1_000_000, 6)]),
        ({"audio_per_minute": 0.006}, usage(audio_ms=90_000), [("audio_ms", 90_000, 60_000, 0.006)]),
        ({"input": 1, "output": 2, "call": 1}, usage(3), [("prompt", 3, 1_000_000, 1), ("calls", 1, 1, 1)]),
        (
            {"input": 2, "output": 4, "source": "table 2026-11-20"}, usage(9, 8, cache_write_1h=4, audio_out=3),
            [("prompt", 5, 1_000_000, 2), ("completion", 5, 1_000_000, 4), ("cache_write_1h", 4, 1_000_000, 2),
             ("audio_out", 3, 1_000_000, 4)],
        ),
    ],
)  # fmt: skip
def test_the_cost_of_a_record_is_a_sum(
    prices: dict[str, Any], used: Usage, parts: list[tuple[str, int, int, float]]
) -> None:
    made = price(**prices)
    found = cost_parts(record_text(made, used, NOON) or "", used, cost_nusd(made, used, NOON) or 0)
    assert [part[:4] for part in found] == parts
    for part in found:
        assert part.cost_usd == pytest.approx(part.amount * part.price_usd / part.per)
    assert record_text(None, used, NOON) is None


def test_every_unit_has_a_price() -> None:
    rows = {name for name in Price.model_fields if name not in ("tiers", "variants", "hours", "later", "source")}
    made = price(**{name: 1 for name in rows if name not in ("cache_write_on_request", "audio_per_hour")})
    for unit in UNITS:
        assert cost_nusd(made, usage(9, 9, **{unit: 1}), NOON) is not None, unit
