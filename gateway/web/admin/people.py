"""The sessions of people. The same as `gateway people end-sessions`, over HTTP."""

from __future__ import annotations

from aiohttp import hdrs, web

from .common import AdminAccess, actor, changed


class PeopleEndpoints:
    """The handlers of sessions of people."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        return [self._access.change(hdrs.METH_POST, "/admin/api/people/{person}/end_sessions", self.end_sessions)]

    async def end_sessions(self, request: web.Request) -> web.StreamResponse:
        """End every session that this person has."""
        registry = self._access.changing(request)
        return changed(request, await registry.end_sessions(request.match_info["person"], actor(request)))
