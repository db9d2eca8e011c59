"""Reports from the embedded store, on a connection of its own; and the conversion between records and rows.

Sums of past days without their keys, kept in memory for reports.

Most reports are about no key: of a thousand keys they would read thousands of rows of each day, where a hundred are
left without the keys. A day is added up when a report first reads it. It is read again once its entry in `late` has
changed, which every batch writes that changes a day before its own (ledger.py).
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from gateway import units
from gateway.chunked import in_chunks
from gateway.config import StoreSettings
from gateway.quota import ledger_entry
from gateway.quota.ledger_entry import SUMS
from gateway.quota.windows import calendar_window
from gateway.records import Record, Usage
from gateway.store import (
    RETURNED_MODEL_GROUPS,
    USAGE_GROUPS,
    CallFilter,
    Measures,
    Progress,
    ReportScope,
    Where,
    attribution_in,
)
from gateway.store.refusals import RefusalEntry, RefusalQuery, StoredRefusal, decode_refusal
from gateway.store.report_rows import ROWS_AT_ONCE, call_row, keys_of, parts_of, range_of, usage_row

from .database import connect, path_of
from .schema import RECORD, SUM_GROUP

DAY_S = 86_400

KEPT_S = 3600.0
"""While gateways are replaced, an older one may change a past day and write no entry in `late`."""

ROWS_KEPT = 100_000
"""Largest number of rows: about fifteen megabytes. Further days are read from the file."""

_NAMES = tuple(name for name in SUM_GROUP if name != "key")
_COLUMNS = ", ".join([*_NAMES, *SUMS])
_ADDED = ", ".join([f"sum({name})" for name in SUMS])
_ADDED_UP = ", ".join([*_NAMES, _ADDED])

TABLE = f"CREATE TEMP TABLE past ({_COLUMNS}, PRIMARY KEY ({', '.join(_NAMES)})) WITHOUT ROWID"
ADD_UP = f"INSERT INTO past SELECT {_ADDED_UP} FROM sums WHERE day = ? GROUP BY {', '.join(_NAMES)}"  # noqa: S608 - constants

SOURCE = f"""(
    SELECT {_COLUMNS} FROM past WHERE day IN (SELECT value FROM json_each(?)) UNION ALL
    SELECT {_COLUMNS} FROM sums WHERE day IN (SELECT value FROM json_each(?)))"""  # noqa: S608 - constants only
"""The sums of days without their keys. Its arguments are those that `PastDays.split` gives."""


class PastDays:
    """The table `past` of one connection. All methods raise `sqlite3.Error`."""

    def __init__(self, db: sqlite3.Connection, clock_us: Callable[[], int]) -> None:
        self._db = db
        self._clock_us = clock_us
        self._began = time.monotonic()
        self._read: dict[str, int] = {}
        """The days in the table, with their entries in `late` before they were read."""
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute(TABLE)

    def split(self, days: Sequence[str]) -> tuple[str, str]:
        """Add up those of these days that are over. Returns, as JSON, the days in the table, and the others."""
        if time.monotonic() - self._began > KEPT_S:
            self._began = time.monotonic()
            self._read.clear()
            self._db.execute("DELETE FROM past")
        late = dict(self._db.execute("SELECT day, changes FROM late").fetchall())
        yesterday, _ = calendar_window("day", self._clock_us() // 1_000_000 - DAY_S)
        held = [day for day in days if day < yesterday and self._hold(day, late.get(day, 0))]
        return json.dumps(held), json.dumps(sorted(set(days).difference(held)))

    def _hold(self, day: str, changes: int) -> bool:
        """Whether the table has the present sums of a day, after this."""
        if self._read.get(day) == changes:
            return True
        self._db.execute("DELETE FROM past WHERE day = ?", (day,))
        self._read.pop(day, None)
        (rows,) = self._db.execute("SELECT count(*) FROM past").fetchone()
        if rows >= ROWS_KEPT:
            return False
        self._db.execute(ADD_UP, (day,))
        self._read[day] = changes
        return True


_LAST = "\U0010ffff"
"""No key is behind it."""

_GROUP_OF_DAYS = {name: name for name in USAGE_GROUPS} | {"month": "substr(day, 1, 7)"}
_GROUP_OF_HOURS = _GROUP_OF_DAYS | {
    "day": "substr(hour, 1, 10)", "month": "substr(hour, 1, 7)",
}  # fmt: skip
_GROUP_OF_PERIODS = {
    "model": "model", "upstream": "upstream", "hour": "period", "day": "substr(period, 1, 10)",
    "month": "substr(period, 1, 7)",
}  # fmt: skip
"""The groups of a report in SQL, of the tables `sums`, `hours` and `measures`."""

_BY_RETURNED_MODEL = """
SELECT date(CAST(time AS INTEGER), 'unixepoch') AS day, label_model, upstream,
    coalesce(nullif(returned_model, ''), routed_model),
    count(*), sum(ended = 'error'), sum(prompt_tokens), sum(completion_tokens), sum(cached_tokens),
    sum(reasoning_tokens), sum((usage_source = 'estimated') * (prompt_tokens + completion_tokens)),
    sum(coalesce(cost_nusd, 0)), sum(cost_nusd IS NULL)
