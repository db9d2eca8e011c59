"""The admin API: what was used, by whom, and what is left; who may use what; and every change of it.

One desk for each kind of thing, behind one door (admin_office). They keep nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.keys.registry import Registry
from gateway.web.http_guard.token_auth import TokenAuth

from .audit import AuditEndpoints
from .common import AdminAccess
from .keys import KeyEndpoints
from .live import LiveEndpoints
from .quotas import QuotaEndpoints
from .reports import ReportEndpoints
from .teams import TeamEndpoints
from .whole_gateway import Ask, GatewayEndpoints


class AdminAPI:
    """All desks of one worker."""

    def __init__(self, registry: Registry, gate: TokenAuth, scrape: Callable[[], Awaitable[bytes]], ask: Ask) -> None:
        office = AdminAccess(registry, gate)
        self._desks = (
            ReportEndpoints(office), LiveEndpoints(office, scrape), KeyEndpoints(office), TeamEndpoints(office),
            QuotaEndpoints(office), AuditEndpoints(office),
            GatewayEndpoints(office, ask),
        )  # fmt: skip

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        return [route for desk in self._desks for route in desk.routes()]
