"""What is the embedded store's own: one file, several processes, and what becomes of it all when one of them dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Store
from gateway.records import Granted, Refused
from gateway.store import Ledger, StoreAway, open_store, sqlite
from gateway.store.embedded import EmbeddedLedger
from gateway.store.presence import FolderInUse, Presence, exclusive_folder
from gateway.store.sqlite import SCHEMA_VERSION, path_of

from .conftest import OpensLedgers
from .wishes import NOON, SECOND, Clock, daily, draw, parallel, rate, settlement, tokens

ROOT = Path(__file__).parents[2]


def settings_of(folder: Path, **more: Any) -> Store:
    return Store(url=f"embedded:{folder}", **more)


@contextmanager
def somebody_writing(folder: Path) -> Iterator[None]:
    """Another program holds the file."""
    db = sqlite3.connect(path_of(settings_of(folder)), isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


# --------------------------------------------------------------------------------------------------- the store is away


async def test_a_draw_waits_for_its_turn(ledger: Ledger, folder: Path) -> None:
    with somebody_writing(folder):
        drawing = ledger.draw(draw(daily(500)))
        await asyncio.sleep(0.2)
        assert not drawing.done()
    assert isinstance(await drawing, Granted)
    assert ledger.errors == 0


async def test_draws_are_refused_while_the_store_is_away(ledger: Ledger, folder: Path, clock: Clock) -> None:
    await ledger.draw(draw(daily(500)))
    with somebody_writing(folder):
        answers = await asyncio.wait_for(
            asyncio.gather(*(ledger.draw(draw(daily(500))) for _ in range(400)), return_exceptions=True), 30
        )
        assert all(isinstance(answer, StoreAway) for answer in answers)
        # One time-out for all of them: each batch waiting for its own would be over a second.
        assert ledger.errors == 1
    assert isinstance(await ledger.draw(draw(daily(500))), Granted)
    (found,) = await ledger.standings([daily(500).window], clock.now)
    assert found.reserved == 2


async def test_probes_do_not_make_draws_wait_longer(ledger: Ledger, folder: Path) -> None:
    with somebody_writing(folder):
        probes = [asyncio.ensure_future(ledger.ping()) for _ in range(20)]
        await asyncio.sleep(0)  # they stand before the draw, at the thread that writes
        # One patience for all of them: each having its own would be 14 s.
        answers = await asyncio.wait_for(asyncio.gather(ledger.draw(draw()), *probes, return_exceptions=True), 7)
    assert all(isinstance(answer, StoreAway) for answer in answers)


async def test_settlements_wait_for_the_store_to_return(ledger: Ledger, folder: Path, clock: Clock) -> None:
    wishes = [draw(tokens(1000, 10), parallel(100)) for _ in range(150)]
    await asyncio.gather(*(ledger.draw(wish) for wish in wishes))
    with somebody_writing(folder):
        ends = [ledger.settle(settlement(wish, 4)) for wish in wishes]
        with pytest.raises(StoreAway):
            await ledger.draw(draw(tokens(1000, 10)))
        assert ledger.pending == 150
        assert not any(end.done() for end in ends)
        # Reading goes on meanwhile.
        assert [found.reserved for found in await ledger.standings([tokens(1000).window], clock.now)] == [1000]
    await asyncio.gather(*ends)
    assert ledger.pending == 0
    assert [(s.used, s.reserved) for s in await ledger.standings([tokens(1000).window], clock.now)] == [(400, 0)]
    delivered = [row["id"] for row in await ledger.calls(1000)]
    assert delivered == [wish.record.id for wish in wishes[:100]][::-1]


async def test_close_gives_up_on_a_store_that_stays_away(ledger: Ledger, folder: Path) -> None:
    wish = draw(tokens(100, 10))
    await ledger.draw(wish)
    with somebody_writing(folder):
        ledger.settle(settlement(wish, 4))
        assert await ledger.close(0.01) == 1


async def test_nothing_can_be_asked_of_a_closed_ledger(ledger: Ledger, clock: Clock) -> None:
    await ledger.close(1)
    assert await ledger.close(1) == 0
    with pytest.raises(StoreAway, match="closed"):
        await ledger.draw(draw())
    with pytest.raises(StoreAway, match="closed"):
        await ledger.standings([], clock.now)


async def test_a_call_that_is_drawn_twice_does_not_stop_the_others(
    ledger: Ledger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids are our own; two alike would be our bug, and must not become everybody's."""
    wish = draw(tokens(100, 10))
    assert isinstance(await ledger.draw(wish), Granted)
    answers = await asyncio.gather(ledger.draw(wish), ledger.draw(draw(tokens(100, 5))), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreAway, Granted]
    assert [found.reserved for found in await ledger.standings([tokens(100).window], clock.now)] == [15]
    caplog.clear()


# ------------------------------------------------------------------------------------------------------- opening it


async def test_open_store_takes_what_the_settings_name(folder: Path) -> None:
    ledger = open_store(settings_of(folder, namespace="one"))
    assert (folder / "one.sqlite").exists()
    assert await ledger.close(1) == 0


