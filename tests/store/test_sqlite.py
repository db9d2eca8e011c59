"""Tests of the embedded store only: one file, several processes, and the state after one of them is killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config import StoreSettings as Settings
from gateway.files import FolderInUse
from gateway.records import Claim, Granted, Refused, Usage
from gateway.store import (
    REAPED_AT_ONCE,
    SILENT_S,
    Batch,
    Item,
    Progress,
    ReportScope,
    Reserve,
    StoreMisconfigured,
    StoreUnavailable,
)
from gateway.store.opening import look_at, open_store
from gateway.store.sqlite import database
from gateway.store.sqlite import store as sqlite_store
from gateway.store.sqlite.database import path_of
from gateway.store.sqlite.folder import exclusive_folder
from gateway.store.sqlite.schema import RECORD, SCHEMA_VERSION, TABLES
from gateway.store.sqlite.store import CALM_S, SLOW_S, Checkpointer, SqliteStore, WritePace
from tests.amounts import amount
from tests.patience import at_least

from .changes import NOON, SECOND, Clock, daily, draw, parallel, rate, settlement, tokens
from .worker import Worker, endings, levels, pass_days, standing

ROOT = Path(__file__).parents[2]


def settings_of(folder: Path, **more: Any) -> Settings:
    return Settings(url=f"embedded:{folder}", **more)


@pytest.fixture
async def store(folder: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(settings_of(folder), clock)
    yield store
    await store.close()


@pytest.fixture
async def other(folder: Path, clock: Clock) -> AsyncIterator[Worker]:
    store = SqliteStore(settings_of(folder), clock)
    yield Worker(store)
    await store.close()


@contextmanager
def opened(folder: Path) -> Iterator[sqlite3.Connection]:
    """The file, in the hands of another program."""
    folder.mkdir(exist_ok=True)
    db = sqlite3.connect(path_of(settings_of(folder)), isolation_level=None)
    try:
        yield db
    finally:
        db.close()


@contextmanager
def somebody_writing(folder: Path) -> Iterator[None]:
    """Another program holds the file."""
    with opened(folder) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield
        db.execute("ROLLBACK")


# --------------------------------------------------------------------------------------------------- the store is away


async def test_a_batch_waits_for_its_turn(worker: Worker, folder: Path) -> None:
    with somebody_writing(folder):
        drawing = asyncio.ensure_future(worker.draw(draw(daily(500))))
        await at_least(0.05)
        assert not drawing.done()
    assert isinstance(await drawing, Granted)


async def test_a_small_batch_is_applied_within_the_turn_where_nothing_is_in_its_way(
    worker: Worker, store: SqliteStore, folder: Path
) -> None:
    def at_once(seq: int) -> Any:
        wish = draw(daily(10))
        opening = wish
        return store.apply_now(Batch("w", seq, seq - 1, [opening]))

    assert at_once(1) is None  # silent workers have to be looked for
    await store.apply(Batch("w", 1, 0, []))
    with somebody_writing(folder):
        assert at_once(2) is None
    applied = at_once(2)
    assert [type(verdict) for verdict in applied.verdicts] == [Granted]
    assert await store.progress("w") == Progress(2, 0)
    with pytest.raises(StoreUnavailable, match="late copy"):
        at_once(2)
    for _ in range(2):
        store._pace.note(time.monotonic() - 2 * SLOW_S, time.monotonic())
    assert at_once(3) is None


async def test_states_of_windows_wait_for_no_report(store: SqliteStore, clock: Clock) -> None:
    """`GET /v1/key` failed, and steps to a cheaper model were passed over, while one key asked for reports."""
    gate = threading.Event()
    store._reading.submit(gate.wait)
    try:
        (found,) = await store.window_statuses([daily(5).window], clock.now)
    finally:
        gate.set()
    assert found.used == 0


async def test_a_report_waits_for_one_of_each_scope(
    store: SqliteStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other keys, and of the operator, waited for all of one key."""
    gate, begun, reading = threading.Event(), list[ReportScope | None](), asyncio.Event()
    loop = asyncio.get_running_loop()

    def read(*asked: Any) -> list[Any]:
        begun.append(asked[3])
        loop.call_soon_threadsafe(reading.set)
        gate.wait()
        return []

    monkeypatch.setattr(store._reader, "calls", read)
    alice, bob = (ReportScope(keys=frozenset({(name, None)})) for name in ("alice", "bob"))
    asked = [asyncio.ensure_future(store.calls(9, only=only)) for only in (alice, alice, alice)]
    await reading.wait()
    asked += [asyncio.ensure_future(store.calls(9, only=only)) for only in (bob, None)]
    for _ in range(9):
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*asked)
    assert begun == [alice, bob, None, alice, alice]
    assert not store._reports


