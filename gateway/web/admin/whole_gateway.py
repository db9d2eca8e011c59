"""Operations of the whole gateway, not of the one worker that answers: its counters, the state of its upstreams, and a
reload of its configuration. All go by way of the supervisor.

The counters are those of `/metrics` since the gateway started, summed over all workers by the supervisor; a reader
makes rates of two samples.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

from gateway import __version__
from gateway.config import Model, Upstream, is_pattern
from gateway.errors import InvalidRequest, Unavailable
from gateway.pipeline import Services
from gateway.quota import window_status
from gateway.quota.pricing import current_rows
from gateway.store import StoreUnavailable
from gateway.upstream.status import merged_status
from gateway.web.middleware import CONTEXT
from gateway.web.responses import json_response
from gateway.web.status import shutting_down

from .common import SCOPE, VISITOR, AdminAccess, actor, by_key, listed, parts_of, shown
from .permissions import is_left_to_keys

Ask = Callable[..., Awaitable[Any]]
"""Asks the supervisor something: `ask("everyone", what="upstreams")`; None: it does not answer."""

FRESH_S = 1.5
"""The age up to which a sample is returned again. A dashboard asks every two seconds: however many are open, a worker
asks the supervisor little more often than for one of them."""


class LiveEndpoints:
    """`/admin/api/session` and `/admin/api/live`. Private to a worker."""

    def __init__(self, access: AdminAccess, ask: Ask) -> None:
        self._access = access
        self._ask = ask
        self._lock = asyncio.Lock()
        """One sample is made at a time; the requests that wait for it return the same."""
        self._made = -FRESH_S
        self._body = b""

    def routes(self) -> list[web.RouteDef]:
        return [
            self._access.get("/admin/api/session", self.show_session),
            self._access.get("/admin/api/live", self.show_live),
        ]

    async def show_session(self, request: web.Request) -> web.StreamResponse:
        """The principal: its role (`admin` is the public name of an operator), and the operations that it may use."""
        principal = request[SCOPE].principal
        role = "admin" if principal.role == "operator" else principal.role
        allowed = {place: roles for place, roles in self._access.permissions.items() if principal.role in roles}
        if principal.role == "key":
            left = by_key(request, principal)
            allowed = {place: roles for place, roles in allowed.items() if is_left_to_keys(place[1], roles, left)}
        operations = [f"{method} {path}" for method, path in allowed]
        return shown({
            "role": role, "name": principal.name, "team": principal.team, "operations": operations,
            "csrf": None if (visitor := request.get(VISITOR)) is None else visitor.csrf, "version": __version__,
            "public_url": parts_of(request).config.server.public_url,
        })  # fmt: skip

    async def show_live(self, request: web.Request) -> web.StreamResponse:
        """The counters since the gateway started."""
        request[CONTEXT].is_quiet = True
        async with self._lock:
            if time.monotonic() - self._made >= FRESH_S:
                self._body = _body(parts_of(request).clock.now(), await self._ask("live"))
                self._made = time.monotonic()
            body = self._body
        return json_response(body, headers=[("Cache-Control", "no-store")])


def _body(at: float, numbers: dict[str, object] | None) -> bytes:
    if numbers is None:
        raise Unavailable("The metrics cannot be read right now.", code="metrics_unavailable")
    # Workers have one parent; gateways behind one balancer have different ones.
    instance = f"{socket.gethostname()}:{os.getppid()}"
    return json.dumps({"time": round(at, 3), "instance": instance, "version": __version__, **numbers}).encode()


SHOWN_SETTINGS = {
    "timeouts", "max_connections", "max_connection_age_s", "on_disconnect", "drain_limit_s", "probe_s", "provider",
    "key_header", "capabilities", "discover", "limits",
}  # fmt: skip
"""The settings of an upstream that are shown here; the others are shown elsewhere, or may hold secrets."""


class GatewayEndpoints:
    """Serves the endpoints `/admin/api/upstreams` and `/admin/api/reload`."""

    def __init__(self, access: AdminAccess, ask: Ask) -> None:
        self._access = access
        self._ask = ask

    def routes(self) -> list[web.RouteDef]:
        return [
            self._access.get("/admin/api/upstreams", self.list_upstreams),
            self._access.get("/admin/api/reload", self.preview_reload),
            self._access.change("POST", "/admin/api/reload", self.reload),
        ]

    async def list_upstreams(self, request: web.Request) -> web.StreamResponse:
        """How each upstream is doing, over all workers that answer in time."""
        reports = await self._ask("everyone", what="upstreams")
        if reports is None:
            raise shutting_down()
        upstreams = parts_of(request).config.upstreams
        addresses = {name: upstream.base_url for name, upstream in upstreams.items()}
        credentials = {name: len(upstream.credentials) for name, upstream in upstreams.items()}
        limits = await _limits(parts_of(request))
        # The first dump of all builds pydantic's serializer of upstreams, which takes too long for the event loop.
        settings = await asyncio.to_thread(lambda: {name: _settings(each) for name, each in upstreams.items()})
        rows = [
            row | {"limits": limits.get(row["name"], []), "settings": settings[row["name"]]}
            for row in merged_status(reports, addresses, credentials)
        ]
        return await listed(rows)

    async def preview_reload(self, _: web.Request) -> web.StreamResponse:
        """The difference of the configuration file from what is in use, and its faults; nothing is applied."""
        answer = await self._ask("preview")
        if answer is None:
            raise shutting_down()
        changes = [dict(zip(("setting", "what", "needs_restart"), each, strict=True)) for each in answer["changes"]]
        return shown({"object": "reload_preview", **answer, "changes": changes})

    async def reload(self, request: web.Request) -> web.StreamResponse:
        """Read the configuration again, and go by it in all workers."""
        outcome = await self._ask("reload", why=actor(request))
        if outcome is None:
            raise shutting_down()
        if outcome["code"] is not None:
            faults = "\n".join(outcome["faults"])
            raise InvalidRequest(f"Nothing was reloaded, and nothing is changed:\n{faults}", code=outcome["code"])
        return shown({"object": "reload", "generation": outcome["generation"], "changed": outcome["changed"]})


def _settings(upstream: Upstream) -> dict[str, Any]:
    """The settings of an upstream, without defaults and without anything that may be secret."""
    answer = upstream.model_dump(mode="json", include=SHOWN_SETTINGS, exclude_defaults=True)
    return answer if upstream.way is None else answer | {"proxy": str(upstream.way)}


async def _limits(parts: Services) -> dict[str, list[dict[str, Any]]]:
    """The state of every upstream's limits, as this worker assumes them; nothing while the store is unavailable."""
    now, found = parts.clock.now(), dict[str, list[dict[str, Any]]]()
    table = parts.router.limits
    every = list(table.every())
    try:
        answer = await parts.accounting.ledger.window_statuses([table.window(limit, now) for _, limit in every], now)
    except StoreUnavailable:
        return found
    for (name, limit), status in zip(every, answer, strict=True):
        found.setdefault(name, []).append(
            window_status.row(status, now) | {"configured": window_status.shown_amount(limit.unit, limit.limit)}
        )
    return found


