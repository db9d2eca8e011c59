"""Retention: the rule as a table, and what a wrong clock may delete of every store."""

from __future__ import annotations

import pytest

from gateway.records import Claim, WindowState
from gateway.store import Progress, Store
from gateway.store.redis.store import RedisStore
from gateway.store.rules.retention import RetentionLook, is_idle, next_look
from gateway.store.sqlite.store import SqliteStore
from tests.store.test_sqlite import opened

from .changes import Clock, daily, parallel, rate, slow, tokens
from .conftest import OpensStores
from .worker import Worker, levels, pass_days

DAY_S, YEAR_S = 86_400, 365 * 86_400
YEAR_H, NOW_H = 365 * 24, 498_828
DAY_US, KEPT_US = 86_400_000_000, 10 * 86_400_000_000


@pytest.mark.parametrize(
    ("last", "wall_h", "first_due_h", "expected"),
    [
        # A store that retention sees for the first time.
        (None, NOW_H, None, (NOW_H, NOW_H)),
        (None, NOW_H, NOW_H + 100, (NOW_H, NOW_H)),
        (None, NOW_H, NOW_H - 100, (NOW_H, NOW_H - 100)),
        # One look an hour.
        ((NOW_H, NOW_H), NOW_H, None, None),
        ((NOW_H, NOW_H), NOW_H + 1, None, (NOW_H + 1, NOW_H + 1)),
        ((NOW_H, NOW_H), NOW_H + 24, None, (NOW_H + 24, NOW_H + 24)),
        # A year ahead, whether for an hour or for two; and back.
        ((NOW_H, NOW_H), NOW_H + YEAR_H, None, (NOW_H + YEAR_H, NOW_H + 24)),
        ((NOW_H + YEAR_H, NOW_H + 24), NOW_H + YEAR_H, None, None),
        ((NOW_H + YEAR_H, NOW_H + 24), NOW_H + YEAR_H + 1, None, (NOW_H + YEAR_H + 1, NOW_H + 48)),
        ((NOW_H + YEAR_H, NOW_H + 24), NOW_H, None, (NOW_H, NOW_H)),
        # Behind the truth, and back.
        ((NOW_H, NOW_H), NOW_H - YEAR_H, None, (NOW_H - YEAR_H, NOW_H - YEAR_H)),
        # A pause of 30 days is made up for in 30 hours.
        ((NOW_H, NOW_H), NOW_H + 720, None, (NOW_H + 720, NOW_H + 24)),
        ((NOW_H + 748, NOW_H + 696), NOW_H + 749, None, (NOW_H + 749, NOW_H + 720)),
    ],
)
def test_the_clock_of_retention(
    last: tuple[int, int] | None, wall_h: int, first_due_h: int | None, expected: tuple[int, int] | None
) -> None:
    assert next_look(RetentionLook(*last) if last else None, wall_h, first_due_h) == expected


@pytest.mark.parametrize(
    ("window", "state", "age_days", "expected"),
    [
        ("key:k|requests|minute||", (0, 0), 10, False),
        ("key:k|requests|minute||", (0, 0), 11, True),
        ("key:k|requests|minute|gpt-*|", (60, 0), 11, True),
        ("team:a|b|tokens|hour||", (60, 0), 11, True),
        ("key:k|tokens|86400||", (60, 0), 11, False),
        ("key:k|tokens|86400||", (60, 0), 101, True),
        ("key:k|parallel|||", (0, 0), 11, True),
        ("key:k|parallel|||", (3, 0), 5000, False),
        ("something else", (3, 0), 5000, False),
    ],
)
def test_when_a_rate_is_idle(window: str, state: tuple[int, int], age_days: int, expected: bool) -> None:
    clock_us = 6000 * DAY_US
    assert is_idle(window, WindowState(*state, clock_us - age_days * DAY_US), KEPT_US, clock_us) is expected


async def spend(worker: Worker, clock: Clock, *claims: Claim, used: int = 7) -> None:
    await worker.settle(await worker.granted(*claims), used, time=clock.now)


async def test_a_clock_that_was_ahead_for_a_moment_deletes_nothing(open_store: OpensStores, clock: Clock) -> None:
    store = await open_store(usage_records_max=1, sums_days=10)
    worker, month = Worker(store), tokens(1000, 1, per="month", starts="2026-11")
    await spend(worker, clock, daily(), tokens(1000, 1), month)
    await pass_days(worker, clock, 1)
    for ahead_s in (YEAR_S, 40 * YEAR_S, -YEAR_S):
        clock.advance(ahead_s)
        for _ in range(10):
            await spend(worker, clock)
        clock.advance(-ahead_s)
        await worker.send()
        assert await levels(store, clock, daily(), tokens(), month) == [(1, 0), (7, 0), (7, 0)]
        assert "2026-11-20" in [row["day"] for row in await store.usage(["day"])]