FROM records WHERE day >= ? AND day <= ? GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"""
"""The groups `RETURNED_MODEL_GROUPS` and the sums of `quota/ledger_entry.sums_of`, in the order of `SUMS`."""

_AMONG = "IN (SELECT value FROM json_each(?))"

_PERIODS = """
WITH RECURSIVE found (period) AS (
    SELECT min({period}) FROM {table} WHERE {period} >= ?1 AND {period} <= ?2 UNION ALL
    SELECT (SELECT min({period}) FROM {table} WHERE {period} > found.period AND {period} <= ?2)
    FROM found WHERE found.period IS NOT NULL)
SELECT period FROM found WHERE period IS NOT NULL"""
"""The days or hours of a range that have sums: one look-up for each."""

_OF_TEAMS = "team IN (SELECT value FROM json_each(?)) "
_OF_KEYS = """(key, coalesce(team, '')) IN
    (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?)) """
"""The conditions of a `ReportScope`, of its names as JSON."""

_USED = (
    "SELECT 1 FROM records WHERE key = :key LIMIT 1",
    "SELECT 1 FROM bonds WHERE key IN (:key, :key || ' items') LIMIT 1",
    "SELECT 1 FROM sums WHERE key = :key AND requests > 0 LIMIT 1",
    f"SELECT 1 FROM refusals WHERE json_extract(text, '$[{RefusalEntry._fields.index('key')}]') = :key LIMIT 1",  # noqa: S608 - a constant
)
"""Queries for the traces of a key that was used, the cheapest first."""

_UNDER_WAY = "SELECT entry FROM leases WHERE instr(entry, :mark) > 0"

REFUSALS_AT_ONCE = 1000
"""Entries of the refusal log that one statement reads."""

_USAGE_AT = Record._fields.index("usage")
_MORE = Usage._fields.index("more")
_USAGE_UNTIL = _USAGE_AT + _MORE


class Reader:
    """Short reads, used from one thread. All methods raise `sqlite3.Error`.

    Rows are fetched at once, so that no transaction stays open, and formatted in small portions.
    """

    def __init__(self, settings: StoreSettings, clock_us: Callable[[], int]) -> None:
        self._path = path_of(settings)
        self._db = connect(self._path)
        self._past = PastDays(self._db, clock_us)

    def progress(self, worker: str) -> Progress:
        row = self._db.execute("SELECT seq, mark FROM workers WHERE worker = ?", (worker,)).fetchone()
        return Progress(*row) if row else Progress()

    def usage(
        self, group_by: Sequence[str], since: str | None, until: str | None, at_once: int,
        after: Sequence[str] | None = None, only: ReportScope | None = None, where: Where = (),
    ) -> Iterator[list[dict[str, Any]]]:  # fmt: skip
        """The rows in portions, some of about `at_once` rows, each read when it is asked for."""
        if after is not None and not group_by:
            return  # the only row is the one that the caller has
        range_ = range_of(group_by, since, until)
        attribution, keys = attribution_in(group_by), sorted(keys_of(only, where))
        names_sql = _GROUP_OF_HOURS if range_.is_hourly else _GROUP_OF_DAYS
        groups = ", ".join([(names_sql | {attribution: "value"})[name] for name in group_by]) or "''"
        behind = f"AND ({groups}) > ({', '.join('?' * len(after))}) " if after else ""
        meant, names = _part(only, where)
        table, period = ("hours", "hour") if range_.is_hourly else ("attributed" if attribution else "sums", "day")
        found = self._db.execute(_PERIODS.format(table=table, period=period), (range_.first, range_.last)).fetchall()
        for part in parts_of(group_by, [name for (name,) in found], after, at_once):
            periods = json.dumps(part.periods)
            # Periods by name, so that SQLite looks up the keys in each of them, instead of reading all keys.
            source, of_source = f"{table} WHERE {period} {_AMONG} ", [periods]
            if attribution:
                source, of_source = f"{source}AND name = ? ", [periods, attribution]
            elif not (range_.is_hourly or keys or "key" in group_by):
                source, of_source = f"{SOURCE} WHERE TRUE ", [*self._past.split(part.periods)]
            if keys:
                source, of_source = f"{source}AND key {_AMONG} ", [*of_source, json.dumps(keys)]
            # Sums that were counted and taken back are zeros.
            text = (
                f"SELECT {groups}, {_ADDED} FROM {source}{behind}{meant}%s"  # noqa: S608 - names from a table
                f"GROUP BY {groups} HAVING sum(requests) > 0 ORDER BY {groups}"
            )
            arguments, first = (*of_source, *(after or ()), *names), part.first_key
            if keys or "key" not in group_by:
                yield _usage_rows(group_by, self._db.execute(text % "", arguments).fetchall())
            elif first is None:
                yield from self._spilled(group_by, text % "", arguments, at_once)
            while first is not None and not keys:
                last = self._key_at(table, period, periods, first, part.at_once)
                rows = self._db.execute(text % "AND key BETWEEN ? AND ? ", (*arguments, first, last or _LAST))
                yield _usage_rows(group_by, rows.fetchall())
                first = last and f"{last}\0"

    def _key_at(self, table: str, period: str, periods: str, first: str, steps: int) -> str | None:
        """The lowest of the keys that are `steps` rows behind the key `first`, each in one period; None: no period has
        that number of rows."""
        nth = f"SELECT key FROM {table} WHERE {period} = value AND key >= ? ORDER BY key LIMIT 1 OFFSET ?"  # noqa: S608 - names from a table
        text = f"SELECT min(({nth})) FROM json_each(?)"  # noqa: S608 - the same
        (found,) = self._db.execute(text, (first, steps, periods)).fetchone()
        return None if found is None else str(found)

    def _spilled(
        self, group_by: Sequence[str], text: str, arguments: Sequence[Any], at_once: int
    ) -> Iterator[list[dict[str, Any]]]:
        """The rows of a report that follows no index: read once, and kept in a temporary file of SQLite's."""
        with closing(connect(self._path)) as db:
            db.execute(f"CREATE TEMP TABLE found AS {text}", arguments)
            found = db.execute("SELECT * FROM found")
            while rows := found.fetchmany(at_once):
                yield _usage_rows(group_by, rows)

    def measures(self, group_by: Sequence[str], since: str | None, until: str | None) -> Measures:
        range_ = range_of(group_by, since, until)
        groups = ", ".join([*[_GROUP_OF_PERIODS[name] for name in group_by], "counter"])
        text = (
            f"SELECT {groups}, sum(number) FROM measures WHERE period >= ? AND period <= ? AND length(period) = ? "  # noqa: S608 - names from a table
            f"GROUP BY {groups}"
        )
        found: dict[tuple[str, ...], dict[int, int]] = {}
        rows = self._db.execute(text, (range_.first, range_.last, range_.width)).fetchall()
        for *names, counter, number in in_chunks(rows, ROWS_AT_ONCE):
            found.setdefault(tuple(names), {})[counter] = number
        return found

    def calls(
        self, limit: int, key: str | None, before: str | None, only: ReportScope | None, wanted: CallFilter | None
    ) -> list[Mapping[str, Any]]:
        """Raises `ValueError` for what is no position."""
        if before is not None and not re.fullmatch(r"[0-9]{1,18}", before):
            raise ValueError("not a position of a record")
        if only is not None and only.is_empty:
            return []
        conditions = dict(wanted.conditions) if wanted is not None else {}
        if key is not None:
            conditions["key = ?"] = (key,)
        if before is not None:
            conditions["seq < ?"] = (int(before),)
        meant, names = _part(only)
        where = f"WHERE {' AND '.join(conditions) or 'TRUE'} {meant}"
        columns = ", ".join(("seq", *RECORD))
        text = f"SELECT {columns} FROM records {where}ORDER BY seq DESC LIMIT ?"  # noqa: S608 - constants only
        rows = self._db.execute(text, (*chain.from_iterable(conditions.values()), *names, limit)).fetchall()
        return [call_row(read_record(row[1:]), str(row[0])) for row in in_chunks(rows, ROWS_AT_ONCE)]

    def refusals(self, limit: int, before: str | None, wanted: RefusalQuery) -> list[StoredRefusal]:
        """Raises `ValueError` for what is no position."""
        if before is not None and not re.fullmatch(r"[0-9]{1,18}", before):
            raise ValueError("not a position of a refusal")
        end = 2**63 - 1 if before is None else int(before)
        found: list[StoredRefusal] = []
        while len(found) < limit:
            rows = self._db.execute(
                "SELECT seq, text FROM refusals WHERE seq < ? ORDER BY seq DESC LIMIT ?", (end, REFUSALS_AT_ONCE)
            ).fetchall()
            read = [StoredRefusal(str(seq), decode_refusal(text)) for seq, text in in_chunks(rows, ROWS_AT_ONCE)]
            found += [each for each in read if wanted.matches(each.entry)]
            if len(rows) < REFUSALS_AT_ONCE:
                break
            end = rows[-1][0]
        return found[:limit]

    def find_request(self, request_id: str) -> Record | RefusalEntry | None:
        refusal = "SELECT text FROM refusals WHERE id = ? ORDER BY seq DESC LIMIT 1"
        row = self._db.execute(refusal, (request_id,)).fetchone()
        if row is not None:
            return decode_refusal(row[0])
        text = f"SELECT {', '.join(RECORD)} FROM records WHERE id = ? ORDER BY seq DESC LIMIT 1"  # noqa: S608 - constants
        row = self._db.execute(text, (request_id,)).fetchone()
        return None if row is None else read_record(row)

    def is_used(self, key: str) -> bool:
        if any(self._db.execute(text, {"key": key}).fetchone() for text in _USED):
            return True
        entries = self._db.execute(_UNDER_WAY, {"mark": quote(key)}).fetchall()
        return any(ledger_entry.decode_record(entry.split("\t")[1]).key == key for (entry,) in entries)

    def usage_by_returned_model(self, since: str, until: str) -> list[dict[str, Any]]:
        return _usage_rows(RETURNED_MODEL_GROUPS, self._db.execute(_BY_RETURNED_MODEL, (since, until)).fetchall())

    def close(self) -> None:
        self._db.close()


