"""The one rule of the forecast: the last seven whole days go on. The cheapest and the dearest of the last four
weeks are its range.

Replayed on past months, a rule by day of the week was no better than the mean; each is wrong by some percent, so the
forecast has a range.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

WEEK = 7
WEEKS = 4
LEAST_SHARE = 1 / 24
"""Share of a day from which a pace may be made."""


class DailyUse(NamedTuple):
    """An amount per day: the expected one, and those of the least and the busiest of the last weeks."""

    mean: float
    low: float
    high: float


class Expected(NamedTuple):
    """An amount at the end of a period: the expected one, and the lowest and the highest that are likely."""

    end: float
    low: float
    high: float


def daily_use(by_day: Mapping[str, float], now: datetime) -> DailyUse:
    """The pace of the last whole days, from the first one in `by_day` on; without a whole day, that of today."""
    today = now.date()
    first = min(by_day, default=today.isoformat())
    days = [(today - timedelta(days=ago)).isoformat() for ago in range(1, WEEK * WEEKS + 1)]
    known = [by_day.get(day, 0.0) for day in days if day >= first]
    if not known:
        begun = datetime.combine(today, datetime.min.time(), UTC)
        so_far = by_day.get(today.isoformat(), 0.0) / max((now - begun) / timedelta(days=1), LEAST_SHARE)
        return DailyUse(so_far, so_far, so_far)
    weeks = [known[at : at + WEEK] for at in range(0, len(known), WEEK)]
    means = [sum(week) / len(week) for week in weeks if len(week) == WEEK or week is weeks[0]]
    return DailyUse(means[0], min(means), max(means))


def expected(used: float, daily: DailyUse, left_days: float) -> Expected:
    """The amount at the end of a period, with `used` so far and this many days to come."""
    return Expected(*[used + each * left_days for each in daily])
