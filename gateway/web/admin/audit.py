"""The audit log: the author, object and time of each change."""

from __future__ import annotations

from aiohttp import web

from .common import AdminAccess, page_limit_of, paged


class AuditEndpoints:
    """`/admin/api/audit`."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        return [self._access.get("/admin/api/audit", self.list_changes)]

    async def list_changes(self, request: web.Request) -> web.StreamResponse:
        """The newest changes first: `limit=100&before=ID`."""
        query = request.query
        return await paged(await self._access.registry.audit(page_limit_of(query), query.get("before")))
