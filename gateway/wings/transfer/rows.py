"""The rows that go from one store to another, in one form for all stores, and their totals.

Rows that add up (sums, counters, used quotas) are taken as the difference to those of the same source before. So a
second pass brings only what came since, a broken pass can be repeated, and usage that the new store has of its own
stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from gateway.quota.ledger_entry import decode_record
from gateway.store import HOURS_KEPT_DAYS

SEPARATOR = "\x1f"

POSITION_DIGITS = 20

ADDED = ("day", "hour", "tag", "latency", "window")
"""Kinds of rows whose numbers add up."""

LOGS = ("audit", "record", "refusal")
"""Kinds of rows that stand in an order: a position behind the last one that was taken is new."""

KINDS = ("secret", "document", *ADDED, "rate", *LOGS, "bond")
"""All kinds, in the order in which a file has them."""


SHAPES: Mapping[str, tuple[int, int]] = {
    "secret": (2, 0), "document": (2, 0), "day": (6, 9), "hour": (6, 9), "tag": (6, 9), "latency": (4, 1),
    "window": (2, 1), "rate": (1, 2), "audit": (3, 0), "record": (2, 0), "refusal": (1, 0), "bond": (1, 1),
}  # fmt: skip
"""How many names and numbers a row of each kind has."""

LARGEST = 2**62
"""The largest number of a row, up and down: the sum of two can be stored."""


class StoreRow(NamedTuple):
    """One row of a store; what its members mean depends on the kind, as docs/moving.md has it."""

    kind: str
    names: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    text: str = ""

    @property
    def mark(self) -> str:
        """The name under which the new store notes what it has taken of this row."""
        return SEPARATOR.join((self.kind, *self.names))


def row_of(values: Sequence[Any]) -> StoreRow | None:
    """The row of a line of a file; None: it is none of any kind here."""
    if len(values) != len(StoreRow._fields):
        return None
    kind, names, numbers, text = values
    if not isinstance(kind, str) or not isinstance(text, str) or not isinstance(names, list | tuple):
        return None
    if not isinstance(numbers, list | tuple) or SHAPES.get(kind) != (len(names), len(numbers)):
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    if not all(type(number) is int and abs(number) <= LARGEST for number in numbers):
        return None
    return StoreRow(kind, tuple(names), tuple(numbers), text)


class Total(NamedTuple):
    rows: int = 0
    sum: int = 0
    """The sum of all numbers of these rows; rates leak, and are not added up."""

    def with_row(self, numbers: Sequence[int]) -> Total:
        return Total(self.rows + 1, self.sum + sum(numbers))


def totals(rows: Iterable[StoreRow]) -> dict[str, Total]:
    """The totals of each kind."""
    found = dict.fromkeys(KINDS, Total())
    for row in rows:
        found[row.kind] = found[row.kind].with_row(row.numbers if row.kind in ADDED else ())
    return found


def is_rate(window: str) -> bool:
    """Whether a window that is not of the calendar is a rate, by its id; another one counts the calls under way."""
    return bool(window.rsplit("|", 4)[2])


def position(*numbers: int) -> str:
    """A position in a log as a text; texts of one store are ordered as their positions are."""
    return "-".join(f"{number:0{POSITION_DIGITS}d}" for number in numbers)


def logged_name(row: StoreRow) -> str:
    """The name by which an entry of a log is found again: of a change its text, else the id of the request. A call that
    was taken for lost may have another record, too."""
    if row.kind == "audit":
        return row.text
    name = str(json.loads(row.text)[0])
    return f"{name} lost" if row.kind == "record" and decode_record(row.text).ended == "lost" else name


def forgotten_at(period: str, sums_days: int) -> int:
    """The Unix time at which retention deletes an hour, a day, a week or a month, by the rules of the store's."""
    kept = sums_days
    if "T" in period:
        period, kept = period[:10], min(HOURS_KEPT_DAYS, sums_days)
    if "W" in period:
        year, _, week = period.partition("-W")
        ended = date.fromisocalendar(int(year), int(week), 7) + timedelta(days=1)
    elif len(period) == len("2026-11"):
        ended = (date.fromisoformat(f"{period}-01") + timedelta(days=31)).replace(day=1)
    else:
        ended = date.fromisoformat(period) + timedelta(days=1)
    return int(datetime(ended.year, ended.month, ended.day, tzinfo=UTC).timestamp()) + kept * 86_400
