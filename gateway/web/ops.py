"""Health, readiness and metrics: the endpoints for a platform."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from aiohttp import hdrs, web

from gateway.config import Config
from gateway.errors import Unavailable
from gateway.store import JournalFull, Ledger, StoreUnavailable
from gateway.store.clock import skew_warning
from gateway.wings import parts

from .http_guard.token_auth import TokenAuth
from .middleware import CONTEXT
from .responses import Whole, json_response
from .status import Status

_NOT_READY = {
    StoreUnavailable.code: "Not ready: the store does not answer.",
    JournalFull.code: "Not ready: the journal cannot be written.",
}


class WingReadiness(NamedTuple):
    """Further members of a wing in the answer of a gateway that is ready."""

    shown: Callable[[Config], Mapping[str, object]]


class Ops:
    """Serves the endpoints for operations: health, readiness and metrics."""

    def __init__(self, ledger: Ledger, status: Status, scrape: Callable[[], Awaitable[bytes]], gate: TokenAuth) -> None:
        self._gate = gate
        self._ledger = ledger
        self._status = status
        self._scrape = scrape
        self._of_wings = parts(WingReadiness, "ready")

    def outside(self) -> list[web.RouteDef]:
        """The readiness check of a load balancer, on both listeners."""
        return [web.get("/healthz", self.show_health), web.get("/readyz", self.show_readiness)]

    def inside(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self.show_metrics)]

    async def show_health(self, request: web.Request) -> web.StreamResponse:
        """Answers as long as the process runs, without further checks."""
        request[CONTEXT].is_quiet = True
        return json_response(b'{"status": "ok"}')

    async def show_readiness(self, request: web.Request) -> web.StreamResponse:
        """Calls would be served: not draining, and the store answers, of keys and of quotas."""
        request[CONTEXT].is_quiet = True
        if not self._status.is_ready:
            raise Unavailable("Not ready: the gateway is shutting down.", code="shutting_down")
        request[CONTEXT].parts.key_cache.trust()
        try:
            await self._ledger.ping()
        except StoreUnavailable as away:
            raise Unavailable(_NOT_READY[away.code], code=away.code) from None
        shown: dict[str, object] = {"status": "ready"}
        # A wrong clock is no reason to take the gateway out of service, because windows and expiries go by the store's.
        if (warning := skew_warning(request[CONTEXT].parts.clock.skew_s)) is not None:
            shown["warnings"] = [warning]
        for each in self._of_wings:
            shown |= each.shown(request[CONTEXT].parts.config)
        return json_response(json.dumps(shown).encode())

    async def show_metrics(self, request: web.Request) -> web.StreamResponse:
        """The whole gateway's metrics in the Prometheus text format."""
        context = request[CONTEXT]
        context.is_quiet = True
        if (token := context.parts.config.metrics.token) is not None:
            self._gate.admit(request, {"metrics": token})
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return Whole(200, [("Content-Type", content_type)], await self._scrape())


class Landing:
    """`/`: leads to the dashboard where this listener has one, else to the API reference."""

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
