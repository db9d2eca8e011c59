"""What a report asks of a store grows with the rows that it has, and with nothing else: counted, at three sizes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.growth import FIRST_DAY, Size, fill_redis, fill_sqlite, served
from gateway.records import KeyInTeam
from gateway.store import CallFilter, ReportScope, Store
from gateway.store.redis import reports as redis_reports
from gateway.store.redis import store as redis_store
from gateway.store.sqlite import store as sqlite_store
from gateway.store.sqlite.database import connect
from tests.fakes.redis_servers import RedisServer, servers_to_test

SIZES = (100, 200, 400)
DAYS = 6
PAGE = 20

Report = Callable[[Store], Awaitable[int]]


class Asked(NamedTuple):
    """What one report asked: of SQLite hundreds of instructions, of Redis commands and kilobytes."""

    rows: int
    steps: float
    sent: float = 0.0


Count = Callable[[Report], Awaitable[Asked]]


async def everything(store: Store, *group_by: str) -> int:
    return sum([len(rows) async for rows in store.usage_portions(group_by)])


async def page(store: Store, *group_by: str, after: list[str] | None = None) -> int:
    return len(await store.usage(group_by, limit=PAGE, after=after))


async def filtered(store: Store, key: str | None = None, **wanted: Any) -> int:
    return len(await store.calls(PAGE, key, wanted=CallFilter(**wanted)))


async def within(store: Store, only: ReportScope, **wanted: Any) -> int:
    return len(await store.calls(PAGE, only=only, wanted=CallFilter(**wanted)))


async def by_id(store: Store) -> int:
    return int(await store.find_request("no-such-id") is not None)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions so small that reports of these sizes have many."""
    for store in (sqlite_store, redis_store):
        monkeypatch.setattr(store, "PORTION", 20)

    monkeypatch.setattr(redis_store, "USAGE_AT_ONCE", 40)
    monkeypatch.setattr(redis_reports, "PASSED_AT_ONCE", 20)


@asynccontextmanager
async def embedded(folder: Path, size: Size) -> AsyncIterator[tuple[Store, Count]]:
    store = fill_sqlite(folder / str(size.keys), size)
    steps = [0]

    def step() -> int:
        steps[0] += 1
        return 0

    def counting(path: Path) -> Any:
        db = connect(path)
        db.set_progress_handler(step, 100)
        return db

    store._reader._db.set_progress_handler(step, 100)

    async def count(report: Report) -> Asked:
        steps[0] = 0
        rows = await report(store)
        return Asked(rows, steps[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.store.sqlite.reader.connect", counting)
        try:
            yield store, count
        finally:
            await store.close()


@asynccontextmanager
async def redis(server: RedisServer, size: Size) -> AsyncIterator[tuple[Store, Count]]:
    store = await fill_redis(server, size, uuid.uuid4().hex)
    await page(store, "key")  # which makes the index, once

    async def count(report: Report) -> Asked:
        await served(store)
        rows = await report(store)
        return Asked(rows, *await served(store))

    try:
        yield store, count
    finally:
        await store.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), binary=servers_to_test()[0]) as running:
        yield running


@pytest.fixture(params=["embedded", "redis"])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Size], Any]:
    if request.param == "embedded":
        return lambda size: embedded(tmp_path, size)
    server: RedisServer = request.getfixturevalue("server")
    return lambda size: redis(server, size)


LAST = f"key-{SIZES[0] // 2:07}"

PAGES: Mapping[str, Report] = {
    "by key": lambda store: page(store, "key"),
    "by key, from the middle of the smallest store on": lambda store: page(store, "key", after=[LAST]),
    "by key and day": lambda store: page(store, "key", "day"),
    "by day and key": lambda store: page(store, "day", "key"),
    "by month, key and model": lambda store: page(store, "month", "key", "model"),
    "of calls": filtered,
}

WHOLE: Mapping[str, Report] = {
    "by key": lambda store: everything(store, "key"),
    "by key and day": lambda store: everything(store, "key", "day"),
    "by day and key": lambda store: everything(store, "day", "key"),
    "by model and key": lambda store: everything(store, "model", "key"),
    "calls of nobody": lambda store: filtered(store, user="nobody"),
}


async def of_one_key(store: Store) -> int:
    return len(await store.usage(("day",), where=(("key", LAST),)))


async def test_a_page_and_one_key_ask_no_more_of_a_larger_store(opens: Callable[[Size], Any]) -> None:
    found: dict[str, list[Asked]] = {}
    for keys in SIZES:
        async with opens(Size(keys, DAYS)) as (_, count):
            for name, report in {**PAGES, "of one key": of_one_key}.items():
                found.setdefault(name, []).append(await count(report))
    for name, asked in found.items():
        least, most = Asked(*map(min, zip(*asked, strict=True))), Asked(*map(max, zip(*asked, strict=True)))
        assert 0 < least.rows == most.rows <= PAGE, (name, asked)
        assert most.steps <= 1.2 * least.steps + 5, (name, asked)
        assert most.sent <= 1.2 * least.sent + 2000, (name, asked)


