"""People: their limits, their windows and their sessions. The same as `gateway people`, over HTTP."""

from __future__ import annotations

from aiohttp import hdrs, web

from . import request_bodies
from .common import AdminAccess, actor, changed, page_limit_of, paged, read, shown


class PeopleEndpoints:
    """`/admin/api/people`."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        return [self._access.change(hdrs.METH_POST, "/admin/api/people/{person}/end_sessions", self.end_sessions)]

    async def end_sessions(self, request: web.Request) -> web.StreamResponse:
        """End every session that this person has."""
        registry = self._access.changing(request)
        return changed(request, await registry.end_sessions(request.match_info["person"], actor(request)))
