"""Size of stored data: bytes of memory in Redis and on the disk of an embedded store, per entry of each kind.

    python -m bench.sizes                      # bytes per entry; half a minute
    python -m bench.sizes --carries --write    # and the capacity of one core, into docs/sizing.md

Each figure is a slope: entries are written, then more of them; the growth is divided by their number.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import secrets
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gateway.config import StoreSettings as Settings
from gateway.journal import codec
from gateway.quota import ledger_entry
from gateway.quota.windows import calendar_window
from gateway.records import Claim, Record, Usage, Window
from gateway.store import Batch, Item, Reserve, Settle, Store
from gateway.store.opening import open_store
from gateway.store.sqlite.database import path_of
from tests.fakes.redis_servers import ROOT, RedisServer

from . import carries, issuing, page
from .__main__ import machine

PAGE = ROOT / "docs/sizing.md"

FEW, MANY = 4_000, 12_000
BATCH = 100
PRICE = '{"prompt":"0.15","completion":"0.6"}'

Place = Callable[[], tuple[float, float]]
"""Returns the current size: bytes of memory (0 for the embedded store), and bytes on disk."""


class Slope(NamedTuple):
    """Bytes per entry."""

    memory: float
    disk: float


class Trial:
    """One worker's batches on an empty store, and the growth of the store."""

    def __init__(self, store: Store, look: Place) -> None:
        self._store = store
        self._look = look
        self._worker = secrets.token_hex(16)
        self._seq = itertools.count(1)
        self._entries = itertools.count(1)
        self._names = itertools.count()

    async def slopes(self) -> dict[str, Slope]:
        """Bytes per entry of each kind."""
        record = await self._slope(lambda number: self._call(f"key{number % 10}"))
        with_sum = await self._slope(lambda _: self._call(f"key-{next(self._names)}"))
        with_windows = await self._slope(lambda _: self._call(f"key-{next(self._names)}", windows=3))
        lease = await self._slope(lambda number: self._call(f"key{number % 10}", windows=3, is_open=True))
        key = await self._keys()
        return {
            "a usage record": record,
            "a row of the daily sums (a key, model, upstream and endpoint on a day)": _less(with_sum, record),
            "a quota window of a key": Slope(*(each / 3 for each in _less(with_windows, with_sum))),
            "a call under way (its lease; given back at its end)": lease,
            "a key that was issued, with its entry in the audit log": key,
        }

    async def _slope(self, call: Callable[[int], Iterable[Item]]) -> Slope:
        await self._write(call, FEW)
        before = self._look()
        await self._write(call, MANY)
        return Slope(*((now - then) / MANY for now, then in zip(self._look(), before, strict=True)))

    async def _write(self, call: Callable[[int], Iterable[Item]], count: int) -> None:
        for first in range(0, count, BATCH):
            items = [item for number in range(first, first + BATCH) for item in call(number)]
            seq = next(self._seq)
            await self._store.apply(Batch(self._worker, seq, seq - 1, items))

    def _call(self, key: str, windows: int = 0, *, is_open: bool = False) -> Iterable[Item]:
        claims = tuple(Claim(window, 1) for window in _windows(key)[:windows])
        lost = _record(f"req_{secrets.token_hex(16)}", key)
        yield Reserve.of(lost, claims)
        if not is_open:
            record = lost._replace(ended="done", usage=Usage(210, 34, source="reported"))
            yield Settle(next(self._entries), record, claims, ledger_entry.encode(record, claims))

    async def _keys(self) -> Slope:
        before = self._look()
        for number in range(FEW):
            await self._store.change(issuing.issue(number, 3, time.time()))
        return Slope(*((now - then) / FEW for now, then in zip(self._look(), before, strict=True)))


def _record(name: str, key: str) -> Record:
    return Record(
        name, time.time(), key, "platform", "chat", "gpt-4o-mini", "gpt-4o-mini", "gpt-4o-mini",
        "gpt-4o-mini-2024-07-18", "main", 200, True, Usage(200, 300, source="estimated"), "lost", 0.412345, 3.812345, 1,
        cost_nusd=51_900, price=PRICE,
    )  # fmt: skip


def _windows(key: str) -> list[Window]:
    received: list[Window] = []
    quotas: list[tuple[Any, str, int]] = [("tokens", "day", 0), ("requests", "minute", 60), ("tokens", "minute", 60)]
    for unit, per, seconds in quotas:
        starts, resets_us = ("", 0) if seconds else calendar_window(per, time.time())
        name = f"key:{key}|{unit}|{per}||{starts}"
        received.append(Window(name, f"key:{key}", unit, per, None, 10**12, seconds * 1_000_000, starts, resets_us))
    return received


def _less(one: Slope, other: Slope) -> Slope:
    return Slope(one.memory - other.memory, one.disk - other.disk)


# ------------------------------------------------------------------------------------------------------ the two stores


async def in_redis(folder: Path) -> dict[str, Slope]:
    """The slopes; on disk of the append-only file, which is not rewritten here."""
    with RedisServer(folder / "redis", appendonly="everysec", extra=["auto-aof-rewrite-percentage 0"]) as server:
        settings = Settings(url=server.url, journal_dir=str(folder), namespace="sizes")
        store = await open_store(settings)

        def look() -> tuple[float, float]:
            return float(server.info("used_memory")), float(server.info("aof_current_size"))

        slopes = await Trial(store, look).slopes()
        await store.close()
    return slopes


async def embedded(folder: Path) -> dict[str, Slope]:
    """The slopes of the database file, after a checkpoint of its log."""
    settings = Settings(url=f"embedded:{folder / 'data'}", namespace="sizes")
    store = await open_store(settings)

    def look() -> tuple[float, float]:
        with sqlite3.connect(path_of(settings)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            (size,) = db.execute("PRAGMA page_size").fetchone()
        db.close()
        return 0.0, float(pages * size)

    slopes = await Trial(store, look).slopes()
    await store.close()
    return slopes


def journal_bytes() -> int:
    """Bytes in the journal of a call with three windows: its `open` and `close`."""
    record, claims = _record(f"req_{'0' * 32}", "alice"), tuple(Claim(window, 1) for window in _windows("alice"))
    text = ledger_entry.encode(record, claims)
    return len(codec.encode(10**6, "open", record.id, text)) + len(codec.encode(10**6, "close", record.id, text))


def render(redis: Mapping[str, Slope], file: Mapping[str, Slope]) -> str:
    """As a table in Markdown."""
    rows = [
        "| One more of | Redis, bytes of memory | its append-only file, bytes written | embedded, bytes of the file |",
        "| --- | ---: | ---: | ---: |",
        *[
            f"| {name} | {slope.memory:,.0f} | {slope.disk:,.0f} | {file[name].disk:,.0f} |"
            for name, slope in redis.items()
        ],
    ]
    return "\n".join([*rows, "", f"The journal: {journal_bytes():,} bytes a call with three windows, until delivered."])


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizes", description="How large the ledger becomes.")
    parser.add_argument("--carries", action="store_true", help="also what one core and one Redis carry; 3 minutes")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}")
    args = parser.parse_args()
    tables = {}
    with tempfile.TemporaryDirectory(prefix="gateway-sizes-") as made:
        redis = asyncio.run(in_redis(Path(made)))
        tables["sizes"] = render(redis, asyncio.run(embedded(Path(made))))
        if args.carries:
            seen = carries.figures(Path(made))
            tables["carries"] = carries.render(carries.carried(seen, redis["a usage record"].memory))
    for name, text in tables.items():
        print(text, end="\n\n")
        if args.write:
            page.put(PAGE, name, f"{text}\n\n{machine()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
