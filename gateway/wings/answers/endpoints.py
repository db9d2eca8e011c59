"""The endpoints of the readings."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from gateway.config.sections import folded_name
from gateway.pipeline import Services
from gateway.quota import window_status
from gateway.quota.limit_headers import limit_name
from gateway.reports.table import utc
from gateway.store import NARROWING_GROUPS, RefusalQuery, ReportScope, RequestStore, StoreUnavailable
from gateway.web.admin.common import SCOPE, AdminAccess, bad, csv_response, parts_of, shape_of, shown
from gateway.web.admin.permissions import read_permissions
from gateway.web.admin.whole_gateway import Ask
from gateway.web.wings import WingEndpoints

from . import bills, events, minutes, problems
from .failing import runs
from .money import Budgets, budgets_of, first_day, format_money_csv, money
from .operations import OPERATIONS

FRESH_S = 3.0
"""The age up to which an answer for the whole gateway is returned again, however many dashboards are open."""
REFUSALS_READ = 1000
DAYS_READ = 7
"""Days of refusals and of unknown prices; refusals are kept no longer."""
USUAL_DAYS = 28
CALLS_AT_ONCE = 500
PAGES_READ = 40
"""Pages of the newest calls that one reading of minutes takes at most: 20,000 calls."""
READER_S = 1.0
"""A worker that only reads leaves an empty post for so long."""
KEYS_WATCHED = 20
"""The keys that spent most today are compared with their usual day."""


class AnswerEndpoints:
    """Serves the endpoints `/admin/api/money`, `/admin/api/problems` and `/admin/api/minutes`."""

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
        self._reading = asyncio.Lock()
        """Minutes are read once at a time."""
        self._minutes = minutes.Minutes()
        self._minutes_read = -FRESH_S

    def routes(self) -> Sequence[web.RouteDef]:
        get = self._access.get
        return [
            get("/admin/api/money", self.show_money),
            get("/admin/api/problems", self.show_problems),
            get("/admin/api/minutes", self.show_minutes),
            get("/admin/api/events", self.show_events),
        ]

    async def show_events(self, request: web.Request) -> web.StreamResponse:
        """The deploys and reloads of the last weeks."""
        posts = await parts_of(request).accounting.ledger.exchange(events.PLACE, _reader(), "", READER_S)
        rows = await asyncio.to_thread(lambda: events.rows_of(events.notes_in(posts.values())))
        return shown({"object": "events", "data": rows})

    async def show_minutes(self, request: web.Request) -> web.StreamResponse:
        """Sums and latency by minute: `group_by=minute,key&since=2026-11-20T14:05&format=json|csv`, narrowed by
        `key`, `team`, `model`, `upstream`."""
        query, shape = request.query, shape_of(request.query)
        name = "group_by"
        try:
            groups = minutes.read_groups(query.get(name, "minute"))
            period = {}
            for name in [each for each in ("since", "until") if each in query]:
                period[name] = minutes.read_minute(query[name])
        except ValueError as error:
            raise bad(name, str(error)) from None
        where = [(each, query[each]) for each in NARROWING_GROUPS if each in query]
        wanted = minutes.MinuteQuery(groups, **period, only=await self._access.reach(request), where=where)
        async with self._reading:
            if time.monotonic() - self._minutes_read >= FRESH_S:
                await self._read_minutes(parts_of(request))
                self._minutes_read = time.monotonic()
        rows = await asyncio.to_thread(self._minutes.rows, wanted)
        if shape == "csv":
            return csv_response(await asyncio.to_thread(minutes.format_minutes_csv, groups, rows))
        times = {"at": utc(parts_of(request).clock.now()), "since": utc(self._minutes.whole_from)}
        return shown({"object": "minutes", **times, "data": rows})

    async def _read_minutes(self, parts: Services) -> None:
        """Read the calls that ended since the last reading."""
        at, before, is_more = parts.clock.now(), None, True
        found, self._minutes = self._minutes, minutes.Minutes()  # a reading that fails leaves nothing half read
        for _ in range(PAGES_READ):
            rows = await parts.reports.calls(CALLS_AT_ONCE, None, before)
            is_more = await asyncio.to_thread(found.page, rows, at)
            if not is_more:
                break
            before = rows[-1]["position"]
        await asyncio.to_thread(found.join, at, is_cut=is_more)
        self._minutes = found

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
        found += await self._unusual(request, parts, only, at)
        week = datetime.fromtimestamp(at, UTC) - timedelta(days=DAYS_READ - 1)
        if request[SCOPE].is_all:
            found += bills.of_posts(await parts.accounting.ledger.exchange(bills.PLACE, _reader(), "", READER_S), at)
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

    async def _unusual(
        self, request: web.Request, parts: Services, only: ReportScope | None, at: float
    ) -> list[problems.Problem]:
        """The keys that spend a multiple of their usual day, and the persons whose keys together do."""
        days = _Days(parts, only, at)
        dearest = await days.dearest_keys()
        found = [each for name in dearest if (each := await days.problem(name, [name])) is not None]
        unusual = {each.subject for each in found}
        facts = [await self._access.registry.key_facts(name) for name in dearest]
        for owner in sorted({folded_name(each.owner) for each in facts if each is not None and each.owner}):
            every = self._access.registry.every_key(is_meant=request[SCOPE].covers, groups=(("owner", owner),))
            # The store's keys are narrowed to hers, those of the file are not.
            hers = [key.id async for some in every for key in some if folded_name(key.owner or "") == owner]
            keys = hers[:KEYS_WATCHED]
            if len(keys) > 1 and unusual.isdisjoint([f"key:{key}" for key in keys]):
                found += [each for each in [await days.problem(owner, keys)] if each is not None]
        return found


class _Days:
    """The spend of keys, today and on the days of the last weeks."""

    def __init__(self, parts: Services, only: ReportScope | None, at: float) -> None:
        now = datetime.fromtimestamp(at, UTC)
        self._parts, self._only, self._at = parts, only, at
        self._today, self._since = now.date().isoformat(), (now - timedelta(days=USUAL_DAYS)).date().isoformat()

    async def dearest_keys(self) -> list[str]:
        """The keys that spent most today, without those that spent next to nothing."""
        rows = await self._parts.reports.usage(("key",), self._today, self._today, None, None, self._only)
        spent = sorted([row for row in rows if row["cost_usd"]], key=lambda row: -row["cost_usd"])[:KEYS_WATCHED]
        return [row["key"] for row in spent if row["cost_usd"] >= problems.LEAST_USD]

    async def problem(self, name: str, keys: Sequence[str]) -> problems.Problem | None:
        """The problem of one key, or of a person with several."""
        by_day = await self._sums("day", self._since, self._today, keys)
        usual = problems.usual_day(by_day, self._today)
        if usual is None or by_day.get(self._today, 0.0) < problems.TIMES * usual:
            return None
        hours = await self._sums("hour", f"{self._today}T00", f"{self._today}T23", keys)
        return problems.of_spend(name, by_day, hours, self._at, keys if len(keys) > 1 else ())

    async def _sums(self, step: str, since: str, until: str, keys: Sequence[str]) -> Mapping[str, float]:
        sums = defaultdict[str, float](float)
        for key in keys:
            rows = await self._parts.reports.usage((step,), since, until, None, None, self._only, (("key", key),))
            for row in rows:
                sums[row[step]] += row["cost_usd"] or 0.0
        return sums


def _reader() -> str:
    """A name under which posts of others are read."""
    return f"reader-{uuid.uuid4().hex}"


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
    GET    /admin/api/minutes   all       team  own     all     own
    GET    /admin/api/events    all       team  -       all     -
    """),
    "admin",
)
