"""Reports from the embedded store, on a connection of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.config import Store
from gateway.records import WindowState

from . import USAGE_GROUPS
from .sqlite import SUMS, connect, path_of

_GROUP_SQL = {name: name for name in USAGE_GROUPS} | {"month": "substr(day, 1, 7)"}


class Reader:
    """Reports, on a connection of their own, used from one thread."""

    def __init__(self, settings: Store) -> None:
        self._db = connect(path_of(settings))

    def windows(self, ids: Sequence[str]) -> dict[str, WindowState]:
        found = {}
        for window in ids:
            row = self._db.execute("SELECT used, reserved, at_us FROM windows WHERE id = ?", (window,)).fetchone()
            if row:
                found[window] = WindowState(*row)
        return found

    def usage(
        self, group_by: Sequence[str], since: str | None, until: str | None, limit: int | None
    ) -> list[dict[str, Any]]:
        groups = [_GROUP_SQL[name] for name in group_by]
        columns = [f"{sql} AS {name}" for name, sql in zip(group_by, groups, strict=True)]
        columns += [f"sum({name}) AS {name}" for name in SUMS]
        text = f"SELECT {', '.join(columns)} FROM sums WHERE day >= ? AND day <= ?"  # noqa: S608 - names from a table
        if groups:
            text += f" GROUP BY {', '.join(groups)} ORDER BY {', '.join(groups)}"
        rows = self._db.execute(text + " LIMIT ?", (since or "", until or "9999", -1 if limit is None else limit))
        names = [column[0] for column in rows.description]
        return [_report_row(dict(zip(names, row, strict=True))) for row in rows if row[-1] is not None]

    def calls(self, limit: int, key: str | None) -> list[Mapping[str, Any]]:
        where, args = ("WHERE key = ? ", (key, limit)) if key is not None else ("", (limit,))
        rows = self._db.execute(f"SELECT record FROM records {where}ORDER BY seq DESC LIMIT ?", args)  # noqa: S608 - constants only
        return [json.loads(row[0]) for row in rows]

    def close(self) -> None:
        self._db.close()


def _report_row(row: dict[str, Any]) -> dict[str, Any]:
    row["total_tokens"] = row["prompt_tokens"] + row["completion_tokens"]
    row["cost_usd"] = None
    return row
