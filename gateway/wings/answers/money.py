"""The spend of the running month: by day, beside the month before and the budget, with a forecast; and the same of each
team. Money in USD, days in UTC."""

from __future__ import annotations

from calendar import monthrange
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from gateway.config import NUSD
from gateway.records import Window
from gateway.reports.csv_text import csv_text
from gateway.reports.table import plain_usd

from .forecast import daily_use, expected

COLUMNS = (
    "month", "team", "spent_usd", "unpriced", "budget_usd", "end_usd", "low_usd", "high_usd", "compared_usd",
    "before_usd",
)  # fmt: skip
"""The columns of the teams in CSV."""


class Budgets(NamedTuple):
    """The quotas of money per month for all models: of the gateway, and of teams by name."""

    gateway: float | None
    teams: Mapping[str, float]

    @property
    def whole(self) -> tuple[float, str] | None:
        """The budget of the gateway and whose quota it is: its own, else the sum of the teams'; None: there is none."""
        if self.gateway is not None:
            return self.gateway, "gateway"
        return (sum(self.teams.values()), "teams") if self.teams else None


class Month(NamedTuple):
    """The running month, and the one before."""

    now: datetime

    @property
    def name(self) -> str:
        return self.now.strftime("%Y-%m")

    @property
    def days(self) -> list[str]:
        """Every day of the month."""
        number = monthrange(self.now.year, self.now.month)[1]
        return [f"{self.name}-{day:02}" for day in range(1, number + 1)]

    @property
    def left_days(self) -> float:
        """The time until its end, in days."""
        begun = datetime(self.now.year, self.now.month, 1, tzinfo=UTC)
        return (begun + timedelta(days=len(self.days)) - self.now) / timedelta(days=1)

    @property
    def before(self) -> list[str]:
        """The days of the month before."""
        last = datetime(self.now.year, self.now.month, 1, tzinfo=UTC) - timedelta(days=1)
        return [f"{last:%Y-%m}-{day:02}" for day in range(1, last.day + 1)]


def first_day(now: datetime) -> str:
    """The first day whose sums are needed: the first of the month before, which is never less than four weeks ago."""
    return Month(now).before[0]


def budgets_of(windows: Iterable[Window]) -> Budgets:
    """Those of the gateway and of teams as a whole, out of windows of any scopes: a quota of a label or of an upstream
    is no budget of its gateway or team."""
    usd = {
        each.scope: each.limit / NUSD
        for each in windows
        if each.unit == "usd" and each.per == "month" and not each.model
    }
    teams = {scope.removeprefix("team:"): amount for scope, amount in usd.items() if scope.startswith("team:")}
    return Budgets(usd.get("gateway"), teams)


def money(rows: Iterable[Mapping[str, Any]], budgets: Budgets, now: datetime) -> dict[str, Any]:
    """The answer, from usage rows by day and team since `first_day`."""
    month = Month(now)
    by_team: defaultdict[str, dict[str, float]] = defaultdict(dict)
    unpriced: defaultdict[str, int] = defaultdict(int)
    whole: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        cost = row["cost_usd"] or 0.0
        by_team[row["team"]][row["day"]] = by_team[row["team"]].get(row["day"], 0.0) + cost
        whole[row["day"]] += cost
        if row["day"].startswith(month.name):
            unpriced[row["team"]] += row["unpriced"]
    names = sorted({*by_team, *budgets.teams})
    teams = [
        {"team": name, "unpriced": unpriced[name], "budget_usd": budgets.teams.get(name)} | _sums(by_team[name], month)
        for name in names
    ]
    budget = budgets.whole
    return {
        "object": "money",
        "at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "month": month.name,
        "unpriced": sum(unpriced.values()),
        "budget_usd": None if budget is None else budget[0],
        "budget_of": None if budget is None else budget[1],
        **_sums(whole, month),
        "days": _curve(whole, month),
        "teams": sorted(teams, key=lambda row: (-row["spent_usd"], row["team"])),
    }


def format_money_csv(answer: Mapping[str, Any]) -> str:
    """One line for each team, and one without a team's name: the whole gateway."""
    sums = [{**answer, "team": "(all)"}, *[{"month": answer["month"], **row} for row in answer["teams"]]]
    lines = [{name: plain_usd(row[name]) if name.endswith("_usd") else row[name] for name in COLUMNS} for row in sums]
    return csv_text(COLUMNS, lines)


def _sums(costs: Mapping[str, float], month: Month) -> dict[str, Any]:
    """Spent and expected amounts, and the whole days of this month (`compared_usd`) beside the same days of the month
    before."""
    today = month.now.date().isoformat()
    over = [day for day in month.days if day < today]
    spent = sum(cost for day, cost in costs.items() if day.startswith(month.name))
    found = expected(spent, daily_use(costs, month.now), month.left_days)
    return {
        "spent_usd": _usd(spent), "end_usd": _usd(found.end), "low_usd": _usd(found.low), "high_usd": _usd(found.high),
        "compared_usd": _usd(_of(costs, over)), "before_usd": _usd(_of(costs, month.before[: len(over)])),
    }  # fmt: skip


def _curve(costs: Mapping[str, float], month: Month) -> list[dict[str, Any]]:
    """Both months as sums up to the end of each day; None: the day has not come, or the month has no such day."""
    today, curve = month.now.date().isoformat(), list[dict[str, Any]]()
    for at, day in enumerate(month.days):
        spent = None if day > today else _usd(_of(costs, month.days[: at + 1]))
        before = _usd(_of(costs, month.before[: at + 1])) if at < len(month.before) else None
        curve.append({"day": day, "spent_usd": spent, "before_usd": before})
    return curve


def _of(costs: Mapping[str, float], days: Sequence[str]) -> float:
    return sum(costs.get(day, 0.0) for day in days)


def _usd(amount: float) -> float:
    return round(amount, 9)