SHOWN_APART = {"routes", "endpoints", "price", "table_prices"}


class ModelEndpoints:
    """Serves the list of models at `/admin/api/models`."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        return [self._access.get("/admin/api/models", self.list_models)]

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        """Every model and pattern, those that upstreams list among them, in the order of the configuration."""
        parts = parts_of(request)
        config, now = parts.config, parts.clock.now()
        names: dict[str, list[str]] = {}
        for alias, name in config.aliases.items():
            names.setdefault(name, []).append(alias)
        # A generator: `listed` formats in a thread, and discovered models may be thousands.
        return await listed(
            _shown_model(name, model, names.get(name, ()), now) for name, model in config.models.items()
        )


def _shown_model(name: str, model: Model, aliases: Iterable[str], now: float) -> dict[str, Any]:
    return {
        "name": name, "is_pattern": is_pattern(name), "aliases": [*aliases], "endpoints": [*model.endpoints],
        "routes": [route.model_dump() for route in model.routes],
        **_price(model, now),
        "settings": model.model_dump(mode="json", exclude=SHOWN_APART, exclude_defaults=True),
    }  # fmt: skip


def _price(model: Model, now: float) -> dict[str, Any]:
    """The rates in US dollars that hold now, and their source. A pattern may have prices by name instead;
    `priced_names` is their number."""
    price = model.price
    return {
        "price": current_rows(price, now),
        "price_source": None if price is None else price.source or "configured",
        "priced_names": len(model.table_prices),
    }
