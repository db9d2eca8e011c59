"""Stores with a past: daily sums written straight into them, as they would stand after months of calls."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import redis

from gateway.config import StoreSettings
from gateway.quota.ledger_entry import SEPARATOR, SUMS
from gateway.store.redis.store import SCHEMA
from gateway.store.sqlite.database import create, path_of
from gateway.store.sqlite.schema import SUM_GROUP
from tests.fakes.redis_servers import RedisServer

AT_ONCE = 4000
KEPT_S = 800 * 86400

Row = tuple[tuple[str, ...], Sequence[int]]
"""Day, key, team, model, upstream, endpoint; and numbers in the order of `SUMS`."""


def days(number: int) -> list[str]:
    """The last days, today among them, the oldest first."""
    today = datetime.now(UTC)
    return [(today - timedelta(days=before)).strftime("%Y-%m-%d") for before in range(number - 1, -1, -1)]


def large(keys: int, over: Iterable[str], models: int = 5) -> Iterator[Row]:
    """Every key has used every model on every day; each tenth call failed, each twentieth was estimated."""
    for day in over:
        for key in range(keys):
            for model in range(models):
                place = (day, f"key-{key:04}", f"team-{key % 20}", f"model-{model}", f"upstream-{model % 2}", "chat")
                calls = 10 + (key * 7 + model) % 40
                yield place, (calls, calls // 10, calls * 900, calls * 300, calls * 100, calls * 20, calls * 60,
                              calls * 1_500_000, 0)  # fmt: skip


def fill_embedded(folder: Path, rows: Iterable[Row]) -> None:
    """Put sums into the embedded store in this folder; no gateway uses it yet."""
    settings = StoreSettings(url=f"embedded:{folder}")
    with closing(create(settings)), closing(sqlite3.connect(path_of(settings))) as db:
        columns = (*SUM_GROUP, *SUMS)
        text = f"INSERT INTO sums ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        with db:
            db.executemany(text, ((*place, *numbers) for place, numbers in rows))


def fill_redis(server: RedisServer, rows: Iterable[Row], namespace: str = "gateway") -> None:
    """The same in Redis."""
    base = f"{{{namespace}}}:{SCHEMA}:"
    with closing(redis.Redis(port=server.port)) as client:
        for day, of_day in groupby(rows, lambda row: row[0][0]):
            received = [
                part for place, numbers in of_day for part in (SEPARATOR.join(place[1:]), " ".join(map(str, numbers)))
            ]
            for first in range(0, len(received), AT_ONCE):
                client.hset(f"{base}sums:{day}", items=received[first : first + AT_ONCE])
            forgotten_at = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() + KEPT_S
            client.zadd(f"{base}days", {day: forgotten_at})


@contextmanager
def filled(kind: str, folder: Path, rows: Iterable[Row]) -> Iterator[str]:
    """An embedded store or a Redis that holds these rows; its address."""
    if kind == "embedded":
        fill_embedded(folder / "data", rows)
        yield f"embedded:{folder / 'data'}"
    else:
        with RedisServer(folder / "redis") as server:
            fill_redis(server, rows)
            yield server.url
