"""Files that an upstream keeps for clients (/v1/files): upload, list, read, download, delete.

All keys share one account of one upstream (`files.upstream`), so an id is bound to the key that uploaded the file, and
a list is made from these bonds. The account's own list is never shown. Requests count in limits of requests per time
alone: nothing is generated.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from aiohttp import web

from gateway.api.form import Upload
from gateway.api.multipart import content_type
from gateway.errors import Conflict, InvalidRequest, NotFound, UpstreamFailed
from gateway.formats.table import FORMATS
from gateway.records import Bond, Failure, Fault, Key, Phase
from gateway.store.bonds import SETTLED, is_bond_id
from gateway.upstream.ask import Fetched, fetch
from gateway.upstream.credentials import account_of
from gateway.web.capacity import Capacity
from gateway.web.endpoints import continue_later, forwarded_headers, with_headers
from gateway.web.forms import FormReader, StoredForm, boundary_of
from gateway.web.middleware import CONTEXT, RequestContext
from gateway.web.status import Status

from . import file_form
from .batch_file import BatchChecker, BatchInput
from .file_form import FileForm
from .kept import MAX_READ_BYTES, FindsCaller, KeptAtUpstream, at_upstream, object_of, raise_for

PATH = "/v1/files"

OPENAI = FORMATS["chat"]
"""The format in which errors are written."""

MAX_PAGE = 100
"""Files of one answer: each is read at the upstream."""

MAX_LIMIT = 10_000
"""The maximum value of the parameter `limit` (openai-openapi, listFiles)."""

BYTES_PER_TOKEN, MAX_FILE_TOKENS = 4, 131_072
"""The estimate of the tokens that a call reads of a file that it names."""


class StoredFiles:
    """The endpoints of files. `caller` finds the key of a request, or refuses it."""

    def __init__(self, caller: FindsCaller, status: Status, capacity: Capacity) -> None:
        self._kept = KeptAtUpstream(caller, status, capacity, "id", "/files", OPENAI, name="file")
        self._status = status
        self._capacity = capacity
        self._forms = FormReader(capacity)

    def routes(self) -> list[web.RouteDef]:
        one = f"{PATH}/{{file:[^{{}}/]+}}"
        return [
            web.post(PATH, self.upload, expect_handler=continue_later),
            web.get(PATH, self.list, allow_head=False),
            web.get(one, self._kept.relay, allow_head=False),
            web.delete(one, self.delete),
            web.get(f"{one}/content", self.content, allow_head=False),
        ]

    async def upload(self, request: web.Request) -> web.StreamResponse:
        """Store the form, check it, send it on, and bind the file's id to the key."""
        context = request[CONTEXT]
        key = await self._kept.key(request, context)
        upstream = _upstream(context)
        if request.content_type != "multipart/form-data":
            raise InvalidRequest(
                "Unsupported content type. This API method only accepts 'multipart/form-data' requests.",
                code="unsupported_content_type",
            )
        most = context.parts.config.files.max_per_key
        if len(await context.parts.bonds.every(key.in_team, "file")) >= most:
            raise InvalidRequest(
                f"Your key has {most} files, which is the most that it may have. Delete some with DELETE {PATH}/ID.",
                code="too_many_files",
            )
        calls, task = self._status.calls, asyncio.current_task()
        calls.add(task)
        try:
            return await self._upload(request, context, key, upstream)
        finally:
            calls.discard(task)
            if context.form is not None:
                context.form.close()

    async def _upload(
        self, request: web.Request, context: RequestContext, key: Key, upstream: str
    ) -> web.StreamResponse:
        boundary, since = boundary_of(request), time.perf_counter()
        stored, parts = await self._forms.store(request, context, boundary)
        key = await self._kept.key_if_late(request, context, since) or key
        asked = file_form.read(stored, parts)
        if asked.purpose != "batch":
            body = file_form.forwarded(stored, asked, boundary)
            return await self._keep(request, context, key, _Sent(upstream, boundary, body, asked))
        written = StoredForm(context.parts.config.uploads, self._capacity, context.key)
        try:
            checked = await BatchChecker(key, context.parts, upstream, written).check(asked.file)
            body = file_form.forwarded(stored, asked, boundary, written)
            return await self._keep(request, context, key, _Sent(upstream, boundary, body, asked, checked))
        finally:
            written.close()

    async def _keep(self, request: web.Request, context: RequestContext, key: Key, sent: _Sent) -> web.StreamResponse:
        """Send a checked form, and bind what the upstream makes of it."""
        answer, upstream = await _send(request, context, sent), sent.upstream
        fields = object_of(answer.body)
        made = None if fields is None else fields.get("id")
        if not isinstance(made, str) or not is_bond_id(made):
            raise UpstreamFailed.after(Failure(upstream, Phase.WAITING, Fault.NOT_JSON))
        await context.parts.bonds.keep(_bond(made, key, context, sent))
        return self._kept.whole(context, answer)

    async def list(self, request: web.Request) -> web.StreamResponse:
        """The key's own files, as they are at the upstream now. One that has ended there is left out."""
        context = request[CONTEXT]
        key = await self._kept.key(request, context)
        _upstream(context)
        bonds = await context.parts.bonds.every(key.in_team, "file")
        query = request.query
        if (purpose := query.get("purpose")) is not None:
            bonds = [bond for bond in bonds if purpose_of(bond) == purpose]
        if (order := query.get("order", "desc")) not in ("asc", "desc"):
            raise InvalidRequest("Invalid 'order': expected 'asc' or 'desc'.", param="order")
        if order == "asc":
            bonds.reverse()
        page, has_more = page_of(bonds, query.get("after"), query.get("limit"), MAX_LIMIT)
        found = await self._kept.read_all(request, context, page)
        return await self._kept.page(context, found, object="list", has_more=has_more)

    async def content(self, request: web.Request) -> web.StreamResponse:
        """The file itself; of the results of a batch without anything of the gateway's account."""
        return await self._kept.download(request, "/content", has_results=lambda bond: _batch_of(bond) is not None)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete the file, unless a batch is still to be charged by it."""
        context = request[CONTEXT]
        bond = await self._kept.bond(request, context)
        batch = _batch_of(bond)
        if batch is not None:
            kept = await context.parts.bonds.find(bond.in_team, batch)
            if kept is not None and kept.note != SETTLED:
                raise Conflict(
                    "The usage of the batch is not recorded yet. Please try again in a moment.",
                    code="batch_not_settled",
                )
        return await self._kept.remove(request, context, bond)


class _Sent(NamedTuple):
    """Holds an upload that has passed the checks."""

    upstream: str
    boundary: str
    body: Upload
    asked: FileForm
    batch: BatchInput | None = None
    """Where the file is the input of one."""


def _upstream(context: RequestContext) -> str:
    """The upstream that keeps files. Raises `NotFound` where there is none."""
    upstream = context.parts.config.files.upstream
    if upstream is None:
        raise NotFound("This gateway keeps no files: its operator has not set files.upstream.")
    return upstream


async def _send(request: web.Request, context: RequestContext, sent: _Sent) -> Fetched:
    """The upstream's answer to the upload. Raises `UpstreamFailed` or `UpstreamRefused` for any other than a good
    one."""
    parts, name = context.parts, sent.upstream
    pool, upstream = parts.pools[name], parts.config.upstreams[name]
    headers = with_headers(
        forwarded_headers(request, OPENAI.request_headers), ("Content-Type", content_type(sent.boundary))
    )
    head = pool.request("/files", headers, sent.body)
    async with at_upstream(pool, context.key):
        answer = await fetch(name, pool, head, upstream.timeouts.total_s, MAX_READ_BYTES, sent.body)
    return await raise_for(name, answer, pool.hidden, OPENAI)


def _bond(made: str, key: Key, context: RequestContext, sent: _Sent) -> Bond:
    note: dict[str, Any] = {"purpose": sent.asked.purpose}
    if sent.batch is not None:
        note |= sent.batch.as_note()
    size = sent.asked.file.size
    tokens = min(size // BYTES_PER_TOKEN, MAX_FILE_TOKENS) if sent.batch is None else 0
    return Bond(
        made, key.id, key.team, sent.upstream, account_of(context.parts.config.upstreams[sent.upstream], 0), model="",
        tokens=tokens, made=context.parts.clock.now(), kind="file", note=json.dumps(note, separators=(",", ":")),
    )  # fmt: skip


def purpose_of(bond: Bond) -> str:
    """The purpose of a file."""
    fields: dict[str, Any] = json.loads(bond.note)
    return str(fields["purpose"])


def _batch_of(bond: Bond) -> str | None:
    """The batch whose results a file has."""
    batch: str | None = json.loads(bond.note).get("output_of")
    return batch


def page_of(bonds: Sequence[Bond], after: str | None, limit: str | None, most: int) -> tuple[Sequence[Bond], bool]:
    """A page of a list, and whether there are more behind it. Raises `InvalidRequest`."""
    if limit is not None and not (re.fullmatch("[0-9]{1,9}", limit) and 1 <= int(limit) <= most):
        raise InvalidRequest(f"Invalid 'limit': expected a number from 1 to {most}.", param="limit")
    start = 0
    if after is not None:
        places = [place for place, bond in enumerate(bonds) if bond.id == after]
        if not places:
            raise InvalidRequest("Invalid 'after': it is not the id of an object in this list.", param="after")
        start = places[0] + 1
    size = min(MAX_PAGE, most if limit is None else int(limit))
    return bonds[start : start + size], len(bonds) > start + size
