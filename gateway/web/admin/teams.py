"""Teams: what several keys may spend together. The same as `gateway teams`, over HTTP."""

from __future__ import annotations

from aiohttp import hdrs, web

from . import request_bodies
from .common import SCOPE, AdminAccess, actor, changed, page_limit_of, paged, read, shown


class TeamEndpoints:
    """`/admin/api/teams`."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access
        self._registry = access.registry

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        all_teams, one = "/admin/api/teams", "/admin/api/teams/{name}"
        return [
            self._access.get(all_teams, self.list_teams),
            self._access.change(hdrs.METH_POST, all_teams, self.create_team),
            self._access.get(one, self.show_team),
            self._access.change(hdrs.METH_PATCH, one, self.update_team),
            self._access.change(hdrs.METH_DELETE, one, self.delete_team),
        ]

    async def list_teams(self, request: web.Request) -> web.StreamResponse:
        """Teams of file and store: `limit=100&after=NAME`."""
        query, scope = request.query, request[SCOPE]
        return await paged(
            await self._registry.list_teams(query.get("after", ""), page_limit_of(query), scope.covers_team)
        )

    async def create_team(self, request: web.Request) -> web.StreamResponse:
        """201, with the team."""
        body = await read(request, request_bodies.CreateTeam)
        return changed(request, await self._access.changing(request).create_team(body, actor(request)), 201)

    async def show_team(self, request: web.Request) -> web.StreamResponse:
        """One team."""
        return shown(await self._registry.show_team(request.match_info["name"]))

    async def update_team(self, request: web.Request) -> web.StreamResponse:
        """Replace its quotas."""
        changes = await read(request, request_bodies.UpdateTeam)
        registry = self._access.changing(request)
        return changed(request, await registry.update_team(request.match_info["name"], changes, actor(request)))

    async def delete_team(self, request: web.Request) -> web.StreamResponse:
        """Take it away, if no key belongs to it."""
        name = request.match_info["name"]
        await self._access.changing(request).delete_team(name, actor(request))
        return changed(request, {"object": "team", "name": name, "deleted": True})
