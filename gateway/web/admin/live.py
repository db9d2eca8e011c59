"""The role of a token, and the counters of the whole gateway since it started.

The counters are those of `/metrics`, summed over all workers by the supervisor; a reader makes rates of two samples.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time

from aiohttp import web

from gateway import __version__
from gateway.errors import Unavailable
from gateway.identity.permissions import PERMISSIONS, is_left_to_keys
from gateway.web.middleware import CONTEXT
from gateway.web.responses import json_response

from .common import SCOPE, SESSION, AdminAccess, by_key, shown
from .sign_in import csrf_token
from .whole_gateway import Ask

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
        """Every route."""
        return [
            self._access.get("/admin/api/session", self.show_session),
            self._access.get("/admin/api/live", self.show_live),
        ]

    async def show_session(self, request: web.Request) -> web.StreamResponse:
        """The principal: its role (`admin` is the public name of an operator), and the operations that it may use."""
        principal = request[SCOPE].principal
        role = "admin" if principal.role == "operator" else principal.role
        allowed = [place for place, roles in PERMISSIONS.items() if principal.role in roles]
        if principal.role == "key":
            left = by_key(request, principal)
            allowed = [place for place in allowed if is_left_to_keys(place, left)]
        operations = [f"{method} {path}" for method, path in allowed]
        config, session = request[CONTEXT].parts.config, request.get(SESSION)
        oidc = config.oidc
        return shown({
            "role": role, "name": principal.name, "team": principal.team, "operations": operations,
            "csrf": None if session is None or oidc is None else csrf_token(session, oidc), "version": __version__,
            "public_url": config.server.public_url,
        })  # fmt: skip

    async def show_live(self, request: web.Request) -> web.StreamResponse:
        """The counters since the gateway started."""
        request[CONTEXT].is_quiet = True
        async with self._lock:
            if time.monotonic() - self._made >= FRESH_S:
                self._body = _body(time.time(), await self._ask("live"))
                self._made = time.monotonic()
            body = self._body
        return json_response(body, headers=[("Cache-Control", "no-store")])


def _body(at: float, numbers: dict[str, object] | None) -> bytes:
    if numbers is None:
        raise Unavailable("The metrics cannot be read right now.", code="metrics_unavailable")
    # Workers have one parent; gateways behind one balancer have different ones.
    instance = f"{socket.gethostname()}:{os.getppid()}"
    return json.dumps({"time": round(at, 3), "instance": instance, "version": __version__, **numbers}).encode()
