"""`/`: leads to the dashboard where this listener has one, else to the API reference."""

from __future__ import annotations

from aiohttp import hdrs, web

from .middleware import CONTEXT
from .responses import Whole


class Landing:
    """The root of a listener."""

    def __init__(self, *, has_dashboard: bool) -> None:
        self._has_dashboard = has_dashboard

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/", self.show)]

    async def show(self, request: web.Request) -> web.StreamResponse:
        """A relative address, so that the gateway may have a path prefix."""
        context = request[CONTEXT]
        context.is_quiet = True
        where = "dashboard" if self._has_dashboard and context.parts.config.has_admin_api else "docs"
        return Whole(302, [(hdrs.LOCATION, where), (hdrs.CACHE_CONTROL, "no-cache")], b"")
