"""Responses that an upstream keeps, by their ids: read, delete, cancel, list the input.

Each goes to the upstream and with the API key that the id is bound to, and to no other. No quota is drawn on: nothing
is generated. An id of another key is as unknown as one that was never given.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from urllib.parse import quote

from aiohttp import web

from gateway.errors import InvalidRequest, UpstreamFailed, UpstreamRefused
from gateway.formats import FORMATS
from gateway.formats.format import Format
from gateway.records import Bond, Failure, Fault, Key, Phase
from gateway.relay.attempt import response_headers
from gateway.upstream import provider_errors
from gateway.upstream.account import position_of
from gateway.upstream.ask import Fetched, fetch

from .endpoints import forwarded_headers, forwarded_query
from .middleware import CONTEXT, RequestContext
from .responses import Whole
from .status import Status

FindsCaller = Callable[[web.Request, RequestContext], Awaitable[Key]]

_STREAM = "stream"


class StoredResponses:
    """The endpoints of stored responses. `caller` finds the key of a request, or refuses it."""

    def __init__(self, caller: FindsCaller, status: Status) -> None:
        self._caller = caller
        self._status = status

    def routes(self) -> list[web.RouteDef]:
        """Every route of a stored response."""
        base = FORMATS["responses"].path
        # Other formats have addresses below it, which no id can be.
        taken = [each.path.removeprefix(f"{base}/") for each in FORMATS.values() if each.path.startswith(f"{base}/")]
        path = f"{base}/{{response:(?!(?:{'|'.join(taken)})(?:/|$))[^{{}}/]+}}"
        return [
            web.get(path, self.show, allow_head=False),
            web.delete(path, self.delete),
            web.post(f"{path}/cancel", partial(self.relay, action="/cancel")),
            web.get(f"{path}/input_items", partial(self.relay, action="/input_items"), allow_head=False),
        ]

    async def show(self, request: web.Request) -> web.StreamResponse:
        """The response as it is now."""
        if request.query.get(_STREAM, "false").lower() not in ("false", "0", ""):
            raise InvalidRequest(
                "Unsupported parameter: 'stream'. The gateway does not resume streams: read the response without it.",
                param=_STREAM,
                code="unsupported_parameter",
            )
        return await self.relay(request)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Delete the response at the upstream, and then its bond."""
        visit = request[CONTEXT]
        bond = await self._bond(request, visit)
        answer = await self._fetch(request, visit, bond, "")
        if answer.head.status == 200 and _is_deleted(answer.body):
            await visit.parts.bonds.forget(bond)
        return _whole(answer)

    async def relay(self, request: web.Request, action: str = "") -> web.StreamResponse:
        """Pass on what the upstream answers."""
        visit = request[CONTEXT]
        return _whole(await self._fetch(request, visit, await self._bond(request, visit), action))

    async def _bond(self, request: web.Request, visit: RequestContext) -> Bond:
        key = await self._caller(request, visit)
        self._status.refuse_when_draining()
        parts = visit.parts
        return await parts.bonds.require(key.id, request.match_info["response"], "", parts.config.upstreams)

    async def _fetch(self, request: web.Request, visit: RequestContext, bond: Bond, action: str) -> Fetched:
        """The upstream's answer. Raises `UpstreamFailed` or `UpstreamRefused` for any other than a good one."""
        parts, spec = visit.parts, FORMATS["responses"]
        pool, upstream = parts.pools[bond.upstream], parts.config.upstreams[bond.upstream]
        path = f"{spec.upstream_path}/{quote(bond.id, safe='')}{action}{forwarded_query(request)}"
        sent = pool.request(
            path,
            forwarded_headers(request, spec.request_headers),
            b"",
            method=request.method,
            key=position_of(upstream, bond.account) or 0,
        )
        limit = parts.config.server.max_response_bytes
        answer = await fetch(bond.upstream, pool, sent, upstream.timeouts.head_s, limit)
        judged = _judged(bond.upstream, answer, pool.hidden)
        if isinstance(judged, UpstreamRefused):
            raise judged
        if isinstance(judged, Failure):
            raise UpstreamFailed.after(judged, passed=spec.passed_statuses)
        return judged


def _judged(
    upstream: str, answer: Fetched | Failure, hide: Sequence[tuple[str, str]]
) -> Fetched | UpstreamRefused | Failure:
    if isinstance(answer, Failure):
        return answer
    if answer.head.status != 200:
        return provider_errors.judge(upstream, answer.head, answer.body, now=time.time(), hide=hide)
    if _object(answer.body) is None:
        return Failure(upstream, Phase.WAITING, Fault.NOT_JSON)
    return answer


def _whole(answer: Fetched, spec: Format = FORMATS["responses"]) -> Whole:
    return Whole(200, response_headers(answer.head, spec), answer.body)


def _is_deleted(body: bytes) -> bool:
    told = _object(body)
    return told is not None and told.get("deleted") is not False


def _object(body: bytes) -> dict[str, object] | None:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None
