"""The present problems: one row for each, with its first and last moment, a count and one sentence. Pure.

A row names its subject (`kind` and `subject`), so that a page can link to it. Rows are in the order of `since`, the
newest first.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any, NamedTuple

from gateway.quota.scopes import SCOPES
from gateway.reports.table import utc
from gateway.store import RefusalEntry

from .failing import in_words

SPENT = "insufficient_quota"
"""The code of a refusal because a quota is spent."""
OWNERS = ("gateway ", *[f"{kind}:" for kind in SCOPES])
"""The beginnings of limits that name their owner."""
_LIMIT = re.compile("(.+) ((?:US dollars|usd|tokens|requests) per .+|parallel requests)")
"""A limit with its owner, whose name may have blanks."""
TIMES = 3
"""A day is unusual from this many times the usual day on."""
LEAST_DAYS = 5
"""Days with use, out of the last four weeks, that make a usual day."""
LEAST_USD = 0.01
"""A day that cost less is no problem, however unusual it is."""
RECENT_S = 600.0
"""A quota whose last refusal is older is no problem any more, unless it still has nothing left."""


class Problem(NamedTuple):
    """One row; `since` and `last` are Unix times, `number` is of `what`."""

    kind: str
    subject: str
    since: float
    last: float
    number: int
    what: str
    text: str


def rows_of(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """The rows of the answer, the newest problem first."""
    ordered = sorted(problems, key=lambda each: (-each.since, each.kind, each.subject))
    return [_row(each) for each in ordered]


def _row(problem: Problem) -> dict[str, Any]:
    row = problem._asdict() | {"since": utc(problem.since), "last": utc(problem.last)}
    return {"count" if name == "number" else name: value for name, value in row.items()}


def of_upstreams(runs: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """One for each upstream that fails now."""
    return [
        Problem(
            "upstream", run["upstream"], run["since"], run["last"], run["failures"], "failed attempts",
            f"{_kinds(run['kinds'])}: {run['failures']} of {run['attempts']} attempts failed"
            + (f'. It reports: "{run["message"]}"' if run["message"] else ""),
        )
        for run in runs
        if run["failing"]
    ]  # fmt: skip


def _kinds(kinds: Sequence[Mapping[str, Any]]) -> str:
    first = [f"{in_words(each['fault'], each['status'])} ({each['count']} times)" for each in kinds[:3]]
    return ", ".join([*first, *([f"{len(kinds) - 3} other kinds"] if len(kinds) > 3 else [])])


def of_store(since: float, at: float, pending: int) -> Problem:
    """The store does not answer."""
    return Problem("store", "store", since, at, pending, "records not in the store", "the store does not answer")


def of_quotas(refusals: Iterable[RefusalEntry], spent: Container[str], at: float) -> list[Problem]:
    """One for each limit whose last refusal is recent, or that still has nothing left: those in `spent`. Both name a
    limit as refusals do: `key:alice tokens per day`."""
    by_limit: dict[str, list[float]] = {}
    for entry in refusals:
        if entry.code == SPENT and entry.key and entry.limit:
            has_owner = entry.limit.startswith(OWNERS)
            by_limit.setdefault(entry.limit if has_owner else f"key:{entry.key} {entry.limit}", []).append(entry.time)
    found = []
    for limit, times in by_limit.items():
        if limit in spent or at - max(times) <= RECENT_S:
            parted = _LIMIT.fullmatch(limit)
            owner, what = parted.groups() if parted else limit.split(" ", 1)
            text = f"the quota of {what} is spent: {_many(len(times), 'request')} refused"
            found.append(Problem("quota", owner, min(times), max(times), len(times), "refused requests", text))
    return found


def usual_day(by_day: Mapping[str, float], today: str) -> float | None:
    """The median of the days with use; None: there are too few of them."""
    used = [amount for day, amount in by_day.items() if day < today and amount > 0]
    return median(used) if len(used) >= LEAST_DAYS else None


def of_spend(
    name: str, by_day: Mapping[str, float], by_hour: Mapping[str, float], at: float, keys: Sequence[str] = ()
) -> Problem | None:
    """A key that spends a multiple of its usual day, in US dollars, or a person with all of her `keys`; since the hour
    in which the day became one."""
    today = datetime.fromtimestamp(at, UTC).date().isoformat()
    usual, spent = usual_day(by_day, today), by_day.get(today, 0.0)
    if usual is None or spent < max(TIMES * usual, LEAST_USD):
        return None
    since, so_far = at, 0.0
    for hour, amount in sorted(by_hour.items()):
        so_far += amount
        if so_far >= TIMES * usual:
            since = datetime.fromisoformat(f"{hour}:00:00+00:00").timestamp()
            break
    text = f"spent ${spent:,.2f} today, {spent / usual:.0f} times {'the' if keys else 'its'} usual day of ${usual:,.2f}"
    text += f", with the keys {', '.join(keys[:5])}{' and others' if len(keys) > 5 else ''}" if keys else ""
    scope = f"{'person' if keys else 'key'}:{name}"
    return Problem("spend", scope, since, at, round(spent / usual), "times the usual day", text)


def of_prices(rows: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """One for each model with calls of unknown cost, from usage rows by day and model."""
    days: dict[str, dict[str, int]] = {}
    for row in rows:
        if row["unpriced"]:
            days.setdefault(row["model"], {})[row["day"]] = row["unpriced"]
    found = []
    for model, unpriced in days.items():
        since, last = begin_of(min(unpriced)), begin_of(max(unpriced))
        number = sum(unpriced.values())
        text = f"the price is unknown: the cost of {_many(number, 'call')} is in no sum"
        found.append(Problem("price", model, since, last, number, "calls without a cost", text))
    return found


def begin_of(day: str) -> float:
    """The Unix time at which a day begins."""
    return datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
