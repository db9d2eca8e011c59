"""Daily sums out of Redis: read in portions, without their keys once until they change, and never from before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytest

from gateway.quota.ledger_entry import SEPARATOR
from gateway.store import StoreUnavailable
from gateway.store.redis import daily_sums
from gateway.store.redis.daily_sums import ADDED_AT_ONCE, BETWEEN, GROUPS_AT_ONCE, DailySumReader
from gateway.store.report_rows import Sums, UsageReport
from tests.fakes.scripted import until
from tests.patience import at_least

BASE = "{g}:1:"
DAYS = ["2026-11-18", "2026-11-19", "2026-11-20"]


def group(key: int, model: str = "m") -> str:
    return SEPARATOR.join((f"key-{key}", "team", model, "up", "chat"))


class Server:
    """A Redis that knows `scan.lua` and the marks of days. `days` is what it keeps: calls by group."""

    def __init__(self, days: dict[str, dict[str, int]]) -> None:
        self.days = days
        self.marks = dict.fromkeys(days, "written")
        self.asked: list[str] = []
        """The day of each portion."""
        self.begun: list[str] = []
        """Days whose reading was begun."""
        self.most = 0
        """Groups in the largest portion."""
        self.is_away = False
        self.tells_twice = False
        self.is_busy = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self, script: Any, keys: Sequence[str], arguments: Sequence[str]) -> str | list[str]:
        if script is daily_sums.MARKS:
            return BETWEEN.join([self.marks.get(key.removeprefix(f"{BASE}sums:"), "") for key in keys])
        assert script is daily_sums.SCAN
        (day,) = [key.removeprefix(f"{BASE}sums:") for key in keys]
        self.asked.append(day)
        await self.gate.wait()
        if self.is_away:
            raise StoreUnavailable("it is away")
        at_once, pattern, cursor = int(arguments[0]), arguments[1], int(arguments[2])
        groups = list(self.days.get(day, {}).items())
        if not cursor:
            self.begun.append(day)
        first, end = max(0, cursor - 3) if self.tells_twice else cursor, cursor + at_once
        some = [(name, calls) for name, calls in groups[first:end] if fnmatchcase(name, pattern)]
        self.most = max(self.most, len(some))
        parts = [text for name, calls in some for text in (name, f"{calls} 0 10 5 0 0 0 100 0")]
        if not cursor:
            parts = ["?", "what stands here, in words", *parts]
        return [str(end) if end < len(groups) else "0", BETWEEN.join(parts)]


def reader_of(server: Server) -> DailySumReader:
    return DailySumReader(server, BASE, lambda: server.is_busy)  # type: ignore[arg-type]


def year(groups: int) -> dict[str, dict[str, int]]:
    return {day: {group(key): place for key in range(groups)} for place, day in enumerate(DAYS, 1)}


def requests(report: UsageReport) -> dict[str, int]:
    return {row.get("day") or row.get("key") or "": row["requests"] for row in report.rows()}


class Watched(UsageReport):
    """A report that notes how much it was given at once."""

    def __init__(self, group_by: Sequence[str]) -> None:
        super().__init__(group_by)
        self.turns = [0]
        self.given: list[tuple[int, int]] = []

    def add(self, day: str, sums: Sequence[Sums]) -> None:
        self.given.append((self.turns[0], len(sums)))
        super().add(day, sums)


async def test_sums_are_those_of_the_days_that_were_asked_for() -> None:
    reader = reader_of(Server(year(1200)))
    by_day, by_key = UsageReport(["day"]), UsageReport(["key"])
    await reader.add(by_day, DAYS[1:])
    await reader.add(by_key, DAYS)
    assert requests(by_day) == {DAYS[1]: 2 * 1200, DAYS[2]: 3 * 1200}
    assert requests(by_key) == {f"key-{key}": 6 for key in range(1200)}
    nothing = UsageReport(["day"])
    await reader.add(nothing, [])
    await reader.add(nothing, ["2020-01-01"])
    assert nothing.rows() == []


async def test_what_a_scan_returns_twice_counts_once() -> None:
    server = Server(year(1200))
    server.tells_twice = True
    report = UsageReport(["day"])
    await reader_of(server).add(report, DAYS)
    assert requests(report) == {day: place * 1200 for place, day in enumerate(DAYS, 1)}


async def test_reports_without_keys_that_come_together_share_a_reading() -> None:
    server = Server(year(1000))
    reader = reader_of(server)
    reports = [UsageReport([name]) for name in ("day", "team", "model", "day")]
    await asyncio.gather(*[reader.add(report, DAYS) for report in reports])
    assert sorted(server.begun) == DAYS
    assert requests(reports[0]) == requests(reports[3]) == {DAYS[0]: 1000, DAYS[1]: 2000, DAYS[2]: 3000}
    assert [row["requests"] for row in reports[1].rows()] == [row["requests"] for row in reports[2].rows()] == [6000]


async def test_reports_about_one_key_are_given_its_groups_alone() -> None:
    server = Server(year(3000))
    reader = reader_of(server)
    where = (("key", "key-7"),)
    by_day, by_model = UsageReport(["day"], where=where), UsageReport(["model"], where=where)
    await asyncio.gather(reader.add(by_day, DAYS), reader.add(by_model, DAYS))
    assert requests(by_day) == {DAYS[0]: 1, DAYS[1]: 2, DAYS[2]: 3}
    assert [row["requests"] for row in by_model.rows()] == [6]
    assert server.most == 1  # neither the groups of key-70 nor those of others


async def test_a_day_is_read_again_once_it_has_changed() -> None:
    server = Server(year(600))
    reader = reader_of(server)

    async def read(*group_by: str) -> int:
        server.begun.clear()
        report = UsageReport(group_by)
        await reader.add(report, DAYS)
        return sum(row["requests"] for row in report.rows())

    assert [await read("day"), await read("model"), len(server.begun)] == [3600, 3600, 0]
    server.days[DAYS[1]][group(7)] += 5
    server.marks[DAYS[1]] = "written again"
    assert (await read("team"), server.begun) == (3605, [DAYS[1]])


async def test_what_changes_while_a_day_is_read_is_in_the_next_report() -> None:
    server = Server(year(600))
    reader = reader_of(server)
    early, late = UsageReport(["day"]), UsageReport(["day"])
    server.gate.clear()
    first = asyncio.ensure_future(reader.add(early, DAYS[2:]))
    await until(lambda: server.asked)
    server.marks[DAYS[2]] = "written meanwhile"
    second = asyncio.ensure_future(reader.add(late, DAYS[2:]))
    await asyncio.sleep(0)
    server.gate.set()
    await asyncio.gather(first, second)
    assert server.begun == [DAYS[2], DAYS[2]]
    assert requests(early) == requests(late) == {DAYS[2]: 1800}


async def test_what_is_kept_is_bounded_in_time_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(year(10))
    reader = reader_of(server)
    await reader.add(UsageReport(["day"]), DAYS)
    monkeypatch.setattr(daily_sums, "KEPT_S", -1.0)
    await reader.add(UsageReport(["day"]), DAYS)
    assert len(server.begun) == 6
    monkeypatch.setattr(daily_sums, "KEPT_S", 3600.0)
    monkeypatch.setattr(daily_sums, "KEPT", 2)
    for day in ("2026-01-01", "2026-01-02"):
        server.days[day] = {group(1): 1}
        await reader.add(UsageReport(["day"]), [day])
    assert sum(len(each.sums) for each in reader._kept.values()) <= 2


async def test_no_turn_of_the_loop_takes_more_than_a_bite() -> None:
    server = Server(year(2000))
    reader = reader_of(server)
    report = Watched(["key"])

    async def tick() -> None:
        while True:
            report.turns[0] += 1
            await asyncio.sleep(0)

    ticking = asyncio.ensure_future(tick())
    await reader.add(report, DAYS)
    ticking.cancel()
    assert sum(number for _, number in report.given) == 6000
    assert max(number for _, number in report.given) <= ADDED_AT_ONCE
    turns = [turn for turn, _ in report.given]
    assert len(set(turns)) == len(turns), "the loop was given back after each"
    assert server.most <= GROUPS_AT_ONCE


@pytest.mark.parametrize("group_by", ["key", "model"])
async def test_reports_make_way_for_calls(monkeypatch: pytest.MonkeyPatch, group_by: str) -> None:
    monkeypatch.setattr(daily_sums, "REST_S", 3600.0)
    server = Server(year(1000))
    reader = reader_of(server)
    server.is_busy = True
    waiting = asyncio.ensure_future(reader.add(UsageReport([group_by]), DAYS))
    await until(lambda: server.asked)
    await at_least(0.05)
    assert len(server.asked) == 1
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_an_outage_fails_waiting_reports_only() -> None:
    server = Server(year(10))
    reader = reader_of(server)
    server.is_away = True
    received = await asyncio.gather(*[reader.add(UsageReport(["day"]), DAYS) for _ in range(2)], return_exceptions=True)
    assert [str(each) for each in received] == ["it is away"] * 2
    server.is_away = False
    report = UsageReport(["day"])
    await reader.add(report, DAYS)
    assert requests(report) == {DAYS[0]: 10, DAYS[1]: 20, DAYS[2]: 30}


async def test_nothing_is_read_for_who_has_left() -> None:
    server = Server(year(3000))
    reader = reader_of(server)
    others = [f"2026-01-{day:02}" for day in range(1, 29)]
    leaving = asyncio.ensure_future(reader.add(UsageReport(["model"]), [*DAYS, *others]))
    await until(lambda: server.asked)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    report = UsageReport(["day"])
    await reader.add(report, DAYS[:1])
    assert requests(report) == {DAYS[0]: 3000}
    assert not set(others).intersection(server.asked), "whoever wanted them has left"
