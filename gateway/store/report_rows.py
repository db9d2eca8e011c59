"""The rows of reports, made of records and daily sums, whichever store keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import add
from typing import Any, NamedTuple

from gateway.chunked import in_chunks, in_order
from gateway.quota.ledger_entry import SEPARATOR, SUMS, storable
from gateway.records import Record

from . import ReportScope, Where, attribution_in, check_groups

_PLACES = {name: place for place, name in enumerate(("key", "team", "model", "upstream", "endpoint"))}

_VALUE_AT = 4
"""Where sums by user and tag have the value: their groups are key, team, model, `user` or `tag:NAME`, and value."""

TAGS = "tags-"
"""How the names of days begin under which a Redis keeps sums by user and tag."""

WHENS = frozenset({"hour", "day", "month"})

NOTHING: Sequence[int] = (0,) * len(SUMS)

ROWS_AT_ONCE = 50
"""Rows made at once: about a quarter of a millisecond."""


Sums = tuple[str, Sequence[int]]
"""A group of the sums of a day (key, team, model, upstream and endpoint, joined in the form of `quota/ledger_entry`)
and its numbers in the order of `SUMS`."""


class ReportRange(NamedTuple):
    """The periods that a report reads: days, or hours."""

    is_hourly: bool
    first: str
    last: str

    @property
    def width(self) -> int:
        return len("2026-11-20T14" if self.is_hourly else "2026-11-20")

    def has(self, period: str) -> bool:
        """Whether the sums of this day, week, month or hour are read."""
        return len(period) == self.width and self.first <= period <= self.last


def range_of(group_by: Sequence[str], since: str | None, until: str | None) -> ReportRange:
    """The range of a report: of hours where it is grouped by them, or where it begins or ends at one."""
    if attribution_in(group_by) is not None:  # kept by day only
        since, until = since and since[:10], until and until[:10]
    is_hourly = "hour" in group_by or "T" in (since or "") or "T" in (until or "")
    last = until or "9999"
    return ReportRange(is_hourly, since or "", f"{last}T23" if is_hourly and "T" not in last else last)


class ReportPart(NamedTuple):
    """Days or hours whose rows precede those of the next part, so that each part is read when its rows are wanted."""

    periods: list[str]
    first_key: str | None
    """Its rows follow the keys, and are read by ranges of keys, from this one on. None: they are read at once."""
    at_once: int
    """About how many rows of one period to read at once."""


def parts_of(
    group_by: Sequence[str], periods: Sequence[str], after: Sequence[str] | None, at_once: int
) -> list[ReportPart]:
    """The parts of a report of these sorted periods behind the row `after`. Only one by key may be large."""
    width = {"month": 7, "day": 10, "hour": 13}.get(group_by[0]) if "key" in group_by else 0
    parts: dict[str, list[str]] = {}
    for period in periods:
        if not width or after is None or period[:width] >= after[0]:
            parts.setdefault(period[: width or 0], []).append(period)
    place = 1 if width else 0
    if [*group_by[place : place + 1]] != ["key"]:
        return [ReportPart(part, None, at_once) for part in parts.values()]
    begun = after or ("", "")
    rows = {name: max(1, at_once // (len(part) if WHENS.intersection(group_by) else 1)) for name, part in parts.items()}
    return [
        ReportPart(part, begun[place] if name == begun[0] or not width else "", rows[name])
        for name, part in parts.items()
    ]


def keys_of(only: ReportScope | None, where: Where) -> set[str]:
    """The keys that a report names; empty: it is not about keys by name."""
    return {name for group, name in where if group == "key"} or {key for key, _ in (only.keys if only else ())}


class UsageReport:
    """A usage report: sums of days or hours, grouped by some of `USAGE_GROUPS`, added up portion by portion."""

    def __init__(self, group_by: Sequence[str], only: ReportScope | None = None, where: Where = ()) -> None:
        assert not check_groups(group_by)
        self._attribution = attribution_in(group_by)
        self._only = only
        self._where = [(_PLACES[group], name) for group, name in where]
        self._group_by = group_by
        keys = keys_of(only, where)
        self.key = next(iter(keys)) if len(keys) == 1 and not (only and only.teams) else None
        """The only key that it is about; None: there may be several."""
        self.needs_keys = bool(keys or "key" in group_by or self._attribution)
        """Whether sums without their keys are not enough for it."""
        self._is_of_days = WHENS.issuperset(group_by)
        self._totals: dict[tuple[str, ...], list[Sequence[int]]] = {}
        """Sums by the names of the groups; each list has the sums as its only element."""
        self._known: dict[str, dict[str, list[Sequence[int]]]] = {}
        """The same lists, by months and by groups as they are kept: those are dear to take apart, and the same on most
        days of a month."""

    def add(self, day: str, sums: Sequence[Sums]) -> None:
        """Some of the sums of a day (2026-11-20) or an hour (2026-11-20T14), each once."""
        if self._only is not None:
            has = self._only.has
            sums = [each for each in sums if has(*each[0].split(SEPARATOR, 2)[:2])]
        for place, name in self._where:
            sums = [each for each in sums if each[0].split(SEPARATOR)[place] == name]
        if not sums:
            return
        if self._attribution is not None:
            day = day.removeprefix(TAGS)
            sums = [each for each in sums if each[0].split(SEPARATOR)[3] == self._attribution]
        if self._is_of_days:
            total = self._total(day, "")
            total[0] = tuple(map(sum, zip(total[0], *[each[1] for each in sums], strict=True)))
            return
        known = {} if {"hour", "day"}.intersection(self._group_by) else self._known.setdefault(day[:7], {})
        for group, numbers in sums:
            if (found := known.get(group)) is None:
                found = known[group] = self._total(day, group)
            found[0] = tuple(map(add, found[0], numbers))

    def _total(self, day: str, group: str) -> list[Sequence[int]]:
        parts = group.split(SEPARATOR)
        whens = {"hour": day, "day": day[:10], "month": day[:7]}
        names = tuple([
            whens[name] if name in whens else parts[_PLACES.get(name, _VALUE_AT)] for name in self._group_by
        ])  # fmt: skip
        return self._totals.setdefault(names, [NOTHING])

    def rows(self, limit: int | None = None, after: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Its rows, in the order of the groups; `after`: those behind these groups. For a thread: it takes its time."""
        return list(islice(self.each_row(None if after is None else tuple(after)), limit))

    def each_row(self, after: tuple[str, ...] | None = None) -> Iterator[dict[str, Any]]:
        """The same rows, each made when it is asked for. For a thread."""
        found = [(names, total[0]) for names, total in self._totals.items() if after is None or names > after]
        for names, numbers in in_chunks(in_order(found), ROWS_AT_ONCE):
            if numbers[0] > 0:  # a sum that was counted and taken back is zero
                yield usage_row(self._group_by, names, numbers)


