"""Reports: what was used, by whom, and what is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from gateway.chunked import portions
from gateway.quota import window_status
from gateway.quota.pricing import read_price, usd
from gateway.records import WindowStatus
from gateway.reports.usage import format_csv, read_day, read_groups
from gateway.web.responses import Whole

from .common import AdminAccess, bad, limit_of, listed, parts_of

WINDOWS_AT_ONCE = 50
"""Of a list of quotas, asked of the store; half a millisecond of ours."""


class ReportEndpoints:
    """`/admin/api/usage`, `/calls` and `/quotas`."""

    def __init__(self, office: AdminAccess) -> None:
        self._office = office

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        return [
            self._office.get("/admin/api/usage", self.show_usage),
            self._office.get("/admin/api/calls", self.list_calls),
            self._office.get("/admin/api/quotas", self.list_quotas),
        ]

    async def show_usage(self, request: web.Request) -> web.StreamResponse:
        """Daily sums: `group_by=key,model,day&since=2026-11-01&until=2026-11-30&limit=10&format=json|csv`."""
        query = request.query
        try:
            groups = read_groups(query.get("group_by", "key"))
        except ValueError as error:
            raise bad("group_by", str(error)) from None
        since, until = _day(query, "since"), _day(query, "until")
        shape = query.get("format", "json")
        if shape not in ("json", "csv"):
            raise bad("format", "expected json or csv")
        rows = await parts_of(request).books.ledger.usage(groups, since, until, limit_of(query))
        if shape == "csv":
            text = await asyncio.to_thread(format_csv, groups, rows)
            return Whole(200, [("Content-Type", "text/csv; charset=utf-8")], text.encode())
        return await listed(rows)

    async def list_calls(self, request: web.Request) -> web.StreamResponse:
        """The newest usage records: `limit=100&key=ID`."""
        limit = limit_of(request.query) or 100
        calls = await parts_of(request).books.ledger.calls(limit, request.query.get("key"))
        return await listed(map(_shown, calls))

    async def list_quotas(self, request: web.Request) -> web.StreamResponse:
        """Every limit and what is used of it: `key=ID`, `team=NAME` (its own, and those of its keys)."""
        wanted = {name: request.query[name] for name in ("key", "team") if name in request.query}
        parts, now, key = parts_of(request), time.time(), wanted.get("key")
        # There may be tens of thousands of windows, and there are calls under way on this loop: what can be done in
        # a thread is, and nothing is done to all of them at once.
        terms = parts.book.terms.anew()
        found = await asyncio.to_thread(_wanted, window_status.shared_windows(terms, now), wanted)
        async for keys in self._office.registry.every_key(key):
            some_keys = [each for each in keys if wanted.get("team") in (None, each.team)]
            found += await asyncio.to_thread(_wanted, window_status.own_windows(terms, some_keys, now), wanted)
        told: list[WindowStatus] = []
        for some in portions(found, WINDOWS_AT_ONCE):
            told += await parts.books.ledger.standings([owned.window for owned in some], now)
        return await listed(
            {"key": owned.key, "team": owned.team, **window_status.row(standing, now)}
            for owned, standing in zip(found, told, strict=True)
        )


def _wanted(windows: Iterable[window_status.Owned], wanted: Mapping[str, str]) -> list[window_status.Owned]:
    """Those of everybody, or of one key, or of one team and its keys."""
    return [each for each in windows if wanted.items() <= {"key": each.key, "team": each.team}.items()]


def _shown(call: Mapping[str, Any]) -> dict[str, Any]:
    """A usage record in the words of the reports; prices in USD per million tokens."""
    told = {name: value for name, value in call.items() if name not in ("usage", "label_model", "cost_nusd")}
    cost_nusd = call["cost_nusd"]
    tokens = {name: value for name, value in call["usage"].items() if name != "source"}
    price = call["price"]
    return {
        **told,
        **tokens,
        "usage_source": call["usage"]["source"],
        "cost_usd": None if cost_nusd is None else usd(cost_nusd),
        "price": None if price is None else read_price(price),
        "client_gone": call["ended"] == "client_gone",
    }


def _day(query: Mapping[str, str], name: str) -> str | None:
    try:
        return read_day(query[name]) if name in query else None
    except ValueError as error:
        raise bad(name, str(error)) from None
