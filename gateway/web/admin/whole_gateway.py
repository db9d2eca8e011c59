"""Operations of the whole gateway, not of the one worker that answers: the state of its upstreams, and a reload of its
configuration. Both go by way of the supervisor."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from gateway.config import Upstream
from gateway.errors import InvalidRequest
from gateway.pipeline import Services
from gateway.quota import window_status
from gateway.store import StoreUnavailable
from gateway.upstream.status import merged_status
from gateway.web.status import shutting_down

from .common import AdminAccess, actor, listed, parts_of, shown

Ask = Callable[..., Awaitable[Any]]
"""Asks the supervisor something: `ask("everyone", what="upstreams")`; None: it does not answer."""


SHOWN_SETTINGS = {
    "timeouts", "max_connections", "max_connection_age_s", "on_disconnect", "drain_limit_s", "probe_s", "provider",
    "key_header", "capabilities", "discover", "limits",
}  # fmt: skip
"""Of an upstream; the others are shown elsewhere, or may hold secrets."""


class GatewayEndpoints:
    """`/admin/api/upstreams` and `/admin/api/reload`."""

    def __init__(self, access: AdminAccess, ask: Ask) -> None:
        self._access = access
        self._ask = ask

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
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
        rows = [
            row | {"limits": limits.get(row["name"], []), "settings": _settings(upstreams[row["name"]])}
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
    now, found = time.time(), dict[str, list[dict[str, Any]]]()
    table = parts.router.limits
    every = list(table.every())
    try:
        answer = await parts.accounting.ledger.window_statuses([table.window(limit, now) for _, limit in every], now)
    except StoreUnavailable:
        return found
    for (name, limit), status in zip(every, answer, strict=True):
        found.setdefault(name, []).append(window_status.row(status, now) | {"configured": limit.limit})
    return found
