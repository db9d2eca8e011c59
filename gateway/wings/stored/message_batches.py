"""Anthropic's message batches, by their ids: list, read, cancel, results, delete. They are made as calls
(`formats/anthropic/batches.py`), and settled by `relay/deferred.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from gateway.errors import Conflict
from gateway.formats import FORMATS
from gateway.records import Bond
from gateway.store.bonds import SETTLED
from gateway.web.capacity import Capacity
from gateway.web.middleware import CONTEXT, RequestContext
from gateway.web.responses import JSON_HEADERS, Whole
from gateway.web.status import Status

from .files import page_of
from .kept import FindsCaller, KeptAtUpstream, object_of

MAX_LIMIT = 1000
"""The maximum value of the parameter `limit` (anthropic-sdk-python, `types/messages/batch_list_params.py`)."""


class StoredMessageBatches:
    """The endpoints of message batches that are made. `caller` finds the key of a request, or refuses it."""

    def __init__(self, caller: FindsCaller, status: Status, capacity: Capacity) -> None:
        spec = FORMATS["message_batches"]
        self._path = spec.path
        self._kept = KeptAtUpstream(caller, status, capacity, "message_batch", spec.upstream_path, spec, name="batch")

    def routes(self) -> list[web.RouteDef]:
        """Every route of message batches that are made."""
        one = f"{self._path}/{{batch:[^{{}}/]+}}"
        return [
            web.get(self._path, self.list, allow_head=False),
            web.get(one, self.show, allow_head=False),
            web.delete(one, self.delete),
            web.post(f"{one}/cancel", self.cancel),
            web.get(f"{one}/results", self.results, allow_head=False),
        ]

    async def results(self, request: web.Request) -> web.StreamResponse:
        """The results, as they come."""
        return await self._kept.download(request, "/results", has_results=lambda _: True)

    async def show(self, request: web.Request) -> web.StreamResponse:
        """The batch as it is now."""
        return await self._relay(request, "")

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Cancel the batch. Requests that were answered by then are charged."""
        return await self._relay(request, "/cancel")

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete the batch, unless it is still to be charged by its results."""
        context = request[CONTEXT]
        bond = await self._kept.bond(request, context)
        if bond.note != SETTLED:
            raise Conflict(
                "The batch has not ended, or its usage is not recorded yet. Please try again later.",
                code="batch_not_settled",
            )
        return await self._kept.remove(request, context, bond)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """The key's own batches, as they are at the upstream now."""
        context = request[CONTEXT]
        key = await self._kept.key(request, context)
        bonds: Sequence[Bond] = await context.parts.bonds.every(key.in_team, "message_batch")
        page, has_more = page_of(bonds, request.query.get("after_id"), request.query.get("limit", "20"), MAX_LIMIT)
        found = [_own(each, context) for each in await self._kept.read_all(request, context, page)]
        first, last = (found[0]["id"], found[-1]["id"]) if found else (None, None)
        members = {"data": found, "has_more": has_more, "first_id": first, "last_id": last}
        return self._kept.sent(context, JSON_HEADERS, json.dumps(members).encode())

    async def _relay(self, request: web.Request, action: str) -> web.StreamResponse:
        context = request[CONTEXT]
        bond = await self._kept.bond(request, context)
        answer = await self._kept.fetch(request, context, bond, action, request.method)
        whole: Whole = self._kept.whole(
            context, answer._replace(body=json.dumps(_own(object_of(answer.body), context)).encode())
        )
        return whole


def _own(batch: dict[str, Any] | None, context: RequestContext) -> dict[str, Any]:
    """The batch with the gateway's own address of its results: the upstream's needs the upstream's key."""
    members = batch or {}
    if isinstance(members.get("results_url"), str):
        base = context.parts.config.server.public_url or ""
        members["results_url"] = f"{base.rstrip('/')}{FORMATS['message_batches'].path}/{members.get('id')}/results"
    return members
