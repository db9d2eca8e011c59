"""The problems with bills: from the findings that the wing `billing` posts in the store. Pure.

A bill differs without an explanation, or has other prices than configured; a bill cannot be read; an account or its
limit ends soon.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from .forecast import DailyUse, daily_use
from .problems import Problem, begin_of

PLACE = "bills"
"""The place of the posts."""
SOON_DAYS = 14.0
"""An account that lasts longer is no problem yet."""
FINDING = ("upstream", "failed", "read_at", "bound_usd", "unexplained", "prices", "spent", "left_usd", "limit_usd")


def findings_in(posts: Iterable[str]) -> list[Mapping[str, Any]]:
    """The findings of these posts, without what a gateway of another version posts in another form."""
    found: list[Mapping[str, Any]] = []
    for text in posts:
        try:
            found += [each for each in json.loads(text) if {*FINDING} <= {*each}]
        except (ValueError, TypeError):
            continue
    return found


def of_bills(findings: Iterable[Mapping[str, Any]], at: float) -> list[Problem]:
    """The problems at the Unix time `at`."""
    return [problem for each in findings for problem in _of(each, at)]


def _of(finding: Mapping[str, Any], at: float) -> list[Problem]:
    found = []
    upstream, read_at = finding["upstream"], finding["read_at"]
    if finding["failed"]:
        since = at if read_at is None else read_at
        text = f"the bill cannot be read: {finding['failed']}"
        found.append(Problem("reading", upstream, since, at, round((at - since) / 3600), "hours without a bill", text))
    days = finding["unexplained"]
    amount = sum(days.values())
    if abs(amount) > finding["bound_usd"]:
        way = "more" if amount > 0 else "less"
        text = f"the bill has ${abs(amount):,.2f} {way} than the records, without an explanation"
        found.append(Problem("bill", upstream, begin_of(min(days)), begin_of(max(days)), len(days), "days", text))
    if prices := finding["prices"]:
        first = begin_of(min(prices.values()))
        names = ", ".join([*sorted(prices)[:3], *(["others"] if len(prices) > 3 else [])])
        text = f"the bill has another price than the configuration for {names}"
        found.append(Problem("bill", upstream, first, at, len(prices), "models with another price", text))
    account = _account(finding, at)
    return [*found, *([] if account is None else [account])]


def _account(finding: Mapping[str, Any], at: float) -> Problem | None:
    """An account whose balance, or whose limit of this month, ends within `SOON_DAYS`."""
    if finding["read_at"] is None:
        return None
    now = datetime.fromtimestamp(at, UTC)
    daily = daily_use(finding["spent"], now)
    rest, of = finding["left_usd"], "the balance of the account"
    month_ends = SOON_DAYS
    if rest is None and finding["limit_usd"] is not None:
        month = now.strftime("%Y-%m")
        spent = sum(usd for day, usd in finding["spent"].items() if day.startswith(month))
        rest, of = finding["limit_usd"] - spent, f"the account's limit of ${finding['limit_usd']:,.2f} per month"
        month_ends = (_next_month(now) - now) / timedelta(days=1)
    if rest is None:
        return None
    if rest <= 0:
        return Problem("account", finding["upstream"], finding["read_at"], at, 0, "days left", f"{of} is spent")
    if not daily.mean or (left := rest / daily.mean) > min(SOON_DAYS, month_ends):
        return None
    when = f"at the pace of the last 7 days it ends {_when(now, left)}{_range(now, rest, daily)}"
    text = f"${rest:,.2f} are left of {of}: {when}"
    return Problem("account", finding["upstream"], finding["read_at"], at, int(left), "days left", text)


def _range(now: datetime, rest: float, daily: DailyUse) -> str:
    """When it ends by the dearest and by the cheapest of the last four weeks, in words."""
    first, last = _when(now, rest / daily.high), _when(now, rest / daily.low) if daily.low else "later"
    return "" if first == last else f" ({first} to {last}, by the dearest and the cheapest of the last four weeks)"


def _when(now: datetime, days: float) -> str:
    return (now + timedelta(days=min(days, 3650))).date().isoformat()


def _next_month(now: datetime) -> datetime:
    return (now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=32)).replace(day=1)


def of_posts(posts: Mapping[str, str], at: float) -> list[Problem]:
    """The problems of the posts at `PLACE`, by holder."""
    return of_bills(findings_in(posts.values()), at)
