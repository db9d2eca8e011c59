"""The admin API: usage, quotas, keys, teams, the audit log, and the state of the whole gateway.

One class of endpoints for each kind of object, behind one authorization (`common.AdminAccess`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aiohttp import web

from gateway.keys.registry import Registry
from gateway.store import RequestStore
from gateway.web.http_guard.token_auth import TokenAuth
from gateway.wings import parts

from .common import AdminAccess
from .keys import AuditEndpoints, KeyEndpoints, QuotaEndpoints, TeamEndpoints
from .people import PeopleEndpoints
from .reports import RefusalEndpoints, ReportEndpoints
from .sign_in import SignIn
from .whole_gateway import Ask, GatewayEndpoints, LiveEndpoints, ModelEndpoints


class WingDesk(NamedTuple):
    """Makes the routes of a wing's operations."""

    routes: Callable[[AdminAccess, Ask, RequestStore], Sequence[web.RouteDef]]


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
        self._of_wings = [route for each in parts(WingDesk, "desk") for route in each.routes(access, ask, store)]

    def routes(self) -> list[web.RouteDef]:
        return [route for desk in self._desks for route in desk.routes()] + self._of_wings

    async def close(self) -> None:
        """Close connections to the identity provider."""
        await self._sign_in.close()
