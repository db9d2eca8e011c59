"""The routes below `/scim/v2`, beside the admin API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from aiohttp import hdrs, web

from gateway import untrusted_json
from gateway.errors import GatewayError
from gateway.store import StoreUnavailable
from gateway.web.bodies import BodyReader
from gateway.web.capacity import buffers_full
from gateway.web.middleware import CONTEXT
from gateway.web.openapi.operation import Operation, Schema, in_path, in_query
from gateway.web.responses import Whole
from gateway.web.wings import WebParts, WingEndpoints

from .directory import Directory
from .discovery import MAX_RESULTS, provider_config, resource_types, schemas
from .faults import FAULT, ScimFault, shown_fault
from .filters import read_filter
from .patch import patched
from .resources import MAX_BYTES, MAX_DEPTH, MAX_PARTS, Kind, Resource, is_readable, is_too_much, listed
from .settings import ScimSettings

BASE = "/scim/v2"
MEDIA = "application/scim+json"
PAGE_ROWS = 100
KINDS: Mapping[str, Kind] = {"Users": "User", "Groups": "Group"}

Answer = tuple[int, Any]
Doing = Callable[[web.Request, Directory, Kind], Awaitable[Answer]]


class ScimEndpoints:
    """The handlers of one worker."""

    def __init__(self, parts: WebParts) -> None:
        self._parts = parts
        self._bodies = BodyReader(parts.capacity)
        self._turn = asyncio.Lock()
        """Held by a search: one goes after the other."""

    def routes(self) -> Iterable[web.RouteDef]:
        for path, document in DISCOVERY.items():
            yield web.get(f"{BASE}/{path}", self._entered(_answers(document)))
        for path, kind in KINDS.items():
            yield web.get(f"{BASE}/{path}", self._entered(self.list_all, kind))
            yield web.post(f"{BASE}/{path}", self._entered(self.create, kind))
            for method, doing in (
                ("GET", self.show),
                ("PUT", self.replace),
                ("PATCH", self.patch),
                ("DELETE", self.delete),
            ):
                yield web.route(method, f"{BASE}/{path}/{{id}}", self._entered(doing, kind))

    def _entered(self, doing: Doing, kind: Kind = "User") -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """The handler for requests with the token; refusals are in SCIM's form."""

        async def enter(request: web.Request) -> web.StreamResponse:
            headers: list[tuple[str, str]] = [(hdrs.CONTENT_TYPE, MEDIA)]
            try:
                status, body = await doing(request, self._directory(request), kind)
                if request.method != hdrs.METH_GET:
                    await request[CONTEXT].parts.key_cache.hear()  # this worker need not wait for its next look
            except ScimFault as error:
                status, body = error.status, shown_fault(error.status, error.detail, error.kind)
            except StoreUnavailable:
                status, body = 503, shown_fault(503, "The store does not answer. Repeat the request.")
            except GatewayError as error:
                status, body = error.status, shown_fault(error.status, error.message)
                headers += error.headers.items()
            return Whole(status, headers, await asyncio.to_thread(_encoded, body))

        return enter

    def _directory(self, request: web.Request) -> Directory:
        """The directory for this request. Raises `ScimFault` where there is no SCIM, and `GatewayError` for another
        token."""
        context = request[CONTEXT]
        settings = context.parts.config.section(ScimSettings)
        if settings.token is None:
            raise ScimFault(404, "This gateway has no SCIM: scim.token is not set.")
        tokens = {"scim.token": settings.token, "scim.previous_token": settings.previous_token}
        name = self._parts.access.gate.admit(request, tokens)
        actor = f"{name} from {context.remote or 'an unknown address'}"
        registry = self._parts.access.registry
        memory = self._parts.capacity.memory

        def hold(size: int, may_refuse: bool) -> None:
            if may_refuse and not memory.hold(size, context.key):
                raise buffers_full()
            if not may_refuse:
                memory.hold_unchecked(size, context.key)
            context.held_bytes += size

        clock, config = context.parts.clock.now, context.parts.config
        return Directory(self._parts.store, registry, actor, settings.person, clock, config, hold, self._turn)

    async def list_all(self, request: web.Request, directory: Directory, kind: Kind) -> Answer:
        start, count = _number(request, "startIndex", 1, 1), min(_number(request, "count", PAGE_ROWS, 0), MAX_RESULTS)
        text = request.query.get("filter")
        rows, total = await directory.page(kind, read_filter(text) if text else (), start, count)
        groups = await self._groups(request, directory, rows)
        without, address = _without(request), _address(request)

        def show() -> list[dict[str, Any]]:
            return [each.shown(address, groups.get(each.id, ()), without) for each in rows]

        return 200, listed(await asyncio.to_thread(show), total, start)

    async def _groups(
        self, request: web.Request, directory: Directory, found: Sequence[Resource]
    ) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """The groups of users, if they are to be shown."""
        is_shown = "groups" not in _without(request)
        return await directory.groups_of([each.id for each in found if each.kind == "User"]) if is_shown else {}

    async def create(self, request: web.Request, directory: Directory, kind: Kind) -> Answer:
        made = await directory.create(kind, await self._body(request))
        return 201, made.shown(_address(request))

    async def show(self, request: web.Request, directory: Directory, kind: Kind) -> Answer:
        found = await directory.find(kind, request.match_info["id"])
        groups = await self._groups(request, directory, [found])
        return 200, found.shown(_address(request), groups.get(found.id, ()), _without(request))

    async def replace(self, request: web.Request, directory: Directory, kind: Kind) -> Answer:
        body = await self._body(request)
        return await self._changed(request, directory, kind, lambda _: body)

    async def patch(self, request: web.Request, directory: Directory, kind: Kind) -> Answer:
        body = await self._body(request)
        return await self._changed(request, directory, kind, lambda values: patched(values, body))

    async def _changed(
        self,
        request: web.Request,
        directory: Directory,
        kind: Kind,
        how: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ) -> Answer:
        changed = await directory.change(kind, request.match_info["id"], how)
        groups = await self._groups(request, directory, [changed])
        return 200, changed.shown(_address(request), groups.get(changed.id, ()))

    async def delete(self, request: web.Request, directory: Directory, kind: Kind) -> Answer:
        await directory.delete(kind, request.match_info["id"])
        return 204, None

    async def _body(self, request: web.Request) -> dict[str, Any]:
        pieces = await self._bodies.read(request, request[CONTEXT])
        text = b"".join(pieces) if sum(map(len, pieces)) <= MAX_BYTES else b""
        if not pieces or (pieces[0] and not text) or is_too_much(text):
            raise ScimFault(413, f"A body has at most {MAX_BYTES} bytes, and {MAX_PARTS} objects and lists.")
        try:
            body = await asyncio.to_thread(untrusted_json.parse, text)
        except ValueError:
            raise ScimFault(400, "The body is no JSON.", "invalidSyntax") from None
        if not isinstance(body, dict):
            raise ScimFault(400, "Expected an object.", "invalidSyntax")
        if not await asyncio.to_thread(is_readable, body):
            raise ScimFault(
                400, f"The body has half of a character, a very long name, or more than {MAX_DEPTH} levels of objects.",
                "invalidSyntax",
            )  # fmt: skip
        return body


