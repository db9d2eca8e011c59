"""What the desks of the admin API share: who is let in, how a body is read, how rows are spelt.

Each request is answered by the configuration of its moment, tokens included. The registry changes the store itself, and
its refusals are answered as they are; here they meet only a store that does not answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from aiohttp import hdrs, web

from gateway.errors import BodyTimeout, BodyTooLarge, Forbidden, InvalidRequest, NotFound, Unavailable
from gateway.keys.registry import Page, Registry
from gateway.pipeline import Services
from gateway.reports.usage import format_json
from gateway.store import StoreUnavailable
from gateway.web.bodies import tell_to_continue
from gateway.web.endpoints import check_type, continue_later
from gateway.web.http_guard.token_auth import TokenAuth
from gateway.web.middleware import CONTEXT, Handler
from gateway.web.responses import Whole, json_response

from . import request_bodies

MOST_ROWS = 1000
"""Of a page of keys, teams or changes."""

READ_ONLY = (
    "This token may read usage, calls, quotas, upstreams, keys and teams, and nothing else. Use the admin token "
    "(admin.token) for what you wanted."
)
AWAY_WHILE_READING = "The store does not answer."
AWAY_WHILE_CHANGING = (
    "The store does not answer. Whether the change was made is not known: look when it is back, and repeat it if it "
    "was not."
)

Who = Literal["admin", "viewer"]
"""Whose token opens a door; the admin's opens every one."""

ROLE = web.RequestKey("role", str)
"""Whose token a request bears."""


class AdminAccess(NamedTuple):
    """What each desk is given."""

    registry: Registry
    gate: TokenAuth

    def door(self, who: Who, handler: Handler) -> Handler:
        """The handler behind a door that opens to this token."""

        async def enter(request: web.Request) -> web.StreamResponse:
            role = request[ROLE] = self._role(request)
            if role not in (who, "admin"):
                raise Forbidden(READ_ONLY)
            try:
                return await handler(request)
            except StoreUnavailable:
                is_reading = request.method in (hdrs.METH_GET, hdrs.METH_HEAD)
                said = AWAY_WHILE_READING if is_reading else AWAY_WHILE_CHANGING
                raise Unavailable(said, code=StoreUnavailable.code) from None

        return enter

    def _role(self, request: web.Request) -> str:
        """Raises `NotFound` where there is no admin API, `Unauthorized` or `TooManyWrongTokens`."""
        admin = request[CONTEXT].parts.config.admin
        if admin.token is None:
            path = request.rel_url.raw_path[:200]
            raise NotFound(
                f"Invalid URL ({request.method} {path}). This gateway has no admin API: admin.token is not set."
            )
        return self.gate.admit(request, {"admin": admin.token, "viewer": admin.viewer_token})

    def get(self, path: str, handler: Handler, who: Who = "viewer") -> web.RouteDef:
        """A route to something that is read."""
        return web.get(path, self.door(who, handler))

    def change(self, method: str, path: str, handler: Handler) -> web.RouteDef:
        """A route to something that is changed."""
        return web.route(method, path, self.door("admin", handler), expect_handler=continue_later)


def parts_of(request: web.Request) -> Services:
    """What this request is answered with."""
    return request[CONTEXT].parts


def actor(request: web.Request) -> str:
    """Who it is, as the audit log says it."""
    return f"admin API from {request[CONTEXT].remote or 'somewhere'}"


async def read(request: web.Request, kind: type[request_bodies.RequestBody]) -> dict[str, Any]:
    """The body, of this kind; no body is an empty one. Raises `GatewayError`."""
    raw = await _read_raw(request)
    if raw:
        check_type(request)
    return request_bodies.read(raw, kind)


async def _read_raw(request: web.Request) -> bytes:
    content = request.content
    if (request.content_length or 0) > request_bodies.MAX_BYTES:
        raise _too_large(f" ({request.content_length} bytes announced)")
    if hdrs.EXPECT in request.headers and not content.is_eof():
        tell_to_continue(request)
    within_s = parts_of(request).config.server.client_body_timeout_s
    raw = bytearray()
    try:
        async with asyncio.timeout(within_s):
            while piece := await content.readany():
                raw += piece
                if len(raw) > request_bodies.MAX_BYTES:
                    raise _too_large()
    except TimeoutError:
        raise BodyTimeout(f"The request body did not arrive within {within_s:g} seconds.") from None
    return bytes(raw)


def _too_large(told: str = "") -> BodyTooLarge:
    return BodyTooLarge(f"Maximum content size limit ({request_bodies.MAX_BYTES}) exceeded{told}")


def bad(name: str, what: str) -> InvalidRequest:
    """A parameter of a query that cannot be read."""
    return InvalidRequest(f"Invalid '{name}': {what}.", param=name)


def limit_of(query: Mapping[str, str]) -> int | None:
    """How many rows are asked for; None: nobody says so."""
    if (text := query.get("limit")) is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise bad("limit", "expected a number from 1")
    return int(text)


def page_limit_of(query: Mapping[str, str]) -> int:
    """The same for a page, which has 100 rows where nobody says how many."""
    limit = limit_of(query) or 100
    if limit > MOST_ROWS:
        raise bad("limit", f"expected a number from 1 to {MOST_ROWS}; ask for the next page with what 'next' says")
    return limit


def shown(row: Mapping[str, Any], status: int = 200) -> Whole:
    """One row. A secret may be in it: nobody on the way should keep it."""
    return json_response(json.dumps(row).encode(), status, [("Cache-Control", "no-store")])


async def listed(rows: Iterable[Mapping[str, Any]]) -> Whole:
    """The rows as `{"data": [...]}`; spelt in a thread, because there may be very many."""
    return json_response(f'{{"data": {await asyncio.to_thread(format_json, rows)}}}'.encode())


async def paged(page: Page) -> Whole:
    """The same, with what to ask for next."""
    rows = await asyncio.to_thread(format_json, page.rows)
    return json_response(f'{{"data": {rows},\n"next": {json.dumps(page.next)}}}'.encode())
