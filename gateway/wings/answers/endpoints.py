"""The endpoints of the two readings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from gateway.identity.permissions import read_permissions
from gateway.pipeline import Services
from gateway.quota import window_status
from gateway.quota.limit_headers import limit_name
from gateway.reports.table import utc
from gateway.store import RefusalQuery, ReportScope, RequestStore, StoreUnavailable
from gateway.web.admin.common import SCOPE, AdminAccess, csv_response, parts_of, shape_of, shown
from gateway.web.admin.whole_gateway import Ask
from gateway.web.wings import WingEndpoints

from . import problems
from .failing import runs
from .money import Budgets, budgets_of, first_day, format_money_csv, money
from .operations import OPERATIONS

FRESH_S = 3.0
"""The age up to which an answer for the whole gateway is returned again, however many dashboards are open."""
REFUSALS_READ = 1000
DAYS_READ = 7
"""Days of refusals and of unknown prices; refusals are kept no longer."""
USUAL_DAYS = 28
KEYS_WATCHED = 20
"""The keys that spent most today are compared with their usual day."""


class AnswerEndpoints:
    """Serves the endpoints `/admin/api/money` and `/admin/api/problems`."""

    def __init__(self, access: AdminAccess, ask: Ask, store: RequestStore) -> None:
        self._access = access
        self._ask = ask
        self._store = store
        self._away_since: float | None = None
        """When a reading failed first because the store did not answer; None: the last one succeeded."""
        self._lock = asyncio.Lock()
        """One answer is made at a time; the requests that wait for it return the same."""
        self._made = -FRESH_S
        self._problems_of_all: dict[str, Any] = {}

    def routes(self) -> Sequence[web.RouteDef]:
        get = self._access.get
        return [get("/admin/api/money", self.show_money), get("/admin/api/problems", self.show_problems)]

    async def show_money(self, request: web.Request) -> web.StreamResponse:
        """The spend of the running month: `format=json|csv`."""
        shape, parts = shape_of(request.query), parts_of(request)
        now = datetime.fromtimestamp(parts.clock.now(), UTC)
        only = await self._access.reach(request)
        portions = parts.reports.usage_portions(("day", "team"), first_day(now), None, only, ())
        rows = [row async for some in portions for row in some]
        scope = request[SCOPE]
        budgets = await asyncio.to_thread(_budgets, parts, now.timestamp())
        if not scope.is_all:
            budgets = Budgets(None, {name: usd for name, usd in budgets.teams.items() if scope.covers_team(name)})
        answer = await asyncio.to_thread(money, rows, budgets, now)
        return csv_response(format_money_csv(answer)) if shape == "csv" else shown(answer)

    async def show_problems(self, request: web.Request) -> web.StreamResponse:
        """The present problems; those of a lead are of her team alone."""
        if not request[SCOPE].is_all:
            return shown(await self._problems(request))
        async with self._lock:
            if time.monotonic() - self._made >= FRESH_S:
                self._problems_of_all = await self._problems(request)
                self._made = time.monotonic()
            return shown(self._problems_of_all)

    async def _problems(self, request: web.Request) -> dict[str, Any]:
        parts, is_all = parts_of(request), request[SCOPE].is_all
        at = parts.clock.now()
        failing = await self._failing(parts, at) if is_all else []
        found = problems.of_upstreams(failing)
        try:
            found += await self._of_the_store(request, parts, at)
            self._away_since = None
        except StoreUnavailable:
            self._away_since = self._away_since or at
            if not is_all:
                raise
            found.append(problems.of_store(self._away_since, at, parts.accounting.ledger.pending))
        times = [run | {"since": utc(run["since"]), "last": utc(run["last"])} for run in failing]
        return {"object": "problems", "at": utc(at), "data": problems.rows_of(found), "upstreams": times}

    async def _failing(self, parts: Services, at: float) -> list[dict[str, Any]]:
        reports = await self._ask("everyone", what="upstreams")
        return runs(reports or [], parts.config.upstreams, at)

    async def _of_the_store(self, request: web.Request, parts: Services, at: float) -> list[problems.Problem]:
        only = await self._access.reach(request)
        wanted = RefusalQuery(code=problems.SPENT, since=at - DAYS_READ * 86_400, only=only)
        refusals = [each.entry for each in await self._store.refusals(REFUSALS_READ, None, wanted)]
        spent = await self._spent(request, parts, {each.key for each in refusals if each.key}, at)
        found = problems.of_quotas(refusals, spent, at)
        found += await _unusual(parts, only, at)
        week = datetime.fromtimestamp(at, UTC) - timedelta(days=DAYS_READ - 1)
        by_model = parts.reports.usage_portions(("day", "model"), week.date().isoformat(), None, only, ())
        return found + problems.of_prices([row async for some in by_model for row in some])

    async def _spent(self, request: web.Request, parts: Services, keys: Iterable[str], at: float) -> set[str]:
        """The limits of these keys that have nothing left, as refusals name them."""
        terms, found = parts.key_cache.terms, set[str]()
        for key_id in sorted(keys)[:KEYS_WATCHED]:
            async for some in self._access.registry.every_key(key_id, is_meant=request[SCOPE].covers):
                for key in some:
                    windows = [each.window for each in window_status.binding_windows(terms, key, at)]
                    statuses = await parts.accounting.ledger.window_statuses(windows, at)
                    found |= {limit_name(each.window) for each in statuses if each.remaining <= 0}
        return found


async def _unusual(parts: Services, only: ReportScope | None, at: float) -> list[problems.Problem]:
    """The keys that spend a multiple of their usual day."""
    now = datetime.fromtimestamp(at, UTC)
    today, since = now.date().isoformat(), (now - timedelta(days=USUAL_DAYS)).date().isoformat()
    rows = await parts.reports.usage(("key",), today, today, None, None, only)
    dearest = sorted([row for row in rows if row["cost_usd"]], key=lambda row: -row["cost_usd"])[:KEYS_WATCHED]
    found = []
    for name in [row["key"] for row in dearest if row["cost_usd"] >= problems.LEAST_USD]:
        where = (("key", name),)
        days = await parts.reports.usage(("day",), since, today, None, None, only, where)
        by_day = {row["day"]: row["cost_usd"] or 0.0 for row in days}
        usual = problems.usual_day(by_day, today)
        if usual is not None and by_day.get(today, 0.0) >= problems.TIMES * usual:
            hours = await parts.reports.usage(("hour",), f"{today}T00", f"{today}T23", None, None, only, where)
            found.append(problems.of_spend(name, by_day, {row["hour"]: row["cost_usd"] or 0.0 for row in hours}, at))
    return [each for each in found if each is not None]


def _budgets(parts: Services, now: float) -> Budgets:
    """The quotas of money per month that hold now."""
    return budgets_of([each.window for each in window_status.shared_windows(parts.key_cache.terms.anew(), now)])


ENDPOINTS = WingEndpoints(
    OPERATIONS,
    lambda parts: AnswerEndpoints(parts.access, parts.ask, parts.store).routes(),
    read_permissions("""
                                operator  lead  member  viewer  key
    GET    /admin/api/money     all       team  -       all     -
    GET    /admin/api/problems  all       team  -       all     -
    """),
    "admin",
)
