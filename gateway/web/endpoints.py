"""Completions, chat, embeddings and models, as rows of a table.

The order of the checks is the order of their cost: the key on the head, before one byte of the body; then size, type
and content of the body; then the model; then the limits of key and model. Only what has passed all of them is leased.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from aiohttp import hdrs, web

from gateway import pipeline, wings
from gateway.api import auth, capabilities, validate
from gateway.api.attribution import attribution_of
from gateway.api.auth import TRUSTED_S
from gateway.api.large_body import LARGE_BYTES
from gateway.api.multipart import content_type
from gateway.config import Config, Model, NamedModel, is_pattern
from gateway.errors import InvalidRequest, ModelNotFound, Unavailable, UpgradeRequired
from gateway.formats import bridges
from gateway.formats.format import Format, Restricts, no_json
from gateway.formats.table import FORMATS, azure_paths, of_client, without_deployment
from gateway.pipeline.services import Amendment
from gateway.quota import window_status
from gateway.quota.issued import may_be_issued
from gateway.quota.pricing import current_rows
from gateway.quota.windows import calendar_window
from gateway.records import OTHER, Call, Endpoint, Key, Params
from gateway.relay import Answer, Streamed
from gateway.spelling import nearest
from gateway.store import StoreUnavailable
from gateway.tasks import StallTolerantTimeout
from gateway.upstream import stickiness

from .bodies import BodyReader, check_coding
from .callers import Callers
from .capacity import Capacity, buffers_full
from .forms import FormReader, boundary_of
from .large_bodies import LargeBodies, Pieces
from .middleware import CONTEXT, MODELS, Handler, RequestContext
from .responses import EventStream, FramedStream, Whole, json_response
from .status import Status, shutting_down

_FORWARDED = frozenset({"content-type", "accept", "user-agent", "traceparent", "tracestate"})
MAX_CLIENT_ID = 512
MAX_COMPARED = 500
"""Names of models that an unknown one is compared with."""
WINDOWS_WITHIN_S = 0.8
"""Time limit for a caller's own limits: an unavailable store is reported within a second. Reports may take longer."""


class RowCall(NamedTuple):
    """How a call of a passthrough row is checked and seen."""

    endpoint: Endpoint
    check: Callable[[], Awaitable[Call]]
    find_key: Callable[[web.Request, RequestContext], Awaitable[Key]]
    seen: Callable[[Call, Answer], Awaitable[Answer]] | None = None
    """Gets a whole answer before its client; returns what the client gets."""


class WingBinding(NamedTuple):
    """Looks up what calls name of objects that upstreams keep, before they are carried there."""

    complete: Callable[[Params, Key, pipeline.Services], Awaitable[Params]]
    """Returns the parameters of a body that names no model, but an object that has one. Raises `GatewayError`."""
    bind: Callable[[Call, pipeline.Services], Awaitable[Call]]
    """Returns the call, bound to the objects that its body names. Raises `GatewayError`."""