def test_transactions_leave_the_event_loop_after_two_slow_ones() -> None:
    pace = WritePace()
    for began, took_s in ((100, SLOW_S / 2), (101, SLOW_S * 2), (102 + CALM_S, SLOW_S * 2), (113 + CALM_S, SLOW_S / 2)):
        pace.note(began, began + took_s)
        assert began + 0.1 >= pace.slow_until
    pace.note(105 + CALM_S, 105 + CALM_S + SLOW_S * 2)
    assert 106 + CALM_S < pace.slow_until < 106 + 2 * CALM_S


@pytest.mark.parametrize("is_alone", [False, True])
async def test_a_file_that_was_deleted_is_no_store_until_it_is_back(folder: Path, clock: Clock, is_alone: bool) -> None:
    """SQLite writes on to a deleted file, and all of it would be gone at the next start."""
    store = SqliteStore(settings_of(folder), clock, is_alone=is_alone)
    path, aside = path_of(settings_of(folder)), folder / "aside"
    for seq in range(1, 5):
        assert (await store.apply(Batch("w", seq, seq - 1, [draw(daily(10))]))).verdicts
    assert await store.progress("w") == Progress(4, 0)  # all of it is in the file
    path.rename(aside)
    clock.advance(SILENT_S)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="it was deleted or replaced"):
            await store.ping()
    with pytest.raises(StoreUnavailable, match="it was deleted or replaced"):  # noqa: PT012 - alone, it is found later
        await store.apply(Batch("w", 5, 4, [draw(daily(10))]))
        await store.progress("w")
        await store.apply(Batch("w", 6, 5, [draw(daily(10))]))
    path.touch()
    with pytest.raises(StoreUnavailable, match="it was deleted or replaced"):
        await store.ping()
    aside.rename(path)
    assert (await store.apply(Batch("w", 5, 4, [draw(daily(10))]))).verdicts
    await store.close()


async def write_many(worker: Worker, folder: Path) -> int:
    """Many batches. Returns the size of the write-ahead log in bytes."""
    for _ in range(400):
        await worker.draw(draw(daily(10**6)))
    return path_of(settings_of(folder)).with_name("gateway.sqlite-wal").stat().st_size


async def test_the_log_is_copied_into_the_file_beside_calls_and_begins_again(worker: Worker, folder: Path) -> None:
    """And not within their transactions, which would wait for the disk."""
    checkpoints = Checkpointer(settings_of(folder))
    first = await write_many(worker, folder)
    assert first > 1300 * 4096  # SQLite itself would have copied it after 1000 pages
    with opened(folder) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM windows").fetchall()
        checkpoints.checkpoint()
        second = await write_many(worker, folder)
        assert second > 1.5 * first
        reader.execute("COMMIT")
    checkpoints.checkpoint()
    assert await write_many(worker, folder) == second
    checkpoints.close()


