"""Reports: usage, calls, refused requests, and the state of every window."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import web

from gateway import untrusted_json
from gateway.chunked import portions
from gateway.errors import NotFound
from gateway.pipeline import Services
from gateway.quota import window_status
from gateway.records import Record, WindowStatus
from gateway.reports.calls import call_members, format_calls_csv, refusal_members
from gateway.reports.latency import (
    MEASURED_CALLS,
    bounds,
    format_latency_csv,
    latency_rows,
    measures_of_calls,
    read_measure_groups,
)
from gateway.reports.usage import LabelReport, format_csv, label_in, read_groups, read_period, stored_groups
from gateway.store import (
    NARROWING_GROUPS,
    CallFilter,
    Ledger,
    RefusalEntry,
    RefusalQuery,
    ReportReader,
    ReportScope,
    RequestStore,
    Where,
    attribution_in,
)
from gateway.store.call_filter import read_status, read_tag
from gateway.store.report_rows import call_row

from .common import (
    CSV,
    SCOPE,
    AdminAccess,
    bad,
    csv_response,
    given,
    limit_of,
    listed,
    moment_of,
    page_limit_of,
    page_of,
    parts_of,
    shape_of,
    shown,
    streamed,
    today_of,
    whole_list,
)
from .operations import MAX_ROWS
from .permissions import Scope

WINDOWS_AT_ONCE = 50
"""Number of windows that one request reads from the store; half a millisecond of the event loop."""


class ReportEndpoints:
    """`/admin/api/usage`, `/latency`, `/calls` and `/quotas`."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        get = self._access.get
        return [
            get("/admin/api/usage", self.show_usage),
            get("/admin/api/latency", self.show_latency),
            get("/admin/api/calls", self.list_calls),
            get("/admin/api/quotas", self.list_quotas),
        ]

    async def show_usage(self, request: web.Request) -> web.StreamResponse:
        """Sums of days or hours: `group_by=key,model,day&since=2026-11-01&until=2026-11-20T14&format=json|csv`; all
        rows, or a page: `limit=1000&after=NEXT`."""
        query = request.query
        try:
            groups = read_groups(query.get("group_by", "key"))
        except ValueError as error:
            raise bad("group_by", str(error)) from None
        since, until = _period(request, "since"), _period(request, "until")
        shape, limit, after = shape_of(query), limit_of(query), _groups_behind(query, len(groups))
        reports, only = parts_of(request).reports, await self._access.reach(request)
        where = _narrowed_to(query, groups)
        if label_in(groups) is not None:
            of_keys = reports.usage_portions(stored_groups(groups), since, until, only, where)
            rows = await self._by_label(groups, of_keys, request[SCOPE], after)
            limit = limit or (len(rows) if after is None else page_limit_of(query))
        elif limit is None and after is None:
            every_row = reports.usage_portions(groups, since, until, only, where)
            if shape == "csv":
                return await streamed(request, CSV, _usage_csv(groups, every_row))
            return await whole_list(request, every_row)
        else:
            limit = limit or page_limit_of(query)
            rows = await reports.usage(groups, since, until, limit + 1, after, only, where)
        if shape == "csv":
            return csv_response(await asyncio.to_thread(format_csv, groups, rows[:limit]))
        follows = json.dumps([rows[limit - 1][name] for name in groups]) if len(rows) > limit else None
        return await page_of(rows[:limit], follows)

    async def _by_label(
        self,
        groups: Sequence[str],
        of_keys: AsyncIterator[list[dict[str, Any]]],
        scope: Scope,
        after: Sequence[str] | None,
    ) -> list[dict[str, Any]]:
        report = LabelReport(groups)
        async for rows in of_keys:
            labels = await self._access.registry.labels_of(report.without_label(rows), scope.covers)
            await asyncio.to_thread(report.add, rows, labels)
        return await asyncio.to_thread(report.rows, after)

    async def show_latency(self, request: web.Request) -> web.StreamResponse:
        """Percentiles and failed attempts: `group_by=upstream,hour&since=2026-11-20T00&format=json|csv`; of one key or
        team: `key=ID`, `team=NAME`."""
        query = request.query
        try:
            groups = read_measure_groups(query.get("group_by", "model"))
        except ValueError as error:
            raise bad("group_by", str(error)) from None
        since, until, shape = _period(request, "since"), _period(request, "until"), shape_of(query)
        reports, only = parts_of(request).reports, await self._access.reach(request)
        where = _narrowed_to(query, groups)
        usage = [row async for some in reports.usage_portions(groups, since, until, only, where) for row in some]
        if only is None and not where:
            measures = await reports.measures(groups, since, until)
        else:
            begins, ends = bounds(since, until)
            wanted = CallFilter(team=query.get("team"), since=begins, until=ends)
            calls = await reports.calls(MEASURED_CALLS, query.get("key"), None, only, wanted)
            measures = await asyncio.to_thread(measures_of_calls, groups, calls)
        rows = await asyncio.to_thread(latency_rows, groups, usage, measures)
        if shape == "csv":
            return csv_response(await asyncio.to_thread(format_latency_csv, groups, rows))
        return await listed(rows)

    async def list_calls(self, request: web.Request) -> web.StreamResponse:
        """Usage records, the newest first: `limit=100&before=NEXT&key=ID&model=NAME&status=5xx&since=2h&format=json`. A
        CSV without a limit has all records."""
        query, reports = request.query, parts_of(request).reports
        shape, key, before = shape_of(query), query.get("key"), query.get("before")
        named = {name: query[name] for name in ("id", "team", "model", "upstream", "ended", "user") if name in query}
        wanted = CallFilter(
            **named, status=given(query, "status", read_status), tag=given(query, "tag", read_tag),
            since=moment_of(request, "since"), until=moment_of(request, "until"),
        )  # fmt: skip
        read = partial(_page_of_calls, reports, key=key, only=await self._access.reach(request), wanted=wanted)
        if shape == "csv" and limit_of(query) is None:
            return await streamed(request, CSV, _every_call_csv(read, before))
        calls, follows = await read(page_limit_of(query), before)
        if shape == "csv":
            return csv_response(await asyncio.to_thread(partial(format_calls_csv, calls, has_heading=True)))
        return await page_of(map(call_members, calls), follows)

    async def list_quotas(self, request: web.Request) -> web.StreamResponse:
        """Every window and its state: `key=ID` (with `binding=true` also those of its owner, its team and the gateway),
        `team=NAME` (its own, and those of its keys); all of them, or a page: `limit=100&after=KEY`."""
        query, parts = request.query, parts_of(request)
        if "binding" in query:
            if query["binding"] != "true" or "key" not in query:
                raise bad("binding", "expected true, together with 'key'")
            return await whole_list(request, self._binding(parts, query["key"], request[SCOPE]))
        wanted = {name: query[name] for name in ("key", "team") if name in query}
        limit, after = limit_of(query), query.get("after", "")
        if limit is None and not after:
            return await whole_list(request, self._windows(parts, wanted, after, request[SCOPE]))
        rows: list[dict[str, Any]] = []
        keys: list[str] = []
        limit = limit or page_limit_of(query)
        async for some in self._windows(parts, wanted, after, request[SCOPE]):
            for row in some:
                if row["key"] is not None and row["key"] not in keys[-1:]:
                    if len(keys) == limit:
                        return await page_of(rows, keys[-1])
                    keys.append(row["key"])
                rows.append(row)
        return await page_of(rows, None)

    async def _binding(self, parts: Services, key_id: str, scope: Scope) -> AsyncIterator[list[dict[str, Any]]]:
        """The rows of all windows that bind this key."""
        terms, now = parts.key_cache.terms, parts.clock.now()
        async for keys in self._access.registry.every_key(key_id, is_meant=scope.covers):
            for key in keys:
                binding = [each for each in window_status.binding_windows(terms, key, now) if _may_see(each, scope)]
                async for rows in _states(parts.accounting.ledger, binding, now):
                    yield rows

    async def _windows(
        self, parts: Services, wanted: Mapping[str, str], after: str, scope: Scope
    ) -> AsyncIterator[list[dict[str, Any]]]:
        """The rows of windows: those of the gateway and of teams, unless `after` names a key; then those of keys behind
        it, by id, with those of their owners."""
        # There may be tens of thousands of windows, and calls run on this event loop: what a thread can do is done
        # there, and the loop handles a few windows at a time.
        terms, now, of_people = parts.key_cache.terms.anew(), parts.clock.now(), set[str]()
        if not after:
            shared = await asyncio.to_thread(_wanted, window_status.shared_windows(terms, now), wanted, scope)
            of_people |= {each.window.id for each in shared}
            async for rows in _states(parts.accounting.ledger, shared, now):
                yield rows
        async for keys in self._access.registry.every_key(wanted.get("key"), after, scope.covers, scope.groups):
            some_keys = [each for each in keys if wanted.get("team") in (None, each.team)]
            own = await asyncio.to_thread(_wanted, window_status.own_windows(terms, some_keys, now, of_people), wanted)
            async for rows in _states(parts.accounting.ledger, [each for each in own if _may_see(each, scope)], now):
                yield rows