def _answers(document: Callable[[], dict[str, Any]]) -> Doing:
    async def answer(_: web.Request, __: Directory, ___: Kind) -> Answer:
        return 200, document()

    return answer


def _number(request: web.Request, name: str, default: int, least: int) -> int:
    text = request.query.get(name, str(default))
    if not text.removeprefix("-").isdecimal() or len(text) > 9:
        raise ScimFault(400, f"Expected {name} as a number.", "invalidValue")
    return max(int(text), least)


def _encoded(body: Any) -> bytes:
    """The text of an answer. Each row of a list is written for itself, because nothing else runs meanwhile."""
    if body is None:
        return b""
    rows = body.get("Resources")
    if not rows:
        return json.dumps(body).encode()
    head = json.dumps({name: value for name, value in body.items() if name != "Resources"})
    return f'{head[:-1]}, "Resources": [{", ".join([json.dumps(row) for row in rows])}]}}'.encode()


def _without(request: web.Request) -> Collection[str]:
    """The attributes that the provider does not want, in small letters."""
    return {each.strip().lower() for each in request.query.get("excludedAttributes", "").split(",")} - {""}


def _address(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}{BASE}"


DISCOVERY: Mapping[str, Callable[[], dict[str, Any]]] = {
    "ServiceProviderConfig": provider_config,
    "ResourceTypes": resource_types,
    "Schemas": schemas,
}

_OBJECT = {MEDIA: {"type": "object"}}
_LISTING = (
    in_query("filter", 'As `userName eq "alice@example.org"`.', type="string"),
    in_query("startIndex", "The first row, from 1.", type="integer"),
    in_query("count", f"Rows, at most {MAX_RESULTS}.", type="integer"),
    in_query("excludedAttributes", "Attributes that are left out, such as members.", type="string"),
)
_ID = (in_path("id"),)


def _operation(summary: str, answers: Mapping[str, Schema], *errors: int, **more: Any) -> Operation:
    errors = (401, 404, *errors, 429)
    return Operation(f"SCIM 2.0: {summary}.", "admin", answers, errors, error=FAULT, error_type=MEDIA, **more)


def _operations() -> Iterable[tuple[tuple[str, str], Operation]]:
    for path in DISCOVERY:
        yield ("GET", f"{BASE}/{path}"), _operation(path, _OBJECT)
    for path, kind in KINDS.items():
        at, one = f"{BASE}/{path}", f"{BASE}/{path}/{{id}}"
        yield ("GET", at), _operation(f"list {path}", _OBJECT, parameters=_LISTING)
        yield ("POST", at), _operation(f"make a {kind}", _OBJECT, 409, 413, status=201)
        yield ("GET", one), _operation(f"a {kind}", _OBJECT, parameters=_ID)
        yield ("PUT", one), _operation(f"replace a {kind}", _OBJECT, 409, 413, parameters=_ID)
        yield ("PATCH", one), _operation(f"change a {kind}", _OBJECT, 409, 413, parameters=_ID)
        yield ("DELETE", one), _operation(f"delete a {kind}", {}, 409, 413, parameters=_ID, status=204)


ENDPOINTS = WingEndpoints(dict(_operations()), lambda parts: ScimEndpoints(parts).routes(), listener="admin")