async def test_checkpoints_are_made_after_so_many_items(
    worker: Worker, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(store._checkpoints, "checkpoint", lambda: made.append(threading.current_thread().name))
    monkeypatch.setattr(sqlite_store, "EVERY_ITEMS", 20)
    for _ in range(20):
        await worker.draw(draw(daily(10**6)))
    await asyncio.get_running_loop().run_in_executor(store._copying, lambda: None)
    assert made == ["store-checkpoint_0"] * 2


async def test_a_locked_file_is_an_outage(worker: Worker, folder: Path, clock: Clock) -> None:
    await worker.granted(daily(500))
    with somebody_writing(folder):
        with pytest.raises(StoreUnavailable, match=r"gateway\.sqlite: another program keeps it locked \(SQLITE_BUSY\)"):
            await worker.granted(daily(500))
        with pytest.raises(StoreUnavailable, match="locked"):
            await worker.store.retire(worker.name)
        # Reading goes on meanwhile.
        assert await standing(worker.store, daily(500), clock) == (0, 1)
        assert await worker.store.progress(worker.name) == Progress(1, 0)
    await worker.granted(daily(500))
    assert await standing(worker.store, daily(500), clock) == (0, 2)


async def test_probes_do_not_make_a_batch_wait_longer(worker: Worker, folder: Path) -> None:
    with somebody_writing(folder):
        probes = [asyncio.ensure_future(worker.store.ping()) for _ in range(20)]
        await asyncio.sleep(0)  # they stand before the batch, at the thread that writes
        # One patience for all of them: each having its own would be 14 s.
        answers = await asyncio.wait_for(asyncio.gather(worker.send(), *probes, return_exceptions=True), 7)
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)


async def test_a_full_disk_is_away_until_there_is_room(worker: Worker, store: SqliteStore, clock: Clock) -> None:
    wish = await worker.granted(tokens(1000, 10))
    db = store._ledger.db
    db.execute("PRAGMA max_page_count = 1")  # which is as many as there are: the disk of this test is full
    with pytest.raises(StoreUnavailable, match=r"its disk is full \(SQLITE_FULL\)"):
        await worker.send(worker.closing(settlement(wish, 4)), *(worker.opening(draw(tokens(1000))) for _ in range(90)))
    assert await standing(store, tokens(1000), clock) == (0, 10)
    db.execute("PRAGMA max_page_count = 100000")
    await worker.settle(wish, 4)
    assert await standing(store, tokens(1000), clock) == (4, 0)


async def test_a_file_that_may_not_be_written_is_away(worker: Worker, store: SqliteStore) -> None:
    store._ledger.db.execute("PRAGMA query_only = ON")  # what it does is what a read-only file system does
    for attempt in (worker.granted(daily(9)), store.ping()):
        with pytest.raises(StoreUnavailable, match=r"it may not be written \(SQLITE_READONLY\)"):
            await attempt


def poison(worker: Worker, kind: str) -> Any:
    match kind:
        case "too large":
            return worker.opening(draw(tokens(2**70, 2**65)))
        case "no text":
            return worker.closing(settlement(draw(), status=None))
        case "a thing":
            return draw(daily(9))._replace(text=object())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "error"),
    [("too large", OverflowError), ("no text", sqlite3.IntegrityError), ("a thing", sqlite3.ProgrammingError)],
)
async def test_unstorable_entries_are_singled_out_and_break_nothing(
    worker: Worker, store: SqliteStore, clock: Clock, kind: str, error: type[Exception]
) -> None:
    """It would be our bug; the ledger has to find out which item it is, so it must not look like a store away."""
    wish = await worker.granted(tokens(100, 10), parallel(5))
    good: list[Item] = [worker.opening(draw(tokens(100, 20), parallel(5))), worker.closing(settlement(wish, 4))]
    with pytest.raises((error, sqlite3.InterfaceError) if kind == "a thing" else error):
        await worker.send(*good, poison(worker, kind))
    assert await levels(store, clock, tokens(100), parallel(5)) == [(0, 10), (1, 0)]
    assert await store.calls(9) == []
    assert await store.progress(worker.name) == Progress(1, 0)
    await worker.send(*good)
    assert await levels(store, clock, tokens(100), parallel(5)) == [(4, 20), (1, 0)]


