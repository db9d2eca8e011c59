"""How reports grow with the rows of a store: `python -m bench.growth --keys 1000 --keys 10000 --keys 100000`.

For each number of keys a store is filled directly, embedded and Redis: `--days` days on which every key has called one
of `MODELS`, and ten usage records for each key. Then each report is asked for, alone. The columns are its rows, the
seconds to its first row, the seconds of all of it, and what it asked of the store: thousands of SQLite's instructions,
or commands of Redis and what these sent. Counts are the same on every machine; seconds are those of
this one. Memory is that of the whole process at its highest, so that a report that holds its rows shows.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from gateway.config import StoreSettings as Settings
from gateway.quota.ledger_entry import SEPARATOR, SUMS, encode
from gateway.records import Record, Usage
from gateway.store import CallFilter, ReportScope, Store
from gateway.store.redis.store import RedisStore
from gateway.store.sqlite import database, reader
from gateway.store.sqlite.database import insert
from gateway.store.sqlite.reader import record_row
from gateway.store.sqlite.schema import RECORD, SUM_GROUP
from gateway.store.sqlite.store import SqliteStore
from tests.fakes.redis_servers import RedisServer

MODELS = 20
RECORDS_OF_A_KEY = 10
AT_ONCE = 10_000
"""Rows of one statement, or commands of one round trip, when a store is filled."""

FIRST_DAY = datetime(2026, 10, 1, tzinfo=UTC)
NUMBERS = (3, 0, 300, 200, 100, 50, 0, 1_000_000, 0)
PATIENCE_S = 600.0


class Size(NamedTuple):
    keys: int
    days: int

    @property
    def names(self) -> list[str]:
        return [(FIRST_DAY + timedelta(days=day)).date().isoformat() for day in range(self.days)]

    def group(self, key: int, day: int) -> tuple[str, ...]:
        """Key, team, model, upstream and endpoint of what this key used on this day."""
        return f"key-{key:07}", f"team-{key % 50}", f"model-{(key + day // 10) % MODELS}", f"up-{key % 3}", "chat"

    def record(self, number: int) -> Record:
        """They begin one after another, and fill all days."""
        days = number * self.days / (self.keys * RECORDS_OF_A_KEY)
        key, team, model, upstream, endpoint = self.group(number % self.keys, int(days))
        began = FIRST_DAY.timestamp() + days * 86_400
        return Record(
            f"req-{number}", began, key, team, endpoint, model, model, model, None, upstream, 200, False,
            Usage(100, 60, source="reported"), "done", 0.1, 1.5, 1,
        )  # fmt: skip


def fill_sqlite(folder: Path, size: Size) -> SqliteStore:
    store = SqliteStore(Settings(url=f"embedded:{folder}"))
    db = store._ledger.db
    for day, name in enumerate(size.names):
        for first in range(0, size.keys, AT_ONCE):
            keys = range(first, min(first + AT_ONCE, size.keys))
            rows = [(name, *size.group(key, day), *NUMBERS) for key in keys]
            db.execute("BEGIN")
            insert(db, "sums", SUM_GROUP + SUMS, rows)
            db.execute("COMMIT")
    for first in range(0, size.keys * RECORDS_OF_A_KEY, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, size.keys * RECORDS_OF_A_KEY))
        db.execute("BEGIN")
        insert(db, "records", RECORD, [record_row(size.record(number)) for number in numbers])
        db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store


async def fill_redis(server: RedisServer, size: Size, namespace: str = "gateway") -> RedisStore:
    """As a gateway before its index of groups wrote it, so that the first report has to make the index."""
    store = RedisStore(Settings(url=server.url, namespace=namespace))
    store._reading._limit_s = PATIENCE_S
    base, ask = store._base, store._reading.ask
    numbers = " ".join(map(str, NUMBERS))
    for day, name in enumerate(size.names):
        await ask(("ZADD", f"{base}days", 10**10, name), ("HSET", f"{base}sums:{name}", "?", f"sums; {day}"))
        for first in range(0, size.keys, AT_ONCE):
            keys = range(first, min(first + AT_ONCE, size.keys))
            fields = [text for key in keys for text in (SEPARATOR.join(size.group(key, day)), numbers)]
            await ask(("HSET", f"{base}sums:{name}", *fields))
    for first in range(0, size.keys * RECORDS_OF_A_KEY, AT_ONCE):
        some = range(first, min(first + AT_ONCE, size.keys * RECORDS_OF_A_KEY))
        await ask(*[("XADD", f"{base}records", *entry_of(size.record(number), number)) for number in some])
    return store


def entry_of(record: Record, number: int) -> tuple[str, str, str]:
    """The arguments with which this record is the next one: written when its call has ended."""
    return f"{int(record.time * 1000) + 1500}-{number}", "r", encode(record, ()).partition("\t")[2]


class Report(NamedTuple):
    name: str
    portions: Callable[[Store], AsyncIterator[Sequence[Any]]]


async def _once(rows: Awaitable[Sequence[Any]]) -> AsyncIterator[Sequence[Any]]:
    yield await rows


async def _found(store: Store, request_id: str) -> AsyncIterator[Sequence[Any]]:
    yield [found for found in [await store.find_request(request_id)] if found is not None]


SERVER_ERRORS = CallFilter(status=(500, 599))
NO_TEAMS = ReportScope(frozenset({"nobody", "no one"}))

REPORTS = (
    Report("the first report by key, with the index of Redis", lambda store: _once(store.usage(["key"], limit=1))),
    Report("usage by key, a page of 100", lambda store: _once(store.usage(["key"], limit=100))),
    Report("usage by key and day, a page of 100", lambda store: _once(store.usage(["key", "day"], limit=100))),
    Report("usage by day and key, a page of 100", lambda store: _once(store.usage(["day", "key"], limit=100))),
    Report("usage of one key by day", lambda store: _once(store.usage(["day"], where=(("key", "key-0000007"),)))),
    Report("usage by model", lambda store: _once(store.usage(["model"]))),
    Report("usage by key, all of it", lambda store: store.usage_portions(["key"])),
    Report("usage by key and day, all of it", lambda store: store.usage_portions(["key", "day"])),
    Report("usage by model and key, all of it", lambda store: store.usage_portions(["model", "key"])),
    Report("calls, the newest 100", lambda store: _once(store.calls(100))),
    Report("calls of one key", lambda store: _once(store.calls(100, "key-0000007"))),
    Report("calls of a key without any", lambda store: _once(store.calls(100, "nobody"))),
    Report("calls with a filter without hits", lambda store: _once(store.calls(100, wanted=CallFilter(user="nobody")))),
    Report("calls with a class of status without hits", lambda store: _once(store.calls(100, wanted=SERVER_ERRORS))),
    Report("calls of two teams without any", lambda store: _once(store.calls(100, only=NO_TEAMS))),
    Report("a request by an id that no one has", lambda store: _found(store, "no-such-id")),
)  # fmt: skip


class Measured(NamedTuple):
    rows: int
    first_s: float
    whole_s: float
    peak_mb: int

    @classmethod
    async def of(cls, report: Report, store: Store) -> Measured:
        began, first_s, rows = time.perf_counter(), 0.0, 0
        async for some in report.portions(store):
            first_s = first_s or time.perf_counter() - began
            rows += len(some)
        whole_s = time.perf_counter() - began
        return cls(rows, first_s or whole_s, whole_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


async def _measure(store: Store, where: str, size: Size, asks: Callable[[], Awaitable[str]], only: str) -> None:
    for report in REPORTS:
        if only not in report.name:
            continue
        await asks()
        found = await Measured.of(report, store)
        print(
            f"| {where} | {size.keys:,} | {report.name} | {found.rows:,} | {found.first_s:.2f} | {found.whole_s:.2f} |"
            f" {found.peak_mb} MB | {await asks()} |",
            flush=True,
        )


def _sqlite_steps(store: SqliteStore) -> Callable[[], Awaitable[str]]:
    steps = [0]

    def step() -> int:
        steps[0] += 1
        return 0

    def connect(path: Path) -> sqlite3.Connection:
        db = database.connect(path)
        db.set_progress_handler(step, 1000)
        return db

    reader.connect = connect  # type: ignore[attr-defined]
    store._reader._db.set_progress_handler(step, 1000)

    async def asks() -> str:
        found, steps[0] = steps[0], 0
        return f"{found:,} k instructions"

    return asks


def _redis_commands(store: RedisStore) -> Callable[[], Awaitable[str]]:
    async def asks() -> str:
        commands, sent = await served(store)
        return f"{commands:,} commands, {sent // 1024:,} kB sent"

    return asks


async def served(store: RedisStore) -> tuple[int, int]:
    """Commands that the server has carried out since the last question, those of scripts among them, and the bytes that
    it has sent."""
    commands, network, _ = await store._finding.ask(
        ("INFO", "commandstats"), ("INFO", "stats"), ("CONFIG", "RESETSTAT")
    )
    counts = dict(re.findall(r"cmdstat_(\S+):calls=(\d+)", commands))
    own = sum(int(count) for name, count in counts.items() if not name.startswith(("info", "config")))
    return own, int(re.findall(r"total_net_output_bytes:(\d+)", network)[0])


async def run(sizes: Sequence[Size], stores: Sequence[str], only: str) -> None:
    print("| store | keys | report | rows | first row, s | all, s | memory | asked of the store |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | --- |")
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            if "embedded" in stores:
                embedded = fill_sqlite(Path(folder) / "data", size)
                await _measure(embedded, "embedded", size, _sqlite_steps(embedded), only)
                await embedded.close()
            if "redis" in stores:
                with RedisServer(Path(folder) / "redis") as server:
                    redis = await fill_redis(server, size)
                    await _measure(redis, "redis", size, _redis_commands(redis), only)
                    await redis.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, action="append", help="may be repeated; default: 1000, 3000 and 10000")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--store", choices=("embedded", "redis"), action="append", help="default: both")
    parser.add_argument("--only", default="", help="reports with this text in their names")
    args = parser.parse_args()
    sizes = [Size(keys, args.days) for keys in args.keys or (1000, 3000, 10_000)]
    asyncio.run(run(sizes, args.store or ("embedded", "redis"), args.only))


if __name__ == "__main__":
    main()