async def test_namespaces_share_a_folder_and_nothing_else(folder: Path, clock: Clock) -> None:
    one, other = (EmbeddedLedger(settings_of(folder, namespace=name), clock) for name in ("one", "other"))
    await one.draw(draw(daily(1)))
    assert isinstance(await other.draw(draw(daily(1))), Granted)
    for ledger in (one, other):
        await ledger.close(1)


async def test_a_newer_schema_is_refused_and_left_alone(folder: Path, clock: Clock) -> None:
    await EmbeddedLedger(settings_of(folder), clock).close(1)
    path = path_of(settings_of(folder))
    db = sqlite3.connect(path)
    db.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (SCHEMA_VERSION + 1,))
    db.execute("DROP TABLE sums")
    db.commit()
    db.close()
    with pytest.raises(StoreAway, match=rf"newer gateway \(schema {SCHEMA_VERSION + 1}, not {SCHEMA_VERSION}\)"):
        EmbeddedLedger(settings_of(folder), clock)
    db = sqlite3.connect(path)
    assert db.execute("SELECT name FROM sqlite_master WHERE name = 'sums'").fetchall() == []
    db.close()
    assert list((folder / "workers").glob("*")) == []


def damage(folder: Path, kind: str) -> None:
    path = path_of(settings_of(folder))
    if kind == "no folder":
        folder.write_text("a file")
        return
    folder.mkdir(exist_ok=True)
    match kind:
        case "a folder":
            path.mkdir()
        case "not a database":
            path.write_bytes(b"this is no database, whatever its name says" * 100)
        case "overwritten":
            for file in folder.glob("gateway.sqlite*"):
                file.write_bytes(os.urandom(20_000))


@pytest.mark.parametrize("kind", ["not a database", "a folder", "no folder"])
async def test_what_cannot_be_opened_is_away(folder: Path, clock: Clock, kind: str) -> None:
    damage(folder, kind)
    with pytest.raises(StoreAway, match=str(folder)):
        EmbeddedLedger(settings_of(folder), clock)


async def test_damage_found_later_is_away_too(ledger: Ledger, folder: Path) -> None:
    await ledger.draw(draw(daily(5)))
    damage(folder, "overwritten")
    with pytest.raises(StoreAway):
        await ledger.draw(draw(daily(50)))
    with pytest.raises(StoreAway):
        await ledger.usage(["key"])
    assert ledger.errors == 2


def test_a_folder_belongs_to_one_gateway(folder: Path) -> None:
    with (
        exclusive_folder(settings_of(folder)),
        pytest.raises(FolderInUse, match=f"another gateway is using {folder}"),
        exclusive_folder(settings_of(folder)),
    ):
        pass
    with exclusive_folder(settings_of(folder)):
        assert path_of(settings_of(folder)).exists()


def test_presence(folder: Path) -> None:
    one, other = Presence(folder), Presence(folder)
    assert not one.is_gone(one.worker)
    assert not one.is_gone(other.worker)
    assert not other.is_gone(one.worker)
    os.close(one._descriptor)  # as if it had died
    assert other.is_gone(one.worker)
    other.forget(one.worker)
    assert other.is_gone(one.worker)
    other.leave()
    assert list((folder / "workers").iterdir()) == []


# ------------------------------------------------------------------------------------------------- other processes

CHILD = """
import asyncio, json, sys
from dataclasses import replace
from gateway.records import Granted
from gateway.store.embedded import EmbeddedLedger
from tests.store.test_embedded import settings_of, Path, NOON, draw, daily, tokens, parallel, rate, settlement

async def main(folder, calls, settled, name):
    ledger = EmbeddedLedger(settings_of(Path(folder)), lambda: NOON)
    wishes = [
        draw(daily(100), tokens(10**6, 40), rate(10**6, 40), parallel(10**6), call=f"{name}-{n}") for n in range(calls)
    ]
    answers = []
    for start in range(0, calls, 10):  # so that several processes take turns
        answers += await asyncio.gather(*(ledger.draw(wish) for wish in wishes[start:start + 10]))
    granted = [wish for wish, answer in zip(wishes, answers) if isinstance(answer, Granted)]
    await asyncio.gather(*(ledger.settle(settlement(wish, 7)) for wish in granted[:settled]))
    print(json.dumps([wish.record.id for wish in granted]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await ledger.close(5)

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
"""


class Child:
    """A real process with a ledger of its own, which stays until it is told to go, or killed."""

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


async def test_processes_share_one_limit_exactly(open_ledger: OpensLedgers, folder: Path, clock: Clock) -> None:
    ledger = open_ledger()
    children = [Child(folder, 80, 80, name) for name in ("one", "two")]
    answers = []
    for _ in range(8):
        answers += await asyncio.gather(*(ledger.draw(draw(daily(100))) for _ in range(10)))
    ours = sum(isinstance(answer, Granted) for answer in answers)
    theirs = [len(child.granted()) for child in children]
    assert ours + sum(theirs) == 100
    for child in children:
        child.end()
    assert [(s.used, s.reserved) for s in await ledger.standings([daily(100).window], clock.now)] == [
        (sum(theirs), ours)
    ]