async def test_an_unreadable_lease_is_dropped(
    worker: Worker, other: Worker, folder: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Else no batch of anybody would ever be applied again."""
    good, bad = await worker.granted(tokens(100, 10)), await worker.granted(tokens(100, 20))
    with opened(folder) as db:
        db.execute("UPDATE leases SET entry = '[' WHERE id = ?", (bad.record.id,))
    await other.listen(clock, SILENT_S + 1)
    assert (await other.send()).lost == 2
    assert [row["id"] for row in await other.store.calls(9)] == [good.record.id]
    assert f"lease {bad.record.id} cannot be read" in caplog.text
    caplog.clear()
    assert (await other.send()).lost == 0


# ------------------------------------------------------------------------------------------------------- opening it


async def test_open_store_takes_what_the_settings_name(folder: Path) -> None:
    store = await open_store(settings_of(folder, namespace="one"))
    assert (folder / "one.sqlite").exists()
    assert not store.may_forget
    await store.close()


async def test_namespaces_share_a_folder_and_nothing_else(folder: Path, clock: Clock) -> None:
    stores = [SqliteStore(settings_of(folder, namespace=name), clock) for name in ("one", "other")]
    for store in stores:
        await Worker(store).granted(daily(1))
    for store in stores:
        await store.close()


async def test_the_file_is_opened_while_others_write(store: SqliteStore, folder: Path, clock: Clock) -> None:
    with somebody_writing(folder):
        again = SqliteStore(settings_of(folder), clock)
        assert await again.calls(1) == []
        await again.close()


async def test_the_second_process_finds_the_tables_of_the_first(folder: Path, clock: Clock) -> None:
    with opened(folder) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        opening = asyncio.create_task(asyncio.to_thread(SqliteStore, settings_of(folder), clock))
        await at_least(0.2)  # it has seen that there are none, and waits
        for table in TABLES.split(";"):
            db.execute(table)
        db.execute("INSERT INTO meta VALUES ('schema', ?), ('now_us', 0)", (SCHEMA_VERSION,))
        db.execute("COMMIT")
    store = await opening
    await Worker(store).granted(daily(1))
    await store.close()


async def test_a_file_of_an_older_gateway_learns_to_keep_prices(folder: Path, clock: Clock) -> None:
    """And the older one, which still has it open, goes on writing and reading."""
    first = Worker(SqliteStore(settings_of(folder), clock))
    await first.settle(await first.granted(), price="1 1 2")
    await first.store.close()
    with opened(folder) as older:
        older.execute("ALTER TABLE records DROP COLUMN price")
        columns = ", ".join(name for name in RECORD if name not in ("id", "price"))
        copy = f"INSERT INTO records (id, {columns}) SELECT ?, {columns} FROM records WHERE seq = 1"
        older.execute(copy, ("before",))
        store = SqliteStore(settings_of(folder), clock)
        await Worker(store).settle(draw(), price="3 3 4")
        older.execute(copy, ("since",))
        assert (await store.calls(1))[0]["id"] == "since"
        assert [call["price"] for call in await store.calls(9)] == [None, "3 3 4", None, None]
        assert older.execute(f"SELECT {columns} FROM records").fetchall()
    await SqliteStore(settings_of(folder), clock).close()  # which finds it there
    await store.close()


async def test_a_file_of_an_older_gateway_learns_to_keep_further_units(folder: Path, clock: Clock) -> None:
    """And the older one, which still has it open, goes on writing and reading."""
    await SqliteStore(settings_of(folder), clock).close()
    with opened(folder) as older:
        older.execute("ALTER TABLE records DROP COLUMN more")
        store = SqliteStore(settings_of(folder), clock)
        usage = Usage(9, 5, source="reported", more=(("cache_write", 3), ("web_searches", 2)))
        await Worker(store).settle(draw(), usage=usage)
        columns = ", ".join(name for name in RECORD if name not in ("id", "more"))
        older.execute(f"INSERT INTO records (id, {columns}) SELECT 'since', {columns} FROM records")
        assert [call["usage"]["more"] for call in await store.calls(9)] == [(), usage.more]
    await store.close()


async def test_a_file_of_an_older_gateway_learns_to_keep_the_times_of_attempts(folder: Path, clock: Clock) -> None:
    """And the older one, which still has it open, goes on writing and reading."""
    await SqliteStore(settings_of(folder), clock).close()
    with opened(folder) as older:
        older.execute("ALTER TABLE records DROP COLUMN timeline")
        store = SqliteStore(settings_of(folder), clock)
        await Worker(store).settle(draw(), timeline="a:0:5:status b:5:9:")
        columns = ", ".join(name for name in RECORD if name not in ("id", "timeline"))
        older.execute(f"INSERT INTO records (id, {columns}) SELECT 'since', {columns} FROM records")
        assert [call["timeline"] for call in await store.calls(9)] == ["", "a:0:5:status b:5:9:"]
    await store.close()


async def test_a_file_of_an_older_gateway_learns_to_keep_claims(folder: Path, clock: Clock) -> None:
    first = Worker(SqliteStore(settings_of(folder), clock))
    with opened(folder) as older:
        older.execute("DROP TABLE claims")
        stores = await asyncio.gather(*[asyncio.to_thread(SqliteStore, settings_of(folder), clock) for _ in range(3)])
        held = [(await store.claim(f"worker-{number}", {"a": 60}))["a"] for number, store in enumerate(stores)]
        assert held == [0, 60, 60]
        await first.granted()  # as one that does not know them
        for store in stores:
            await store.close()
    await first.store.close()


@pytest.mark.parametrize(("version", "age"), [(SCHEMA_VERSION + 1, "a newer"), (SCHEMA_VERSION - 1, "an older")])
async def test_another_schema_is_refused_and_not_changed(folder: Path, clock: Clock, version: int, age: str) -> None:
    await SqliteStore(settings_of(folder), clock).close()
    with opened(folder) as db:
        db.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (version,))
        db.execute("DROP TABLE sums")
    says = rf"{folder}/gateway\.sqlite: written by {age} gateway \(schema {version}, not {SCHEMA_VERSION}\)"
    with pytest.raises(StoreMisconfigured, match=says):
        SqliteStore(settings_of(folder), clock)
    with opened(folder) as db:
        assert db.execute("SELECT name FROM sqlite_master WHERE name = 'sums'").fetchall() == []


async def test_a_network_file_system_is_refused(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the mounts are read is in tests/test_mounts.py."""
    monkeypatch.setattr(database, "network_file_system", lambda path: "nfs4" if path == folder else None)
    with pytest.raises(StoreMisconfigured, match=rf"{folder} is on a network file system \(nfs4\)"):
        SqliteStore(settings_of(folder), clock)


@pytest.mark.parametrize("below", ["", "/data"])
def test_a_file_in_the_place_of_the_folder_is_named(folder: Path, below: str) -> None:
    folder.write_text("a file")
    settings = settings_of(Path(f"{folder}{below}"))
    with pytest.raises(StoreMisconfigured, match=f"{folder}{below} is not a folder"), exclusive_folder(settings):
        pass
    with pytest.raises(StoreMisconfigured, match="is not a folder"):
        asyncio.run(look_at(settings))


def damage(folder: Path, kind: str) -> None:
    path = path_of(settings_of(folder))
    folder.mkdir(exist_ok=True)
    match kind:
        case "a folder":
            path.mkdir()
        case "not a database":
            path.write_bytes(b"this is no database, whatever its name says" * 100)
        case "overwritten":
            for file in folder.glob("gateway.sqlite*"):
                file.write_bytes(os.urandom(20_000))


@pytest.mark.parametrize(
    ("kind", "says"),
    [("not a database", "it is no database"), ("a folder", "it cannot be opened")],
)
async def test_what_cannot_be_opened_is_refused(folder: Path, clock: Clock, kind: str, says: str) -> None:
    damage(folder, kind)
    with pytest.raises(StoreMisconfigured, match=rf"{folder}/gateway\.sqlite: {says}"):
        SqliteStore(settings_of(folder), clock)


async def test_damage_found_later_is_away(worker: Worker, folder: Path) -> None:
    await worker.granted(daily(5))
    damage(folder, "overwritten")
    with pytest.raises(StoreUnavailable):
        await worker.granted(daily(50))
    with pytest.raises(StoreUnavailable):
        await worker.store.usage(["key"])


def test_a_folder_belongs_to_one_gateway(folder: Path) -> None:
    with (
        exclusive_folder(settings_of(folder)),
        pytest.raises(FolderInUse, match=f"another gateway is using {folder}"),
        exclusive_folder(settings_of(folder)),
    ):
        pass
    with exclusive_folder(settings_of(folder)):
        assert path_of(settings_of(folder)).exists()


# ------------------------------------------------------------------------------------------------- other processes

CHILD = """
import asyncio, json, sys
from gateway.records import Granted
from gateway.store.sqlite.store import CALM_S, SLOW_S, SqliteStore, WritePace
from tests.store.test_sqlite import Path, NOON, Worker, child_wishes, settings_of, settlement

async def main(folder, calls, settled, name):
    store = SqliteStore(settings_of(Path(folder)), lambda: NOON)
    worker = Worker(store, name)
    wishes, verdicts = child_wishes(calls, name), []
    for start in range(0, calls, 10):  # so that several processes take turns
        verdicts += await worker.draw_all(wishes[start:start + 10])
    granted = [wish for wish, verdict in zip(wishes, verdicts) if isinstance(verdict, Granted)]
    await worker.settle_all(settlement(wish, 7) for wish in granted[:settled])
    print(json.dumps([wish.record.id for wish in granted]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
"""

CHILD_CLAIMS = (daily(100), tokens(10**6, 40), rate(10**6, 40), parallel(10**6))


def child_wishes(calls: int, name: str, claims: tuple[Claim, ...] = CHILD_CLAIMS) -> list[Reserve]:
    return [draw(*claims, call=f"{name}-{number}") for number in range(calls)]


class Child:
    """A process with its own store, which runs until it is ended or killed."""

    def __init__(self, folder: Path, calls: int, settled: int, name: str = "child") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), str(calls), str(settled), name],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def granted(self) -> list[str]:
        assert self.process.stdout is not None
        found: list[str] = json.loads(self.process.stdout.readline())
        return found

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def end(self) -> None:
        self.process.communicate("")
        assert self.process.returncode == 0


