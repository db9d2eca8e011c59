"""The common part of all operations of the admin API: authorization, parameters, request bodies, pages and streams of
rows.

1. A request is answered by the configuration that is in force when it arrives, tokens included.
2. A query parameter that an operation does not have is refused with 400, and so is a `limit` above `MAX_ROWS`.
3. A list holds a bounded number of rows in memory at any length: a page has at most `MAX_ROWS` rows, and a whole
   list is written portion by portion, as fast as the client reads it.
4. A list that fails after its first bytes were sent ends with a closed connection and an incomplete message.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

from aiohttp import hdrs, web

from gateway.api import auth
from gateway.api.auth import KnownSecret
from gateway.errors import BodyTimeout, BodyTooLarge, Forbidden, InvalidRequest, NotFound, Unavailable
from gateway.keys.cache import KeyCache
from gateway.keys.registry import Page, Registry, no_key, no_team
from gateway.pipeline import Services
from gateway.quota.issued import may_be_issued
from gateway.quota.notation import read_since
from gateway.reports.usage import format_json
from gateway.store import ReportScope, StoreUnavailable
from gateway.web.bodies import send_continue
from gateway.web.callers import Callers, Visitor
from gateway.web.endpoints import check_type, continue_later
from gateway.web.http_guard.token_auth import TokenAuth
from gateway.web.middleware import CONTEXT, Handler
from gateway.web.openapi.operation import Operation
from gateway.web.responses import CONGESTED_BYTES, EventStream, Whole, json_response

from . import request_bodies
from .operations import MAX_ROWS, PAGE_ROWS
from .permissions import (
    Principal,
    Reach,
    Role,
    Scope,
    holder_of,
    is_left_to_keys,
    not_allowed,
    owned_by,
    scope_of,
    tokens_of,
)

AWAY_WHILE_READING = "The store does not answer."
AWAY_WHILE_CHANGING = (
    "The store does not answer. Whether the change was made is not known: look when it is back, and repeat it if it "
    "was not."
)

VISITOR = web.RequestKey("visitor", Visitor)
"""The author of a request without a token."""

SCOPE = web.RequestKey("scope", Scope)
"""The principal of the request, and its reach."""

ADMIT = web.RequestKey("admit", partial[Coroutine[Any, Any, None]])
"""Checks author and targets again: while a body comes, a key may get another team, and a person may leave."""

WARNINGS = web.RequestKey("warnings", list[str])
"""Warnings for the author of a change about how safely it is kept."""

log = logging.getLogger("gateway")

T = TypeVar("T")


class AdminAccess(NamedTuple):
    """Shared by all endpoints: the registry, the checks of tokens and sessions, and the tables of operations."""

    registry: Registry
    gate: TokenAuth
    callers: Sequence[Callers]
    operations: Mapping[tuple[str, str], Operation]
    permissions: Mapping[tuple[str, str], Mapping[Role, Reach]]

    def _checked(self, method: str, path: str, handler: Handler) -> Handler:
        """The handler for requests that the table of roles allows, within their scope, and with the query parameters
        of their operation only. The one place where roles are enforced."""
        operation, roles = self.operations[method, path], self.permissions[method, path]
        parameters = [each["name"] for each in operation.parameters if each["in"] == "query"]

        async def admit(request: web.Request) -> None:
            principal = await self._principal(request)
            scope = scope_of(principal, roles)
            if scope is None or (
                principal.role == "key" and not is_left_to_keys(path, roles, by_key(request, principal))
            ):
                raise Forbidden(not_allowed(principal), code=None if principal.role == "viewer" else "role_not_allowed")
            for name in request.query:
                if name not in parameters:
                    raise request_bodies.unknown(name, parameters, "query parameter")
            if "own" in request.query:
                if principal.owner is None:
                    raise bad("own", "only a person who signed in has keys of her own")
                if request.query["own"] != "true":
                    raise bad("own", "expected true")
                scope = Scope("own", principal)
            request[SCOPE] = scope
            await self._check_targets(request, scope)

        async def enter(request: web.Request) -> web.StreamResponse:
            request[WARNINGS], request[ADMIT] = [], partial(admit, request)
            try:
                await admit(request)
                return await handler(request)
            except StoreUnavailable:
                is_reading = request.method in (hdrs.METH_GET, hdrs.METH_HEAD)
                text = AWAY_WHILE_READING if is_reading else AWAY_WHILE_CHANGING
                raise Unavailable(text, code=StoreUnavailable.code) from None

        return enter

    def changing(self, request: web.Request) -> Registry:
        """The registry for a change: its warnings go to the log, and into the answer (`changed`)."""

        def warn(text: str) -> None:
            log.warning(text)
            request[WARNINGS].append(text)

        return self.registry.warning(warn)

    async def _check_targets(self, request: web.Request, scope: Scope) -> None:
        """Check that the keys and teams that path and query name are within the scope. Raises `NotFound`: one outside
        it is answered like one that does not exist."""
        if scope.is_all:
            return
        for key in [found for found in (request.match_info.get("id"), request.query.get("key")) if found is not None]:
            facts = await self.registry.key_facts(key)
            if facts is None or not scope.covers(facts):
                raise no_key(key)
        for team in [each for each in (request.match_info.get("name"), request.query.get("team")) if each is not None]:
            if not scope.covers_team(team):
                raise no_team(team)

    async def reach(self, request: web.Request) -> ReportScope | None:
        """The usage, calls and refusals that a request may see: all (None), those of a lead's team, or those of a
        person's keys in the teams that they have now. The query parameter `person` leaves those of one person."""
        scope = request[SCOPE]
        narrowest = scope if (person := request.query.get("person")) is None else owned_by(person)
        if narrowest.reach == "all":
            return None
        if narrowest.reach == "team":
            return ReportScope(teams=frozenset(filter(None, [scope.principal.team])))
        keys = self.registry.every_key(
            is_meant=lambda key: scope.covers(key) and narrowest.covers(key), groups=narrowest.groups
        )
        return ReportScope(keys=frozenset([key.in_team async for some in keys for key in some]))

    async def _principal(self, request: web.Request) -> Principal:
        """Raises `NotFound` where there is no admin API, `Unauthorized` or `TooManyWrongTokens`."""
        config = request[CONTEXT].parts.config
        admin = config.admin
        if not config.has_admin_api:
            path = request.rel_url.raw_path[:200]
            raise NotFound(
                f"Invalid URL ({request.method} {path}). This gateway has no admin API: admin.token is not set."
            )
        for each in self.callers if hdrs.AUTHORIZATION not in request.headers else ():
            if (visitor := await each.visitor(request)) is not None:
                request[VISITOR] = visitor
                return visitor.principal
        secret = auth.bearer(request.headers.getall(hdrs.AUTHORIZATION, []))
        known = await _known_key(parts_of(request).key_cache, secret, request[CONTEXT].remote)
        name = self.gate.admit(request, tokens_of(admin), f"key {known.key.id}" if known is not None else "")
        now = parts_of(request).clock.now()
        if (holder := holder_of(name, admin, now)) is not None:
            return holder
        key = auth.admit(known, secret, now=now, remote=request[CONTEXT].remote)
        settings = await self.registry.key_facts(key.id)
        owner = None if settings is None else settings.owner
        return Principal(name, "key", key.team, owner, key.id, known is not None and known.until is not None)

    def get(self, path: str, handler: Handler) -> web.RouteDef:
        """The route of an operation that reads."""
        return web.get(path, self._checked(hdrs.METH_GET, path, handler))

    def change(self, method: str, path: str, handler: Handler) -> web.RouteDef:
        """The route of an operation that changes something."""
        return web.route(method, path, self._checked(method, path, handler), expect_handler=continue_later)


