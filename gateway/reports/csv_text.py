"""The only writer of CSV. A spreadsheet runs a cell that begins like a formula, and clients choose some of the texts.

Source: OWASP, "CSV Injection": a single quote in front makes it a text.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""Its beginnings, also those of double width."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_GUARD = "'"
_LINE_END = "\r\n"


class _Lines(list[str]):
    """A file that keeps its lines."""

    write = list.append


def csv_text(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, line_end: str = _LINE_END, has_heading: bool = True
) -> str:
    """A line of the columns' names, then one for each row; members without a column are left out. The default of
    `line_end` is that of RFC 4180."""
    lines = _Lines()
    # With a bare LF it would not quote a CR, which ends a line too.
    writer = csv.writer(lines, lineterminator=_LINE_END)
    if has_heading:
        writer.writerow(columns)
    writer.writerows([_guarded(row.get(name)) for name in columns] for row in rows)
    return "".join([line.removesuffix(_LINE_END) + line_end for line in lines])


def _guarded(value: Any) -> Any:
    is_formula = isinstance(value, str) and _FORMULA.match(value) is not None and _NUMBER.fullmatch(value) is None
    return f"{_GUARD}{value}" if is_formula else value


def unguarded(cell: str) -> str:
    """A cell as it was before `csv_text` wrote it."""
    is_guarded = cell.startswith(_GUARD) and _FORMULA.match(cell, 1) is not None
    return cell.removeprefix(_GUARD) if is_guarded else cell