@pytest.mark.rest
async def test_processes_share_one_limit_exactly(worker: Worker, folder: Path, clock: Clock) -> None:
    children = [Child(folder, 80, 80, name) for name in ("one", "two")]
    verdicts: list[Granted | Refused] = []
    for _ in range(8):
        verdicts += await worker.draw_all(draw(daily(100)) for _ in range(10))
    ours = sum(isinstance(verdict, Granted) for verdict in verdicts)
    theirs = [len(child.granted()) for child in children]
    assert ours + sum(theirs) == 100
    for child in children:
        child.end()
    assert await standing(worker.store, daily(100), clock) == (sum(theirs), ours)


@pytest.mark.rest
async def test_what_a_killed_worker_did_stands_and_what_it_drew_is_lost(
    worker: Worker, folder: Path, clock: Clock
) -> None:
    child = Child(folder, 9, 4)
    granted = child.granted()
    store = worker.store
    assert await levels(store, clock, *CHILD_CLAIMS) == [(4, 5), (28, 200), (228, 0), (5, 0)]
    child.kill()
    await worker.listen(clock, SILENT_S)
    assert (await worker.send()).lost == 0
    clock.advance(1)
    assert (await worker.send()).lost == 5
    assert await levels(store, clock, *CHILD_CLAIMS) == [(9, 0), (228, 0), (0, 0), (0, 0)]
    lost = [row for row in await store.calls(99) if row["ended"] == "lost"]
    assert sorted(row["id"] for row in lost) == sorted(granted[4:])
    assert {(row["usage"]["completion_tokens"], row["usage"]["source"]) for row in lost} == {(40, "estimated")}
    (row,) = await store.usage([])
    assert (row["requests"], row["total_tokens"], row["estimated_tokens"]) == (9, 4 * 7 + 5 * 40, 200)


