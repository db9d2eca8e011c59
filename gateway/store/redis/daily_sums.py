"""The daily sums from Redis, each day read once for all reports that need it at the moment.

Sums over many days of many keys are expensive, and their requests come together: a dashboard requests several reports
at once, and so does every viewer. One reader serves them all: it reads a day, passes it to every report that needed it
when the reading began, and takes the next. No report gets data from before its request.

Reading is done in portions, so that neither Redis nor the event loop is blocked by a report.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import islice

from gateway.quota.ledger_entry import SEPARATOR, SUMS
from gateway.store import StoreUnavailable
from gateway.store.report_rows import Sums, UsageReport
from gateway.tasks import Tasks

from .connection import RedisConnection, Script

ABOUT = "?"
"""A field that is no group, but a line for people."""

BETWEEN = "\x1e"
SCAN = Script.read("scan.lua")

DAYS_AT_ONCE = 16
GROUPS_AT_ONCE = 250
"""The size of one portion, about; it takes half a millisecond of Redis."""

PASSED_AT_ONCE = 2500
"""The same where all but the groups of one key are passed over: they are neither copied nor sent."""

ALL = "*"

ADDED_AT_ONCE = 100
"""Groups after which others on our event loop get their turn; a third of a millisecond."""

GATHER_S = 0.01
"""How long reports that come together are waited for."""

REST_S = 0.006
"""Pause after each portion while calls are running: the kernel makes a constantly busy worker wait for a core, and its
calls with it."""


class _WaitingReport:
    def __init__(self, report: UsageReport, days: Sequence[str]) -> None:
        self.report = report
        self.lacks = set(days)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def has(self, day: str) -> None:
        self.lacks.discard(day)
        if not self.lacks and not self.done.done():
            self.done.set_result(None)


class DailySumReader:
    """Reads the daily sums of one store; its owner has to close it. `are_calls_under_way` is called repeatedly."""

    def __init__(self, link: RedisConnection, base: str, are_calls_under_way: Callable[[], bool]) -> None:
        self._link = link
        self._base = base
        self._are_calls_under_way = are_calls_under_way
        self._wanted: dict[str, list[_WaitingReport]] = {}
        """Waiting reports by day, in the order in which the days were first requested."""
        self._is_reading = False
        self._at_once = 1
        """More where days are small, so that a report of today need not wait for many that are large."""
        self._tasks = Tasks()

    async def add(self, report: UsageReport, days: Sequence[str]) -> None:
        """Add the sums of these days to a report. Raises `StoreUnavailable`, or what redis-py finds fault with."""
        if not days:
            return
        waiting = _WaitingReport(report, days)
        for day in days:
            self._wanted.setdefault(day, []).append(waiting)
        if not self._is_reading:
            self._is_reading = True
            self._tasks.spawn(self._read_all(), "read-daily-sums")
        await waiting.done

    async def close(self) -> None:
        await self._tasks.cancel_all()
        for waiting in [each for some in self._wanted.values() for each in some]:
            waiting.fail(StoreUnavailable("the store is closed"))
        self._wanted.clear()

    async def _read_all(self) -> None:
        try:
            await asyncio.sleep(GATHER_S)
            is_newest = True
            while self._wanted:
                # The newest days by turns with those that have waited longest: the first are looked at again and again,
                # and a report over a year must not wait behind them for ever.
                waiting = sorted(self._wanted, reverse=True) if is_newest else list(self._wanted)
                is_newest = not is_newest
                taken = {day: self._wanted.pop(day) for day in waiting[: self._at_once]}
                await self._read({day: reports for day, reports in taken.items() if _alive(reports)})
        finally:
            self._is_reading = False

    async def _read(self, taken: dict[str, list[_WaitingReport]]) -> None:
        try:
            keys = {waiting.report.key for reports in taken.values() for waiting in reports}
            only = keys.pop() if len(keys) == 1 else None
            async with aclosing(self._portions(list(taken), only)) as portions:
                async for day, groups in portions:
                    while some := list(islice(groups, ADDED_AT_ONCE)):
                        for waiting in _alive(taken[day]):
                            waiting.report.add(day, some)
                            await asyncio.sleep(0)
                    if not any(map(_alive, taken.values())):
                        return
                    if self._are_calls_under_way():
                        await asyncio.sleep(REST_S)
        except BaseException as error:
            reason = error if isinstance(error, Exception) else StoreUnavailable("the store is closed")
            for waiting in [each for reports in taken.values() for each in reports]:
                waiting.fail(reason)
            if not isinstance(error, Exception):
                raise
        for day, reports in taken.items():
            for waiting in reports:
                waiting.has(day)

    async def _portions(self, days: Sequence[str], key: str | None) -> AsyncGenerator[tuple[str, Iterator[Sums]]]:
        """Days, and a part of their groups, or of those of one key; each group once."""
        pattern, most = (ALL, GROUPS_AT_ONCE) if key is None else (_pattern(key), PASSED_AT_ONCE)
        cursors = dict.fromkeys(days, "0")
        known: dict[str, set[str]] = {day: set() for day in days}
        is_large = False
        while cursors:
            asked = list(cursors)[: 1 if is_large else DAYS_AT_ONCE]
            keys, at_once = [f"{self._base}sums:{day}" for day in asked], str(most // len(asked))
            answer = await self._link.run(SCAN, keys, [at_once, pattern, *(cursors[day] for day in asked)])
            for day, cursor, text in zip(asked, answer[::2], answer[1::2], strict=True):
                yield day, _read_groups(text, known[day])
                if cursor == "0":
                    del cursors[day], known[day]
                else:
                    cursors[day] = cursor
                    is_large = True
        self._at_once = 1 if is_large else min(DAYS_AT_ONCE, 2 * self._at_once)


def _pattern(key: str) -> str:
    """The pattern of the groups of a key, as Redis reads patterns."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", key) + SEPARATOR + ALL


def _alive(reports: Sequence[_WaitingReport]) -> list[_WaitingReport]:
    return [waiting for waiting in reports if not waiting.done.done()]


def _read_groups(text: str, known: set[str]) -> Iterator[Sums]:
    """The groups of a portion that are not known yet, because a scan may return an element twice."""
    parts = text.split(BETWEEN) if text else []
    groups, numbers = parts[::2], parts[1::2]
    if ABOUT in groups:
        del numbers[groups.index(ABOUT)]
        groups.remove(ABOUT)
    # All numbers are read at once: a report may hold millions, and one by one they take three times as long.
    values = json.loads(f"[{','.join(numbers)}]".replace(" ", ","))
    sums = zip(groups, zip(*[iter(values)] * len(SUMS), strict=True), strict=True)
    fresh = set(groups) - known
    known |= fresh
    if len(fresh) == len(groups):
        return sums
    return iter([(group, of) for group, of in dict(sums).items() if group in fresh])
