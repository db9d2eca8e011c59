"""The admin API: what was used, by whom, and what is left."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web
from pydantic import SecretStr

from gateway.errors import InvalidRequest, Unavailable
from gateway.pipeline import Parts
from gateway.rules import standings
from gateway.rules.pricing import read_price, usd
from gateway.store import StoreAway
from gateway.usage_report import read_day, read_groups, spell_csv, spell_json

from .ops import check_token
from .responses import Whole, json_response

WINDOWS_AT_ONCE = 500
"""Of a list of quotas, asked of the store."""


class Admin:
    """The endpoints behind the admin token. They read the store, and keep nothing."""

    def __init__(self, parts: Parts, token: SecretStr) -> None:
        self._parts = parts
        self._token = token

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        return [
            web.get("/admin/api/usage", self.show_usage),
            web.get("/admin/api/calls", self.list_calls),
            web.get("/admin/api/quotas", self.list_quotas),
        ]

    async def show_usage(self, request: web.Request) -> web.StreamResponse:
        """Daily sums: `group_by=key,model,day&since=2026-11-01&until=2026-11-30&limit=10&format=json|csv`."""
        check_token(request, self._token)
        query = request.query
        try:
            groups = read_groups(query.get("group_by", "key"))
        except ValueError as error:
            raise _bad("group_by", str(error)) from None
        since, until = _day(query, "since"), _day(query, "until")
        shape = query.get("format", "json")
        if shape not in ("json", "csv"):
            raise _bad("format", "expected json or csv")
        limit = _limit(query.get("limit"))
        try:
            rows = await self._parts.books.ledger.usage(groups, since, until, limit)
        except StoreAway:
            raise _away() from None
        if shape == "csv":
            text = await asyncio.to_thread(spell_csv, groups, rows)
            return Whole(200, [("Content-Type", "text/csv; charset=utf-8")], text.encode())
        return await _listed(rows)

    async def list_calls(self, request: web.Request) -> web.StreamResponse:
        """The newest usage records: `limit=100&key=ID`."""
        check_token(request, self._token)
        limit = _limit(request.query.get("limit")) or 100
        try:
            calls = await self._parts.books.ledger.calls(limit, request.query.get("key"))
        except StoreAway:
            raise _away() from None
        return await _listed(map(_shown, calls))

    async def list_quotas(self, request: web.Request) -> web.StreamResponse:
        """Every limit and what is used of it: `key=ID`, `team=NAME` (its own, and those of its keys)."""
        check_token(request, self._token)
        wanted = {name: request.query[name] for name in ("key", "team") if name in request.query}
        parts, now = self._parts, time.time()
        # There may be tens of thousands of windows, and there are calls under way on this loop: what can be done in
        # a thread is, and nothing is done to all of them at once.
        found = await asyncio.to_thread(_windows, parts, wanted, now)
        rows: list[dict[str, Any]] = []
        for start in range(0, len(found), WINDOWS_AT_ONCE):
            some = found[start : start + WINDOWS_AT_ONCE]
            try:
                told = await parts.books.ledger.standings([owned.window for owned in some], now)
            except StoreAway:
                raise _away() from None
            for owned, standing in zip(some, told, strict=True):
                rows.append({"key": owned.key, "team": owned.team, **standings.row(standing, now)})
        return await _listed(rows)


def _windows(parts: Parts, wanted: Mapping[str, str], now: float) -> list[standings.Owned]:
    """The windows of everybody, or of one key, or of one team and its keys."""
    bound = [key for key in parts.keys.values() if wanted.items() <= {"key": key.id, "team": key.team}.items()]
    owned = standings.every_window(parts.config, bound, now)
    return [each for each in owned if wanted.items() <= {"key": each.key, "team": each.team}.items()]


async def _listed(rows: Iterable[Mapping[str, Any]]) -> Whole:
    """The rows as `{"data": [...]}`; spelt in a thread, because there may be very many."""
    return json_response(f'{{"data": {await asyncio.to_thread(spell_json, rows)}}}'.encode())


def _shown(call: Mapping[str, Any]) -> dict[str, Any]:
    """A usage record in the words of the reports; prices in USD per million tokens."""
    shown = {name: value for name, value in call.items() if name not in ("usage", "label_model", "cost_nusd")}
    cost_nusd = call["cost_nusd"]
    tokens = {name: value for name, value in call["usage"].items() if name != "source"}
    price = call["price"]
    return {
        **shown,
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
        raise _bad(name, str(error)) from None


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise _bad("limit", "expected a number from 1")
    return int(text)


def _bad(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{name}': {what}.", param=name)


def _away() -> Unavailable:
    return Unavailable("The store does not answer.", code="store_unavailable")
