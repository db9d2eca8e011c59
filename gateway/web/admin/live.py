"""For whoever looks on: what kind of token is used, and the counters of the moment.

The counters are those of `/metrics`, summed over the whole gateway; rates are for the reader to make, of two samples.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway import __version__
from gateway.observe.live_numbers import summed
from gateway.web.middleware import CONTEXT
from gateway.web.responses import json_response

from .common import ROLE, AdminAccess, parts_of, shown

FRESH_S = 1.5
"""How old a sample may be that is given again. A page asks every two seconds: however many look on, a worker asks for
little more than the one scrape that the first of them needs."""


class LiveEndpoints:
    """`/admin/api/session` and `/admin/api/live`. Private to a worker."""

    def __init__(self, office: AdminAccess, scrape: Callable[[], Awaitable[bytes]]) -> None:
        self._office = office
        self._scrape = scrape
        self._turn = asyncio.Lock()
        """One scrape at a time; who waits for it finds it made."""
        self._made = -FRESH_S
        self._body = b""

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        return [
            self._office.get("/admin/api/session", self.show_session),
            self._office.get("/admin/api/live", self.show_live),
        ]

    async def show_session(self, request: web.Request) -> web.StreamResponse:
        """Whose token this is: `admin`, who may change things, or `viewer`."""
        return shown({"role": request[ROLE], "version": __version__})

    async def show_live(self, request: web.Request) -> web.StreamResponse:
        """The counters since the gateway started."""
        request[CONTEXT].is_quiet = True
        async with self._turn:
            if time.monotonic() - self._made >= FRESH_S:
                upstreams = list(parts_of(request).config.upstreams)
                at, text = time.time(), await self._scrape()
                self._body = await asyncio.to_thread(_spell, at, text, upstreams)
                self._made = time.monotonic()
            body = self._body
        return json_response(body, headers=[("Cache-Control", "no-store")])


def _spell(at: float, text: bytes, upstreams: list[str]) -> bytes:
    # Workers have one parent, and gateways that share a balancer have none in common.
    instance = f"{socket.gethostname()}:{os.getppid()}"
    told = {"time": round(at, 3), "instance": instance, "version": __version__, **summed(text.decode(), upstreams)}
    return json.dumps(told).encode()
