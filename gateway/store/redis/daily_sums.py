"""The daily sums from Redis, in portions, so that neither Redis nor the event loop is blocked by a report.

Most reports are about no key, and many come together: a dashboard requests several at once, and so does every viewer.
The sums of a day without its keys are kept until it changes: each batch that changes it writes its field `?` anew. So
past days are read once, and no report gets data from before its request.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import add
from typing import NamedTuple

from gateway.chunked import portions
from gateway.quota.ledger_entry import SEPARATOR, SUMS
from gateway.store.report_rows import NOTHING, Sums, UsageReport

from .connection import RedisConnection, Script

INDEXED = "; indexed;"
"""The field `?` of a day has this if its groups are in the index of its month."""

ABOUT = "?"
"""A field that is no group, but a line for people."""

BETWEEN = "\x1e"
SCAN, SUMS_OF = Script.read("scan.lua"), Script.read("sums.lua")
INDEX, MARKS = Script.read("groups.lua"), Script.read("marks.lua")

GROUPS_AT_ONCE = 250
"""The size of one portion, about; it takes half a millisecond of Redis."""

PASSED_AT_ONCE = 2500
"""The same where all but the groups of one key are passed over: they are neither copied nor sent."""

FIELDS_AT_ONCE = 1000
"""Groups times days that are looked up in one go, about: most may not be there; it takes two milliseconds of Redis."""

ALL = "*"

ADDED_AT_ONCE = 100
"""Groups after which others on our event loop get their turn; a third of a millisecond."""

REST_S = 0.006
"""Pause after each portion while calls are running: the kernel makes a constantly busy worker wait for a core, and its
calls with it."""

KEPT_S, KEPT = 3600.0, 100_000
"""The longest time for which groups without keys are kept, and their largest number. While gateways are replaced, an
older one may settle a late call and leave no mark."""


class _Day(NamedTuple):
    """A day without its keys."""

    mark: str
    began: float
    """When its reading began, after that of the mark."""
    sums: Sequence[Sums]


class DailySumReader:
    """Reads the daily sums of one store. `are_calls_under_way` is called repeatedly. All methods raise
    `StoreUnavailable`, or what redis-py finds fault with."""

    def __init__(self, link: RedisConnection, base: str, are_calls_under_way: Callable[[], bool]) -> None:
        self._link = link
        self._base = base
        self._are_calls_under_way = are_calls_under_way
        self._kept: dict[str, _Day] = {}
        self._turn = asyncio.Lock()

    async def add(self, report: UsageReport, days: Sequence[str]) -> None:
        """Add the sums of these days to a report."""
        began = time.monotonic()
        for day, mark in zip(days, await self._marks(days), strict=True):
            if report.needs_keys:
                async for groups in self._portions(day, report.key):
                    await _give(report, day, groups)
            else:
                await _give(report, day, iter((await self._without_keys(day, mark, began)).sums))

    async def add_groups(self, report: UsageReport, days: Sequence[str], groups: Sequence[str]) -> None:
        """Add the sums of these groups on these days."""
        keys = [f"{self._base}sums:{day}" for day in days]
        for some in portions(groups, max(1, FIELDS_AT_ONCE // len(days))):
            for day, text in zip(days, await self._link.run(SUMS_OF, keys, some), strict=True):
                await _give(report, day, _read_groups(text, set()))
            await self._rest()

    async def has_index(self, days: Sequence[str]) -> bool:
        """Whether the index of groups has those of these days, which are put into it where they are missing. False:
        only a gateway that knows no index, and writes just now, is in the way."""
        for day in [day for day, mark in zip(days, await self._marks(days), strict=True) if INDEXED not in mark]:
            name, cursor = f"groups-{day[:7]}", "0"
            keys = [f"{self._base}sums:{day}", f"{self._base}sums:{name}", f"{self._base}days"]
            others = [str(GROUPS_AT_ONCE), uuid.uuid4().hex, day, name]
            while (cursor := await self._link.run(INDEX, keys, [cursor, *others])) not in ("0", ""):
                await self._rest()
            if not cursor:
                return False
        return True

    async def is_indexed(self, days: Sequence[str]) -> bool:
        """Whether the index of groups has those of these days; makes nothing."""
        return all(INDEXED in mark for mark in await self._marks(days))

    async def _without_keys(self, day: str, mark: str, requested_at: float) -> _Day:
        """A day as it was then, or later."""
        async with self._turn:
            known = self._kept.get(day)
            if known and (known.began >= requested_at or (mark == known.mark and requested_at - known.began < KEPT_S)):
                return known
            sums: dict[str, Sequence[int]] = {}
            (mark,), began = await self._marks([day]), time.monotonic()
            async for groups in self._portions(day, None):
                while some := list(islice(groups, ADDED_AT_ONCE)):
                    for group, numbers in some:
                        name = group[group.index(SEPARATOR) :]
                        sums[name] = tuple(map(add, sums.get(name, NOTHING), numbers))
                    await asyncio.sleep(0)
            if sum(len(each.sums) for each in self._kept.values()) + len(sums) > KEPT:
                self._kept.clear()
            self._kept[day] = read = _Day(mark, began, [*sums.items()])
            return read

    async def _marks(self, days: Sequence[str]) -> list[str]:
        if not days:
            return []
        marks: str = await self._link.run(MARKS, [f"{self._base}sums:{day}" for day in days], [])
        return marks.split(BETWEEN)

    async def _rest(self) -> None:
        if self._are_calls_under_way():
            await asyncio.sleep(REST_S)

    async def _portions(self, day: str, key: str | None) -> AsyncIterator[Iterator[Sums]]:
        """Parts of the groups of a day, or of those of one key; each group once."""
        pattern, most = (ALL, GROUPS_AT_ONCE) if key is None else (_pattern(key), PASSED_AT_ONCE)
        cursor, known = "0", set[str]()
        while True:
            keys = [f"{self._base}sums:{day}"]
            cursor, text = await self._link.run(SCAN, keys, [str(most), pattern, cursor])
            yield _read_groups(text, known)
            if cursor == "0":
                return
            await self._rest()


async def _give(report: UsageReport, day: str, groups: Iterable[Sums]) -> None:
    groups = iter(groups)
    while some := list(islice(groups, ADDED_AT_ONCE)):
        report.add(day, some)
        await asyncio.sleep(0)


def _pattern(key: str) -> str:
    """The pattern of the groups of a key, as Redis reads patterns."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", key) + SEPARATOR + ALL


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
