"""Counts of further units: their sums, and how a record keeps them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import units

some = st.dictionaries(st.sampled_from(sorted(units.UNITS)), st.integers(0, 2**53)).map(units.counts)


def test_counts_are_in_the_order_of_the_table_and_without_zeros() -> None:
    assert units.counts({"web_searches": 2, "calls": 0, "cache_write": 1, "of_tomorrow": 3}) == (
        ("cache_write", 1), ("web_searches", 2), ("of_tomorrow", 3),
    )  # fmt: skip


@given(st.lists(some, max_size=4))
def test_a_sum_has_each_unit_once_and_forgets_none(parts: list[units.Counts]) -> None:
    found = dict(units.total(parts))
    assert len(found) == len(units.total(parts))
    for name in units.UNITS:
        assert found.get(name, 0) == sum(dict(part).get(name, 0) for part in parts)


@given(some)
def test_formatting_and_parsing_agree(of: units.Counts) -> None:
    assert units.read(units.format_counts(of)) == of


def test_spelling() -> None:
    assert units.format_counts((("cache_write", 100), ("web_searches", 2))) == "cache_write=100 web_searches=2"
    assert units.format_counts(()) == ""


@pytest.mark.parametrize("text", ["=1", "calls", "calls=", "calls=-1", "calls=1.5", "calls=x"])
def test_what_is_no_count_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a count of a unit"):
        units.read(text)
