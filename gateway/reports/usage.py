"""A usage report: its parameters, and its formats for scripts and people.

The rows are the store's (`Store.usage`): a dict of the groups that were asked for and of `USAGE_COLUMNS`. An unknown
cost is None in a row, null in JSON, empty in CSV and `-` in a table. Where some requests of a row have a price
and others have none, the cost is that of the former, and `unpriced` counts the latter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from gateway.chunked import in_chunks
from gateway.config.quantities import is_duration, read_duration_s
from gateway.config.sections import folded_name
from gateway.store import ATTRIBUTED_GROUPS, USAGE_COLUMNS, USAGE_GROUPS, check_groups, is_attribution
from gateway.store.report_rows import percent

from .csv_text import csv_text
from .table import UNKNOWN, Row, aligned, decimals_of, plain_usd

HEADINGS = {
    "prompt_tokens": "prompt", "completion_tokens": "completion", "cached_tokens": "cached",
    "reasoning_tokens": "reasoning", "estimated_tokens": "estimated", "total_tokens": "total tokens",
    "estimated_percent": "%", "cost_usd": "cost USD",
}  # fmt: skip
"""Headings of a table's columns, where the column's own name is too long."""

ROWS_AT_ONCE = 25
"""Rows formatted at once: about a third of a millisecond."""


def read_groups(text: str) -> list[str]:
    """The groups of a text such as `key,model,day`; one row for everything without a name. Raises `ValueError`."""
    groups = [name for name in dict.fromkeys(part.strip() for part in text.split(",")) if name]
    labels = [name for name in groups if is_of_keys(name)]
    if unknown := [*check_groups([name for name in groups if name not in labels]), *labels[1:]]:
        raise ValueError(
            f"{unknown[0]!r} is not one of {', '.join(USAGE_GROUPS)}, user, tag:NAME, label:NAME, {PERSON}"
        )
    named = [name for name in groups if is_attribution(name)]
    others = [name for name in groups if name not in (*ATTRIBUTED_GROUPS, *named[:1], *labels)]
    if named and others:
        raise ValueError(
            f"with {named[0]!r} a report is grouped by {', '.join(ATTRIBUTED_GROUPS)} only, not {others[0]!r}"
        )
    return groups


LABEL, PERSON = "label:", "person"
"""How a group by a label of keys begins (`label:cost-center`), and the group by their owner."""


def is_of_keys(group: str) -> bool:
    """Whether a group is by a property that keys have now: a label, or the owner."""
    return group == PERSON or (group.startswith(LABEL) and group != LABEL)


def label_in(groups: Iterable[str]) -> str | None:
    """The group by a label or by the owner, of which a report has one at most."""
    return next((name for name in groups if is_of_keys(name)), None)


def stored_groups(groups: Sequence[str]) -> list[str]:
    """The groups by which the store is asked: a label is a property of keys."""
    return list(dict.fromkeys("key" if is_of_keys(name) else name for name in groups))


class LabelReport:
    """A report by a label of keys, added up from portions of the report by `stored_groups`: it holds its own rows, and
    the label of each key."""

    def __init__(self, groups: Sequence[str]) -> None:
        self._groups = groups
        self._group = label_in(groups) or ""
        self._values: dict[str, str] = {}
        self._people: dict[str, str] = {}
        self._rows: dict[tuple[str, ...], Row] = {}

    def without_label(self, rows: Iterable[Row]) -> set[str]:
        """The keys of these rows whose labels `add` needs."""
        return {row["key"] for row in rows} - self._values.keys()

    def add(self, rows: Iterable[Row], labels: Mapping[str, Mapping[str, str]]) -> None:
        """Add rows, with the labels of the keys `without_label`; rows of keys without this label are together. For a
        thread."""
        name = "" if self._group == PERSON else self._group.removeprefix(LABEL)
        for row in in_chunks(rows, ROWS_AT_ONCE):
            value = self._values.setdefault(row["key"], self._alike(labels.get(row["key"], {}).get(name, "")))
            names = tuple([value if each == self._group else row[each] for each in self._groups])
            known = self._rows.get(names)
            self._rows[names] = _total([row] if known is None else [known, row])

    def _alike(self, value: str) -> str:
        """The value; of names of one person, the first as it is written."""
        return self._people.setdefault(folded_name(value), value) if self._group == PERSON else value

    def rows(self, after: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Returns the rows in order, only those after the groups `after`. It is meant to run in a thread."""
        behind = sorted(names for names in self._rows if after is None or names > tuple(after))
        return [{**dict(zip(self._groups, names, strict=True)), **self._rows[names]} for names in behind]


