"""Which names under patterns are groups of the daily sums."""

from __future__ import annotations

import pytest

from gateway.accounting.call_record import ServedModels


def test_a_name_is_a_group_after_it_was_served() -> None:
    served = ServedModels()
    assert (served.group("gpt-4o"), served.note("gpt-4o"), served.group("gpt-4o")) == ("other", "gpt-4o", "gpt-4o")


def test_names_are_bounded() -> None:
    served = ServedModels(most=2)
    assert [served.note(name) for name in ("a", "b", "c", "a")] == ["a", "b", "other", "a"]


@pytest.mark.parametrize("name", ["a\x1fb", "a\nb", "a\u2028b", "a\ud800b"], ids=ascii)
def test_no_group_has_a_name_that_reports_cannot_hold(name: str) -> None:
    assert ServedModels().note(name) == "other"