def by_key(request: web.Request, principal: Principal) -> Collection[str]:
    """Operations that the team of the presented key allows its keys; none to a secret that was replaced."""
    team = parts_of(request).key_cache.teams.get(principal.team or "")
    return () if principal.is_replaced or team is None or team.members is None else team.members.by_key


async def _known_key(key_cache: KeyCache, secret: str, remote: str | None) -> KnownSecret | None:
    """The API key that a token is; None: it is none. Raises `Unavailable`."""
    known = key_cache.known.get(auth.digest(secret))
    if known is None and not may_be_issued(secret):
        return None
    key_cache.trust()
    return known or await key_cache.look_up(secret, remote)


def parts_of(request: web.Request) -> Services:
    return request[CONTEXT].parts


def actor(request: web.Request) -> str:
    """The author for the audit log: the person or the token, and the address."""
    return f"{request[SCOPE].principal.name} from {request[CONTEXT].remote or 'an unknown address'}"


async def read(request: web.Request, kind: type[request_bodies.RequestBody]) -> dict[str, Any]:
    """The body, of this kind; no body is an empty one. Raises `GatewayError`."""
    return request_bodies.read(await read_json(request), kind)


async def read_json(request: web.Request, at_most: int = request_bodies.MAX_BYTES) -> bytes:
    """The bytes of a body of JSON; none for no body. Raises `GatewayError`."""
    content = request.content
    if (request.content_length or 0) > at_most:
        raise _too_large(at_most, f" ({request.content_length} bytes announced)")
    if hdrs.EXPECT in request.headers and not content.is_eof():
        send_continue(request)
    within_s = parts_of(request).config.server.client_body_timeout_s
    raw, is_late = bytearray(), not content.is_eof()
    try:
        async with asyncio.timeout(within_s):
            while piece := await content.readany():
                raw += piece
                if len(raw) > at_most:
                    raise _too_large(at_most)
    except TimeoutError:
        raise BodyTimeout(f"The request body did not arrive within {within_s:g} seconds.") from None
    if is_late:
        await request[ADMIT]()
    if raw:
        check_type(request)
    return bytes(raw)


