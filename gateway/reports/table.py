"""Formats of rows: JSON for scripts, aligned tables for people, amounts of money for both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.config import printable

Row = Mapping[str, Any]

UNKNOWN = "-"

DECIMALS = (2, 4, 6, 9)
"""Decimal places of a USD amount in a table; the store counts in billionths."""


def format_json(value: Any) -> str:
    """Returns JSON for scripts: an object, or a list of them with one on each line."""
    if isinstance(value, Mapping):
        return json.dumps(value) + "\n"
    return "[" + ",\n".join([json.dumps(row) for row in value]) + "]\n"


def format_members(row: Row) -> str:
    """One object as text: a line for each member that has a value."""
    texts = {name: printable(str(value)) for name, value in row.items() if value not in (None, "", {}, [])}
    width = max(map(len, texts))
    return "".join([f"{name.replace('_', ' '):<{width}}  {value}\n" for name, value in texts.items()])


def utc(time: float) -> str:
    """A Unix time for people, such as 2026-11-23T14:32:07Z."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def aligned(lines: Sequence[Sequence[str]], names: int, *, has_total: bool) -> str:
    """A table of headings, rows and perhaps totals; the first columns are names, the others numbers."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "  ".join(["-" * width for width in widths])
    formatted = [_aligned(line, widths, names) for line in lines]
    formatted.insert(1, rule)
    if has_total:
        formatted.insert(-1, rule)
    return "\n".join(formatted)


def _aligned(line: Sequence[str], widths: Sequence[int], names: int) -> str:
    """Names to the left, numbers to the right."""
    cells = [cell.ljust(width) for cell, width in zip(line[:names], widths, strict=False)]
    cells += [cell.rjust(width) for cell, width in zip(line[names:], widths[names:], strict=True)]
    return "  ".join(cells)


def decimals_of(costs: Sequence[float | None]) -> int:
    """Returns the number of decimals that shows two digits of the smallest amount."""
    smallest = min([abs(cost) for cost in costs if cost], default=1.0)
    return next((places for places in DECIMALS if smallest * 10**places >= 10), DECIMALS[-1])


def plain_usd(cost: float | None) -> str | None:
    """Formats an amount without an exponent, which not every spreadsheet reads."""
    return None if cost is None else f"{cost:.9f}".rstrip("0").rstrip(".")