@pytest.mark.rest
async def test_a_killed_worker_is_corrected_by_who_has_its_journal(worker: Worker, folder: Path, clock: Clock) -> None:
    child = Child(folder, 2, 1, "dead")
    child.granted()
    child.kill()
    await worker.listen(clock, SILENT_S + 1)
    assert (await worker.send()).lost == 1
    heir = Worker(worker.store, "dead")
    heir.seq, heir.number = heir.acked, _ = await worker.store.progress("dead")
    assert heir.number == 1
    await heir.settle(child_wishes(2, "dead")[1], 9)
    assert await levels(worker.store, clock, tokens(10**6), parallel(10**6)) == [(16, 0), (0, 0)]
    assert await endings(worker.store) == ["done", "done"]


async def test_time_does_not_run_backwards_over_a_restart(folder: Path, clock: Clock) -> None:
    first = SqliteStore(settings_of(folder), clock)
    await Worker(first).granted(rate(60, 30))
    clock.advance(100)
    await Worker(first).granted(rate(60, 60))
    await first.close()
    clock.advance(-3600)
    second = SqliteStore(settings_of(folder), clock)
    worker = Worker(second)
    assert (await worker.refused(rate(60, 1))).retry_after_us == SECOND
    clock.now_us = NOON + 101 * SECOND
    await worker.granted(rate(60, 1))
    await second.close()


