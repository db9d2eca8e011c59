"""The one rule for what will be used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gateway.wings.answers.forecast import DailyUse, Expected, daily_use, expected

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def days(*amounts: float) -> dict[str, float]:
    """The amounts of yesterday, the day before and so on."""
    return {(NOON - timedelta(days=ago)).date().isoformat(): amount for ago, amount in enumerate(amounts, 1)}


def test_the_last_seven_days_go_on_and_the_weeks_of_four_are_the_range() -> None:
    amounts = [2.0] * 7 + [5.0] * 7 + [1.0] * 7 + [3.0] * 7 + [100.0] * 7
    assert daily_use(days(*amounts), NOON) == DailyUse(2.0, 1.0, 5.0)


@pytest.mark.parametrize(
    ("amounts", "found"),
    [
        ([4.0], DailyUse(4.0, 4.0, 4.0)),
        ([4.0, 2.0], DailyUse(3.0, 3.0, 3.0)),
        ([1.0] * 7 + [9.0] * 3, DailyUse(1.0, 1.0, 1.0)),  # three days are no week
        ([0.0] * 7 + [7.0] * 7, DailyUse(0.0, 0.0, 7.0)),
    ],
)
def test_fewer_days_make_a_smaller_range(amounts: list[float], found: DailyUse) -> None:
    assert daily_use(days(*amounts), NOON) == found


def test_days_without_use_count_as_soon_as_there_was_use() -> None:
    assert daily_use({"2026-11-13": 7.0}, NOON).mean == pytest.approx(1.0)


def test_the_first_day_goes_on_at_its_own_pace() -> None:
    assert daily_use({"2026-11-20": 3.0}, NOON) == DailyUse(6.0, 6.0, 6.0)
    assert daily_use({"2026-11-20": 1.0}, NOON.replace(hour=0)).mean == pytest.approx(24.0)
    assert daily_use({}, NOON) == DailyUse(0.0, 0.0, 0.0)


def test_what_is_used_stays_used() -> None:
    assert expected(10.0, DailyUse(2.0, 1.0, 5.0), 3.0) == Expected(16.0, 13.0, 25.0)
    assert expected(10.0, DailyUse(2.0, 1.0, 5.0), 0.0) == Expected(10.0, 10.0, 10.0)
