"""The endpoints of all that upstreams keep, and requests for stored responses: read, delete, cancel, list the input.

These requests count only in limits of requests per time: nothing is generated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from aiohttp import web

from gateway.api.file_form import PURPOSES, CreateFile
from gateway.api.schema import ConversationBody, Part
from gateway.formats import FORMATS, without_deployment
from gateway.formats.anthropic.messages import OVERLOADED
from gateway.web.capacity import Capacity
from gateway.web.middleware import CONTEXT
from gateway.web.openapi.document import FORM
from gateway.web.openapi.operation import JSON, Operation, in_path, in_query, named
from gateway.web.status import Status
from gateway.web.wings import WebParts, WingEndpoints

from .batches import StoredBatches
from .conversations import Conversations
from .files import StoredFiles
from .kept import FindsCaller, KeptAtUpstream
from .message_batches import StoredMessageBatches
from .resumed import resume

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
    operation = _kept(summary, parameter)
    return operation._replace(errors=(*operation.errors, 409, OVERLOADED), error="AnthropicError")


_BATCHES = partial(in_query, "limit", "Batches of a page.", type="integer", minimum=1)
_RESPONSE, _BATCH, _FILE = in_path("response"), in_path("batch"), in_path("file")
_CONVERSATION, _ITEM = in_path("conversation"), in_path("item")

_OPERATIONS: Mapping[tuple[str, str], Operation] = {
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
)