async def test_leases_of_a_killed_worker_are_taken_over(open_ledger: OpensLedgers, folder: Path, clock: Clock) -> None:
    child = Child(folder, 9, 4)
    granted = child.granted()
    windows = [claim.window for claim in (daily(100), tokens(10**6), rate(10**6), parallel(10**6))]

    watching = open_ledger()
    assert [(s.used, s.reserved) for s in await watching.standings(windows, clock.now)] == [
        (4, 5), (28, 200), (228, 0), (5, 0),
    ]  # fmt: skip
    assert {row["ended"] for row in await watching.calls(99)} == {"done"}
    child.kill()

    ledgers = [open_ledger(), open_ledger()]
    assert [ledger.lost_calls for ledger in ledgers if isinstance(ledger, EmbeddedLedger)] == [5, 0]
    for ledger in (watching, *ledgers):
        assert [(s.used, s.reserved) for s in await ledger.standings(windows, clock.now)] == [
            (9, 0), (228, 0), (228, 0), (0, 0),
        ]  # fmt: skip
    calls = await ledgers[0].calls(99)
    lost = [row for row in calls if row["ended"] == "lost"]
    assert sorted(row["id"] for row in lost) == sorted(granted[4:])
    assert {(row["usage"]["completion_tokens"], row["usage"]["source"]) for row in lost} == {(40, "estimated")}
    (row,) = await ledgers[0].usage([])
    assert (row["requests"], row["total_tokens"], row["estimated_tokens"]) == (9, 4 * 7 + 5 * 40, 200)
    assert len(list((folder / "workers").glob("*.lock"))) == 3


async def test_a_late_settlement_of_a_lost_call_counts_nothing_twice(
    open_ledger: OpensLedgers, folder: Path, clock: Clock
) -> None:
    child = Child(folder, 1, 0, "late")
    child.granted()
    child.kill()
    ledger = open_ledger()
    await ledger.settle(settlement(draw(daily(100), tokens(10**6, 40), call="late-0"), 7))
    assert [row["ended"] for row in await ledger.calls(9)] == ["lost"]
    assert [(s.used, s.reserved) for s in await ledger.standings([tokens(10**6).window], clock.now)] == [(40, 0)]


async def test_workers_that_left_in_order_leave_nothing(open_ledger: OpensLedgers, folder: Path) -> None:
    child = Child(folder, 3, 3)
    child.granted()
    child.end()
    assert list((folder / "workers").glob("*")) == []
    idle = Child(folder, 0, 0)
    idle.granted()
    idle.kill()
    assert len(list((folder / "workers").glob("*.lock"))) == 1
    open_ledger()
    assert len(list((folder / "workers").glob("*.lock"))) == 1  # only its own


async def test_time_does_not_run_backwards_over_a_restart(open_ledger: OpensLedgers, clock: Clock) -> None:
    first = open_ledger()
    await first.draw(draw(rate(60, 30)))
    clock.advance(100)
    await first.draw(draw(rate(60, 60)))
    await first.close(1)
    clock.advance(-3600)
    second = open_ledger()
    verdict = await second.draw(draw(rate(60, 1)))
    assert isinstance(verdict, Refused)
    assert verdict.retry_after_us == SECOND
    clock.now_us = NOON + 101 * SECOND
    assert isinstance(await second.draw(draw(rate(60, 1))), Granted)


async def test_thousands_of_leases_are_taken_over(
    open_ledger: OpensLedgers, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than can stand in one statement; the limit of a SQLite that nobody has given a greater one."""

    def connect(path: Path) -> sqlite3.Connection:
        db = real(path)
        db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32766)
        return db

    real = sqlite.connect
    monkeypatch.setattr(sqlite, "connect", connect)
    dying = open_ledger()
    await asyncio.gather(*(dying.draw(draw(daily(5000), tokens(10**6, 3))) for _ in range(1500)))
    assert isinstance(dying, EmbeddedLedger)
    worker = dying._file.presence.worker
    monkeypatch.setattr(Presence, "is_gone", lambda _, name: name == worker)

    heir = open_ledger()
    assert isinstance(heir, EmbeddedLedger)
    assert heir.lost_calls == 1500
    windows = [daily(5000).window, tokens(10**6).window]
    assert [(s.used, s.reserved) for s in await heir.standings(windows, clock.now)] == [(1500, 0), (4500, 0)]
    assert {row["ended"] for row in await heir.calls(9999)} == {"lost"}


def test_rows_beyond_one_statement_are_inserted_by_several() -> None:
    db = sqlite3.connect(":memory:")
    db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 7)
    db.execute("CREATE TABLE pairs (one INTEGER, other INTEGER)")
    rows = [(number, -number) for number in range(10)]
    sqlite.insert(db, "pairs", ("one", "other"), rows)
    assert db.execute("SELECT * FROM pairs").fetchall() == rows
    db.close()