def _part(only: ReportScope | None, where: Where = ()) -> tuple[str, tuple[str, ...]]:
    """The conditions of a report that is about a part of all usage, and their arguments."""
    conditions = "".join([f"AND {_GROUP_OF_DAYS[group]} = ? " for group, _ in where])
    names = tuple([name for _, name in where])
    if only is None:
        return conditions, names
    if only.keys:
        found = json.dumps(sorted([(key, team or "") for key, team in only.keys]))
        return f"{conditions}AND {_OF_KEYS}", (*names, found)
    return f"{conditions}AND {_OF_TEAMS}", (*names, json.dumps(sorted(only.teams)))


def _usage_rows(group_by: Sequence[str], found: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The found rows: groups, or one other column where there are none, followed by sums."""
    width = len(group_by)
    return [usage_row(group_by, row[:width], row[-len(SUMS) :]) for row in in_chunks(found, ROWS_AT_ONCE)]


def record_row(record: Record) -> tuple[Any, ...]:
    """A record as a row of the columns `RECORD`."""
    record = ledger_entry.storable(record)
    usage = record.usage
    more = units.format_counts(usage.more) if usage.more else ""
    return (*record[:_USAGE_AT], *usage[:_MORE], *record[_USAGE_AT + 1 :], more)


def read_record(row: Sequence[Any]) -> Record:
    usage = Usage(*row[_USAGE_AT:_USAGE_UNTIL])._replace(more=units.read(row[-1]))
    record = Record._make((*row[:_USAGE_AT], usage, *row[_USAGE_UNTIL:-1]))
    return record._replace(stream=bool(record.stream), truncated=bool(record.truncated))
