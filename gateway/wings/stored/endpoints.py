"""The endpoints of all that upstreams keep, and requests for stored responses: read, delete, cancel, list the input.

These requests count only in limits of requests per time: nothing is generated.

Batches of OpenAI and Anthropic are made as calls (`formats.py`), and settled by `relay/deferred.py`. The files of a
batch's results belong to the key of the batch: they are bound before the client sees their ids.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import web

from gateway.api.schema import ConversationBody, Part
from gateway.errors import Conflict
from gateway.formats.anthropic.messages import OVERLOADED
from gateway.formats.table import FORMATS, without_deployment
from gateway.records import Bond
from gateway.store.bonds import SETTLED, is_bond_id
from gateway.upstream.ask import Fetched
from gateway.web.capacity import Capacity
from gateway.web.middleware import CONTEXT, RequestContext
from gateway.web.openapi.document import FORM, call_operation
from gateway.web.openapi.operation import JSON, Operation, in_path, in_query, named
from gateway.web.responses import Whole
from gateway.web.status import Status
from gateway.web.wings import WebParts, WingEndpoints

from .conversations import Conversations
from .file_form import PURPOSES, CreateFile
from .files import StoredFiles, page_of
from .formats import BATCHES, MESSAGE_BATCHES, CreateBatch, CreateMessageBatch
from .kept import FindsCaller, KeptAtUpstream, object_of
from .resumed import resume

MAX_MESSAGES = 1000
"""The maximum value of the parameter `limit` (anthropic-sdk-python, `types/messages/batch_list_params.py`)."""


class StoredMessageBatches:
    """The endpoints of message batches that are made. `caller` finds the key of a request, or refuses it."""

    def __init__(self, caller: FindsCaller, status: Status, capacity: Capacity) -> None:
        spec = MESSAGE_BATCHES
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
        page, has_more = page_of(bonds, request.query.get("after_id"), request.query.get("limit", "20"), MAX_MESSAGES)
        found = await self._kept.read_all(request, context, page)
        own = {name: _own(each, context) for name, each in found.items()}
        return await self._kept.page(context, own, has_more=has_more, first_id=None, last_id=None)

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


MAX_LIMIT = 100
"""The maximum value of the parameter `limit` (openai-openapi, listBatches)."""


class StoredBatches:
    """The endpoints of batches that are made. `caller` finds the key of a request, or refuses it."""

    def __init__(self, caller: FindsCaller, status: Status, capacity: Capacity) -> None:
        spec = BATCHES
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
        for bond in page:
            await bind_results(context, bond, found.get(bond.id, {}))
        return await self._kept.page(context, found, object="list", has_more=has_more)

    async def _relay(self, request: web.Request, action: str) -> web.StreamResponse:
        context = request[CONTEXT]
        bond = await self._kept.bond(request, context)
        answer: Fetched = await self._kept.fetch(request, context, bond, action, request.method)
        await bind_results(context, bond, object_of(answer.body) or {})
        return self._kept.whole(context, answer)


async def bind_results(context: RequestContext, bond: Bond, batch: dict[str, Any]) -> None:
    """Bind the files of a batch's results to the key of the batch."""
    for name in ("output_file_id", "error_file_id"):
        made = batch.get(name)
        if not isinstance(made, str) or not is_bond_id(made):
            continue
        if await context.parts.bonds.find(bond.in_team, made) is None:
            note = json.dumps({"purpose": "batch_output", "output_of": bond.id}, separators=(",", ":"))
            await context.parts.bonds.keep(
                bond._replace(id=made, tokens=0, made=context.parts.clock.now(), kind="file", note=note)
            )


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


_FILE_PAGE = (
    in_query("limit", "Files of a page, of which the gateway shows 100.", type="integer", minimum=1, maximum=10_000),
    in_query("purpose", "Only files of this purpose.", enum=list(PURPOSES)),
    in_query("order", "By the time of the upload.", enum=["asc", "desc"]),
)


def _kept(
    summary: str, *parameters: Mapping[str, Any], answer: str = "Stored", body: type[Part] | None = None
) -> Operation:
    errors = (401, 404, 408, 413, 422, 429, 502, 504)
    return Operation(summary, "key", {JSON: named(answer)}, errors, body, parameters)


def _of_message_batch(summary: str, parameter: Mapping[str, Any] = in_path("batch")) -> Operation:
    return _of_anthropic(_kept(summary, parameter), 409)


def _of_anthropic(operation: Operation, *errors: int) -> Operation:
    return operation._replace(errors=(*operation.errors, *errors, OVERLOADED), error=named("AnthropicError"))


