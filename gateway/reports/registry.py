"""Keys, teams, windows and changes as people and scripts read them: tables, CSV, JSON, and one thing by itself.

The rows are the registry's. A table has one line for each row, however long; what is not there is `-`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.config import printable
from gateway.config.quantities import format_quota

from .csv_text import csv_text
from .table import UNKNOWN, Row, aligned, plain_usd


class Column(NamedTuple):
    name: str
    """Name of a row's member, and of the column in CSV; a table shows `_` as a space."""
    to_text: Callable[[Any], str] = str
    is_number: bool = False


def _quotas(quotas: Sequence[Row]) -> str:
    return "; ".join(map(format_quota, quotas))


def _limits(limits: Row) -> str:
    return " ".join([f"{name}={','.join(of) if isinstance(of, list) else of}" for name, of in limits.items()])


def _secrets(secrets: Sequence[Row]) -> str:
    return "; ".join(
        f"{number}: since {secret['created_at'] or 'the file has it'}"
        + (f", until {secret['expires_at']}" if secret["expires_at"] else "")
        for number, secret in enumerate(secrets, 1)
    )


def _top_ups(top_ups: Sequence[Row]) -> str:
    return "; ".join(
        f"{top_up['amount']:,} {top_up['unit']} in {top_up['window']}"
        + (f":{top_up['model']}" if top_up["model"] else "")
        for top_up in top_ups
    )


def _used(windows: Sequence[Row]) -> str:
    """How much of each window is used or reserved, the fullest one first."""
    shares = [((row["used"] + row["reserved"]) / row["limit"], row) for row in windows]
    shares.sort(key=lambda each: each[0], reverse=True)
    return "; ".join(
        f"{share:.0%} of {_amount(row['limit'])} {row['unit']}"
        + (f"/{row['per']}" if row["per"] else " calls")
        + (f":{row['model']}" if row["model"] else "")
        + (f" in {row['scope'].removeprefix('member:').partition('/')[0]}" if row["scope"][0] == "m" else "")
        for share, row in shares
    )


def _moment(moment: str) -> str:
    return moment.replace("+00:00", "Z")


def _amount(amount: float) -> str:
    return f"{amount:,}" if isinstance(amount, int) else plain_usd(amount) or ""


KEYS = (
    Column("id"), Column("status"), Column("team"), Column("managed_by"), Column("models", " ".join),
    Column("expires", _moment), Column("max_parallel"), Column("quotas", _quotas), Column("limits", _limits),
    Column("ips", " ".join), Column("on_exceeded"), Column("created_at"), Column("updated_at"), Column("revoked_at"),
    Column("paused_at"),
    Column("owner"), Column("note"),
)  # fmt: skip
KEYS_IN_TABLE = (*KEYS[:6], KEYS[7])
TEAMS = (
    Column("name"), Column("managed_by"), Column("quotas", _quotas), Column("created_at"), Column("updated_at"),
)  # fmt: skip
PEOPLE = (
    Column("name"), Column("role"), Column("keys", " ".join), Column("managed_by"), Column("quotas", _quotas),
    Column("windows", _used),
)  # fmt: skip
WINDOWS = (
    Column("scope"), Column("unit"), Column("per"), Column("model"), Column("limit", _amount, is_number=True),
    Column("used", _amount, is_number=True), Column("reserved", _amount, is_number=True),
    Column("remaining", _amount, is_number=True), Column("reset_at"),
)  # fmt: skip
CHANGES = (
    Column("time"), Column("actor"), Column("action"), Column("kind"), Column("name"), Column("before", json.dumps),
    Column("after", json.dumps),
)  # fmt: skip
CHANGES_IN_TABLE = (*CHANGES[:5], Column("change"))

_ONE = (*KEYS, *PEOPLE, Column("name"), Column("secrets", _secrets), Column("top_ups", _top_ups))
_COLUMNS: Mapping[str, Column] = {column.name: column for column in _ONE}


def format_csv(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """A line of names, then one for each row."""
    lines = ({column.name: _cell(column, row, "") for column in columns} for row in rows)
    return csv_text([column.name for column in columns], lines, line_end="\n")


def with_change(row: Row) -> dict[str, Any]:
    """A change, and in one line what it changed: of settings only those that are others now."""
    before, after = row["before"], row["after"]
    if not isinstance(before, dict) or not isinstance(after, dict):
        return {**row, "change": None if after is None else json.dumps(after)}
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    texts = [f"{name}: {json.dumps(before.get(name))} -> {json.dumps(after.get(name))}" for name in names]
    return {**row, "change": "; ".join(texts)}


def format_table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Aligned columns, numbers behind all others."""
    texts, numbers = [each for each in columns if not each.is_number], [each for each in columns if each.is_number]
    some = [*texts, *numbers]
    lines = [[column.name.replace("_", " ") for column in some]]
    lines += [[printable(_cell(column, row, UNKNOWN)) for column in some] for row in rows]
    return "\n".join([line.rstrip() for line in aligned(lines, len(texts), has_total=False).split("\n")]) + "\n"


def format_one(row: Row) -> str:
    """One object, a line for each of its members that has a value."""
    texts = {name: _cell(_COLUMNS[name], row, "") for name in row if name in _COLUMNS and name != "object"}
    width = max(map(len, texts))
    return "".join(
        [f"{name.replace('_', ' '):{width}}  {printable(text)}\n" for name, text in texts.items() if text]
    )  # fmt: skip


def _cell(column: Column, row: Row, nothing: str) -> str:
    value = row.get(column.name)
    return nothing if value is None or value in ([], {}) else column.to_text(value)
