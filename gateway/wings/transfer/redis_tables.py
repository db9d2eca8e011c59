"""The tables of a store in Redis: its hashes and streams, read in portions, and written by one script (take.lua).

The names of the keys are those of gateway/store/redis/store.py, and further

    {namespace}:1:id               the id of this store
    {namespace}:1:taken:SOURCE     hash: mark of a row -> note of it; kept for `TAKEN_KEPT_S`
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from gateway.chunked import portions
from gateway.config import StoreSettings
from gateway.quota.ledger_entry import decode_record
from gateway.store.key_store import AUDIT_KEPT
from gateway.store.redis.connection import Ask, RedisConnection, Script
from gateway.store.redis.keys import page
from gateway.store.redis.store import SCHEMA
from gateway.store.refusals import REFUSALS_KEPT
from gateway.wings import WINGS

from .rows import SEPARATOR, StoreRow, forgotten_at, is_rate, logged_name, position
from .tables import numbers_text

LIMIT_S = 30.0
"""How long one portion may take; nothing waits for it."""

READ_AT_ONCE = 500

TAKEN_KEPT_S = 90 * 86_400
"""How long after its last pass a move may be repeated."""

_SUMS = {
    "day": re.compile(r"(\d{4}-\d\d-\d\d)"),
    "hour": re.compile(r"(\d{4}-\d\d-\d\dT\d\d)"),
    "tag": re.compile(r"tags-(\d{4}-\d\d-\d\d)"),
}
"""The names of periods of each kind of sums; the group is the period itself."""

_CALENDAR = re.compile(r"\d{4}-(\d\d|\d\d-\d\d|W\d\d)")

_DOCUMENTS = ("key", "overlay", "team", *WINGS)
_LOGS = {"audit": "audit", "record": "records", "refusal": "refusals"}
_KEPT = {"audit": AUDIT_KEPT, "record": 0, "refusal": REFUSALS_KEPT}
"""The most entries of a stream; records are cut by the next batch of a gateway."""


class RedisTables:
    """This class implements `Tables` with Redis."""

    def __init__(self, settings: StoreSettings) -> None:
        self._namespace = settings.namespace
        self._base = f"{{{settings.namespace}}}:{SCHEMA}:"
        self._sums_days = settings.sums_days
        self._script = Script.of((Path(__file__).parent / "take.lua").read_text(encoding="utf-8"))
        self._link = RedisConnection(settings.redis, LIMIT_S, _greet)

    async def id(self) -> str:
        name = f"{self._base}id"
        _, found = await self._link.ask(("SET", name, secrets.token_hex(8), "NX"), ("GET", name))
        return str(found)

    async def under_way(self) -> tuple[int, int]:
        workers, deferred = await self._link.ask(
            ("ZRANGE", f"{self._base}alive", 0, -1), ("HLEN", f"{self._base}deferred")
        )
        counts = await self._link.ask(*[("HLEN", f"{self._base}leases:{worker}") for worker in workers])
        return sum(counts), deferred

    async def rows(self) -> AsyncIterator[StoreRow]:
        (periods,) = await self._link.ask(("ZRANGE", f"{self._base}days", 0, -1))
        for part in (self._documents(), self._all_sums(periods), self._windows(periods), self._logs(), self._bonds()):
            async for row in part:
                yield row

    async def _documents(self) -> AsyncIterator[StoreRow]:
        async for digest, key in self._fields("secrets"):
            yield StoreRow("secret", (digest, key))
        for kind in _DOCUMENTS:
            after = ""
            while found := await page(self._link, self._base, kind, after, READ_AT_ONCE):
                for name, text in found:
                    yield StoreRow("document", (kind, name), (), text)
                after = found[-1][0]

    async def _all_sums(self, periods: Sequence[str]) -> AsyncIterator[StoreRow]:
        for kind, form in _SUMS.items():
            for name, period in [(found[0], found[1]) for each in periods if (found := form.fullmatch(each))]:
                async for field, text in self._fields(f"sums:{name}"):
                    yield StoreRow(kind, (period, *_names_of(kind, field)), tuple(map(int, text.split())))
        for name in periods:
            if not name.startswith("latency-"):
                continue
            async for field, text in self._fields(f"sums:{name}"):
                for counter, _, number in [part.partition(":") for part in text.split()]:
                    names = (name.removeprefix("latency-"), *field.split(SEPARATOR), counter)
                    yield StoreRow("latency", names, (int(number),))

    async def _windows(self, periods: Sequence[str]) -> AsyncIterator[StoreRow]:
        for period in filter(_CALENDAR.fullmatch, periods):
            async for window, text in self._fields(f"windows:{period}"):
                yield StoreRow("window", (period, window), (int(text.split()[0]),))
        async for window, text in self._fields("windows"):
            used, _, at_us = map(int, text.split())
            if used and is_rate(window):
                yield StoreRow("rate", (window,), (used, at_us))

    async def _logs(self) -> AsyncIterator[StoreRow]:
        async for where, values in self._entries("audit"):
            yield StoreRow("audit", (where, values[1], values[3]), (), values[5])
        async for where, values in self._entries("record"):
            yield StoreRow("record", (where, decode_record(values[1]).id), (), values[1])
        async for where, values in self._entries("refusal"):
            yield StoreRow("refusal", (where,), (), values[1])

    async def _fields(self, name: str) -> AsyncIterator[tuple[str, str]]:
        """Each field of a hash once, without the one for people."""
        cursor, known = "0", {"?"}
        while True:
            ((cursor, found),) = await self._link.ask(("HSCAN", self._base + name, cursor, "COUNT", READ_AT_ONCE))
            for field, text in zip(found[::2], found[1::2], strict=True):
                if field not in known:
                    known.add(field)
                    yield field, text
            if cursor in ("0", 0):
                return

    async def _entries(self, kind: str) -> AsyncIterator[tuple[str, list[str]]]:
        after = "-"
        while True:
            name = self._base + _LOGS[kind]
            (found,) = await self._link.ask(("XRANGE", name, after, "+", "COUNT", READ_AT_ONCE))
            for entry, values in found:
                yield position(*map(int, entry.split("-"))), values
            if len(found) < READ_AT_ONCE:
                return
            after = f"({found[-1][0]}"

    async def _bonds(self) -> AsyncIterator[StoreRow]:
        known: set[str] = set()
        cursor = "0"
        pattern = f"{self._base}bond:*"
        while True:
            ((cursor, names),) = await self._link.ask(("SCAN", cursor, "MATCH", pattern, "COUNT", READ_AT_ONCE))
            for some in portions(sorted({*names} - known), READ_AT_ONCE):
                (texts,) = await self._link.ask(("MGET", *some))
                for until, _, text in [each.partition(" ") for each in texts if each]:
                    yield StoreRow("bond", (json.loads(text)[0],), (int(until),), text)
            known.update(names)
            if cursor in ("0", 0):
                return

    async def add(self, source: str, rows: Sequence[StoreRow]) -> None:
        await self._take(source, "add", self._base, [self._added(row) for row in rows])

    def _added(self, row: StoreRow) -> list[str]:
        hash_, field = _place(row)
        form = {"tag": "tag", "window": "window", "latency": row.names[-1]}.get(row.kind, "sums")
        period = row.names[0]
        name = {"tag": f"tags-{period}", "latency": f"latency-{period}"}.get(row.kind, period)
        return [row.mark, hash_, field, numbers_text(row), name, str(forgotten_at(period, self._sums_days)), form]

    async def append(self, source: str, rows: Sequence[StoreRow]) -> None:
        kind = rows[0].kind
        await self._take(
            source,
            "append",
            self._base + _LOGS[kind],
            [[kind, row.names[0], *_entry(row)] for row in rows],
            most=_KEPT[kind],
        )

    async def put_rates(self, source: str, rows: Sequence[StoreRow]) -> None:
        values = [[row.mark, "windows", row.names[0], *map(str, row.numbers)] for row in rows]
        await self._take(source, "rate", self._base, values)

    async def _take(self, source: str, deed: str, base: str, rows: Sequence[Sequence[str]], most: int = 0) -> None:
        taken = f"{self._base}taken:{source}"
        arguments = [deed, base, str(time.time_ns() // 1000), str(most), *[json.dumps(row) for row in rows]]
        await self._link.run(self._script, [taken, f"{self._base}days"], arguments)
        await self._link.ask(("EXPIRE", taken, TAKEN_KEPT_S), ("SET", f"{{{self._namespace}}}:schema", SCHEMA, "NX"))

    async def taken(self, source: str, marks: Sequence[str]) -> list[str | None]:
        (found,) = await self._link.ask(("HMGET", f"{self._base}taken:{source}", *marks))
        return list(found)

    async def note_taken(self, source: str, mark: str, text: str | None) -> None:
        name = f"{self._base}taken:{source}"
        await self._link.ask(("HDEL", name, mark) if text is None else ("HSET", name, mark, text))

    async def documents_taken(self, source: str) -> dict[str, str]:
        return {
            mark: text
            async for mark, text in self._fields(f"taken:{source}")
            if mark.startswith(f"document{SEPARATOR}")
        }

    async def here(self, rows: Sequence[StoreRow]) -> list[tuple[int, ...] | None]:
        places = [_place(row) for row in rows]
        texts = await self._link.ask(*[("HGET", self._base + hash_, field) for hash_, field in places])
        return [None if text is None else _read(row, text) for row, text in zip(rows, texts, strict=True)]

    async def logged(self, kind: str) -> AsyncIterator[str]:
        async for where, values in self._entries(kind):
            yield logged_name(StoreRow(kind, (where,), (), values[5 if kind == "audit" else 1]))

    async def close(self) -> None:
        await self._link.close()


def open_tables(settings: StoreSettings) -> RedisTables:
    return RedisTables(settings)


async def _greet(ask: Ask) -> None:
    await ask(("PING",))


def _names_of(kind: str, field: str) -> tuple[str, ...]:
    """The names behind the period. A tag's value is behind the others here, and the team before the model."""
    if kind != "tag":
        return tuple(field.split(SEPARATOR))
    key, team, model, name, value = field.split(SEPARATOR)
    return key, name, value, team, model


def _place(row: StoreRow) -> tuple[str, str]:
    """The hash and the field of a row."""
    period, *names = row.names
    if row.kind == "window":
        return f"windows:{period}", names[0]
    if row.kind == "latency":
        return f"sums:latency-{period}", SEPARATOR.join(names[:2])
    if row.kind == "tag":
        key, name, value, team, model = names
        return f"sums:tags-{period}", SEPARATOR.join((key, team, model, name, value))
    return f"sums:{period}", SEPARATOR.join(names)


def _read(row: StoreRow, text: str) -> tuple[int, ...] | None:
    if row.kind == "window":
        return (int(text.split()[0]),)
    if row.kind == "latency":
        counters = dict(part.split(":") for part in text.split())
        return (int(counters[row.names[-1]]),) if row.names[-1] in counters else None
    return tuple(map(int, text.split()))


def _entry(row: StoreRow) -> list[str]:
    if row.kind == "audit":
        return ["kind", row.names[1], "name", row.names[2], "audit", row.text]
    return ["r" if row.kind == "record" else "refusal", row.text]
