"""Changes of current windows: resets and top-ups.

The same operations for each kind of owner: `/admin/api/keys/{id}/...`, `/admin/api/teams/{name}/...`, and
`/admin/api/quotas/...` for the windows of the whole gateway. Each answers with the new state of the owner's windows.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import hdrs, web

from . import request_bodies
from .common import AdminAccess, actor, changed, read

OWNERS: Mapping[str, str] = {
    "/admin/api/keys/{id}": "key:{id}",
    "/admin/api/teams/{name}": "team:{name}",
    "/admin/api/quotas": "gateway",
}
"""The owner of the windows, as a scope."""


class QuotaEndpoints:
    """`.../reset` and `.../top_up`."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        return [
            route
            for path in OWNERS
            for route in (
                self._access.change(hdrs.METH_POST, f"{path}/reset", self.reset),
                self._access.change(hdrs.METH_POST, f"{path}/top_up", self.top_up),
            )
        ]

    async def reset(self, request: web.Request) -> web.StreamResponse:
        """Count nothing as used at present: `{"unit": "tokens", "per": "day", "model": "gpt-4*"}`, or all of them."""
        which = await read(request, request_bodies.ResetQuotas)
        rows = await self._access.changing(request).reset_quotas(_scope(request), which, actor(request))
        return changed(request, {"data": rows})

    async def top_up(self, request: web.Request) -> web.StreamResponse:
        """More in the running day, week or month: `{"tokens": 100000, "per": "day"}`."""
        grant = await read(request, request_bodies.GrantTopUp)
        rows = await self._access.changing(request).top_up(_scope(request), grant, actor(request))
        return changed(request, {"data": rows})


def _scope(request: web.Request) -> str:
    route = request.match_info.route.resource
    path = "" if route is None else route.canonical.rpartition("/")[0]
    return OWNERS[path].format(**request.match_info)