async def test_a_whole_report_asks_in_proportion_to_its_rows(opens: Callable[[Size], Any]) -> None:
    found: dict[str, list[Asked]] = {}
    for keys in SIZES:
        async with opens(Size(keys, DAYS)) as (_, count):
            for name, report in WHOLE.items():
                found.setdefault(name, []).append(await count(report))
    for name, asked in found.items():
        for one, other in pairwise(asked):
            assert other.rows == 2 * one.rows, (name, asked)
            assert other.steps <= 2 * 1.15 * one.steps + 20, (name, asked)
            assert other.sent <= 2 * 1.15 * one.sent + 4000, (name, asked)


NO_KEYS = frozenset({KeyInTeam("nobody", None), KeyInTeam("no one", "red")})

OF_KEYS: Mapping[str, Report] = {
    "of one": lambda store: filtered(store, "nobody"),
    "of one with a status": lambda store: filtered(store, "nobody", status=(500, 599)),
    "of two": lambda store: within(store, ReportScope(keys=NO_KEYS)),
    "of none": lambda store: within(store, ReportScope()),
}


async def test_calls_of_keys_without_any_ask_no_more_of_a_larger_store(opens: Callable[[Size], Any]) -> None:
    found: dict[str, list[Asked]] = {}
    for keys in SIZES:
        async with opens(Size(keys, DAYS)) as (_, count):
            for name, report in OF_KEYS.items():
                found.setdefault(name, []).append(await count(report))
    for name, asked in found.items():
        assert max(each.rows for each in asked) == 0, name
        assert max(each.steps for each in asked) <= min(each.steps for each in asked) + 5, (name, asked)


OF_FEW: Mapping[str, Report] = {
    "by a status": lambda store: filtered(store, status=(503, 503)),
    "by a class of them": lambda store: filtered(store, status=(500, 599)),
    "by a model": lambda store: filtered(store, model="nothing"),
    "by a tag": lambda store: filtered(store, tag="project=atlas"),
    "before any": lambda store: filtered(store, until=FIRST_DAY.timestamp() - 1),
    "of a team": lambda store: within(store, ReportScope(frozenset({"nobody"}))),
    "of two teams": lambda store: within(store, ReportScope(frozenset({"nobody", "no one"}))),
    "of two keys with a status": lambda store: within(store, ReportScope(keys=NO_KEYS), status=(500, 599)),
    "by an id": by_id,
}


async def test_records_that_are_not_wanted_stay_in_redis(server: RedisServer) -> None:
    size = Size(SIZES[0], DAYS)
    async with redis(server, size) as (_, count):
        for name, report in OF_FEW.items():
            asked = await count(report)
            assert asked.rows == 0
            # A portion has 20 records, of 200 bytes each.
            assert asked.sent <= 100 * asked.steps + 2000, (name, asked)


async def test_a_portion_has_few_rows_whatever_the_report(opens: Callable[[Size], Any]) -> None:
    async with opens(Size(SIZES[-1], DAYS)) as (store, _):
        for group_by in (("key",), ("key", "day"), ("day", "key"), ("model", "key")):
            assert max([len(rows) async for rows in store.usage_portions(group_by)]) <= 20 * DAYS


GROUPS = (
    ("key",), ("key", "day"), ("day", "key"), ("month", "key", "model"), ("model", "key"), ("day", "model", "key"),
    ("team", "day"), (),
)  # fmt: skip


@pytest.mark.rest
@pytest.mark.parametrize("group_by", GROUPS, ids=",".join)
async def test_pages_portions_and_stores_have_the_same_rows(
    tmp_path: Path, server: RedisServer, group_by: tuple[str, ...]
) -> None:
    reports = []
    size = Size(60, 40)
    async with embedded(tmp_path, size) as (file, _):
        shared = await fill_redis(server, size, uuid.uuid4().hex)
        try:
            for store in (file, shared):
                whole = await store.usage(group_by)
                assert [row async for rows in store.usage_portions(group_by) for row in rows] == whole
                paged: list[Mapping[str, Any]] = []
                while some := await store.usage(
                    group_by, limit=37, after=[paged[-1][name] for name in group_by] if paged else None
                ):
                    paged += some
                    if not group_by:
                        break
                assert paged == whole
                narrow = await store.usage(group_by, "2026-10-05", "2026-11-02", where=(("team", "team-7"),))
                assert sum(row["requests"] for row in narrow) == 3 * 2 * 29
                reports.append((whole, narrow))
        finally:
            await shared.close()
    assert reports[0] == reports[1]
    names = [tuple(row[name] for name in group_by) for row in reports[0][0]]
    assert names == sorted(names)
    assert sum(row["requests"] for row in reports[0][0]) == 3 * 60 * 40
