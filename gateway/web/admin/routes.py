"""The admin API: usage, quotas, keys, teams, the audit log, and the state of the whole gateway.

One class of endpoints for each kind of object, behind one authorization (`common.AdminAccess`).
"""

from __future__ import annotations

from aiohttp import web

from gateway.keys.registry import Registry
from gateway.store import RequestStore
from gateway.web.http_guard.token_auth import TokenAuth
from gateway.web.wings import admin_operations, permissions

from .common import AdminAccess
from .keys import AuditEndpoints, KeyEndpoints, QuotaEndpoints, TeamEndpoints
from .people import PeopleEndpoints
from .reports import RefusalEndpoints, ReportEndpoints
from .sign_in import SignIn
from .whole_gateway import Ask, GatewayEndpoints, LiveEndpoints, ModelEndpoints


class AdminAPI:
    """All endpoints of one worker."""

    def __init__(self, registry: Registry, gate: TokenAuth, ask: Ask, store: RequestStore) -> None:
        self._sign_in = SignIn(registry)
        self.access = access = AdminAccess(registry, gate, self._sign_in, admin_operations(), permissions())
        self._desks = (
            ReportEndpoints(access), LiveEndpoints(access, ask), KeyEndpoints(access), TeamEndpoints(access),
            QuotaEndpoints(access), AuditEndpoints(access), RefusalEndpoints(access, store), self._sign_in,
            GatewayEndpoints(access, ask), ModelEndpoints(access), PeopleEndpoints(access),
        )  # fmt: skip

    def routes(self) -> list[web.RouteDef]:
        return [route for desk in self._desks for route in desk.routes()]

    async def close(self) -> None:
        """Close connections to the identity provider."""
        await self._sign_in.close()
