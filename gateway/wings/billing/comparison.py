"""Formats of a comparison with a provider's export: rows, CSV and a table.

A row has `day`, `model`, `names` (the names that share the row), `only` (`ours` or `theirs`, if the other side has
nothing), four columns for each of `MEASURES`, and what may explain a difference: errors, estimated tokens and requests
of unknown cost of the gateway. An unknown number is null in JSON, empty in CSV and `-` in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway.config import printable
from gateway.reports.csv_text import csv_text
from gateway.reports.table import UNKNOWN, Row, aligned, decimals_of, plain_usd
from gateway.store.report_rows import percent

from .compare import Pair, RecordedUsage, total
from .invoice import Tally

MEASURES = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "total_tokens", "cost_usd")
"""Each has the columns NAME_ours, NAME_theirs, NAME_difference (ours minus theirs) and NAME_percent (of theirs)."""

COLUMNS = (
    "day", "model", "names", "only",
    *(f"{measure}_{what}" for measure in MEASURES for what in ("ours", "theirs", "difference", "percent")),
    "errors", "estimated_tokens", "estimated_percent", "unpriced",
)  # fmt: skip

TABLE = {
    "requests_ours": "requests", "requests_theirs": "theirs", "total_tokens_ours": "tokens",
    "total_tokens_theirs": "theirs", "total_tokens_difference": "difference", "total_tokens_percent": "%",
    "estimated_tokens": "estimated", "cost_usd_ours": "cost USD", "cost_usd_theirs": "theirs",
    "cost_usd_difference": "difference", "cost_usd_percent": "%",
}  # fmt: skip
"""The columns that fit into a table, behind `day`, `model` and `only`, and what they are called there."""


def rows_of(pairs: Iterable[Pair], known: Tally) -> list[dict[str, Any]]:
    """The rows of a comparison. `known` is None for each number that the file does not have, else 0."""
    return [_row(pair, known) for pair in pairs]


def format_csv(rows: Sequence[Row]) -> str:
    """A line of names, then one for each row; several `names` have a space between."""
    money = [name for name in COLUMNS if name.startswith("cost_usd_")]
    lines = ({**row, **{name: plain_usd(row[name]) for name in money}, "names": " ".join(row["names"])} for row in rows)
    return csv_text(COLUMNS, lines, line_end="\n")


def format_table(pairs: Sequence[Pair], known: Tally) -> str:
    """Aligned columns with a line of totals; without a line end."""
    rows = rows_of(pairs, known)
    decimals = decimals_of([row[name] for row in rows for name in TABLE if name in _IN_USD])
    lines = [["day", "model", "only", *TABLE.values()]]
    for row in [*rows, *rows_of([total(pairs)], known)]:
        names = [row["day"], printable(row["model"]), row["only"] or ""]
        lines.append([*names, *[_cell(name, row[name], decimals) for name in TABLE]])
    return aligned(lines, 3, has_total=True)


def reasons(row: Row) -> list[str]:
    """Possible explanations of the differences of a row; the list is empty where both sides agree."""
    names = ", ".join(row["names"])
    differs = {measure for measure in MEASURES if row[f"{measure}_difference"]}
    found = {
        "Only the provider has it: calls of another client of this account, or a model that has another name here.":
            row["only"] == "theirs",
        "Only the gateway has it: calls to another account or upstream, or a day that is not billed yet.":
            row["only"] == "ours",
        f"The names {names} share this row.": bool(names),
        f"{row['errors']:,} of our requests failed and are not among the requests; tokens that were charged for them "
        "count.": row["errors"] > 0 and bool(differs),
        f"{row['estimated_tokens']:,} of our tokens are estimated, because the provider reported none.":
            row["estimated_tokens"] > 0,
        f"The cost of {row['unpriced']:,} of our requests is unknown, and not in ours.": row["unpriced"] > 0,
        "The tokens agree and the cost does not: the price here is not the one that was billed.":
            differs == {"cost_usd"} and row["unpriced"] == 0 and row["total_tokens_theirs"] is not None,
    }  # fmt: skip
    return [text for text, holds in found.items() if holds] or (
        ["Nothing that is recorded here explains it."] if differs else []
    )


def notes(pairs: Sequence[Pair]) -> list[str]:
    """Notes for the readers of a table."""
    together: dict[str, set[str]] = {}
    for pair in pairs:
        if pair.names:
            together.setdefault(pair.model, set()).update(pair.names)
    found = [
        printable(f"{model} is also reported as {', '.join(sorted(names))}.")
        for model, names in sorted(together.items())
    ]
    unpriced = sum(pair.ours.unpriced for pair in pairs if pair.ours)
    if unpriced:
        found.append(f"The cost of {unpriced:,} of our requests is unknown, and in no sum.")
    return found


def _row(pair: Pair, known: Tally) -> dict[str, Any]:
    ours = pair.ours or RecordedUsage()
    theirs = known if pair.theirs is None else pair.theirs
    row: dict[str, Any] = {
        "day": pair.day,
        "model": pair.model,
        "names": list(pair.names),
        "only": "theirs" if pair.ours is None else "ours" if pair.theirs is None else None,
    }
    for measure, one, other in zip(MEASURES, ours.tally, theirs, strict=True):
        unit = 1e9 if measure == "cost_usd" else 1
        difference = None if one is None or other is None else one - other
        row[f"{measure}_ours"] = _in(unit, one)
        row[f"{measure}_theirs"] = _in(unit, other)
        row[f"{measure}_difference"] = _in(unit, difference)
        row[f"{measure}_percent"] = _percent(difference, other)
    row["errors"] = ours.errors
    row["estimated_tokens"] = ours.estimated_tokens
    row["estimated_percent"] = percent(ours.estimated_tokens, ours.prompt_tokens + ours.completion_tokens)
    row["unpriced"] = ours.unpriced
    return row


def _in(unit: float, number: int | None) -> float | None:
    return number if unit == 1 or number is None else number / unit


def _percent(difference: int | None, theirs: int | None) -> float | None:
    if difference is None or not theirs:
        return 0.0 if difference == 0 else None
    part, whole = abs(difference), abs(theirs)
    size = percent(part, whole) if part <= whole else round(100 * part / whole, 2)
    return -size if difference < 0 else size


_IN_USD = frozenset({"cost_usd_ours", "cost_usd_theirs", "cost_usd_difference"})


def _cell(name: str, value: Any, decimals: int) -> str:
    if value is None:
        return UNKNOWN
    sign = "+" if name.endswith(("_difference", "_percent")) and value else ""
    places = f".{decimals}f" if name in _IN_USD else ".2f" if name.endswith("_percent") else ""
    return f"{value:{sign},{places}}"
