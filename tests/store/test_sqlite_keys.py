"""Keys, teams and overlays where the store is a SQLite file: several processes, older files, a disk that is full."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store import ChangeFeed, StoreUnavailable
from gateway.store.sqlite.database import path_of
from gateway.store.sqlite.store import SqliteStore

from .changes import Clock, tokens
from .test_contract_keys import digest, put
from .test_sqlite import ROOT, opened, settings_of, somebody_writing
from .worker import Worker, levels

PATIENCE_S = 60
TABLES = ("documents", "secrets", "audit")


@pytest.fixture
async def store(folder: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(settings_of(folder), clock)
    yield store
    await store.close()


CHILD = """
import asyncio, sys
from gateway.store import StoreUnavailable
from gateway.store.sqlite.store import SqliteStore
from tests.store.test_sqlite import NOON, Path, settings_of
from tests.store.test_sqlite_keys import count_up

async def main():
    store = SqliteStore(settings_of(Path(sys.argv[1])), lambda: NOON)
    await count_up(store, int(sys.argv[2]))
    await store.close()

asyncio.run(main())
"""


def another_process(folder: Path, times: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(folder), str(times)], cwd=ROOT)


async def count_up(store: SqliteStore, times: int) -> None:
    """Add 1 to a document that is a number, this many times; repeat each change that another process overtook."""
    done = 0
    for _ in range(times * 1000):
        (text,) = await store.read("team", ["counter"])
        try:
            done += await put(store, "counter", str(int(text or 0) + 1), before=text, kind="team")
        except StoreUnavailable:
            """The write lock was not available in time (a slow machine); nothing was applied."""
        if done == times:
            return


@pytest.mark.rest
async def test_of_what_processes_change_at_once_nothing_is_lost(store: SqliteStore, folder: Path) -> None:
    since = (await store.changes_since(None)).position
    children = [another_process(folder, 40) for _ in range(2)]
    await count_up(store, 40)
    for child in children:
        assert await asyncio.to_thread(child.wait, PATIENCE_S) == 0
    assert await store.read("team", ["counter"]) == ["120"]
    assert [entry.audit for entry in await store.audit(2)] == ["counter: 119 -> 120", "counter: 118 -> 119"]
    assert await store.changes_since(since) == ChangeFeed("120", (("team", "counter"),))


async def test_a_file_of_an_older_gateway_learns_to_keep_keys(folder: Path, clock: Clock) -> None:
    """And the older one, which still has it open, goes on writing and reading."""
    older = Worker(SqliteStore(settings_of(folder), clock))
    await older.settle(await older.granted(tokens(100, 40)), 30)
    with opened(folder) as db:
        for table in TABLES:
            db.execute(f"DROP TABLE {table}")
    stores = await asyncio.gather(*[asyncio.to_thread(SqliteStore, settings_of(folder), clock) for _ in range(3)])
    assert await stores[0].page("key") == []
    assert await put(stores[0], "a", "1", secrets_added=(digest("a"),), resets=(tokens().window,))
    assert await stores[1].find_keys([digest("a")]) == ["1"]
    assert (await stores[2].changes_since("0")).changed == (("key", "a"),)
    await older.granted(tokens(100, 100))
    assert await levels(stores[1], clock, tokens()) == [(0, 100)]
    for store in (*stores, older.store):
        await store.close()


async def test_a_file_that_was_put_back_makes_the_news_incomplete(folder: Path, clock: Clock) -> None:
    store = SqliteStore(settings_of(folder), clock)
    await put(store, "a", "1")
    await store.close()
    path = path_of(settings_of(folder))
    shutil.copy(path, f"{path}.kept")
    store = SqliteStore(settings_of(folder), clock)
    await put(store, "a", "2", before="1")
    seen = (await store.changes_since("1")).position
    await store.close()
    shutil.copy(f"{path}.kept", path)
    store = SqliteStore(settings_of(folder), clock)
    assert await store.changes_since(seen) == ChangeFeed("1", is_complete=False)
    assert await store.read("key", ["a"]) == ["1"]
    await store.close()


async def test_keys_are_found_while_a_report_and_a_batch_take_their_time(store: SqliteStore) -> None:
    await put(store, "a", "1", secrets_added=(digest("a"),))
    end = threading.Event()
    busy = [thread.submit(end.wait, PATIENCE_S) for thread in (store._reading, store._writing)]
    async with asyncio.timeout(PATIENCE_S):
        assert await store.find_keys([digest("a")]) == ["1"]
        assert await store.read("key", ["a"]) == ["1"]
        assert (await store.changes_since("0")).changed == (("key", "a"),)
    assert not any(each.done() for each in busy)
    end.set()


async def test_a_locked_file_is_read_and_not_changed(store: SqliteStore, folder: Path) -> None:
    await put(store, "a", "1", secrets_added=(digest("a"),))
    with somebody_writing(folder):
        with pytest.raises(StoreUnavailable, match="another program keeps it locked"):
            await put(store, "a", "2", before="1")
        assert await store.find_keys([digest("a")]) == ["1"]
        assert await store.changes_since("1") == ChangeFeed("1")
    assert await put(store, "a", "2", before="1")


async def test_a_change_that_finds_the_disk_full_is_taken_back(store: SqliteStore, clock: Clock) -> None:
    worker = Worker(store)
    await worker.settle(await worker.granted(tokens(100, 40)), 30)
    await put(store, "a", "1", secrets_added=(digest("a"),))
    before = await store.audit(10)
    db = store._ledger.db
    db.execute("PRAGMA max_page_count = 1")  # which is as many as there are: the disk of this test is full
    with pytest.raises(StoreUnavailable, match="its disk is full"):
        await put(
            store, "a", "2" * 100_000, before="1", secrets_added=(digest("b"),), secrets_removed=(digest("a"),),
            resets=(tokens().window,),
        )  # fmt: skip
    db.execute("PRAGMA max_page_count = 100000")
    assert await store.find_keys([digest("a"), digest("b")]) == ["1", None]
    assert await levels(store, clock, tokens()) == [(30, 0)]
    assert await store.audit(10) == before


async def test_a_closed_store_is_away(folder: Path, clock: Clock) -> None:
    store = SqliteStore(settings_of(folder), clock)
    await store.close()
    for attempt in (store.find_keys([digest("a")]), store.changes_since(None), put(store, "a", "1")):
        with pytest.raises(StoreUnavailable, match="closed"):
            await attempt


# --------------------------------------------------------------------------------------------------------- its costs


async def test_100_000_keys_cost_no_more_than_ten(store: SqliteStore, folder: Path) -> None:
    """Each statement goes to its rows by a key."""
    many = range(100_000)
    with opened(folder) as db:
        db.execute("BEGIN")
        db.executemany("INSERT INTO documents VALUES ('key', ?, 'text')", ((f"key-{number}",) for number in many))
        db.executemany("INSERT INTO secrets VALUES (?, ?)", ((f"{number:064}", f"key-{number}") for number in many))
        db.executemany("INSERT INTO audit VALUES (?, 'key', 'a', '')", ((number,) for number in many))
        db.execute("COMMIT")
        db.execute("ANALYZE")
        heard: list[str] = []
        for connection in (store._ledger.db, store._key_reader._db):
            connection.set_trace_callback(heard.append)
        assert await store.find_keys([f"{7:064}", f"{8:064}"]) == ["text"] * 2
        assert await store.read("key", ["key-7", "nobody"]) == ["text", None]
        assert len(await store.page("key", "key-5", 10)) == 10
        assert len(await store.audit(10, "50000")) == len(await store.audit(10)) == 10
        news = await store.changes_since(None)
        assert await store.changes_since(news.position) == news
        assert not (await store.changes_since("1000")).is_complete
        windows = tokens().window, tokens(starts="").window._replace(period_us=1)
        await put(
            store, "key-7", "2", before="text", secrets_added=("new",), secrets_removed=(f"{7:064}",), resets=windows
        )
        await put(store, "key-7", None, before="2")
        plans = [
            (text, plan[3])
            for text in heard
            if text.split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT")
            for plan in db.execute(f"EXPLAIN QUERY PLAN {text}")
        ]
    assert {text.split()[0] for text, _ in plans} == {"SELECT", "UPDATE", "DELETE"}
    assert any("SEARCH documents USING PRIMARY KEY (kind=? AND name=?)" in plan for _, plan in plans)
    assert [(text, plan) for text, plan in plans if plan.startswith("SCAN") and "CONSTANT ROW" not in plan] == []
