"""People: their limits, their windows and their sessions. The same as `gateway people`, over HTTP."""

from __future__ import annotations

from aiohttp import hdrs, web

from . import request_bodies
from .common import AdminAccess, actor, changed, page_limit_of, paged, read, shown


class PeopleEndpoints:
    """Serves `/admin/api/people` and the paths below it."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        everyone, one = "/admin/api/people", "/admin/api/people/{person}"
        return [
            self._access.get(everyone, self.list_people),
            self._access.get(one, self.show_person),
            self._access.change(hdrs.METH_PATCH, one, self.update_person),
            self._access.change(hdrs.METH_POST, f"{one}/end_sessions", self.end_sessions),
        ]

    async def list_people(self, request: web.Request) -> web.StreamResponse:
        """Owners of keys and people of the file: `limit=100&after=NAME`."""
        query = request.query
        return await paged(await self._access.registry.list_people(query.get("after", ""), page_limit_of(query)))

    async def show_person(self, request: web.Request) -> web.StreamResponse:
        return shown(await self._access.registry.show_person(request.match_info["person"]))

    async def update_person(self, request: web.Request) -> web.StreamResponse:
        """Give her quotas of her own."""
        changes = await read(request, request_bodies.UpdatePerson)
        registry = self._access.changing(request)
        return changed(request, await registry.update_person(request.match_info["person"], changes, actor(request)))

    async def end_sessions(self, request: web.Request) -> web.StreamResponse:
        """End every session that this person has."""
        registry = self._access.changing(request)
        return changed(request, await registry.end_sessions(request.match_info["person"], actor(request)))
