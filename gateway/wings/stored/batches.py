"""Batches of OpenAI's API, by their ids: list, read, cancel. A call makes one (`formats/openai/batches.py`),
`relay/deferred.py` settles it.

The files of a batch's results belong to the key of the batch: they are bound before the client sees their ids.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from gateway.formats import FORMATS
from gateway.records import Bond
from gateway.store.bonds import is_bond_id
from gateway.upstream.ask import Fetched
from gateway.web.capacity import Capacity
from gateway.web.middleware import CONTEXT, RequestContext
from gateway.web.responses import JSON_HEADERS
from gateway.web.status import Status

from .files import page_of
from .kept import FindsCaller, KeptAtUpstream, object_of

MAX_LIMIT = 100
"""The maximum value of the parameter `limit` (openai-openapi, listBatches)."""


class StoredBatches:
    """The endpoints of batches that are made. `caller` finds the key of a request, or refuses it."""

    def __init__(self, caller: FindsCaller, status: Status, capacity: Capacity) -> None:
        spec = FORMATS["batches"]
        self._path = spec.path
        self._kept = KeptAtUpstream(caller, status, capacity, "batch", spec.upstream_path, spec, name="batch")

    def routes(self) -> list[web.RouteDef]:
        """Every route of batches that are made."""
        one = f"{self._path}/{{batch:[^{{}}/]+}}"
        return [
            web.get(self._path, self.list, allow_head=False),
            web.get(one, self.show, allow_head=False),
            web.post(f"{one}/cancel", self.cancel),
        ]

    async def show(self, request: web.Request) -> web.StreamResponse:
        """The batch as it is now."""
        return await self._relay(request, "")

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Cancel the batch. Requests that were answered by then are charged."""
        return await self._relay(request, "/cancel")

    async def list(self, request: web.Request) -> web.StreamResponse:
        """The key's own batches, as they are at the upstream now."""
        context = request[CONTEXT]
        key = await self._kept.key(request, context)
        bonds = await context.parts.bonds.every(key.in_team, "batch")
        page, has_more = page_of(bonds, request.query.get("after"), request.query.get("limit", "20"), MAX_LIMIT)
        found = await self._kept.read_all(request, context, page)
        known = {bond.id: bond for bond in page}
        for each in found:
            await bind_results(context, known.get(str(each.get("id"))), each)
        ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {}
        body = json.dumps({"object": "list", "data": found, "has_more": has_more, **ends}).encode()
        return self._kept.sent(context, JSON_HEADERS, body)

    async def _relay(self, request: web.Request, action: str) -> web.StreamResponse:
        context = request[CONTEXT]
        bond = await self._kept.bond(request, context)
        answer: Fetched = await self._kept.fetch(request, context, bond, action, request.method)
        await bind_results(context, bond, object_of(answer.body) or {})
        return self._kept.whole(context, answer)


async def bind_results(context: RequestContext, bond: Bond | None, batch: dict[str, Any]) -> None:
    """Bind the files of a batch's results to the key of the batch."""
    for name in ("output_file_id", "error_file_id"):
        made = batch.get(name)
        if bond is None or not isinstance(made, str) or not is_bond_id(made):
            continue
        if await context.parts.bonds.find(bond.in_team, made) is None:
            note = json.dumps({"purpose": "batch_output", "output_of": bond.id}, separators=(",", ":"))
            await context.parts.bonds.keep(
                bond._replace(id=made, tokens=0, made=context.parts.clock.now(), kind="file", note=note)
            )
