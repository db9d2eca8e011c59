"""Usage and latency by minute of the last hours, added up from the newest usage records. Pure.

The rows have the columns of a usage report and of a latency report. No store keeps sums of minutes: they would cost
every call a further counter, and the records have all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, NamedTuple

from gateway.chunked import in_chunks
from gateway.quota.ledger_entry import SUMS, group_of, sums_of
from gateway.quota.measures import measures_of
from gateway.records import Record, Usage
from gateway.reports.csv_text import csv_text
from gateway.reports.latency import COLUMNS as LATENCY
from gateway.reports.latency import latency_rows
from gateway.reports.table import plain_usd
from gateway.store import NARROWING_GROUPS, USAGE_COLUMNS, ReportScope
from gateway.store.report_rows import usage_row

KEPT_S = 3 * 3600.0
"""How far back minutes go."""
CALLS_KEPT = 50_000
"""The newest calls that are held; a busier gateway has fewer minutes. About 25 MB at most."""
GROUPS = ("minute", *NARROWING_GROUPS)
ROWS_AT_ONCE = 100
COLUMNS = (*USAGE_COLUMNS, *[name for name in LATENCY if name not in USAGE_COLUMNS])


class MinuteCall(NamedTuple):
    """The part of a call in the sums of its minute."""

    id: str
    time: float
    ended: float
    minute: str
    key: str
    team: str
    model: str
    upstream: str
    sums: tuple[int, ...]
    measures: tuple[tuple[str, int], ...]
    """Counters of latency, each with its upstream."""


class MinuteQuery(NamedTuple):
    """The rows that are asked for: the groups, the first and the last minute, and what they are narrowed to."""

    groups: Sequence[str]
    since: str = ""
    until: str = "9"
    only: ReportScope | None = None
    where: Sequence[tuple[str, str]] = ()

    def has(self, call: MinuteCall) -> bool:
        return (
            self.since <= call.minute <= self.until
            and (self.only is None or self.only.has(call.key, call.team))
            and all(getattr(call, group) == name for group, name in self.where)
        )


def read_groups(text: str) -> list[str]:
    """The groups of a text such as `minute,key`. Raises `ValueError`."""
    groups = [name for name in dict.fromkeys(part.strip() for part in text.split(",")) if name]
    if unknown := [name for name in groups if name not in GROUPS]:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(GROUPS)}")
    return groups


def read_minute(text: str) -> str:
    """A minute such as 2026-11-20T14:05, in UTC. Raises `ValueError`."""
    try:
        is_minute = minute_of(datetime.fromisoformat(f"{text}:00+00:00").timestamp()) == text
    except ValueError:
        is_minute = False
    if not is_minute:
        raise ValueError("expected a minute such as 2026-11-20T14:05, in UTC")
    return text


def minute_of(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M")


def call_of(row: Mapping[str, Any]) -> MinuteCall:
    """Makes it of a row of `Store.calls`."""
    record = Record(**{name: row[name] for name in Record._fields if name != "usage"}, usage=Usage(**row["usage"]))
    _, key, team, model, upstream, _ = group_of(record)
    return MinuteCall(
        record.id, record.time, record.time + record.duration_s, minute_of(record.time), key, team, model, upstream,
        sums_of(record), tuple(measures_of(record)),
    )  # fmt: skip


class Minutes:
    """The calls of the last hours in the order of their ends, read page by page from the newest on: `page` until it
    returns false, then `join`."""

    def __init__(self) -> None:
        self._calls: dict[str, MinuteCall] = {}
        self._newer: list[MinuteCall] = []
        """Those of the pages read, the newest first."""
        self.whole_from = 0.0
        """Unix time from which no call is missing."""

    def page(self, rows: Sequence[Mapping[str, Any]], at: float) -> bool:
        """Take a page of the newest calls, the newest first; whether an older one is needed. For a thread."""
        known = self._calls
        new = [call_of(row) for row in in_chunks(takewhile(lambda row: row["id"] not in known, rows), ROWS_AT_ONCE)]
        self._newer += new
        if len(new) < len(rows):  # from here on all are known
            return False
        if not rows or new[-1].ended < at - KEPT_S:
            self.whole_from = at - KEPT_S
            return False
        return True

    def join(self, at: float, *, is_cut: bool) -> None:
        """Put the pages behind what was known, and forget what is too old. `is_cut`: older pages were not read."""
        if is_cut:
            self._calls, self.whole_from = {}, self._newer[-1].ended
        self._calls |= {call.id: call for call in reversed(self._newer)}
        self._newer = []
        self.whole_from = max(self.whole_from, at - KEPT_S)
        for call in list(self._calls.values())[:-CALLS_KEPT]:
            self.whole_from = max(self.whole_from, call.ended)
        kept = list(self._calls.values())[-CALLS_KEPT:]
        self._calls = {call.id: call for call in kept if call.time >= at - KEPT_S - 60}

    def rows(self, wanted: MinuteQuery) -> list[dict[str, Any]]:
        """The rows in the order of their groups. For a thread."""
        sums: dict[tuple[str, ...], list[int]] = {}
        counters: dict[tuple[str, ...], Counter[int]] = {}
        nothing = (0,) * len(SUMS)
        for call in in_chunks([each for each in self._calls.values() if wanted.has(each)], ROWS_AT_ONCE):
            place = tuple([getattr(call, name) for name in wanted.groups])
            sums[place] = [one + other for one, other in zip(sums.get(place, nothing), call.sums, strict=True)]
            for upstream, counter in call.measures:
                names = [upstream if name == "upstream" else getattr(call, name) for name in wanted.groups]
                counters.setdefault(tuple(names), Counter())[counter] += 1
        usage = [usage_row(wanted.groups, names, numbers) for names, numbers in sums.items()]
        times = latency_rows(wanted.groups, usage, counters)
        known = {tuple([row[name] for name in wanted.groups]): row for row in usage}
        no_sums = dict.fromkeys(USAGE_COLUMNS, 0)
        return [{**no_sums, **row, **known.get(tuple([row[name] for name in wanted.groups]), {})} for row in times]


def format_minutes_csv(groups: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A line of names, then one for each row, with line ends as in RFC 4180."""
    return csv_text([*groups, *COLUMNS], ({**row, "cost_usd": plain_usd(row["cost_usd"])} for row in rows))