class DataPlane:
    """The endpoints that clients call."""

    def __init__(self, status: Status, capacity: Capacity, large_bodies: LargeBodies, callers: list[Callers]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callers = callers
        self._status = status
        self._capacity = capacity
        self._bodies = BodyReader(capacity)
        self._forms = FormReader(capacity)
        self._large_bodies = large_bodies
        self._bindings = wings.parts(WingBinding, "binding")
        self.calls: Mapping[str, Handler] = {
            path: partial(self.carry, spec=each)
            for each in FORMATS.values()
            if not each.has_model_in_path
            for path in (each.path, *each.more_paths, *azure_paths(each))
            if "{" not in path
        }
        """The handlers of the calls that are carried to an upstream, by their paths."""
        self._named_calls: Mapping[str, Handler] = {
            path.replace("{model}", "{model:.+}"): partial(self.carry_named, spec=each, is_stream=is_stream)
            for each in FORMATS.values()
            for paths, is_stream in _named_paths(each)
            for path in paths
            if "{model}" in path
        }
        """The same for paths that name the model."""

    def routes(self) -> list[web.RouteDef]:
        """Every route, with the handler of its endpoint."""
        # Longer ones first: `…/{model}/completions` matches `…/m/chat/completions`, too.
        calls = [*self.calls.items(), *sorted(self._named_calls.items(), key=lambda each: -len(each[0]))]
        responses = FORMATS["responses"].path
        google = partial(self.list_models, spec=FORMATS["generate_content"])
        return [
            *[web.post(path, handler, expect_handler=continue_later) for path, handler in calls],
            web.get("/v1beta/models", google),
            web.get("/v1beta/models/{model:.+}", partial(self.show_model, spec=FORMATS["generate_content"])),
            *[web.get(path, refuse_socket) for path in (responses, *without_deployment(responses))],
            web.head("/", say_nothing),
            web.head("/api/hello", say_nothing),
            *[web.get(path, self.list_models) for path in (MODELS, *without_deployment(MODELS))],
            *[web.get(f"{path}/{{model:.+}}", self.show_model) for path in (MODELS, *without_deployment(MODELS))],
            web.get("/v1/key", self.show_key),
        ]

    async def carry_named(
        self, request: web.Request, spec: Format, is_stream: bool | None, *amendments: Amendment
    ) -> web.StreamResponse:
        """A call whose path names the model. `amendments` make one of the format's own of it."""
        model = request.match_info["model"]
        if {".", ".."} & set(model.split("/")):
            raise ModelNotFound(model)
        return await self.carry(request, spec, _Address(model, is_stream, amendments))

    async def carry(
        self, request: web.Request, spec: Format, address: _Address | None = None, row: RowCall | None = None
    ) -> web.StreamResponse:
        """One call: check it, serve it. `row`: of a passthrough row."""
        context = request[CONTEXT]
        context.endpoint = endpoint = spec.name if row is None else row.endpoint
        context.spoken = spec
        context.trace = context.parts.accounting.tracer.begin(endpoint, context.id, request.headers)
        telemetry = context.parts.accounting.telemetry
        calls, task = self._status.calls, asyncio.current_task(self._loop)
        self._capacity.refuse_when_full(len(calls))
        telemetry.count_under_way(1)
        calls.add(task)
        try:
            call = await (self._check(request, context, spec, address) if row is None else row.check())
            if spec.restrict is not None:
                await self._restrict_requests(call, spec.restrict)
            if row is None and (call.params.items or context.parts.config.files.upstream is not None):
                for binding in self._bindings:
                    call = await binding.bind(call, context.parts)
            finds = partial(self.caller, query_key=spec.query_key) if row is None else row.find_key
            client = _Client(request, context, self._status, self._capacity, self._loop, finds)
            if context.amended.waited_s > TRUSTED_S:
                await client.check_again(call.key)
            answer = await pipeline.serve(call, context.parts, client, context.trace)
            if isinstance(answer, Streamed):
                if context.stream is None:
                    raise RuntimeError("a stream was finished that was never opened")
                context.stream.finish(answer.last)
                return context.stream
            if row is not None and row.seen is not None:
                answer = await row.seen(call, answer)
            size = len(answer.body)
            context.held_bytes -= size  # held until a slow client has read nearly all of it
            context.is_written_later = True
            given_back = partial(self._capacity.memory.release, size, context.key, context.id)
            return Whole(answer.status, answer.headers, answer.body, on_sent=given_back)
        except InvalidRequest as fault:
            if context.amended.words:
                fault.message += f" (The gateway has changed this request: {context.amended.words}.)"
            raise
        finally:
            calls.discard(task)
            telemetry.count_under_way(-1)
            if context.form is not None:
                context.form.close()

    async def _check(
        self, request: web.Request, context: RequestContext, spec: Format, address: _Address | None
    ) -> Call:
        endpoint = spec.name
        parts = context.parts
        key = await self.caller(request, context, spec.query_key)
        if self._status.is_draining:
            raise shutting_down()
        config = parts.config
        is_form = check_type(request, spec)
        waited_from = time.perf_counter()
        pieces: Pieces = ()
        if is_form:
            boundary = boundary_of(request)
            named = None if address is None else address.model
            asked = await self._forms.read(request, context, spec, boundary, parts.find_counter, named)
        else:
            pieces = await self._bodies.read(request, context)
        if (body_wait_s := time.perf_counter() - waited_from) > TRUSTED_S:
            key = await self.caller(request, context, spec.query_key)
        is_large = context.held_bytes > LARGE_BYTES
        if is_form:
            asked = asked if address is None else address.applied(asked, spec)
        elif is_large or address is not None:
            asked, pieces = await self._read_json(spec, pieces, context, address, is_large=is_large)
        else:
            asked = spec.read(b"".join(pieces), parts.find_counter)
        for binding in self._bindings if not asked.model else ():
            asked = await binding.complete(asked, key, parts)
        found = find_model(asked.model, key, endpoint, context)
        if amendments := parts.amendments if address is None else (*address.amendments, *parts.amendments):
            asked, found = await self._amended(request, context, spec, address, key, asked, found, amendments)
        model = found.model
        others = config.model_table.fallbacks(found) if model.fallbacks else ()
        if asked.document.large is not None:
            asked = await self._rewritten(asked, spec, (model, *[other.model for other in others]), context)
        client_id = request.headers.get("X-Client-Request-Id")
        requested = request.headers.get(auth.PRIORITY_HEADER)
        forwarded = forwarded_headers(request, spec.request_headers)
        forwarded = with_headers(forwarded, ("Content-Type", content_type(boundary))) if is_form else forwarded
        forwarded = with_headers(forwarded, *context.amended.headers) if context.amended.headers else forwarded
        affinity = asked.account_bound_by.encode() if asked.account_bound_by else None
        if model.sticky is not None:
            affinity = stickiness.affinity(model.sticky, asked.document, request.headers.get) or affinity
        user, tags = attribution_of(request.headers.items(), asked.document.members, config.records)
        context.user, context.tags = user, tags
        amended = context.amended
        call = Call(
            id=context.id, started=context.parts.clock.now(), key=key, endpoint=endpoint,
            params=validate.restrict(asked, key.limits, model.limits), model=model, label_model=context.model,
            arrived=context.arrived, body_wait_s=body_wait_s + amended.waited_s, forwarded_headers=forwarded,
            client_request_id=client_id[:MAX_CLIENT_ID] if client_id else None, remote=context.remote,
            query=forwarded_query(request) if spec.passes_query else "",
            target=None if found.alias is None else found.name,
            other_models=self._other_models(key, asked, context) if asked.other_models else (),
            priority=key.priority if requested is None else auth.lowered(key.priority, requested),
            user=user, tags=tags, affinity=affinity, model_reason=amended.model_reason, amended=amended.words,
            waits=amended.waits,
        )  # fmt: skip
        return call._replace(fallbacks=tuple(_fallbacks(call, asked, others))) if others else call

    async def _read_json(
        self, spec: Format, pieces: Pieces, context: RequestContext, address: _Address | None, *, is_large: bool
    ) -> tuple[Params, Pieces]:
        """The checked parameters of a body of JSON and of its path, and the body, which names the model where it has
        to. A large one is read by another process."""
        try:
            if not is_large:
                return _read(spec, pieces, context.parts, address), pieces
            drops = capabilities.all_drops(context.parts.config.upstreams)
            asked = await self._large_bodies.read(context.key, spec.name, pieces, drops)
        except InvalidRequest as fault:
            if address is None or (fault.param, fault.code) != ("model", "missing_required_parameter"):
                raise
            pieces = _with_model(pieces, address.model)
            return await self._read_json(spec, pieces, context, address, is_large=is_large)
        return (asked if address is None else address.applied(asked, spec)), pieces

    async def _amended(
        self, request: web.Request, context: RequestContext, spec: Format, address: _Address | None, key: Key,
        asked: Params, found: NamedModel, amendments: Iterable[Amendment],
    ) -> tuple[Params, NamedModel]:  # fmt: skip
        """The parameters and the model of a call behind the changes of wings, each in its turn."""
        parts = context.parts
        for each in amendments:
            user, tags = attribution_of(request.headers.items(), asked.document.members, parts.config.records)
            call = Call(
                context.id, parts.clock.now(), key, spec.name, asked, found.model, context.model, context.arrived,
                remote=context.remote, target=None if found.alias is None else found.name, user=user, tags=tags,
            )  # fmt: skip
            if (amended := await each.amend(call, parts, context.trace)) is None:
                continue
            context.amended = context.amended.plus(amended)
            if amended.body is not None:
                size = sum(map(len, amended.body))
                self._hold(context, size)
                asked, _ = await self._read_json(spec, amended.body, context, address, is_large=size > LARGE_BYTES)
                found = find_model(asked.model, key, spec.name, context)
            if amended.model is not None:
                found, context.model = amended.model, amended.model.name
                asked = asked._replace(is_prompt_exact=False)  # its tokenizer may be another one
        return asked, found

    @staticmethod
    async def amend(call: Call, context: RequestContext) -> Call:
        """A call whose body stays, as wings amend it. Raises `GatewayError` if one refuses it."""
        for each in context.parts.amendments:
            if (amended := await each.amend(call, context.parts, context.trace)) is not None:
                context.amended = context.amended.plus(amended)
        words, waits, headers, _, waited_s, *_ = context.amended
        headers = with_headers(call.forwarded_headers, *headers)
        waited_s += call.body_wait_s
        return call._replace(forwarded_headers=headers, body_wait_s=waited_s, amended=words, waits=waits)

    async def _rewritten(self, asked: Params, spec: Format, models: Iterable[Model], context: RequestContext) -> Params:
        """The parameters of a large body, with its rewritings for the routes of these models."""
        upstreams = context.parts.config.upstreams
        assert asked.document.large is not None
        found = bridges.needed(spec.name, asked, models, upstreams)
        if not found:
            return asked
        return await self._large_bodies.rewrite(context.key, spec.name, asked, found, partial(self._hold, context))

    def _hold(self, context: RequestContext, size: int) -> None:
        """Holds room for bytes in the name of a request. Raises `Unavailable` if there is none."""
        if not self._capacity.memory.hold(size, context.key):
            raise buffers_full()
        context.held_bytes += size

    async def _restrict_requests(self, call: Call, restrict: Restricts) -> None:
        """Raises `InvalidRequest` for a request inside the body that the limits of the key or the model refuse."""
        key, model, document = call.key.limits, call.model.limits, call.params.document
        if not key.model_fields_set and not model.model_fields_set:
            return
        if document.large is None:
            restrict(document.members, key, model)
        else:
            await self._large_bodies.restrict(call.key.id, restrict, document.large.pieces, key, model)

    def _other_models(self, key: Key, asked: Params, context: RequestContext) -> tuple[tuple[str, Model], ...]:
        """The further models of a request. Raises `ModelNotFound` for one that this key may not use."""
        models = []
        for name in asked.other_models:
            if name == "*" and "*" in key.models:
                continue
            found = context.parts.config.model(name)
            if found is None or name == "*" or not auth.may_use(key, name, found.name):
                raise ModelNotFound(name)
            validate.restrict(asked, key.limits, found.model.limits)
            models.append((name, found.model))
        return tuple(models)

    async def caller(
        self, request: web.Request, context: RequestContext, query_key: str | None = None,
        more_keys: Sequence[str] = (), schemes: Collection[str] = auth.BEARER,
    ) -> Key:  # fmt: skip
        """The key of a request. `query_key`: the parameter of the query that may hold it; `more_keys` came elsewhere;
        `schemes`: of Authorization. Raises `Unauthorized`, or another refusal of it."""
        headers = request.headers
        others = [value for name in auth.KEY_HEADERS for value in headers.getall(name, ())]
        if query_key is not None:
            others += filter(None, request.query.getall(query_key, ()))
        others += more_keys
        secret = auth.only_key(headers.getall(hdrs.AUTHORIZATION, []), others, schemes)
        key_cache = context.parts.key_cache
        key_cache.trust()
        known = key_cache.known.get(auth.digest(secret))
        for each in self._callers if known is None else ():
            if (key := await each.key_of(secret, context.parts, context.remote)) is not None:
                context.key, context.team = key.id, key.team
                return key
        known = known or await key_cache.look_up(secret, context.remote)
        key = auth.admit(known, secret, now=context.parts.clock.now(), remote=context.remote)
        context.key, context.team = key.id, key.team
        return key

    async def list_models(self, request: web.Request, spec: Format | None = None) -> web.StreamResponse:
        """The models that this key may use, in this format; None: in that of the client's API."""
        context = request[CONTEXT]
        spec = spec or _of_client(request)
        key = await self.caller(request, context, None if spec is None else spec.query_key)
        return json_response(await asyncio.to_thread(_listing, spec, key, context.parts, request.query))

    async def show_model(self, request: web.Request, spec: Format | None = None) -> web.StreamResponse:
        """One model, if this key may use it, in the words of this format or of the client's API."""
        context = request[CONTEXT]
        spec = spec or _of_client(request)
        key = await self.caller(request, context, None if spec is None else spec.query_key)
        config = context.parts.config
        name = request.match_info["model"]
        found = config.model(name)
        if found is None or not auth.may_use(key, name, found.name):
            raise ModelNotFound(name)
        if spec is not None and spec.show_model is not None:
            return json_response(json.dumps(spec.show_model(name, _served(config, name))).encode())
        return json_response(json.dumps(_model(name, context.parts)).encode())

    async def show_key(self, request: web.Request) -> web.StreamResponse:
        """The caller's own limits, usage and reset times; also those of the tags in the headers."""
        context = request[CONTEXT]
        key = await self.caller(request, context)
        tags = attribution_of(request.headers.items(), {}, context.parts.config.records).tags
        return json_response(json.dumps(await describe_key(key, context.parts, tags)).encode())


async def describe_key(key: Key, parts: pipeline.Services, tags: str) -> dict[str, Any]:
    """A key's limits and the state of its windows, with those of its team, of the gateway, and of values of tags."""
    now, terms = parts.clock.now(), parts.key_cache.terms
    scopes = terms.labels.of_tags_of(key, tags, calendar_window("month", now)[0]) if parts.config.records.tags else ()
    tagged = [limit for scope in scopes for limit in terms.of_label(scope, key)]
    windows = [limit.window(now) for limit in (*terms.of(key), *tagged)]
    try:
        async with StallTolerantTimeout(WINDOWS_WITHIN_S):
            statuses = await parts.accounting.ledger.window_statuses(windows, now)
    except (StoreUnavailable, TimeoutError):
        raise Unavailable("The gateway cannot reach its ledger right now.", code="store_unavailable") from None
    return {
        "object": "key",
        "id": key.id,
        "team": key.team,
        "models": list(key.models),
        "expires": key.expires.isoformat() if key.expires else None,
        "limits": key.limits.model_dump(exclude_none=True, exclude_defaults=True),
        "on_exceeded": "shadow" if key.is_shadow else "deny",
        "quotas": [window_status.row(status, now) for status in statuses],
    }


def _fallbacks(call: Call, asked: Params, others: Iterable[NamedModel]) -> Iterator[Call]:
    """The call for other models, as far as its key may use them and their limits permit it."""
    for other in others:
        if call.endpoint not in other.model.endpoints or not auth.may_use(call.key, other.name):
            continue
        try:
            params = validate.restrict(asked, call.key.limits, other.model.limits)
        except InvalidRequest:
            continue
        # Its tokenizer may be another one.
        params = params._replace(is_prompt_exact=False)
        yield call._replace(params=params, model=other.model, label_model=other.name, target=other.name)


def is_secret(model: str, context: RequestContext) -> bool:
    """Whether a model name that is not in the configuration is in fact a key's secret, which must not reach an upstream
    or a record."""
    return auth.digest(model) in context.parts.key_cache.known or may_be_issued(model)


MAX_MATCHED = 20_000
"""Names of models, times patterns of a key, among which one that was meant is looked for: a microsecond each."""


def _near(asked: str, key: Key, config: Config) -> str | None:
    """A name that the key may use and that was probably meant: in other letters, without a provider's prefix or blanks,
    or with a slip. None: there is none."""
    names = (*config.models, *config.aliases)
    if len(names) * len(key.models) > MAX_MATCHED:
        return None
    usable = [name for name in names if not is_pattern(name) and auth.may_use(key, name)]
    return nearest(asked, usable[:MAX_COMPARED])


def find_model(asked: str, key: Key, endpoint: Endpoint, context: RequestContext) -> NamedModel:
    """The model of this name, which the context then has. Raises `NotFound` where the key may not use it, or not
    here."""
    config = context.parts.config
    found = config.model_table.find(asked)
    is_known = found is not None and found.is_configured
    context.requested_model = asked
    context.model = OTHER if found is None else found.name if is_known else context.parts.accounting.served.group(asked)
    may_use = found is not None and auth.may_use(key, asked, found.name)
    if found is None or not may_use or (context.model == OTHER and is_secret(asked, context)):
        raise ModelNotFound(asked, _near(asked, key, config))
    if endpoint not in found.model.endpoints and not capabilities.lists(found.model, endpoint):
        raise capabilities.wrong_endpoint(endpoint, found.model.endpoints)
    return found


class _Address(NamedTuple):
    """The parameters in the path of a call."""

    model: str
    is_stream: bool | None = None
    """None: it is in the body."""
    amendments: tuple[Amendment, ...] = ()

    def applied(self, asked: Params, spec: Format) -> Params:
        """The parameters of the body with those of the path. Raises `InvalidRequest` if the body of a format whose
        paths name the model names another one."""
        if spec.has_model_in_path and asked.model not in ("", self.model):
            raise InvalidRequest(
                "Invalid value for 'model': the body names another model than the path. Name the same one.",
                param="model",
                code="invalid_value",
            )
        return asked._replace(model=self.model, stream=asked.stream if self.is_stream is None else self.is_stream)


class _Client(NamedTuple):
    """The client of one call, for the pipeline (`ClientPort`)."""

    request: web.Request
    context: RequestContext
    status: Status
    capacity: Capacity
    loop: asyncio.AbstractEventLoop
    find_key: Callable[[web.Request, RequestContext], Awaitable[Key]]

    async def check_again(self, first: Key) -> None:
        key = await self.find_key(self.request, copy(self.context))  # room is held in the name of the first key
        if any(getattr(key, name) != getattr(first, name) for name in ("id", "team", "owner", "models", "limits")):
            raise Unavailable("The key of this call was changed while it waited. Please try again.", code="key_changed")

    def open_stream(self, headers: Sequence[tuple[str, str]]) -> EventStream:
        context, spec = self.context, self.context.spoken
        assert spec is not None
        ids = [(name, context.id) for name in ("x-request-id", spec.id_header) if name is not None]
        framing = spec.framing(self.request.query)
        make = EventStream if framing is None else partial(FramedStream, framing=framing)
        context.stream = make(self.request, (*headers, *ids), is_last=not self.status.is_ready)
        return context.stream

    def hold(self, size: int, proceed: Callable[[], None]) -> bool:
        self.context.held_bytes += size
        return self.capacity.memory.hold_answer(size, self.context.key, self.context.id, proceed)

    def left(self, closes: Callable[[Callable[[], None]], None]) -> None:
        self.context.goes_on = True
        closes(self._give_back)

    def _give_back(self) -> None:
        self.capacity.memory.release(self.context.held_bytes, self.context.key, self.context.id)
        self.context.held_bytes = 0

    def reserved(self) -> None:
        self.context.is_recorded = True


def _named_paths(spec: Format) -> tuple[tuple[tuple[str, ...], bool | None], ...]:
    """Paths of a format that may name the model, and whether their calls are streams; None: that is in the body."""
    if spec.has_model_in_path:
        return ((spec.path, *spec.more_paths), False), (spec.stream_paths, True)
    return ((azure_paths(spec), None),)


def _with_model(pieces: Pieces, model: str) -> Pieces:
    """An object that names no model, with this one as its first member."""
    raw = b"".join(pieces)
    at = raw.index(b"{") + 1
    comma = b"" if raw[at:].lstrip().startswith(b"}") else b","
    return [raw[:at] + b'"model":' + json.dumps(model).encode() + comma + raw[at:]]


def _read(spec: Format, pieces: Pieces, parts: pipeline.Services, address: _Address | None) -> Params:
    if address is None:
        return spec.read(b"".join(pieces), parts.find_counter)
    return address.applied(spec.read(b"".join(pieces), lambda _: parts.find_counter(address.model)), spec)


def _of_client(request: web.Request) -> Format | None:
    """The format of a client that asks for models."""
    google = FORMATS["generate_content"]
    return google if google.query_key in request.query else of_client(request.headers)


def _listing(spec: Format | None, key: Key, parts: pipeline.Services, query: Mapping[str, str]) -> bytes:
    """The list of the models that a key may use. For a thread: there may be thousands. Raises `InvalidRequest`."""
    config = parts.config
    names = auth.offered(key, config)
    if spec is None or spec.list_models is None:
        return json.dumps({"object": "list", "data": [_model(name, parts) for name in names]}).encode()
    served = {name: _served(config, name) for name in names}
    if spec.listed:
        served = {name: each for name, each in served.items() if not spec.listed.isdisjoint(each)}
    return json.dumps(spec.list_models(served, query)).encode()


def _served(config: Config, name: str) -> tuple[Endpoint, ...]:
    """The endpoints that serve this model."""
    found = config.model(name)
    return () if found is None else capabilities.served(found.model, config.upstreams)


async def refuse_socket(request: web.Request) -> web.StreamResponse:
    """426 for a WebSocket; there is no list of responses either."""
    if "websocket" in request.headers.get(hdrs.UPGRADE, "").lower():
        raise UpgradeRequired(request.path)
    raise web.HTTPMethodNotAllowed(request.method, [hdrs.METH_POST])


async def say_nothing(request: web.Request) -> web.StreamResponse:
    """`HEAD /` and `HEAD /api/hello`, with which Claude Code opens its connection (CLIProxyAPI#5905)."""
    request[CONTEXT].is_quiet = True
    return Whole(200, (), b"")


async def continue_later(request: web.Request) -> None:
    """`100 Continue` is sent when the body is wanted: not before the key is known (RFC 9110, 10.1.1).

    Any other expectation is ignored, as the same section allows.
    """


def check_type(request: web.Request, spec: Format | None = None) -> bool:
    """Whether the body is a form. Raises `InvalidRequest` for a type that the format does not take, and for JSON in a
    content encoding that is not decoded."""
    given_type = request.content_type if hdrs.CONTENT_TYPE in request.headers else spec and spec.default_type
    takes_json = spec is None or spec.read is not no_json
    if spec is not None and spec.read_form is not None and given_type == "multipart/form-data":
        return True
    if given_type != "application/json" or not takes_json:
        given = request.headers.get(hdrs.CONTENT_TYPE, "")[:100]
        shown = given if given.isprintable() else ""
        taken = "application/json" if takes_json else "multipart/form-data"
        raise InvalidRequest(
            f"Unsupported content type: '{shown}'. This API method only accepts '{taken}' requests, but you "
            f"specified the header 'Content-Type: {shown}'. Please try again with a supported content type.",
            code="unsupported_content_type",
        )
    if hdrs.CONTENT_ENCODING in request.headers:
        check_coding(request)
    return False


_NOT_FORWARDED = frozenset({"key", "api_key", "api-key", "access_token", "token", "api-version"})
"""Parameters of a query in which some clients put their key, and Azure's version of the API."""


def forwarded_query(request: web.Request, withheld: Collection[str] = ()) -> str:
    """The query as the client wrote it, with its question mark, without what is for the gateway alone and without
    these parameters, in lower case."""
    parts = [part for part in request.rel_url.raw_query_string.split("&") if part]
    names = _NOT_FORWARDED.union(withheld)
    kept = [part for part in parts if unquote(part.partition("=")[0]).lower() not in names]
    return f"?{'&'.join(kept)}" if kept else ""


def forwarded_headers(request: web.Request, more: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """The request headers that upstreams get, `more` (in lower case) among them."""
    return tuple([(name, value) for name, value in request.headers.items() if _is_forwarded(name, more)])


def with_headers(headers: Iterable[tuple[str, str]], *others: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """The headers with others in their place, of which an empty one is left out."""
    by_name = {name.lower(): (name, value) for name, value in others}
    kept = [(name, value) for name, value in headers if name.lower() not in by_name]
    return (*kept, *[each for each in by_name.values() if each[1]])


@lru_cache(maxsize=256)
def _is_forwarded(name: str, more: frozenset[str]) -> bool:
    name = name.lower()
    return name in _FORWARDED or name in more or name.startswith("x-stainless-")


def _model(name: str, parts: pipeline.Services) -> dict[str, Any]:
    """One model as the API shows it, and what it can do here."""
    config, shown = parts.config, {"id": name, "object": "model", "created": 0, "owned_by": "gateway"}
    if (found := config.model(name)) is not None:
        shown["endpoints"] = capabilities.served(found.model, config.upstreams)
        shown["unsupported"] = capabilities.unsupported(found.model, config.upstreams)
        shown["price"] = current_rows(found.model.price, parts.clock.now())
    for each in parts.amendments:
        shown |= each.shown(name)
    return shown
