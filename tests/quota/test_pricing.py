"""The cost of tokens in nano-USD; None where it is unknown."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Price
from gateway.quota.pricing import MAX_NUSD, cost_nusd, cost_parts, format_usd, read_price, record_text, usd
from gateway.records import Usage

INSTRUCT = {"input": 1.50, "output": 2.00, "cached_input": 0.75}


def price(**changes: Any) -> Price:
    return Price.model_validate(changes or INSTRUCT)


@pytest.mark.parametrize(
    ("prices", "usage", "nusd"),
    [
        (INSTRUCT, Usage(10, 5), 10 * 1500 + 5 * 2000),
        (INSTRUCT, Usage(10, 0), 15_000),
        (INSTRUCT, Usage(0, 5), 10_000),
        (INSTRUCT, Usage(10, 5, cached_tokens=4), 6 * 1500 + 4 * 750 + 5 * 2000),
        (INSTRUCT, Usage(10, 5, cached_tokens=10), 10 * 750 + 5 * 2000),
        (INSTRUCT, Usage(10, 5, cached_tokens=99), 10 * 750 + 5 * 2000),  # at most the prompt
        (INSTRUCT, Usage(10, 5, reasoning_tokens=5), 10 * 1500 + 5 * 2000),  # they are completion tokens
        (INSTRUCT, Usage(10, 5, source="estimated"), 25_000),
        (INSTRUCT, Usage(), 0),
        ({"input": 1.50, "output": 2.00}, Usage(10, 5, cached_tokens=4), 25_000),  # cached as input
        ({"input": 1.50, "output": 2.00, "cached_input": 0}, Usage(10, 0, cached_tokens=4), 9_000),
        ({"input": 0.02}, Usage(8, 0), 160),  # embeddings
        ({"input": 0, "output": 0}, Usage(10, 5), 0),  # free, which is not unknown
        ({"input": 0.0375, "output": 0.15}, Usage(2, 0), 75),  # 37.5 each
        ({"input": 0.0375, "output": 0.15}, Usage(1, 0), 38),
        ({"input": 0.0001, "output": 0.0001}, Usage(1, 1), 1),  # rounded once, not for each price
        ({"input": 0.000000001, "output": 0}, Usage(10**6, 0), 1),
        ({"input": 0.000000001, "output": 0}, Usage(10**6 + 1, 0), 2),
        ({"input": 0.1, "output": 0.2}, Usage(3, 0), 300),  # not exact in floats
        ({"input": "0.15", "output": "0.60"}, Usage(1, 1), 750),  # from ${NAME}
        ({"input": 9_007_199, "output": 9_007_199}, Usage(2**53 - 1, 2**53 - 1), MAX_NUSD),
    ],
)
def test_cost(prices: dict[str, Any], usage: Usage, nusd: int) -> None:
    assert cost_nusd(price(**prices), usage) == nusd


@pytest.mark.parametrize("usage", [Usage(), Usage(10, 5, source="reported")])
def test_without_a_price_the_cost_is_unknown_and_not_0(usage: Usage) -> None:
    assert cost_nusd(None, usage) is None


prices = st.decimals(0, 1000, places=4).map(float)
counts = st.integers(0, 10**6)


@given(prices, prices, st.floats(0, 1), counts, counts, counts)
def test_cost_is_exact_and_rounded_up_to_a_nano(
    first: float, output: float, share: float, prompt: int, cached: int, completion: int
) -> None:
    cheaper = round(first * share, 4)
    found = cost_nusd(
        price(input=first, output=output, cached_input=min(cheaper, first)), Usage(prompt, completion, cached)
    )
    in_cache = min(cached, prompt)
    exactly = 1000 * (
        Fraction(repr(first)) * (prompt - in_cache)
        + Fraction(repr(min(cheaper, first))) * in_cache
        + Fraction(repr(output)) * completion
    )  # fmt: skip
    assert found is not None
    assert exactly <= found < exactly + 1


@given(prices, prices, counts, counts, counts)
def test_what_is_drawn_before_is_the_most_that_it_can_cost(
    first: float, output: float, prompt: int, cached: int, completion: int
) -> None:
    made = price(input=first, output=output, cached_input=first / 2 if first == round(first, 2) else first)
    most, actual = cost_nusd(made, Usage(prompt, completion)), cost_nusd(made, Usage(prompt, completion, cached))
    assert most is not None
    assert actual is not None
    assert actual <= most


def test_a_price_is_the_same_after_its_way_to_a_worker() -> None:
    """The supervisor sends plain values as JSON."""
    for first in (0.15, 0.1, 1e-9, 2.675, 1.1, 123456.789):
        given_to_it = {"input": first, "output": first}
        made = price(**json.loads(json.dumps(given_to_it)))
        assert made == price(**given_to_it)
        assert made.nusd_per_million[0] == Decimal(repr(first)) * 10**9
        assert price(**json.loads(made.model_dump_json())) == made


@pytest.mark.parametrize(
    ("prices", "spelt"),
    [
        (INSTRUCT, "1.5 0.75 2"),
        ({"input": 1.50, "output": 2.00}, "1.5 1.5 2"),  # cached as input
        ({"input": 100, "output": 0, "cached_input": 0}, "100 0 0"),
        ({"input": 0.02}, "0.02 0.02 0"),
        ({"input": 0.0375, "output": 1e-9}, "0.0375 0.0375 0.000000001"),
    ],
)
def test_a_price_as_a_record_keeps_it(prices: dict[str, Any], spelt: str) -> None:
    assert price(**prices).record_text == spelt


@given(prices, prices, counts, counts)
def test_what_a_record_keeps_of_its_price_explains_its_cost(
    first: float, output: float, prompt: int, completion: int
) -> None:
    made = price(input=first, output=output)
    usage = Usage(prompt, completion, cached_tokens=prompt // 3)
    kept = read_price(record_text(made, usage) or "")
    assert cost_nusd(price(**kept.rows), usage) == cost_nusd(made, usage)
    assert kept[1:] == (None, None, "configured")
    cost = cost_nusd(made, usage)
    assert cost is not None
    parts = cost_parts(record_text(made, usage) or "", usage, cost)
    assert sum([part.cost_usd for part in parts]) == pytest.approx(cost / 1e9, abs=1.1e-9)
    assert {part.unit: part.amount for part in parts} == {
        unit: amount
        for unit, amount in (("prompt", prompt - prompt // 3), ("cached", prompt // 3), ("completion", completion))
        if amount
    }


def test_a_cost_that_other_prices_made_is_no_sum() -> None:
    made, usage = price(**INSTRUCT), Usage(100, 50)
    text, cost = record_text(made, usage) or "", cost_nusd(made, usage) or 0
    assert [part.price_usd for part in cost_parts(text, usage, cost)] == [1.5, 2]
    assert cost_parts(text, usage, cost + 1) == []
    assert cost_parts("image=0.04", usage, cost) == []


@pytest.mark.parametrize(
    ("nusd", "spelt"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (25_000, "$0.000025"),
        (10_000_000, "$0.01"),
        (12_345_600, "$0.0123456"),
        (100_000_000, "$0.10"),
        (12_340_000_000, "$12.34"),
        (12_300_000_000, "$12.30"),
        (50_000_000_000, "$50.00"),
        (MAX_NUSD, "$9007199.254740991"),
    ],
)
def test_spell_usd(nusd: int, spelt: str) -> None:
    assert format_usd(nusd) == spelt


@given(st.integers(0, MAX_NUSD))
def test_formatted_money_adds_up(nusd: int) -> None:
    assert Decimal(format_usd(nusd).removeprefix("$")) * 10**9 == nusd


@pytest.mark.parametrize(("nusd", "shown"), [(25_000, 0.000025), (50 * 10**9, 50.0), (0, 0.0), (3 * 10**8, 0.3)])
def test_usd_in_reports(nusd: int, shown: float) -> None:
    assert repr(usd(nusd)) == repr(shown)
