"""The tables of an embedded store, read in one transaction, which is a picture of one moment."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from gateway.config import StoreSettings
from gateway.quota.ledger_entry import SUMS, decode_record, encode
from gateway.store import StoreUnavailable
from gateway.store.sqlite.database import Transaction, connect, create, describe_error, insert, path_of
from gateway.store.sqlite.reader import read_record, record_row
from gateway.store.sqlite.schema import (
    ADD_LATE,
    ATTRIBUTED_GROUP,
    AUDIT,
    HOUR_GROUP,
    LATE,
    MEASURE,
    RECORD,
    REFUSAL,
    SUM_GROUP,
)

from .rows import LOGS, StoreRow, is_rate, position
from .tables import numbers_text


class _Table(NamedTuple):
    """A table whose rows add up."""

    name: str
    names: tuple[str, ...]
    numbers: tuple[str, ...]


TABLES = {
    "day": _Table("sums", SUM_GROUP, SUMS),
    "hour": _Table("hours", HOUR_GROUP, SUMS),
    "tag": _Table("attributed", ATTRIBUTED_GROUP, SUMS),
    "latency": _Table("measures", MEASURE[:-1], MEASURE[-1:]),
    "window": _Table("windows", ("starts", "id"), ("used",)),
}

_TAKEN = "CREATE TABLE IF NOT EXISTS taken (source TEXT, row TEXT, text TEXT NOT NULL, PRIMARY KEY (source, row))"
_SET_TAKEN = "INSERT INTO taken VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET text = excluded.text"

_READ = (
    ("secret", "SELECT digest, key FROM secrets ORDER BY digest", 2, 0),
    ("document", "SELECT kind, name, text FROM documents ORDER BY kind, name", 2, 0),
    *[
        (
            kind,
            f"SELECT {', '.join((*table.names, *table.numbers))} FROM {table.name}"  # noqa: S608 - constants
            + (" WHERE starts != ''" if kind == "window" else ""),
            len(table.names),
            len(table.numbers),
        )
        for kind, table in TABLES.items()
    ],
    ("rate", "SELECT id, used, at_us FROM windows WHERE starts = '' AND used > 0", 1, 2),
    ("audit", "SELECT seq, kind, name, text FROM audit ORDER BY seq", 3, 0),
    ("record", f"SELECT seq, {', '.join(RECORD)} FROM records ORDER BY seq", 0, 0),  # noqa: S608 - constants
    ("refusal", "SELECT seq, text FROM refusals ORDER BY seq", 1, 0),
    ("bond", "SELECT id, CAST(until AS INTEGER), text FROM bonds ORDER BY seq", 1, 1),
)
"""The query of each kind, and how many of its columns are names, and then numbers; a text may follow."""

_LOGGED = {
    "record": "SELECT id || iif(ended = 'lost', ' lost', '') FROM records",
    "refusal": "SELECT id FROM refusals",
    "audit": "SELECT text FROM audit",
}


class SqliteTables:
    """Implements `Tables`. Short steps on one connection, as the commands need no event loop."""

    def __init__(self, settings: StoreSettings) -> None:
        self._path = path_of(settings)
        self._db = create(settings)
        with Transaction(self._db):
            self._db.execute(_TAKEN)
        self._lost: set[str] | None = None
        """Requests with a record of a lost call; None: not read yet."""

    async def id(self) -> str:
        with self._writing():
            known = self._db.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchone()
            if known is None:
                known = (secrets.randbits(62),)
                self._db.execute("INSERT INTO meta VALUES ('store_id', ?)", known)
        return f"{known[0]:016x}"

    async def under_way(self) -> tuple[int, int]:
        (deferred,) = self._ask("SELECT count(*) FROM deferred").fetchone()
        (leases,) = self._ask("SELECT count(*) FROM leases").fetchone()
        return max(0, leases - deferred), deferred

    async def rows(self) -> AsyncIterator[StoreRow]:
        try:
            db = connect(self._path)
            try:
                db.execute("BEGIN")
                for kind, query, names, numbers in _READ:
                    for row in db.execute(query):
                        if kind == "rate" and not is_rate(row[0]):
                            continue
                        yield _row(kind, row, names, numbers)
            finally:
                db.close()
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path}: {describe_error(error)}") from None

    async def add(self, source: str, rows: Sequence[StoreRow]) -> None:
        with self._writing():
            late = set()
            for row in rows:
                before = self._taken(source, row.mark)
                if before == numbers_text(row):
                    continue
                self._add_difference(row, [int(number) for number in before.split()] if before else [])
                self._db.execute(_SET_TAKEN, (source, row.mark, numbers_text(row)))
                if row.kind == "day":
                    late.add(row.names[0])
            insert(self._db, "late", LATE, [(day, 1) for day in sorted(late)], ADD_LATE)

    def _add_difference(self, row: StoreRow, before: Sequence[int]) -> None:
        table = TABLES[row.kind]
        is_it = " AND ".join(f"{name} = ?" for name in table.names)
        known = self._db.execute(
            f"SELECT {', '.join(table.numbers)} FROM {table.name} WHERE {is_it}",  # noqa: S608 - constants
            row.names,
        ).fetchone()
        have, taken = known or [0] * len(row.numbers), before or [0] * len(row.numbers)
        numbers = [max(0, own + new - old) for own, new, old in zip(have, row.numbers, taken, strict=True)]
        if known is not None:
            changed = ", ".join(f"{name} = ?" for name in table.numbers)
            self._db.execute(f"UPDATE {table.name} SET {changed} WHERE {is_it}", (*numbers, *row.names))  # noqa: S608
        else:
            more = {"reserved": 0, "at_us": time.time_ns() // 1000} if row.kind == "window" else {}
            columns = (*table.names, *table.numbers, *more)
            insert(self._db, table.name, columns, [(*row.names, *numbers, *more.values())])

    async def append(self, source: str, rows: Sequence[StoreRow]) -> None:
        kind = rows[0].kind
        with self._writing():
            last = self._taken(source, kind) or ""
            fresh = [row for row in rows if row.names[0] > last]
            if not fresh:
                return
            if kind == "record":
                insert(self._db, "records", RECORD, [record_row(decode_record(row.text)) for row in fresh])
                self._drop_lost(fresh)
            elif kind == "refusal":
                values = [(json.loads(row.text)[0], json.loads(row.text)[1], row.text) for row in fresh]
                insert(self._db, "refusals", REFUSAL, values)
            else:
                insert(self._db, "audit", AUDIT, [(*row.names[1:], row.text) for row in fresh])
            self._db.execute(_SET_TAKEN, (source, kind, fresh[-1].names[0]))

    def _drop_lost(self, fresh: Sequence[StoreRow]) -> None:
        """Delete records of calls that were taken for lost, and have another one since their worker came back."""
        if self._lost is None:
            self._lost = {name for (name,) in self._db.execute("SELECT id FROM records WHERE ended = 'lost'")}
        records = [decode_record(row.text) for row in fresh]
        self._lost.update(record.id for record in records if record.ended == "lost")
        found = [(record.id,) for record in records if record.ended != "lost" and record.id in self._lost]
        self._db.executemany("DELETE FROM records WHERE id = ? AND ended = 'lost'", found)

    async def put_rates(self, source: str, rows: Sequence[StoreRow]) -> None:
        with self._writing():
            for row in rows:
                known = self._db.execute("SELECT used, at_us FROM windows WHERE id = ?", row.names).fetchone()
                before = self._taken(source, row.mark) or "0 0"
                if before == numbers_text(row):
                    continue
                if known is None:
                    values = (*row.names, "", row.numbers[0], 0, row.numbers[1])
                    insert(self._db, "windows", ("id", "starts", "used", "reserved", "at_us"), [values])
                else:
                    level, at_us = known
                    new, old = row.numbers, int(before.split()[0])
                    changed = new if before == f"{level} {at_us}" else (level + max(0, new[0] - old), at_us)
                    self._db.execute("UPDATE windows SET used = ?, at_us = ? WHERE id = ?", (*changed, *row.names))
                self._db.execute(_SET_TAKEN, (source, row.mark, numbers_text(row)))

    async def taken(self, source: str, marks: Sequence[str]) -> list[str | None]:
        return [self._taken(source, mark) for mark in marks]

    async def note_taken(self, source: str, mark: str, text: str | None) -> None:
        with self._writing():
            if text is None:
                self._db.execute("DELETE FROM taken WHERE source = ? AND row = ?", (source, mark))
            else:
                self._db.execute(_SET_TAKEN, (source, mark, text))

    async def documents_taken(self, source: str) -> dict[str, str]:
        query = "SELECT row, text FROM taken WHERE source = ? AND row LIKE 'document' || char(31) || '%'"
        return dict(self._ask(query, source).fetchall())

    async def here(self, rows: Sequence[StoreRow]) -> list[tuple[int, ...] | None]:
        found = []
        for row in rows:
            table = TABLES[row.kind]
            is_it = " AND ".join(f"{name} = ?" for name in table.names)
            query = f"SELECT {', '.join(table.numbers)} FROM {table.name} WHERE {is_it}"  # noqa: S608 - constants
            found.append(self._ask(query, *row.names).fetchone())
        return found

    async def logged(self, kind: str) -> AsyncIterator[str]:
        for (text,) in self._ask(_LOGGED[kind]):
            yield text

    async def close(self) -> None:
        self._db.close()

    def _taken(self, source: str, mark: str) -> str | None:
        found = self._ask("SELECT text FROM taken WHERE source = ? AND row = ?", source, mark).fetchone()
        return None if found is None else str(found[0])

    def _ask(self, query: str, *values: Any) -> sqlite3.Cursor:
        try:
            return self._db.execute(query, values)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path}: {describe_error(error)}") from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with Transaction(self._db, time.monotonic() + PATIENCE_S):
                yield
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path}: {describe_error(error)}") from None


PATIENCE_S = 30.0
"""How long a portion waits for the lock of a file that gateways write to."""


def open_tables(settings: StoreSettings) -> SqliteTables:
    """The tables of this file. Raises `StoreMisconfigured`."""
    return SqliteTables(settings)


def _row(kind: str, values: Sequence[Any], names: int, numbers: int) -> StoreRow:
    if kind == "record":
        record = read_record(values[1:])
        return StoreRow(kind, (position(values[0]), record.id), (), encode(record, ()).partition("\t")[2])
    first = [position(values[0]), *values[1:names]] if kind in LOGS else values[:names]
    text = values[names + numbers] if len(values) > names + numbers else ""
    return StoreRow(kind, tuple(map(str, first)), tuple(values[names : names + numbers]), text)
