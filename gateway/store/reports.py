"""What the embedded store keeps of usage: how a record becomes a row and part of a daily sum, and both a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import add
from typing import Any

from gateway.config import Store
from gateway.records import Record, Usage, WindowState
from gateway.rules.limits import calendar_window

from . import USAGE_GROUPS
from .sqlite import RECORD, SUMS, connect, path_of

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
        columns = ", ".join(RECORD)
        rows = self._db.execute(f"SELECT {columns} FROM records {where}ORDER BY seq DESC LIMIT ?", args)  # noqa: S608 - constants only
        return [_plain(read_record(row)) for row in rows]

    def close(self) -> None:
        self._db.close()


def record_row(record: Record) -> tuple[Any, ...]:
    """A record as a row of the columns `RECORD`."""
    at = Record._fields.index("usage")
    model, client_id = record.returned_model, record.client_request_id  # outsiders write these
    if not (model or "").isascii() or not (client_id or "").isascii():
        record = record._replace(returned_model=_storable(model), client_request_id=_storable(client_id))
    return (*record[:at], *record.usage, *record[at + 1 :])


def read_record(row: Sequence[Any]) -> Record:
    """The record of such a row."""
    at = Record._fields.index("usage")
    until = at + len(Usage._fields)
    return Record._make((*row[:at], Usage._make(row[at:until]), *row[until:]))


def _storable(text: str | None) -> str | None:
    """Without halves of surrogate pairs, which no UTF-8 can hold."""
    return text and text.encode("utf-8", "replace").decode()


def sum_rows(records: Iterable[Record]) -> list[tuple[Any, ...]]:
    """What records add to the daily sums: one row of `SUM_GROUP + SUMS` for each group."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for record in records:
        usage = record.usage
        group = (
            calendar_window("day", record.time)[0], record.key, record.team or "", record.label_model, record.upstream,
            record.endpoint,
        )  # fmt: skip
        added = (
            1, int(record.ended == "error"), usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens,
            usage.reasoning_tokens, usage.total_tokens if usage.source == "estimated" else 0,
        )  # fmt: skip
        known = sums.get(group)
        sums[group] = [*added] if known is None else [*map(add, known, added)]
    return [(*group, *row) for group, row in sums.items()]


def _plain(record: Record) -> dict[str, Any]:
    """A record by its field names, flags as such."""
    flags = {"stream": bool(record.stream), "truncated": bool(record.truncated)}
    return record._asdict() | flags | {"usage": record.usage._asdict()}


def _report_row(row: dict[str, Any]) -> dict[str, Any]:
    row["total_tokens"] = row["prompt_tokens"] + row["completion_tokens"]
    row["cost_usd"] = None
    return row
