"""Refused requests, and one request by its id."""

from __future__ import annotations

from aiohttp import web

from gateway.errors import NotFound
from gateway.records import Record
from gateway.reports.calls import call_members
from gateway.reports.refusals import refusal_members
from gateway.store import RefusalQuery, RequestStore
from gateway.store.report_rows import call_row

from .common import AdminAccess, bad, moment_of, page_limit_of, page_of, shown, status_of, tag_of


class RefusalEndpoints:
    """`/admin/api/refusals` and `/admin/api/requests/{request}`."""

    def __init__(self, access: AdminAccess, store: RequestStore) -> None:
        self._access = access
        self._store = store

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        get = self._access.get
        return [
            get("/admin/api/refusals", self.list_refusals),
            get("/admin/api/requests/{request}", self.show_request),
        ]

    async def list_refusals(self, request: web.Request) -> web.StreamResponse:
        """The newest refusals first: `limit=100&before=NEXT&key=ID&code=NAME&since=1d`."""
        query, limit = request.query, page_limit_of(request.query)
        named = {name: query[name] for name in ("key", "code", "id", "team", "model", "user") if name in query}
        wanted = RefusalQuery(
            **named, only=await self._access.reach(request), status=status_of(query),
            since=moment_of(query, "since"), until=moment_of(query, "until"), tag=tag_of(query),
        )  # fmt: skip
        try:
            found = await self._store.refusals(limit + 1, query.get("before"), wanted)
        except ValueError:
            raise bad("before", "expected the value 'next' of a page") from None
        rows = [refusal_members(each.entry) for each in found[:limit]]
        return await page_of(rows, found[limit - 1].position if len(found) > limit else None)

    async def show_request(self, request: web.Request) -> web.StreamResponse:
        """The call or the refusal with this `x-request-id`."""
        request_id = request.match_info["request"]
        found = await self._store.find_request(request_id)
        only = await self._access.reach(request)
        if found is not None and (only is None or only.has(found.key, found.team)):
            if isinstance(found, Record):
                return shown({"call": call_members(call_row(found, "")), "refusal": None})
            return shown({"call": None, "refusal": refusal_members(found)})
        raise NotFound(
            f"There is no call and no refusal with the id '{request_id[:100]}'. Refusals are kept for 7 days.",
            code="request_not_found",
        )