def _too_large(at_most: int, details: str = "") -> BodyTooLarge:
    return BodyTooLarge(f"Maximum content size limit ({at_most}) exceeded{details}")


def bad(name: str, what: str) -> InvalidRequest:
    """A parameter of a query that cannot be read."""
    return InvalidRequest(f"Invalid '{name}': {what}.", param=name)


def given(query: Mapping[str, str], name: str, how: Callable[[str], T]) -> T | None:
    """A parameter of a query, read; None where it is not given. Raises `InvalidRequest`."""
    try:
        return how(query[name]) if name in query else None
    except ValueError as error:
        raise bad(name, str(error)) from None


def limit_of(query: Mapping[str, str]) -> int | None:
    """The number of rows of a page; None: the request has none."""
    if (text := query.get("limit")) is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text) or int(text) > MAX_ROWS:
        raise bad("limit", f"expected a number from 1 to {MAX_ROWS}; 'next' of each page leads to the next one")
    return int(text)


def page_limit_of(query: Mapping[str, str]) -> int:
    """The number of rows of a page, with its default."""
    return limit_of(query) or PAGE_ROWS


def today_of(request: web.Request) -> datetime:
    """The present, from which a time back is reckoned."""
    return datetime.fromtimestamp(parts_of(request).clock.now(), UTC)


def moment_of(request: web.Request, name: str) -> float | None:
    """A Unix time, given as a time back from now, a day or a moment."""
    return given(request.query, name, lambda text: read_since(text, today_of(request)))


def shape_of(query: Mapping[str, str]) -> str:
    """Returns `json` or `csv`. Raises `InvalidRequest` for another format."""
    if (shape := query.get("format", "json")) not in ("json", "csv"):
        raise bad("format", "expected json or csv")
    return shape


def shown(row: Mapping[str, Any], status: int = 200) -> Whole:
    """One row. It may contain a secret, so caches must not store it."""
    return json_response(json.dumps(row).encode(), status, [("Cache-Control", "no-store")])


def changed(request: web.Request, row: Mapping[str, Any], status: int = 200) -> Whole:
    """The answer to a change, with its warnings."""
    warnings = [*row.get("warnings", ()), *request[WARNINGS]]
    return shown({**row, "warnings": warnings} if warnings else row, status)


async def listed(rows: Iterable[Mapping[str, Any]]) -> Whole:
    """A short list as `{"data": [...]}`, formatted in a thread."""
    return json_response(f'{{"data": {await asyncio.to_thread(format_json, rows)}}}'.encode())


async def paged(page: Page) -> Whole:
    """One page of a list, with the position of the next one."""
    return await page_of(page.rows, page.next)


async def page_of(rows: Iterable[Mapping[str, Any]], follows: str | None) -> Whole:
    """The same; a row may be made when a thread asks for it."""
    text = await asyncio.to_thread(format_json, rows)
    return json_response(f'{{"data": {text},\n"next": {json.dumps(follows)}}}'.encode())


async def whole_list(request: web.Request, portions: AsyncIterator[list[dict[str, Any]]]) -> web.StreamResponse:
    """A whole list, in the form of a page behind which there is no other."""

    async def pieces() -> AsyncIterator[bytes]:
        before = '{"data": ['
        async for rows in portions:
            if rows:
                yield (before + (await asyncio.to_thread(format_json, rows))[1:-1]).encode()
                before = ",\n"
        yield (f'{before}],\n"next": null}}' if before != ",\n" else '],\n"next": null}').encode()

    return await streamed(request, "application/json", pieces())


def csv_response(text: str) -> Whole:
    return Whole(200, [("Content-Type", CSV)], text.encode())


CSV = "text/csv; charset=utf-8"


async def streamed(request: web.Request, media: str, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    """One answer of all pieces. It is sent as it grows, as fast as the client reads; a short one is sent at once.

    An error before the first byte is an ordinary answer.
    """
    waiting, stream = bytearray(), None
    headers = [("Content-Type", media)]
    try:
        async for piece in pieces:
            waiting += piece
            if len(waiting) < CONGESTED_BYTES:
                continue
            if request.method == hdrs.METH_HEAD:
                break
            stream = stream or EventStream(request, [*headers, ("x-request-id", request[CONTEXT].id)])
            if stream.write(bytes(waiting)):
                await stream.wait_until_writable()
            waiting.clear()
    except ConnectionResetError:  # the client has left
        return stream or Whole(200, headers, b"")
    except BaseException:
        if stream is not None and request.transport is not None:
            request.transport.close()  # so that the error is not written into the message
        raise
    if stream is None:
        return Whole(200, headers, bytes(waiting))
    stream.finish(bytes(waiting))
    return stream