async def _states(
    ledger: Ledger, windows: Sequence[window_status.Owned], now: float
) -> AsyncIterator[list[dict[str, Any]]]:
    for some in portions(windows, WINDOWS_AT_ONCE):
        found: list[WindowStatus] = await ledger.window_statuses([owned.window for owned in some], now)
        yield [
            {"key": owned.key, "team": owned.team, "person": owned.person, **window_status.row(status, now)}
            for owned, status in zip(some, found, strict=True)
        ]


def _may_see(owned: window_status.Owned, scope: Scope) -> bool:
    """Whether a window is within reach: a lead sees what a person uses in her team, not what she uses in others."""
    return owned.person is None or owned.team is not None or scope.reach != "team"


def _wanted(
    windows: Iterable[window_status.Owned], wanted: Mapping[str, str], scope: Scope | None = None
) -> list[window_status.Owned]:
    """All of them, or those of one key, or of one team and its keys; with a scope, those of its teams."""
    if scope is not None and not scope.is_all:
        windows = [each for each in windows if each.team is not None and scope.covers_team(each.team)]
    return [each for each in windows if wanted.items() <= {"key": each.key, "team": each.team}.items()]


async def _usage_csv(groups: Sequence[str], portions: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[bytes]:
    yield format_csv(groups, []).encode()
    async for rows in portions:
        yield (await asyncio.to_thread(partial(format_csv, groups, rows, has_heading=False))).encode()


async def _page_of_calls(
    reports: ReportReader, limit: int, before: str | None, *, key: str | None, only: ReportScope | None,
    wanted: CallFilter,
) -> tuple[list[Mapping[str, Any]], str | None]:  # fmt: skip
    """Rows of a page, and the position of the next page."""
    try:
        calls = await reports.calls(limit + 1, key, before, only, wanted)
    except ValueError:
        raise bad("before", "expected the value 'next' of a page") from None
    return calls[:limit], calls[limit - 1]["position"] if len(calls) > limit else None


async def _every_call_csv(
    read: Callable[[int, str | None], Awaitable[tuple[list[Mapping[str, Any]], str | None]]], before: str | None
) -> AsyncIterator[bytes]:
    yield format_calls_csv([], has_heading=True).encode()
    follows = before
    while True:
        calls, follows = await read(MAX_ROWS, follows)
        yield (await asyncio.to_thread(partial(format_calls_csv, calls, has_heading=False))).encode()
        if follows is None:
            return


def _groups_behind(query: Mapping[str, str], number: int) -> list[str] | None:
    """The groups of the last row of the page before."""
    if (text := query.get("after")) is None:
        return None
    try:
        groups = untrusted_json.parse(text)
    except ValueError:
        groups = None
    if not isinstance(groups, list) or len(groups) != number or not all(isinstance(name, str) for name in groups):
        raise bad("after", "expected the value 'next' of a page with the same 'group_by'")
    return groups


def _narrowed_to(query: Mapping[str, str], groups: Sequence[str]) -> Where:
    """The conditions of a usage report."""
    if "upstream" in query and (by := attribution_in(groups)) is not None:
        raise bad("upstream", f"sums by {by} are not kept by upstream")
    return tuple([(name, query[name]) for name in NARROWING_GROUPS if name in query])


def _period(request: web.Request, name: str) -> str | None:
    return given(request.query, name, lambda text: read_period(text, today_of(request)))


class RefusalEndpoints:
    """Serves the endpoints `/admin/api/refusals` and `/admin/api/requests/{request}`."""

    def __init__(self, access: AdminAccess, store: RequestStore) -> None:
        self._access = access
        self._store = store

    def routes(self) -> list[web.RouteDef]:
        get = self._access.get
        return [get("/admin/api/refusals", self.list_refusals), get("/admin/api/requests/{request}", self.show_request)]

    async def list_refusals(self, request: web.Request) -> web.StreamResponse:
        """The newest refusals first: `limit=100&before=NEXT&key=ID&code=NAME&since=1d`."""
        query, limit = request.query, page_limit_of(request.query)
        named = {name: query[name] for name in ("key", "code", "id", "team", "model", "user") if name in query}
        wanted = RefusalQuery(
            **named, only=await self._access.reach(request), status=given(query, "status", read_status),
            since=moment_of(request, "since"), until=moment_of(request, "until"), tag=given(query, "tag", read_tag),
        )  # fmt: skip
        try:
            found = await self._store.refusals(limit + 1, query.get("before"), wanted)
        except ValueError:
            raise bad("before", "expected the value 'next' of a page") from None
        rows = [_seen(each.entry, request[SCOPE]) for each in found[:limit]]
        return await page_of(rows, found[limit - 1].position if len(found) > limit else None)

    async def show_request(self, request: web.Request) -> web.StreamResponse:
        """The call or the refusal with this `x-request-id`."""
        request_id = request.match_info["request"]
        found = await self._store.find_request(request_id)
        only = await self._access.reach(request)
        if found is not None and (only is None or only.has(found.key, found.team)):
            if isinstance(found, Record):
                return shown({"call": call_members(call_row(found, "")), "refusal": None})
            return shown({"call": None, "refusal": _seen(found, request[SCOPE])})
        raise NotFound(
            f"There is no call and no refusal with the id '{request_id[:100]}'. Refusals are kept for 7 days.",
            code="request_not_found",
        )


def _seen(entry: RefusalEntry, scope: Scope) -> dict[str, Any]:
    """The members of a refusal. A lead does not see what a person uses in other teams."""
    if scope.reach == "team" and (entry.limit or "").startswith("person:"):
        entry = entry._replace(message="This call was beyond a quota of its person.")
    return refusal_members(entry)