async def test_progress_outlives_a_clock_that_was_ahead_and_not_its_worker(
    open_store: OpensStores, clock: Clock
) -> None:
    """Without it a journal would be charged a second time. A worker that comes back is not forgotten. The embedded
    store keeps it by the time that its workers are heard, for longer than a test can pass."""
    store = await open_store()
    gone, back, worker = Worker(store), Worker(store), Worker(store)
    for each in (gone, back, worker):
        await each.settle(await each.granted(daily()))
    await gone.granted(daily())
    for ahead_s in (YEAR_S, 40 * YEAR_S):
        clock.advance(ahead_s)
        await worker.send()
        await worker.send()
        clock.advance(-ahead_s)
        await worker.send()
    assert (await store.progress(gone.name)).mark == 1
    await pass_days(worker, clock, 98)
    assert (await store.progress(gone.name)).mark == 1
    await back.send()
    await pass_days(worker, clock, 10)
    assert (await store.progress(back.name)).mark == 1
    if isinstance(store, RedisStore):
        assert await store.progress(gone.name) == Progress()
        (left,) = await store._reading.ask(("EXISTS", f"{store._base}lost:{gone.name}"))
        assert left == 0


async def test_a_clock_that_stays_ahead_deletes_a_day_an_hour(open_store: OpensStores, clock: Clock) -> None:
    """A restart looks no further: the clock of retention is kept in the store."""
    first = Worker(await open_store(sums_days=10))
    for _ in range(14):
        await spend(first, clock)
        await pass_days(first, clock, 1)
    await first.send()
    days = [row["day"] for row in await first.store.usage(["day"])]
    clock.advance(YEAR_S)
    for hours in range(1, 4):
        for worker in (first, Worker(await open_store(sums_days=10)), Worker(await open_store(sums_days=10))):
            await worker.send()
            await worker.send()
        assert [row["day"] for row in await first.store.usage(["day"])] == days[hours:]
        clock.advance(3600)


def rates_of(store: Store) -> set[str]:
    """Ids of the rate and parallel windows in the embedded store."""
    assert isinstance(store, SqliteStore)
    with opened(store._path.parent) as db:
        return {name for (name,) in db.execute("SELECT id FROM windows WHERE starts = ''")}


async def rates_of_redis(store: Store) -> set[str]:
    assert isinstance(store, RedisStore)
    (names,) = await store._reading.ask(("HKEYS", f"{store._base}windows"))
    return set(names) - {"?"}


async def test_idle_rates_and_parallel_windows_are_deleted(open_store: OpensStores, clock: Clock) -> None:
    store = await open_store(sums_days=2)
    worker, used, unused, long = Worker(store), rate(60, 9), rate(60, 9, scope="key:gone"), slow(60, 50)
    running, ended = parallel(5), parallel(5, scope="key:gone")
    await worker.granted(running)
    await worker.settle(await worker.granted(used, unused, long, ended), 9)
    for _ in range(3):
        await pass_days(worker, clock, 1)
        await worker.settle(await worker.granted(used), 9)
    await pass_days(worker, clock, 1)
    found = rates_of(store) if isinstance(store, SqliteStore) else await rates_of_redis(store)
    assert found == {each.window.id for each in (used, long, running)}


async def test_a_week_is_kept_until_it_is_old_as_a_whole(open_store: OpensStores, clock: Clock) -> None:
    """It ends on Sunday, 22 November; its Friday is forgotten two days before it."""
    store = await open_store(sums_days=2)
    worker, week = Worker(store), tokens(1000, 1, per="week", starts="2026-W47")
    next_week = tokens(1000, 1, per="week", starts="2026-W48")
    await spend(worker, clock, daily(), week, next_week)
    found = []
    for _ in range(6):
        await pass_days(worker, clock, 1)
        await spend(worker, clock)
        await worker.send()
        found.append([used for used, _ in await levels(store, clock, daily(), week, next_week)])
    assert found == [[1, 7, 7], [1, 7, 7], [0, 7, 7], [0, 7, 7], [0, 0, 7], [0, 0, 7]]
