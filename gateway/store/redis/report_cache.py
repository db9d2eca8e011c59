"""A cache of usage reports, each valid as long as none of its days changes.

Most days of a report are past and no longer change, but a settlement may come late. So the cache does not go by the
clock: Redis reports whether a day was written to since it was read (`marks.lua`), as fresh as a reading.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from gateway.store import ReportScope, Where
from gateway.store.report_rows import UsageReport

from .connection import RedisConnection, Script
from .daily_sums import DailySumReader

MARKS = Script.read("marks.lua")

REMEMBERED = 20_000
"""Largest number of cached rows and marks of days: about ten megabytes."""

REMEMBERED_S = 3600.0
"""While gateways are replaced, an older one may settle a late call and leave no mark."""

ReportQuery = tuple[tuple[str, ...], tuple[str, ...], ReportScope | None, Where]
"""The groups of a report, its days, its scope and its conditions."""


class _Remembered(NamedTuple):
    report: UsageReport
    marks: str
    """The marks of the report's days when they were read."""
    read_at: float


class ReportCache:
    """Caches the reports of one store. A report is reused for at most `REMEMBERED_S`, while the marks of its days are
    unchanged."""

    def __init__(self, link: RedisConnection, base: str, reader: DailySumReader) -> None:
        self._link = link
        self._base = base
        self._reader = reader
        self._remembered: dict[ReportQuery, _Remembered] = {}
        """The most recently used report is last."""

    async def report(
        self, group_by: Sequence[str], days: Sequence[str], only: ReportScope | None = None, where: Where = ()
    ) -> UsageReport:
        """The sums of these days. Raises `StoreUnavailable`, or what redis-py finds fault with."""
        query = (tuple(group_by), tuple(days), only, where)
        marks = await self._marks(days)
        known = self._remembered.pop(query, None)
        if known is not None and known.marks == marks and time.monotonic() - known.read_at < REMEMBERED_S:
            self._remembered[query] = known
            return known.report
        read_at = time.monotonic()
        report = UsageReport(group_by, only, where)
        await self._reader.add(report, days)
        report.close()
        if await self._marks(days) == marks:
            self._remember(query, _Remembered(report, marks, read_at))
        return report

    def _remember(self, query: ReportQuery, read: _Remembered) -> None:
        self._remembered[query] = read
        sizes = {each: len(known.report) + len(each[1]) for each, known in self._remembered.items()}
        total = sum(sizes.values())
        for oldest, size in sizes.items():
            if total <= REMEMBERED:
                return
            del self._remembered[oldest]
            total -= size

    async def _marks(self, days: Sequence[str]) -> str:
        if not days:
            return ""
        marks: str = await self._link.run(MARKS, [f"{self._base}sums:{day}" for day in days], [])
        return marks
