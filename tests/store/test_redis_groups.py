"""The index of groups in a Redis: reports by key have every group, also of older gateways; it ends with its days."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.store.redis import daily_sums
from gateway.store.redis.connection import Script
from gateway.store.redis.store import RedisStore
from tests.fakes.redis_servers import servers_to_test

from .changes import Clock
from .conftest import opens_redis
from .worker import Worker, pass_days

MONTH = "groups-2026-11"
DAY = "2026-11-20"


class Redis:
    """One Redis, used by gateways of this version and of the one before."""

    def __init__(self, request: pytest.FixtureRequest, clock: Clock) -> None:
        self._opens = opens_redis(servers_to_test()[0])
        self._request, self._clock = request, clock
        self.stores: list[RedisStore] = []

    async def worker(self, **settings: Any) -> Worker:
        store = await self._opens(self._request, self._clock, **settings)
        assert isinstance(store, RedisStore)
        self.stores.append(store)
        return Worker(store)

    async def older(self) -> Worker:
        """A worker that knows no index."""
        worker = await self.worker()
        text = self.stores[-1]._script.text
        for known, before in (
            ("ABOUT_SUMS, index, now_text", "ABOUT_SUMS, '', now_text"),
            ("if #groups_of > 0", "if false"),
        ):
            assert text.count(known) == 1
            text = text.replace(known, before)
        self.stores[-1]._script = Script.of(text)
        return worker

    async def ask(self, *command: str | int) -> Any:
        store = self.stores[0]
        name, key, *rest = command
        return (await store._reading.ask((name, f"{store._base}{key}", *rest)))[0]

    async def indexed(self) -> list[str]:
        """The keys of the index."""
        return [group.partition("\x1f")[0] for group in await self.ask("ZRANGE", f"sums:{MONTH}", 0, -1)]


@pytest.fixture
async def redis(request: pytest.FixtureRequest, clock: Clock) -> Any:
    opened = Redis(request, clock)
    yield opened
    for store in opened.stores:
        await store.close()


async def call(worker: Worker, key: str, **changes: Any) -> None:
    await worker.settle(await worker.granted(), key=key, **changes)


async def keys(worker: Worker, *group_by: str) -> list[str]:
    rows = await worker.store.usage(["key", *group_by])
    assert all(row["requests"] == 1 for row in rows)
    return [row["key"] for row in rows]


async def test_what_an_older_gateway_wrote_is_put_into_the_index(redis: Redis) -> None:
    old, new = await redis.older(), await redis.worker()
    await call(old, "a")
    await call(new, "b")
    assert await redis.indexed() == ["b"]
    assert await keys(new) == ["a", "b"]
    assert await redis.indexed() == ["a", "b"]
    assert daily_sums.INDEXED in await redis.ask("HGET", f"sums:{DAY}", "?")
    await call(old, "c")
    await call(new, "d")
    assert await keys(new, "day") == ["a", "b", "c", "d"]
    (row,) = await new.store.usage(["day"], where=(("key", "c"),))
    assert row["requests"] == 1


async def test_a_day_of_gateways_with_the_index_is_never_read_for_it(redis: Redis) -> None:
    first, second = await redis.worker(), await redis.worker()
    for number in range(3):
        await call(first, f"a{number}")
        await call(second, f"b{number}")
    redis.stores[0]._days._link = NoScans(redis.stores[0]._reading)  # type: ignore[assignment]
    assert await keys(first) == ["a0", "a1", "a2", "b0", "b1", "b2"]


class NoScans:
    def __init__(self, link: Any) -> None:
        self._link = link

    async def run(self, script: Script, *rest: Any) -> Any:
        assert script in (daily_sums.SUMS_OF, daily_sums.MARKS)
        return await self._link.run(script, *rest)


async def test_an_older_gateway_that_writes_meanwhile_is_in_the_report(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = await redis.older(), await redis.worker()
    for number in range(10):
        await call(old, f"a{number}")
    monkeypatch.setattr(daily_sums, "GROUPS_AT_ONCE", 1)
    link = redis.stores[1]._reading
    run, steps = link.run, list[str]()

    async def meanwhile(script: Script, *rest: Any) -> Any:
        found = await run(script, *rest)
        if script is daily_sums.INDEX:
            steps.append(found)
            if len(steps) == 1:
                await call(old, "b")
        return found

    monkeypatch.setattr(link, "run", meanwhile)
    assert await keys(new) == [*[f"a{number}" for number in range(10)], "b"]
    assert (len(steps) > 1, steps[-1]) == (True, "")
    assert await keys(new) == [*[f"a{number}" for number in range(10)], "b"]
    assert steps[-1] == "0"


async def test_the_index_ends_with_the_days_of_its_month(redis: Redis, clock: Clock) -> None:
    worker = await redis.worker(sums_days=20)
    await call(worker, "a")
    assert await redis.indexed() == ["a"]
    await pass_days(worker, clock, 40)
    assert await redis.ask("EXISTS", f"sums:{MONTH}") == 0
    assert MONTH not in await redis.ask("ZRANGE", "days", 0, -1)
    await call(worker, "late")  # its call began on a day that is gone
    assert await keys(worker) == ["late"]


async def test_an_import_beside_a_gateway_is_in_the_report(redis: Redis) -> None:
    worker = await redis.worker()
    await call(worker, "a")
    numbers = "1 0 0 0 0 0 0 0 0"
    await redis.ask("HSET", f"sums:{DAY}", "b\x1fred\x1fm\x1fup\x1fchat", numbers, "?", "written by an import")
    assert await keys(worker) == ["a", "b"]
