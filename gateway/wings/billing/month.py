"""The statement of a month: who spent what, what the providers bill, what differs and why. Pure."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.reports.csv_text import csv_text
from gateway.reports.table import plain_usd

from .explain import CAUSES
from .recorded import ComparedBill
from .statement import summary_of

GROUPS = ("person", "team", "key")
COLUMNS = ("month", "line", "name", "team", "requests", "total_tokens", "unpriced", "usd", "explanation")
SUMMED = ("requests", "total_tokens", "unpriced")


class StatementMonth(NamedTuple):
    """A month such as 2026-11 and its first and last days."""

    name: str
    since: str
    until: str


def month_of(name: str) -> StatementMonth:
    """Raises `ValueError` where there is no such month."""
    if re.fullmatch(r"[1-9]\d{3}-(0[1-9]|1[0-2])", name) is None:
        raise ValueError("expected a month such as 2026-11")
    return StatementMonth(name, f"{name}-01", f"{name}-{monthrange(int(name[:4]), int(name[5:]))[1]}")


def spenders(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows by `GROUPS` as one for each person and team, and one for each key without an owner; the dearest first."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        names = row["person"], "" if row["person"] else row["key"], row["team"]
        nothing = {**dict.fromkeys(SUMMED, 0), "cost_usd": 0.0}
        sums = found.setdefault(names, {**dict(zip(("person", "key", "team"), names, strict=True)), **nothing})
        for name in SUMMED:
            sums[name] += row[name]
        sums["cost_usd"] = round(sums["cost_usd"] + (row["cost_usd"] or 0.0), 9)
    return sorted(found.values(), key=lambda row: (-row["cost_usd"], row["person"], row["key"], row["team"]))


def statement(
    month: StatementMonth,
    rows: Sequence[Mapping[str, Any]],
    bills: Iterable[ComparedBill],
    notes: Sequence[str],
    today: str,
) -> dict[str, Any]:
    """The answer, from usage rows by `GROUPS` and from the bills within the month. `notes` are further ones."""
    spent = spenders(rows)
    both = list(bills)
    cut = [
        f"The bill of {each.upstream} was read from {each.bill.since} on: what was before is in no sum of it."
        for each in both
        if each.bill.since > month.since
    ]
    running = ["The month is not over."] if today <= month.until else []
    return {
        "object": "statement", "month": month.name, "since": month.since, "until": min(month.until, today),
        "spent": spent,
        "total": {
            **{name: sum(row[name] for row in spent) for name in SUMMED},
            "cost_usd": round(sum(row["cost_usd"] for row in spent), 9),
        },
        "causes": dict(CAUSES),
        "bills": [_bill(each) for each in both],
        "notes": [*running, *cut, *notes],
    }  # fmt: skip


def _bill(each: ComparedBill) -> dict[str, Any]:
    summary = summary_of(each)
    kept = ("upstream", "read_at", "since", "open_from", "bill_usd", "recorded_usd", "difference_usd", "causes")
    return {name: summary[name] for name in kept}


def format_statement_csv(answer: Mapping[str, Any]) -> str:
    """A line for each who spent, each sum of a bill, and each cause of a difference."""
    return csv_text(COLUMNS, _lines(answer))


def _lines(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    empty = {**dict.fromkeys(COLUMNS, ""), "month": answer["month"]}
    for row in answer["spent"]:
        spender = {
            "line": "person" if row["person"] else "key",
            "name": row["person"] or row["key"],
            "team": row["team"],
        }
        yield {**empty, **spender, **{name: row[name] for name in SUMMED}, "usd": plain_usd(row["cost_usd"])}
    sums = {name: answer["total"][name] for name in SUMMED}
    yield {**empty, "line": "total", **sums, "usd": plain_usd(answer["total"]["cost_usd"])}
    for bill in answer["bills"]:
        for line in ("bill", "recorded", "difference"):
            yield {**empty, "line": line, "name": bill["upstream"], "usd": plain_usd(bill[f"{line}_usd"])}
        for cause, usd in bill["causes"].items():
            explained = {"line": cause, "name": bill["upstream"], "explanation": CAUSES[cause]}
            yield {**empty, **explained, "usd": plain_usd(usd)}
