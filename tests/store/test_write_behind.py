"""What a lone worker's batches have changed is written to the file a little later, together."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.accounting.batcher import MAX_BATCH
from gateway.config import StoreSettings as Settings
from gateway.quota.ledger_entry import encode
from gateway.records import Granted
from gateway.store import Batch, Item, Progress, RateDraw, Reserve, Settle, StoreLostWrites, StoreUnavailable
from gateway.store.key_store import StoreChange
from gateway.store.sqlite import store as sqlite_store
from gateway.store.sqlite import write_behind
from gateway.store.sqlite.database import path_of
from gateway.store.sqlite.store import SqliteStore

from .changes import Clock, daily, draw, money, parallel, rate, settlement, slow, tokens
from .store_behind import StoreBehind
from .worker import Worker, levels, standing

LIMITS = (daily(100), tokens(1000, 10), slow(6000, 50), parallel(5))


def settings_of(folder: Path) -> Settings:
    return Settings(url=f"embedded:{folder}")


@pytest.fixture
async def store(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StoreBehind]:
    """It writes when it is asked for something that is in the file, not by itself."""
    monkeypatch.setattr(sqlite_store, "WRITE_BEHIND_S", 600)
    store = StoreBehind(settings_of(folder), clock)
    await store.apply(Batch("first", 1, 0, []))  # silent workers were looked for
    await store.retire("first")
    yield store
    await store.close()


@pytest.fixture
async def worker(store: StoreBehind) -> Worker:
    """Its first batch has gone to the file."""
    worker = Worker(store)
    await worker.granted(daily(1, scope="key:other"))
    assert store.in_memory == 0
    return worker


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.001)


def in_file(folder: Path, text: str) -> list[Any]:
    with sqlite3.connect(path_of(settings_of(folder))) as db:
        found = db.execute(text).fetchall()
    db.close()
    return found


def disturb(folder: Path, text: str = "UPDATE meta SET value = value") -> None:
    """As another program would."""
    with sqlite3.connect(path_of(settings_of(folder))) as db:
        db.execute(text)
    db.close()


async def test_batches_are_applied_in_memory_and_written_together(
    worker: Worker, store: StoreBehind, folder: Path, clock: Clock
) -> None:
    for used in (3, 4):
        await worker.settle(await worker.granted(*LIMITS), used)
    open_call = await worker.granted(*LIMITS)
    assert store.in_memory == 5
    assert in_file(folder, "SELECT count(*) FROM records") == [(0,)]
    assert in_file(folder, "SELECT seq, mark FROM workers") == [(1, 0)]
    assert await levels(store, clock, *LIMITS) == [(2, 1), (7, 10), (57, 0), (1, 0)]
    assert await store.progress(worker.name) == Progress(6, 2)
    assert [row["usage"]["prompt_tokens"] for row in await store.calls(9)] == [4, 3]
    assert open_call.record.id in [name for (name,) in in_file(folder, "SELECT id FROM leases")]
    assert len(in_file(folder, "SELECT id FROM leases")) == 2
    await worker.settle(open_call, 1)
    assert store.in_memory == 6
    assert await levels(store, clock, *LIMITS) == [(3, 0), (8, 0), (8, 0), (0, 0)]
    assert len(in_file(folder, "SELECT id FROM leases")) == 1


async def test_it_is_written_soon_without_being_asked_for(
    worker: Worker, store: StoreBehind, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "WRITE_BEHIND_S", 0.01)
    await worker.settle(await worker.granted(*LIMITS), 3)
    assert store.in_memory == 2
    await until(lambda: in_file(folder, "SELECT 1 FROM records"))
    assert in_file(folder, "SELECT seq, mark FROM workers") == [(3, 1)]
    assert not store._ledger.unwritten


async def test_the_largest_batch_is_applied_in_memory_too(worker: Worker, store: StoreBehind, folder: Path) -> None:
    await worker.send(*[draw(daily(1000)) for _ in range(MAX_BATCH)])
    assert store.in_memory == 1
    assert len(in_file(folder, "SELECT 1 FROM leases")) == 1
    assert [row["usage"] for row in await store.calls(9)] == []
    assert len(in_file(folder, "SELECT 1 FROM leases")) == MAX_BATCH + 1


async def test_the_limits_hold_in_memory(worker: Worker, store: StoreBehind) -> None:
    wishes = [await worker.granted(daily(2), rate(3)) for _ in range(2)]
    refused = await worker.refused(daily(2), rate(3))
    assert refused.window_status.window == daily(2).window
    await worker.settle(wishes[0], 1)
    assert store.in_memory == 4
    assert [(each.used, each.reserved) for each in (await worker.refused(daily(2), rate(3))).window_statuses] == [
        (1, 1), (2, 0),
    ]  # fmt: skip


async def test_a_rate_leaks_in_memory_as_in_the_file(worker: Worker, store: StoreBehind, clock: Clock) -> None:
    for _ in range(3):
        await worker.granted(rate(60, 20))
    await worker.refused(rate(60, 20))
    clock.advance(7)
    await worker.granted(rate(60, 7))
    assert store.in_memory == 5
    await worker.refused(rate(60, 1))
    assert await standing(store, rate(60), clock) == (60, 0)


async def test_a_file_written_by_another_process_is_read_again(
    worker: Worker, store: StoreBehind, folder: Path, clock: Clock
) -> None:
    """As the workers of a killed supervisor do, which end their calls beside the next gateway."""
    await worker.settle(await worker.granted(*LIMITS), 3)
    await worker.granted(*LIMITS)
    other = Worker(SqliteStore(settings_of(folder), clock))
    await other.settle(await other.granted(*LIMITS), 100)
    assert await levels(store, clock, *LIMITS) == [(2, 1), (103, 10), (153, 0), (1, 0)]
    assert store.in_memory == 3
    await worker.granted(*LIMITS)
    await worker.granted(*LIMITS)
    assert store.in_memory == 3, "the other one is alive"
    assert await levels(other.store, clock, *LIMITS) == [(2, 3), (103, 30), (253, 0), (3, 0)]
    await other.store.close()


async def test_what_was_granted_stays_granted(worker: Worker, store: StoreBehind, folder: Path, clock: Clock) -> None:
    await worker.granted(tokens(100, 60))
    await worker.granted(tokens(100, 40))
    assert store.in_memory == 2
    disturb(folder, "INSERT INTO windows VALUES ('key:k|tokens|day||2026-11-20', '2026-11-20', 90, 0, 0)")
    assert await standing(store, tokens(100), clock) == (90, 100)


async def test_what_other_batches_and_operators_change_comes_after_it(
    worker: Worker, store: StoreBehind, clock: Clock
) -> None:
    await worker.settle(await worker.granted(*LIMITS), 30)
    running = await worker.granted(*LIMITS)
    unknown = settlement(draw(*LIMITS), 5)
    adopted = Settle(1, *unknown, encode(*unknown))
    assert (await store.apply(Batch("dead", 1, 0, [adopted], is_adopted=True))).verdicts == [None]
    await store.retire("dead")
    assert await levels(store, clock, *LIMITS) == [(2, 1), (35, 10), (85, 0), (1, 0)]
    await worker.settle(running, 4)
    await worker.granted(daily(100))
    ((window, *_),) = [LIMITS[1]]
    await store.change(StoreChange("key", "k", None, None, "", resets=(window,)))
    assert await standing(store, LIMITS[1], clock) == (0, 0)
    await worker.granted(*LIMITS)
    assert await standing(store, LIMITS[1], clock) == (0, 10)


async def test_a_request_that_is_no_call_is_not_in_the_journal_and_goes_to_the_file(
    worker: Worker, store: StoreBehind, folder: Path
) -> None:
    await worker.granted(daily(100))
    await worker.send(RateDraw((rate(60, unit="requests"),)))
    assert store.in_memory == 1
    assert in_file(folder, "SELECT sum(used), sum(reserved) FROM windows") == [(1, 2)]


@pytest.mark.parametrize("how", ["void", "forced", "extended", "unknown end", "late copy"])
async def test_what_is_rare_goes_to_the_file(worker: Worker, store: StoreBehind, clock: Clock, how: str) -> None:
    wish = await worker.granted(tokens(100, 10))
    match how:
        case "void":
            await worker.void(wish)
            expected = (0, 0)
        case "forced":
            await worker.draw(draw(tokens(100, 200)), is_forced=True)
            expected = (0, 210)
        case "extended":
            more = tokens(100, 5, scope="key:b")
            await worker.send(wish._replace(claims=(*wish.claims, more), held=1))
            assert await standing(store, more, clock) == (0, 5)
            expected = (0, 10)
        case "unknown end":
            await worker.settle(draw(tokens(100, 10)), 7)
            expected = (7, 10)
        case _:
            with pytest.raises(StoreUnavailable, match="late copy"):
                await store.apply(Batch(worker.name, worker.seq, worker.seq - 1, [draw(tokens(100, 1))]))
            expected = (0, 10)
    assert store.in_memory == 1
    assert await standing(store, tokens(100), clock) == expected


async def test_what_cannot_be_written_is_missed_by_the_next_batch(
    worker: Worker, store: StoreBehind, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await worker.settle(await worker.granted(tokens(100, 10)), 7)
    db = store._ledger.db
    db.execute("PRAGMA query_only = ON")
    store._write_behind()
    await asyncio.get_running_loop().run_in_executor(store._writing, lambda: None)
    assert "it may not be written (SQLITE_READONLY); what it lacks is sent again from the journal" in caplog.text
    db.execute("PRAGMA query_only = OFF")
    with pytest.raises(StoreLostWrites) as lost:
        await worker.granted(tokens(100, 10))
    assert lost.value.progress == Progress(1, 0)
    assert await standing(store, tokens(100), clock) == (0, 0)


async def test_an_item_that_cannot_be_written_is_found_out_by_sending_it_again(
    worker: Worker, store: StoreBehind, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await worker.granted(tokens(2**70, 2**65))
    assert store.in_memory == 1
    assert await standing(store, tokens(2**70), clock) == (0, 0)
    assert "batches of this worker cannot be written" in caplog.text
    with pytest.raises(StoreLostWrites):
        await worker.granted(tokens(100, 10))


async def test_a_locked_file_is_waited_for(worker: Worker, store: StoreBehind, folder: Path, clock: Clock) -> None:
    await worker.settle(await worker.granted(tokens(100, 10)), 7)
    db = sqlite3.connect(path_of(settings_of(folder)), isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    store._write_behind()
    assert store._ledger.unwritten == 2
    db.execute("COMMIT")
    db.close()
    await asyncio.get_running_loop().run_in_executor(store._writing, lambda: None)
    assert store._ledger.unwritten == 0
    assert in_file(folder, "SELECT seq FROM workers") == [(3,)]


async def test_the_state_of_a_large_file_is_not_kept(
    worker: Worker, store: StoreBehind, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(write_behind, "WINDOWS_KEPT", 1)
    await worker.granted(daily(100))
    await worker.granted(tokens(100))
    assert await standing(store, daily(100), clock) == (0, 1)
    await worker.granted(daily(100))
    assert store.in_memory == 2, "after it was written, it was dropped"
    monkeypatch.setattr("gateway.store.sqlite.ledger.LEASES_KEPT", 1)
    store._ledger._behind = None
    for _ in range(2):
        await worker.granted(daily(100))
    assert store.in_memory == 2


FINE = rate(5 * 10**9, 4 * 10**9, 3600, per="hour", unit="usd")
"""A rate that is rounded at each look."""

TABLES = {
    "windows": "id, starts, used, reserved, iif(starts = '' AND id NOT LIKE '%parallel%', at_us, 0)",
    "workers": "seq, mark", "leases": "id, drawn_us, entry",
    "records": "seq, id, ended, prompt_tokens, cost_nusd", "hours": "*", "sums": "*", "measures": "*",
    "attributed": "*",
}  # fmt: skip
"""What is compared of each; the time of a window only where it is a rate."""


@pytest.mark.parametrize("seed", range(6))
async def test_it_does_what_a_store_does_that_writes_at_once(tmp_path: Path, clock: Clock, seed: int) -> None:
    """The same batches at the same times, in any order: the same verdicts, and the same rows in the end."""
    dice = random.Random(seed)
    behind = StoreBehind(settings_of(tmp_path / "behind"), clock)
    plain = SqliteStore(settings_of(tmp_path / "plain"), clock)
    workers = [Worker(behind, "w"), Worker(plain, "w")]
    claims = (
        daily(9),
        tokens(300),
        rate(60, 10),
        rate(7, 1, 3, per="3", unit="requests"),
        parallel(4),
        money(900),
        FINE,
    )
    running: list[Reserve] = []
    for number in range(300):
        items: list[list[Item]] = [[], []]
        ended = [running.pop(dice.randrange(len(running))) for _ in range(min(len(running), dice.choice((0, 1, 1, 2))))]
        for wish in ended:
            used, cost = dice.randint(0, 50), dice.choice((None, dice.randint(0, 90)))
            is_void = dice.random() < 0.05
            for worker, own in zip(workers, items, strict=True):
                end = settlement(wish, used, cost_nusd=cost, user="a" if number % 3 == 0 else "")
                own.append(worker.voiding(wish) if is_void else worker.closing(end))
        some = dice.sample(claims, dice.randint(1, 5))
        wishes = [
            draw(*[claim._replace(amount=dice.randint(1, claim.amount * 2)) for claim in some], call=f"{number}-{at}")
            for at in range(dice.choice((0, 1, 1, 1, 2)))
        ]
        answers = [await worker.send(*own, *wishes) for worker, own in zip(workers, items, strict=True)]
        assert answers[0] == answers[1]
        verdicts = answers[0].verdicts[len(ended) :]
        running += [wish for wish, verdict in zip(wishes, verdicts, strict=True) if isinstance(verdict, Granted)]
        clock.advance(dice.choice((0, 0.01, 0.2, 1.5)))
        if dice.random() < 0.1:
            assert await levels(behind, clock, *claims) == await levels(plain, clock, *claims)
    for store in (behind, plain):
        await store.close()
    assert behind.in_memory > 150
    for table, columns in TABLES.items():
        rows = [in_file(tmp_path / name, f"SELECT {columns} FROM {table}") for name in ("behind", "plain")]
        assert sorted(rows[0], key=repr) == sorted(rows[1], key=repr), table


async def test_the_end_of_a_store_writes(folder: Path, clock: Clock) -> None:
    store = StoreBehind(settings_of(folder), clock)
    worker = Worker(store)
    await worker.send()
    await worker.granted(daily(100))
    wish: Item = draw(daily(100))
    assert isinstance((await worker.send(wish)).verdicts[0], Granted)
    await store.close()
    assert in_file(folder, "SELECT reserved FROM windows") == [(2,)]
