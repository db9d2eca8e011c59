"""Reports out of Redis that are remembered: never when anybody has written since, and never too many of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from gateway.store.redis import report_cache
from gateway.store.redis.daily_sums import BETWEEN, DailySumReader
from gateway.store.redis.report_cache import ReportCache
from gateway.store.report_rows import UsageReport

DAYS = ["2026-11-19", "2026-11-20"]


class Server:
    """A Redis that knows `marks.lua`. `meanwhile` happens while a report is read."""

    def __init__(self) -> None:
        self.marks = dict.fromkeys(DAYS, "written")

    async def run(self, script: Any, keys: Sequence[str], arguments: Sequence[str]) -> str:
        assert script is report_cache.MARKS
        return BETWEEN.join([self.marks.get(key.removeprefix("base:sums:"), "") for key in keys])


class Reader:
    """Who reads days: each has so many groups."""

    def __init__(self, groups: int = 3) -> None:
        self.groups = groups
        self.read: list[Sequence[str]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def add(self, report: UsageReport, days: Sequence[str]) -> None:
        self.read.append(days)
        for day in days:
            report.add(day, [(f"key-{place}\x1ft\x1fm\x1fu\x1fchat", (1,) * 9) for place in range(self.groups)])
        self.meanwhile()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def reader() -> Reader:
    return Reader()


Asks = Callable[..., Awaitable[int]]


@pytest.fixture
def ask(server: Server, reader: Reader) -> Asks:
    """Asks for a report; how many requests it has counted."""
    days: DailySumReader = reader  # type: ignore[assignment]
    cache = ReportCache(server, "base:", days)  # type: ignore[arg-type]

    async def asked(group_by: Sequence[str] = ("key",), days: Sequence[str] = DAYS) -> int:
        report = await cache.report(group_by, days)
        return sum(row["requests"] for row in report.rows())

    return asked


async def test_unchanged_days_are_read_once(ask: Asks, reader: Reader) -> None:
    assert [await ask() for _ in range(3)] == [6, 6, 6]
    assert reader.read == [DAYS]


async def test_other_groups_and_other_days_are_other_reports(ask: Asks, reader: Reader) -> None:
    assert await ask() == 6
    assert await ask(["model"]) == 6
    assert await ask(["key"], DAYS[1:]) == 3
    assert await ask(["key"], []) == 0
    assert reader.read == [DAYS, DAYS, DAYS[1:], []]
    await ask(["model"])
    await ask(["key"], DAYS[1:])
    assert len(reader.read) == 4


@pytest.mark.parametrize("mark", ["written again", ""])
async def test_a_day_that_was_written_is_read_again(ask: Asks, server: Server, reader: Reader, mark: str) -> None:
    await ask()
    server.marks[DAYS[0]] = mark
    reader.groups = 5
    assert [await ask() for _ in range(2)] == [10, 10]
    assert len(reader.read) == 2


async def test_what_was_written_while_it_was_read_is_not_remembered(ask: Asks, server: Server, reader: Reader) -> None:
    reader.meanwhile = lambda: server.marks.update({DAYS[1]: "written again"})
    assert await ask() == 6
    reader.meanwhile = lambda: None
    reader.groups = 4
    assert [await ask() for _ in range(2)] == [8, 8]
    assert len(reader.read) == 2


async def test_nothing_is_remembered_for_ever(ask: Asks, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway of before leaves no mark."""
    await ask()
    monkeypatch.setattr(report_cache, "REMEMBERED_S", 0.0)
    reader.groups = 4
    assert await ask() == 8


async def test_who_was_asked_for_longest_ago_is_forgotten_first(
    ask: Asks, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_cache, "REMEMBERED", 14)
    for group in ("key", "model", "team", "key", "upstream", "key"):
        await ask([group])
    assert len(reader.read) == 4
    await ask(["day", "key"])  # six rows and two days: the three oldest have to go
    for group in ("key", "model"):
        await ask([group])
    assert len(reader.read) == 6
    await ask(["key"])
    assert len(reader.read) == 6
    await ask(["day", "key"])
    assert len(reader.read) == 7


async def test_a_report_beyond_all_bounds_is_not_remembered(
    ask: Asks, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_cache, "REMEMBERED", 4)
    assert [await ask() for _ in range(2)] == [6, 6]
    assert len(reader.read) == 2
