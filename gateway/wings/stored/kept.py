"""Objects that upstreams keep under ids that are bound to keys: the requests for one of them, and for a page of a
list.

Each request goes to the upstream and with the API key that the id is bound to, and to no other. An id of another key
is as unknown as one that was never given.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

from aiohttp import web

from gateway import untrusted_json
from gateway.accounting.reservation import count_request
from gateway.api.auth import TRUSTED_S
from gateway.errors import Unavailable, UpstreamFailed, UpstreamRefused
from gateway.formats.format import Format
from gateway.records import Bond, Failure, Fault, Key, Phase
from gateway.relay.exchange import response_headers
from gateway.upstream import provider_errors
from gateway.upstream.ask import Fetched, cleaned_body, fetch
from gateway.upstream.connection import Head
from gateway.upstream.content_encoding import EncodingFault
from gateway.upstream.credentials import position_of
from gateway.upstream.download import Download
from gateway.upstream.pool import Pool
from gateway.web.capacity import Capacity, buffers_full
from gateway.web.endpoints import forwarded_headers, forwarded_query
from gateway.web.middleware import CONTEXT, RequestContext
from gateway.web.responses import JSON_HEADERS, EventStream, Whole
from gateway.web.status import Status, shutting_down

from .batch_results import CleanedResults

FindsCaller = Callable[[web.Request, RequestContext], Awaitable[Key]]

MAX_ERROR_BYTES = 65_536
_DOWN_DECODED = ("content-type", "content-disposition")
_DOWN = (*_DOWN_DECODED, "content-encoding")
"""Headers of a downloaded answer that the client sees."""

MAX_READ_BYTES = 262_144
"""The maximum size of an answer that is parsed here, which takes some milliseconds. Files and batches have a kilobyte
or two."""

MAX_SPACE = 1024
"""Whitespace around an object that is not parsed."""

READ_AT_ONCE = 8
"""Requests to the upstream at once for one list."""


class KeptAtUpstream:
    """Objects of one kind, kept below `path` of an upstream's base URL.

    `param` is how `Bonds.require` names them, `name` how routes name the id, and `spec` the format of the API that they
    belong to. `caller` finds the key of a request, or refuses it. Each request counts in the key's limits of requests
    per time."""

    def __init__(
        self, caller: FindsCaller, status: Status, capacity: Capacity, param: str, path: str, spec: Format,
        name: str = "id",
    ) -> None:  # fmt: skip
        self._caller = caller
        self._status = status
        self._capacity = capacity
        self._param = param
        self._path = path
        self._spec = spec
        self._name = name

    async def key(self, request: web.Request, context: RequestContext) -> Key:
        """The key of a request, which is counted: ask once. Raises `Unauthorized` or another refusal of it,
        `RateLimited` and `Unavailable`."""
        key = await self._caller(request, context)
        if self._status.is_draining:
            raise shutting_down()
        context.take_place(self._capacity)
        parts = context.parts
        await count_request(
            parts.accounting.ledger, parts.key_cache.terms.of(key), parts.clock.now(), self._spec.rate_headers
        )
        return key

    async def key_if_late(self, request: web.Request, context: RequestContext, since: float) -> Key | None:
        """The key of a request whose body took long to come, which is not counted again; None: it did not."""
        return await self._caller(request, context) if time.perf_counter() - since > TRUSTED_S else None

    async def bond(self, request: web.Request, context: RequestContext, key: Key | None = None) -> Bond:
        """The bond of the id in the path; as `key`, unless that is known. Raises `NotFound`, too."""
        key = key or await self.key(request, context)
        parts = context.parts
        return await parts.bonds.require(
            key.in_team, request.match_info[self._name], self._param, parts.config.upstreams
        )

    async def relay(self, request: web.Request, action: str = "") -> web.StreamResponse:
        """Pass on what the upstream answers to the client's method."""
        context = request[CONTEXT]
        bond = await self.bond(request, context)
        answer = await self.fetch(request, context, bond, action, request.method, is_read=False)
        return self.whole(context, answer)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete the object at the upstream, and then its bond."""
        context = request[CONTEXT]
        return await self.remove(request, context, await self.bond(request, context))

    async def remove(self, request: web.Request, context: RequestContext, bond: Bond) -> web.StreamResponse:
        """Deletes like `delete`, but for a bond that is already found."""
        answer = await self.fetch(request, context, bond, method="DELETE")
        if (fields := object_of(answer.body)) is not None and fields.get("deleted") is not False:
            await context.parts.bonds.forget(bond)
        return self.whole(context, answer)

    async def download(
        self, request: web.Request, action: str, *, has_results: Callable[[Bond], bool]
    ) -> web.StreamResponse:
        """Relay an answer as it comes, whatever it is; where it `has_results` of a batch, without anything of the
        account in their errors. Cut, the message is left incomplete."""
        context = request[CONTEXT]
        bond = await self.bond(request, context)
        calls, task = self._status.calls, asyncio.current_task()
        calls.add(task)
        try:
            return await self._download(request, context, bond, action, has_results=has_results(bond))
        finally:
            calls.discard(task)

    async def _download(
        self, request: web.Request, context: RequestContext, bond: Bond, action: str, *, has_results: bool
    ) -> web.StreamResponse:
        parts = context.parts
        upstream, pool = parts.config.upstreams[bond.upstream], parts.pools[bond.upstream]
        sent = ask_upstream(
            request, context, bond, f"{self._path}/{quote(bond.id, safe='')}{action}", "GET", self._spec
        )
        async with at_upstream(pool, context.key), Download(bond.upstream, pool) as download:
            head = await download.begin(sent, upstream.timeouts.head_s)
            if isinstance(head, Failure):
                raise UpstreamFailed.after(head, passed=self._spec.passed_statuses)
            if head.status != 200:
                refused = Fetched(head, await download.read_all(MAX_ERROR_BYTES))
                await raise_for(bond.upstream, refused, pool.hidden, self._spec)
            ids = [(name, context.id) for name in ("x-request-id", self._spec.id_header) if name is not None]
            cleaner = self._cleaner(bond, head, pool.hidden) if has_results else None
            passed = _DOWN if cleaner is None else _DOWN_DECODED
            headers = [(name, value) for name, value in head.headers if name in passed]
            stream = context.stream = EventStream(request, [*headers, *ids], is_last=not self._status.is_ready)
            try:
                while data := await download.read():
                    for piece in (data,) if cleaner is None else cleaner.decoded(data):
                        clean = piece if cleaner is None else await cleaner.feed(piece)
                        if clean and stream.write(clean):
                            await stream.wait_until_writable()
                        await asyncio.sleep(0)
            except EncodingFault:
                return stream
            if download.failure is None:
                stream.finish(b"" if cleaner is None else await cleaner.end())
            return stream

    def _cleaner(self, bond: Bond, head: Head, hide: Sequence[tuple[str, str]]) -> CleanedResults:
        """Raises `UpstreamFailed` for results that cannot be read."""
        try:
            return CleanedResults(head, hide)
        except EncodingFault:
            failure = Failure(bond.upstream, Phase.WAITING, Fault.ENCODING)
            raise UpstreamFailed.after(failure, passed=self._spec.passed_statuses) from None

    async def fetch(
        self, request: web.Request, context: RequestContext, bond: Bond, action: str = "", method: str = "GET",
        body: bytes = b"", *, is_read: bool = True,
    ) -> Fetched:  # fmt: skip
        """The upstream's answer; of a bond without an id, that of the path itself. Raises `UpstreamFailed` or
        `UpstreamRefused` for any other than a good one, and `Unavailable` if there is no room for it. `is_read`: the
        gateway itself reads its members, so it has to be short."""
        parts = context.parts
        pool, upstream = parts.pools[bond.upstream], parts.config.upstreams[bond.upstream]
        path = f"{self._path}/{quote(bond.id, safe='')}{action}" if bond.id else self._path
        sent = ask_upstream(request, context, bond, path, method, self._spec, body)
        limit = parts.config.server.max_response_bytes
        hold = partial(self._hold, context)
        most = min(limit, MAX_READ_BYTES) if is_read else limit
        async with at_upstream(pool, context.key):
            answer = await fetch(bond.upstream, pool, sent, upstream.timeouts.head_s, most, hold=hold)
        good = await raise_for(bond.upstream, answer, pool.hidden, self._spec)
        if not (is_like_object(good.body) if len(good.body) > MAX_READ_BYTES else object_of(good.body) is not None):
            raise UpstreamFailed.after(Failure(bond.upstream, Phase.WAITING, Fault.NOT_JSON))
        return good

    async def read_all(
        self, request: web.Request, context: RequestContext, bonds: Sequence[Bond]
    ) -> dict[str, dict[str, Any]]:
        """The objects of these bonds as they are now, by their ids, without those that have ended at the upstream."""
        reads = asyncio.Semaphore(READ_AT_ONCE)

        async def read(bond: Bond) -> dict[str, Any] | None:
            async with reads:
                try:
                    return object_of((await self.fetch(request, context, bond)).body)
                except UpstreamRefused as refused:
                    if refused.status != 404:
                        raise
            await context.parts.bonds.forget(bond)
            return None

        found = await asyncio.gather(*[read(bond) for bond in bonds])
        return {bond.id: each for bond, each in zip(bonds, found, strict=True) if each is not None}

    async def page(self, context: RequestContext, found: Mapping[str, dict[str, Any]], **members: Any) -> Whole:
        """A page of a list with these objects, by their ids. Other calls have their turn while it is written."""
        rows, ids = list[str](), list(found)
        for each in found.values():
            rows.append(json.dumps(each))
            await asyncio.sleep(0)
        ends = {"first_id": ids[0], "last_id": ids[-1]} if ids else {}
        body = f'{{"data": [{", ".join(rows)}], {json.dumps(members | ends)[1:]}'.encode()
        self._hold(context, max(0, len(body) - context.held_bytes))
        return self.sent(context, JSON_HEADERS, body)

    def whole(self, context: RequestContext, answer: Fetched) -> Whole:
        return self.sent(context, response_headers(answer.head, self._spec), answer.body)

    def sent(self, context: RequestContext, headers: Iterable[tuple[str, str]], body: bytes) -> Whole:
        """An answer for the client. The room that the request holds is given back when a slow client has read nearly
        all of it; one that reads nothing is cut off (`http_guard/client_connection.py`)."""
        held, context.held_bytes = context.held_bytes, 0
        return Whole(200, headers, body, on_sent=partial(self._capacity.memory.release, held, context.key))

    def _hold(self, context: RequestContext, size: int) -> None:
        if not self._capacity.memory.hold(size, context.key):
            raise buffers_full()
        context.held_bytes += size


@asynccontextmanager
async def at_upstream(pool: Pool, key: str) -> AsyncIterator[None]:
    """Counts a request: none draws on `max_parallel`. Raises `Unavailable` for those of half of the connections."""
    if pool.kept[key] >= max(4 * READ_AT_ONCE, pool.max_connections // 2):
        raise Unavailable("Your key has too many requests for stored objects under way.", code="too_many_calls")
    pool.kept[key] += 1
    try:
        yield
    finally:
        pool.kept -= Counter((key,))


def ask_upstream(
    request: web.Request, context: RequestContext, bond: Bond, path: str, method: str, spec: Format, body: bytes = b""
) -> list[bytes | memoryview]:
    """The request for what is bound."""
    parts = context.parts
    upstream = parts.config.upstreams[bond.upstream]
    kept = forwarded_headers(request, spec.request_headers)
    query = forwarded_query(request) if spec.passes_query else ""
    key = position_of(upstream, bond.account) or 0
    return parts.pools[bond.upstream].request(f"{path}{query}", kept, body, method=method, key=key)


async def raise_for(upstream: str, answer: Fetched | Failure, hide: Sequence[tuple[str, str]], spec: Format) -> Fetched:
    """The answer, if it is a good one, without anything of the account in the reasons of failures in it. Raises
    `UpstreamFailed` or `UpstreamRefused`."""
    if isinstance(answer, Fetched):
        if answer.head.status == 200:
            return answer._replace(body=await cleaned_body(answer.body, hide))
        judged = provider_errors.judge(upstream, answer.head, answer.body, now=time.time(), hide=hide)
        if isinstance(judged, UpstreamRefused):
            raise judged
        answer = judged
    error = UpstreamFailed.after(answer, passed=spec.passed_statuses)
    if answer.fault is Fault.WRONG_URL and spec.is_optional:
        error.status = 404
    raise error


def is_like_object(body: bytes) -> bool:
    """Whether a body, which is too long to be parsed at once, begins and ends as an object does."""
    return body[:MAX_SPACE].lstrip()[:1] == b"{" and body[-MAX_SPACE:].rstrip()[-1:] == b"}"


def object_of(body: bytes) -> dict[str, Any] | None:
    """The object of a JSON body; None: it is none."""
    try:
        return untrusted_json.parse_object(body)
    except ValueError:
        return None