def usage_row(group_by: Sequence[str], names: Sequence[str], numbers: Sequence[int]) -> dict[str, Any]:
    """One row: its groups, its sums, and what follows from them. A wholly unknown cost is None."""
    row: dict[str, Any] = dict(zip(group_by, names, strict=True)) | dict(zip(SUMS, numbers, strict=True))
    cost_nusd = row.pop("cost_nusd")
    row["total_tokens"] = row["prompt_tokens"] + row["completion_tokens"]
    row["estimated_percent"] = percent(row["estimated_tokens"], row["total_tokens"])
    row["cost_usd"] = None if row["unpriced"] == row["requests"] else cost_nusd / 1e9
    return row


def percent(part: int, whole: int) -> float:
    """Returns a percentage with two decimals. A part is rounded neither to nothing nor to all."""
    if part in (0, whole):
        return 0.0 if part == 0 else 100.0
    return min(99.99, max(0.01, round(100 * part / whole, 2)))


def reported_name(record: Record) -> str:
    """The upstream's name of the model: that of its answer, else that of the request."""
    return record.returned_model or record.routed_model


def call_row(record: Record, position: str) -> Mapping[str, Any]:
    """A record by its field names, and its `position` in the store's list of records."""
    record = storable(record)
    return record._asdict() | {"usage": record.usage._asdict(), "position": position}