async def test_a_clock_that_was_far_ahead_is_logged_once(
    folder: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Rates stand still until it is there again, and nothing else would say why."""
    first = SqliteStore(settings_of(folder), clock)
    await Worker(first).granted(rate(60, 60))
    clock.advance(-30)
    await Worker(first, "after a correction").refused(rate(60, 1))
    await first.close()
    assert not caplog.messages
    clock.advance(30 - 8 * 3600)
    second = SqliteStore(settings_of(folder), clock)
    worker = Worker(second)
    await worker.refused(rate(60, 1))
    clock.advance(60)
    await worker.refused(rate(60, 1))
    await second.close()
    (received,) = caplog.messages
    assert "clock is 28800 s behind" in received


# ------------------------------------------------------------------------------------------------------ forgetting


async def test_what_a_window_holds_is_forgotten_with_its_day(folder: Path, clock: Clock) -> None:
    store = SqliteStore(settings_of(folder, usage_records_max=1, sums_days=10), clock)
    worker = Worker(store)
    month = daily(1000, 1, per="month", starts="2026-11", resets_us=NOON + 11 * 86_400 * SECOND)
    await worker.settle(await worker.granted(daily(), month, rate(60, 7), parallel(9)))
    await worker.granted(parallel(9))
    await pass_days(worker, clock, 10)
    assert await levels(store, clock, daily(), month) == [(1, 0), (1, 0)]
    await pass_days(worker, clock, 2)  # 2 December; on the 11th its November will be deleted
    assert await levels(store, clock, daily(), month, parallel(9)) == [(0, 0), (1, 0), (1, 0)]
    await pass_days(worker, clock, 9)
    assert await levels(store, clock, month, parallel(9)) == [(0, 0), (1, 0)]
    await store.close()


# ------------------------------------------------------------------------------------------------------- its costs


async def statements_of(store: SqliteStore, *batches: Batch) -> list[str]:
    """What is asked of SQLite for these batches, with its values."""
    heard: list[str] = []
    store._ledger.db.set_trace_callback(heard.append)
    for batch in batches:
        await store.apply(batch)
    store._ledger.db.set_trace_callback(None)
    return heard


@pytest.mark.shortened
async def test_no_batch_looks_through_a_table_that_grows(
    worker: Worker, other: Worker, store: SqliteStore, folder: Path, clock: Clock
) -> None:
    """100,000 windows, leases, lost ones, records (`make test`: 5,000): each statement goes to its rows by a key."""
    many = range(amount(100_000, 5_000))
    with opened(folder) as db:
        db.execute("BEGIN")
        db.executemany("INSERT INTO windows VALUES (?, '', 1, 0, 0)", ((f"w{n}",) for n in many))
        db.executemany("INSERT INTO leases VALUES (?, 'w', 0, '')", ((f"l{n}",) for n in many))
        db.executemany("INSERT INTO lost VALUES (?, 'w', 0, '', 0)", ((f"t{n}",) for n in many))
        db.execute("COMMIT")
        db.execute("ANALYZE")
    claims = [daily(10**6), tokens(10**6, 9), rate(10**6, 9), parallel(10**6)]
    wishes = [await worker.granted(*claims) for _ in range(3)]
    await other.listen(clock, SILENT_S + 1)
    assert (await other.send()).lost == 3
    again = [await other.granted(*claims) for _ in range(3)]
    batch = Batch(worker.name, 9, 0, [
        worker.opening(draw(*claims)), worker.closing(settlement(wishes[0], 5)), worker.voiding(wishes[1]),
        worker.closing(settlement(again[0])), worker.voiding(again[1]), worker.voiding(draw(*claims)),
    ])  # fmt: skip
    heard = await statements_of(store, batch)
    with opened(folder) as db:
        plans = [
            (text, row[3])
            for text in heard
            if text.split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT")
            for row in db.execute(f"EXPLAIN QUERY PLAN {text}")
        ]
    assert len(heard) > 10
    assert any("SEARCH windows USING PRIMARY KEY" in plan for _, plan in plans)
    scans = [(text, plan) for text, plan in plans if re.match(r"SCAN (?!(\d+.)?(CONSTANT |)ROW)", plan)]
    # Whether there is any lost one, and who is silent: the first row, and a row for each worker.
    allowed = {
        "SCAN lost USING COVERING INDEX lost_by_worker": "EXISTS (SELECT 1 FROM lost)",
        "SCAN workers": "SELECT worker, alive_us FROM workers",
    }
    assert [text for text, plan in scans if allowed.get(plan, "nowhere") not in text] == []


async def test_who_is_silent_is_not_looked_for_with_every_batch(
    worker: Worker, other: Worker, store: SqliteStore, clock: Clock
) -> None:
    """The search reads all workers, and no worker can become silent within SILENT_S after it."""
    await worker.send()
    await other.send()
    for seconds, looks in ((SILENT_S / 2, 0), (SILENT_S / 2, 0), (1, 1)):
        clock.advance(seconds)
        worker.seq += 1
        heard = await statements_of(store, Batch(worker.name, worker.seq, 1))
        assert sum(text.startswith("SELECT worker, alive_us FROM workers") for text in heard) == looks


async def test_leases_of_a_large_dead_worker_are_closed_to_the_last(
    worker: Worker, other: Worker, clock: Clock
) -> None:
    await worker.draw_all(draw(daily(5000), tokens(10**6, 3)) for _ in range(1500))
    await other.listen(clock, SILENT_S + 1)
    closed = [(await other.send()).lost for _ in range(1500 // REAPED_AT_ONCE + 1)]
    assert closed == [REAPED_AT_ONCE] * (1500 // REAPED_AT_ONCE) + [0]
    assert await levels(other.store, clock, daily(5000), tokens(10**6)) == [(1500, 0), (4500, 0)]


def test_rows_beyond_one_statement_are_inserted_by_several() -> None:
    db = sqlite3.connect(":memory:")
    db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 99)
    db.execute("CREATE TABLE pairs (one INTEGER, other INTEGER)")
    rows = [(number, -number) for number in range(120)]
    database.insert(db, "pairs", ("one", "other"), rows)
    assert db.execute("SELECT * FROM pairs").fetchall() == rows
    db.close()
