"""The tables that the commands print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .rows import KINDS, Total
from .taking import Compared

NAMES = {
    "secret": "secrets (digests)",
    "document": "keys, teams, overlays",
    "day": "sums of days",
    "hour": "sums of hours",
    "tag": "sums by user and tag",
    "latency": "latency counters",
    "window": "quotas' windows",
    "rate": "levels of rates",
    "audit": "audit log",
    "record": "usage records",
    "refusal": "refused requests",
    "bond": "ids at upstreams",
}
"""How each kind of rows is called."""


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 call`, `2 calls`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def totals_text(totals: Mapping[str, Total]) -> str:
    """One line for each kind: rows, and the sum of their numbers."""
    rows = [("", "rows", "sum")]
    rows += [(NAMES[kind], f"{totals[kind].rows:,}", _sum(totals[kind])) for kind in KINDS if totals[kind].rows]
    return _table(rows)


def compared_text(found: Sequence[Compared]) -> str:
    """One line for each kind, as it is in the file and here, with a mark at those that differ."""
    rows = [("", "rows in the file", "here", "sum in the file", "here", "")]
    rows += [
        (
            NAMES[each.kind],
            f"{each.file.rows:,}",
            f"{each.here.rows:,}",
            _sum(each.file),
            _sum(each.here),
            "equal" if each.is_equal else "DIFFERS",
        )
        for each in found
    ]
    return _table(rows)


def faults_of(found: Sequence[Compared]) -> list[str]:
    """A sentence about each kind that differs."""
    return [_fault_of(each) for each in found if not each.is_equal]


def _fault_of(each: Compared) -> str:
    examples = "; ".join(each.faults)
    return f"{NAMES[each.kind]} differ{f', such as {examples}' if examples else ''}"


def _sum(total: Total) -> str:
    return f"{total.sum:,}" if total.sum else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join((first.ljust(widths[0]), *cells)).rstrip())
    return "".join(f"{line}\n" for line in lines)