_BATCHES = partial(in_query, "limit", "Batches of a page.", type="integer", minimum=1)
_RESPONSE, _BATCH, _FILE = in_path("response"), in_path("batch"), in_path("file")
_CONVERSATION, _ITEM = in_path("conversation"), in_path("item")

_OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", MESSAGE_BATCHES.path): _of_anthropic(call_operation(
        "Answer many messages within a day, in Anthropic's Messages API.", CreateMessageBatch, "Stored", streamed=None
    )),
    ("POST", BATCHES.path): call_operation(
        "Answer the requests of a file within a day.", CreateBatch, "Stored", streamed=None
    ),
    ("GET", "/v1/messages/batches"): _of_message_batch("The message batches of this key.", _BATCHES(maximum=1000)),
    ("GET", "/v1/messages/batches/{batch}"): _of_message_batch("One message batch of this key."),
    ("DELETE", "/v1/messages/batches/{batch}"): _of_message_batch("Delete a message batch of this key."),
    ("POST", "/v1/messages/batches/{batch}/cancel"): _of_message_batch("Cancel a message batch of this key."),
    ("GET", "/v1/messages/batches/{batch}/results"): _of_message_batch(
        "The results of a message batch of this key, a line for each."
    )._replace(answers={"*/*": {"type": "string"}}),
    ("GET", "/v1/responses/{response}"): _kept("A stored response of this key.", _RESPONSE, answer="Responded"),
    ("DELETE", "/v1/responses/{response}"): _kept("Delete a stored response of this key.", _RESPONSE),
    ("POST", "/v1/responses/{response}/cancel"): _kept(
        "Cancel a background response of this key.", _RESPONSE, answer="Responded"
    ),
    ("GET", "/v1/responses/{response}/input_items"): _kept("The input of a stored response of this key.", _RESPONSE),
    ("GET", "/v1/batches"): _kept("The batches of this key.", _BATCHES(maximum=100)),
    ("GET", "/v1/batches/{batch}"): _kept("One batch of this key.", _BATCH),
    ("POST", "/v1/batches/{batch}/cancel"): _kept("Cancel a batch of this key.", _BATCH),
    ("POST", "/v1/conversations"): _kept("Make a conversation.", body=ConversationBody),
    ("GET", "/v1/conversations/{conversation}"): _kept("A conversation of this key.", _CONVERSATION),
    ("POST", "/v1/conversations/{conversation}"): _kept(
        "Change the metadata of a conversation.", _CONVERSATION, body=ConversationBody
    ),
    ("DELETE", "/v1/conversations/{conversation}"): _kept("Delete a conversation.", _CONVERSATION),
    ("POST", "/v1/conversations/{conversation}/items"): _kept(
        "Add items to a conversation.", _CONVERSATION, body=ConversationBody
    ),
    ("GET", "/v1/conversations/{conversation}/items"): _kept("Its items.", _CONVERSATION),
    ("GET", "/v1/conversations/{conversation}/items/{item}"): _kept("One item.", _CONVERSATION, _ITEM),
    ("DELETE", "/v1/conversations/{conversation}/items/{item}"): _kept("Delete an item.", _CONVERSATION, _ITEM),
    ("POST", "/v1/files"): _kept("Upload a file.", body=CreateFile)._replace(body_type=FORM),
    ("GET", "/v1/files"): _kept("The files of this key.", *_FILE_PAGE),
    ("GET", "/v1/files/{file}"): _kept("One file of this key.", _FILE),
    ("DELETE", "/v1/files/{file}"): _kept("Delete a file of this key.", _FILE),
    ("GET", "/v1/files/{file}/content"): _kept("The content of a file of this key.", _FILE)._replace(
        answers={"*/*": {"type": "string", "format": "binary"}}
    ),
}  # fmt: skip


_KINDS = (StoredResponses, StoredBatches, Conversations, StoredMessageBatches, StoredFiles)


def _routes(parts: WebParts) -> list[web.RouteDef]:
    return [
        web.RouteDef(each.method, path, each.handler, each.kwargs)
        for kind in _KINDS
        for each in kind(parts.plane.caller, parts.status, parts.capacity).routes()
        for path in (each.path, *without_deployment(each.path))
    ]


ENDPOINTS = WingEndpoints(
    {(method, form): row for (method, path), row in _OPERATIONS.items() for form in (path, *without_deployment(path))},
    _routes,
    schemas={"Stored": {"type": "object"}},
)