def read_period(text: str, now: datetime) -> str:
    """A day, or an hour such as 2026-11-20T14, in the store's form. A duration counts back from now: to the UTC day of
    that moment if it is of days or weeks, else to the hour. Raises `ValueError`."""
    if is_duration(text) and not text.strip().lower().endswith(("d", "w")):
        return _back(text, now).strftime("%Y-%m-%dT%H")
    day, hour = (text[:10], text[10:]) if re.fullmatch(r".{10}T([01][0-9]|2[0-3])", text) else (text, "")
    try:
        return read_day(day, now) + hour
    except ValueError as error:
        raise ValueError(f"{error}, or an hour such as 2026-11-20T14") from None


def _back(duration: str, now: datetime) -> datetime:
    """The moment `duration` before now. Raises `ValueError` where no calendar begins so early."""
    try:
        return (now - timedelta(seconds=read_duration_s(duration))).astimezone(UTC)
    except OverflowError:
        raise ValueError("expected a time back from now such as 7d, which is not before the year 1") from None


def read_day(text: str, now: datetime) -> str:
    """A day in the store's form. A duration such as 7d counts back from now: the UTC day of that moment. Raises
    `ValueError`."""
    if is_duration(text):
        return _back(text, now).date().isoformat()
    try:
        is_day = date.fromisoformat(text).isoformat() == text
    except ValueError:
        is_day = False
    if not is_day:
        raise ValueError("expected a day such as 2026-11-20, or a time back from now such as 7d")
    return text


def format_json(rows: Iterable[Row]) -> str:
    """A list with one row on each line. For a thread, where it takes its time.

    Row by row, because the encoder holds the interpreter until it is done: a report of a whole year, made at once,
    would hold up every stream of the worker.
    """
    return "[" + ",\n".join([json.dumps(row) for row in in_chunks(rows, ROWS_AT_ONCE)]) + "]"


def format_csv(groups: Sequence[str], rows: Sequence[Row], line_end: str = "\r\n", *, has_heading: bool = True) -> str:
    """A line of names, then one for each row. The default of `line_end` is that of RFC 4180. Usable in a thread."""
    lines = ({**row, "cost_usd": plain_usd(row["cost_usd"])} for row in in_chunks(rows, ROWS_AT_ONCE))
    return csv_text([*groups, *USAGE_COLUMNS], lines, line_end=line_end, has_heading=has_heading)


def format_table(groups: Sequence[str], rows: Sequence[Row]) -> str:
    """Aligned columns with a line of totals; without a line end."""
    decimals = decimals_of([row["cost_usd"] for row in rows])
    lines = [[*groups, *(HEADINGS.get(name, name) for name in USAGE_COLUMNS)]]
    lines += [[*(row[name] or UNKNOWN for name in groups), *_cells(row, decimals)] for row in rows]
    if groups:
        labels = ["total", *[""] * (len(groups) - 1)]
        lines.append([*labels, *_cells(_total(rows), decimals)])
    return aligned(lines, len(groups), has_total=bool(groups))


def notes(rows: Sequence[Row]) -> list[str]:
    """Notes for a reader of the sums in a table."""
    total = _total(rows)
    if not total["unpriced"]:
        return []
    return [f"The cost of {total['unpriced']:,} of {total['requests']:,} requests is unknown, and in no sum."]


def _cells(row: Row, decimals: int) -> list[str]:
    cost = row["cost_usd"]
    numbers = {name: f"{row[name]:,}" for name in USAGE_COLUMNS if name != "cost_usd"}
    numbers["cost_usd"] = UNKNOWN if cost is None else f"{cost:,.{decimals}f}"
    numbers["estimated_percent"] = f"{row['estimated_percent']:.2f}"
    return [numbers[name] for name in USAGE_COLUMNS]


def _total(rows: Sequence[Row]) -> Row:
    total: dict[str, Any] = {name: sum(row[name] for row in rows) for name in USAGE_COLUMNS if name != "cost_usd"}
    known = [row["cost_usd"] for row in rows if row["cost_usd"] is not None]
    total["cost_usd"] = sum(round(cost * 1e9) for cost in known) / 1e9 if known else None
    total["estimated_percent"] = percent(total["estimated_tokens"], total["total_tokens"])
    return total
