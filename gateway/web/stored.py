"""Responses that an upstream keeps, by their ids: read, delete, cancel, list the input.

They count only in limits of requests per time: nothing is generated.
"""

from __future__ import annotations

import asyncio
from functools import partial

from aiohttp import web

from gateway.formats import FORMATS

from .capacity import Capacity
from .kept import FindsCaller, KeptAtUpstream
from .middleware import CONTEXT
from .resumed import resume
from .status import Status

_STREAM = "stream"


class StoredResponses:
    """The endpoints of stored responses. `caller` finds the key of a request, or refuses it."""

    def __init__(self, caller: FindsCaller, status: Status, capacity: Capacity) -> None:
        self._status = status
        self._capacity = capacity
        spec = FORMATS["responses"]
        self._kept = KeptAtUpstream(caller, status, capacity, "", spec.upstream_path, spec, name="response")

    def routes(self) -> list[web.RouteDef]:
        """Every route of a stored response."""
        base = FORMATS["responses"].path
        # Other formats have paths below it, which are no ids.
        taken = [each.path.removeprefix(f"{base}/") for each in FORMATS.values() if each.path.startswith(f"{base}/")]
        path = f"{base}/{{response:(?!(?:{'|'.join(taken)})(?:/|$))[^{{}}/]+}}"
        return [
            web.get(path, self.show, allow_head=False),
            web.delete(path, self._kept.delete),
            web.post(f"{path}/cancel", partial(self._kept.relay, action="/cancel")),
            web.get(f"{path}/input_items", partial(self._kept.relay, action="/input_items"), allow_head=False),
        ]

    async def show(self, request: web.Request) -> web.StreamResponse:
        """The current state of a response, or its resumed stream."""
        if request.query.get(_STREAM, "false").lower() in ("false", "0", ""):
            return await self._kept.relay(request)
        bond = await self._kept.bond(request, request[CONTEXT])
        calls, task = self._status.calls, asyncio.current_task()
        self._capacity.refuse_when_full(len(calls))
        calls.add(task)
        try:
            return await resume(request, bond, is_last=not self._status.is_ready)
        finally:
            calls.discard(task)
