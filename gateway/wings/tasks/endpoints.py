"""Calls of passthrough rows: submissions of tasks, and reads of them.

A request that matches no other route is looked up in the rows of the configuration. The id of a task belongs to the key
that submitted it: any other key gets the 404 of an unknown id, and nothing is sent upstream. A read uses the API key of
the submission, counts only in limits of requests per time, and settles the task if it shows its end.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from aiohttp import web

from gateway import units
from gateway.api import auth, validate
from gateway.api.attribution import attribution_of
from gateway.api.auth import TRUSTED_S
from gateway.api.large_body import LARGE_BYTES
from gateway.api.multipart import content_type
from gateway.config import Config, Model, Price, Route, is_plain_name
from gateway.errors import InvalidRequest, ModelNotFound, NotFound
from gateway.records import Bond, Call, Endpoint, Key, Params, PassedRequest
from gateway.relay import Answer
from gateway.web.bodies import BodyReader
from gateway.web.endpoints import MAX_CLIENT_ID, RowCall, check_type, forwarded_headers, forwarded_query, is_secret
from gateway.web.forms import FormReader, boundary_of
from gateway.web.middleware import CONTEXT, Handler, RequestContext, Words
from gateway.web.status import shutting_down
from gateway.web.wings import WebParts, WingApis

from . import formats
from .notation import TASK, Reference, TaskOperation, at_pointer, holds, read_number, read_options
from .settings import Passthrough, TaskPrice, rows_of

MAX_MODEL = 256
"""Characters of a model's name."""

MAX_COUNT = 999_999
"""Units of one submission; more is no number of seconds or images that a price could be of."""

NO_COST = Price.model_validate({"task": 0})


class _Asked(NamedTuple):
    """The row and the operation of a request."""

    name: str
    row: Passthrough
    operation: TaskOperation
    parts: Mapping[str, str]
    path: str
    """The path below the prefix, not normalised."""
    is_read: bool
    is_list: bool = False

    @property
    def owner(self) -> str:
        """The name of the row whose tasks these are."""
        return self.row.tasks_of or self.name

    def poll_path(self, task: str) -> str:
        """Where a task is read, below the upstream's base URL."""
        return self.row.at_upstream(self.row.reads[0].fill({**self.parts, TASK: task}))


def _find(config: Config, method: str, path: str, query: str) -> _Asked | None:
    for name, row in rows_of(config).items():
        if not path.startswith(f"{row.prefix}/"):
            continue
        below = path[len(row.prefix) :]
        for operation in (*row.listings, *row.submissions, *row.reads):
            if (parts := operation.match(method, below, query)) is not None:
                is_list = operation in row.listings
                is_read = not is_list and operation in row.reads
                return _Asked(name, row, operation, parts, below, is_read, is_list)
    return None


class PassthroughCalls:
    """The endpoints of all rows."""

    def __init__(self, parts: WebParts) -> None:
        self._parts = parts
        self._bodies = BodyReader(parts.capacity)
        self._forms = FormReader(parts.capacity)

    def handler(self, config: Config, request: web.Request) -> Handler | None:
        """The handler of a request that matches no other route; None: it matches no row."""
        url = request.rel_url
        asked = _find(config, request.method, url.raw_path, url.raw_query_string)
        return None if asked is None else partial(self._carry, asked=asked)

    def _carry(self, request: web.Request, asked: _Asked) -> Awaitable[web.StreamResponse]:
        context = request[CONTEXT]
        endpoint = cast(Endpoint, asked.name)
        check, seen = (self._read, self._see) if asked.is_read else (self._submit, self._link)
        row = RowCall(
            endpoint, partial(self._refuse_list if asked.is_list else check, request, context, asked),
            partial(self._caller, row=asked.row), None if asked.is_list else partial(seen, context, asked),
        )  # fmt: skip
        return self._parts.plane.carry(request, formats.PASSTHROUGH, row=row)

    async def _submit(self, request: web.Request, context: RequestContext, asked: _Asked) -> Call:
        """The call of a submission. Raises `GatewayError`."""
        key = await self._caller(request, context, asked.row)
        if self._parts.status.is_draining:
            raise shutting_down()
        key, given, more_headers, body_wait_s = await self._body_of(key, request, context, asked.row)
        members, row = given.document.members, asked.row
        _refuse_misread(request, asked, members)
        context.model = asked.name
        model = _model_of(asked, members)
        context.requested_model = name = asked.name if model is None else f"{asked.name}/{model}"
        if not _may_use(key, asked.name, name) or is_secret(model or "", context):
            raise ModelNotFound(name)
        refers_to = await self._earlier(key, context, asked, members)
        price, counted, outputs, param = _price_of(asked, model, members)
        params = given._replace(
            model=name, output_param=param, units=counted, is_kept=row.task is not None,
            is_deferred=row.task is not None, refers_to=refers_to, refers_param=TASK,
        )  # fmt: skip
        found = _row_model(row, None if price is None else price.price, repeat=False)
        params = validate.restrict(params, key.limits, found.limits)
        call = self._call(request, context, asked, key, params, found, more_headers, outputs)
        return await self._parts.plane.amend(call._replace(body_wait_s=body_wait_s), context)

    async def _read(self, request: web.Request, context: RequestContext, asked: _Asked) -> Call:
        """The call of a read. Raises `GatewayError`."""
        key = await self._caller(request, context, asked.row)
        if self._parts.status.is_draining:
            raise shutting_down()
        context.take_place(self._parts.capacity)
        key, given, more_headers, _ = await self._body_of(key, request, context, asked.row)
        context.model = asked.name
        if not _may_use(key, asked.name, asked.name, is_any=True):
            raise ModelNotFound(asked.name)
        _refuse_misread(request, asked, given.document.members)
        await self._earlier(key, context, asked, given.document.members)
        bond = await _require(key, context, asked, asked.parts[TASK])
        params = given._replace(model=f"{asked.name}/reads", stream=True, refers_to=bond.id, refers_param=TASK)
        found = _row_model(asked.row, NO_COST, repeat=asked.operation.method == "GET")
        return self._call(request, context, asked, key, params, found, more_headers)

    async def _refuse_list(self, request: web.Request, context: RequestContext, asked: _Asked) -> Call:
        """Raises `NotFound`, or `Unauthorized` for a caller without a valid key."""
        await self._caller(request, context, asked.row)
        raise NotFound(
            "Tasks are not listed here: the upstream's list has those of all keys. Read each task by its id.",
            code="task_list_not_served",
        )

    async def _link(self, context: RequestContext, asked: _Asked, call: Call, answer: Answer) -> Answer:
        """The answer to a submission, with the gateway's own addresses."""
        row = asked.row
        if not row.links or (found := await self._read_answer(context, call, row, answer)) is None:
            return answer
        if found.made is not None and (ids := set(found.linked) - {found.made}):
            bonds, upstreams = context.parts.bonds, context.parts.config.upstreams
            bond = await bonds.require_task(call.key.in_team, (asked.owner,), row.upstream, found.made, upstreams)
            await bonds.keep_task(bond, asked.owner, ids)
        return answer if found.body is None else answer._replace(body=found.body)

    async def _see(self, context: RequestContext, asked: _Asked, call: Call, answer: Answer) -> Answer:
        """Processes the answer to a read: the end of the task, and further ids that belong to its key. Returns the
        answer with the gateway's own addresses."""
        row, bonds = asked.row, context.parts.bonds
        if (found := await self._read_answer(context, call, row, answer)) is None:
            return answer
        bond = await bonds.require(call.key.in_team, call.params.refers_to or "", TASK, context.parts.config.upstreams)
        await bonds.keep_task(bond, asked.owner, [*found.further, *found.linked])
        if found.ended is not None and bond.note:
            await self._parts.task_ended(bond.note, found.ended)
        return answer if found.body is None else answer._replace(body=found.body)

    @staticmethod
    async def _read_answer(
        context: RequestContext, call: Call, row: Passthrough, answer: Answer
    ) -> formats.SeenAnswer | None:
        parts = context.parts
        base_path = urlsplit(parts.config.upstreams[row.upstream].base_url).path.rstrip("/")
        public_url = parts.config.server.public_url or ""
        return await parts.make(call.key.id, formats.seen, answer.body, row, base_path, public_url)

    async def _caller(self, request: web.Request, context: RequestContext, row: Passthrough) -> Key:
        """The key of a request, from where the clients of the row's API put it too. Raises `Unauthorized`."""
        keys = [
            value.removeprefix("Bearer ")
            for place in row.key_places
            for value in (*request.headers.getall(place.header, ()), *request.query.getall(place.param, ()))
            if value and not place.scheme
        ]
        schemes = auth.BEARER.union(place.scheme for place in row.key_places if place.scheme)
        return await self._parts.plane.caller(request, context, more_keys=keys, schemes=schemes)

    async def _body_of(
        self, key: Key, request: web.Request, context: RequestContext, row: Passthrough
    ) -> tuple[Key, Params, tuple[tuple[str, str], ...], float]:
        """The key, looked up again if the body took long to come; then the parameters, the headers, and how long in
        seconds the body took. Raises `GatewayError`."""
        since = time.perf_counter()
        params, headers = await self._body(request, context, row)
        if (wait_s := time.perf_counter() - since) > TRUSTED_S:
            key = await self._caller(request, context, row)
        return key, params, headers, wait_s

    async def _body(
        self, request: web.Request, context: RequestContext, row: Passthrough
    ) -> tuple[Params, tuple[tuple[str, str], ...]]:
        """The checked parameters of a body, and the headers that are sent with it."""
        counter = context.parts.find_counter
        headers = forwarded_headers(request, row.forwarded)
        if request.can_read_body and check_type(request, formats.PASSTHROUGH):
            boundary = boundary_of(request)
            kept = [(name, value) for name, value in headers if name.lower() != "content-type"]
            params = await self._forms.read(request, context, formats.PASSTHROUGH, boundary, counter)
            return params, (*kept, ("Content-Type", content_type(boundary)))
        pieces = await self._bodies.read(request, context)
        if context.held_bytes > LARGE_BYTES:
            asked = self._parts.large_bodies.read(context.key, formats.PASSTHROUGH.name, pieces, reads=row.members)
            return await asked, headers
        return formats.PASSTHROUGH.read(b"".join(pieces), counter), headers

    async def _earlier(
        self, key: Key, context: RequestContext, asked: _Asked, members: Mapping[str, Any]
    ) -> str | None:
        """The bond of the earlier task that a request names; None: it names none. Raises `NotFound` for one that is
        not of this key, `InvalidRequest` for a text in which no task can be found."""
        ids = [asked.parts[TASK]] if TASK in asked.parts else []
        ids += [found for each in asked.row.references for found in _named(each, members)]
        bonds = [await _require(key, context, asked, each) for each in ids]
        return bonds[0].id if bonds else None

    def _call(
        self, request: web.Request, context: RequestContext, asked: _Asked, key: Key, params: Params, model: Model,
        headers: tuple[tuple[str, str], ...], outputs: int = 1,
    ) -> Call:  # fmt: skip
        client_id = request.headers.get("X-Client-Request-Id")
        requested = request.headers.get(auth.PRIORITY_HEADER)
        user, tags = attribution_of(request.headers.items(), params.document.members, context.parts.config.records)
        withheld = [place.param.lower() for place in asked.row.key_places if place.param]
        path = asked.row.at_upstream(asked.path) + forwarded_query(request, withheld)
        spec = formats.format_of_reads() if asked.is_read else formats.format_of(asked.row, outputs, params.units)
        return Call(
            id=context.id, started=context.parts.clock.now(), key=key, endpoint=cast(Endpoint, asked.name),
            params=params, model=model, label_model=f"{asked.name}/reads" if asked.is_read else asked.name,
            arrived=context.arrived, forwarded_headers=headers,
            client_request_id=client_id[:MAX_CLIENT_ID] if client_id else None, remote=context.remote,
            target=asked.name,
            priority=key.priority if requested is None else auth.lowered(key.priority, requested),
            user=user, tags=tags,
            passed=PassedRequest(request.method, path, spec, asked.poll_path, asked.is_read, asked.owner, outputs),
        )  # fmt: skip


def _refuse_misread(request: web.Request, asked: _Asked, members: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for what the upstream may read in another way than the row."""
    own = None if asked.operation.query is None else asked.operation.query[0]
    formats.refuse_in_query(asked.row, own, request.query)
    formats.refuse_misread(asked.row, members)


def _named(reference: Reference, members: Mapping[str, Any]) -> list[str]:
    try:
        return reference.find(members)
    except ValueError:
        param = reference.pointer.rpartition("/")[2]
        raise InvalidRequest(
            f"Expected a text with the id of a task in '{param}', in the form that the API describes.",
            param=param,
            code="invalid_value",
        ) from None


def _model_of(asked: _Asked, members: Mapping[str, Any]) -> str | None:
    """The model that a submission names; None: the row has one model. Raises `InvalidRequest`."""
    row = asked.row
    if row.model is None:
        return None
    given = at_pointer(members, row.model) if row.model.startswith("/") else asked.parts.get(row.model)
    if given is None or given == "":
        given = row.default_model
    if not isinstance(given, str) or not is_plain_name(given) or len(given) > MAX_MODEL:
        param = row.model.rpartition("/")[2]
        raise InvalidRequest(
            f"Expected the name of a model in '{param}'.", param=param, code="missing_required_parameter"
        )
    return given


async def _require(key: Key, context: RequestContext, asked: _Asked, given: str) -> Bond:
    """The bond of a task with this id, of the request's row or of one with the same tasks. Raises `NotFound`."""
    config = context.parts.config
    others = [name for name, row in rows_of(config).items() if row.tasks_of == asked.owner]
    rows = (asked.owner, *others)
    return await context.parts.bonds.require_task(key.in_team, rows, asked.row.upstream, given, config.upstreams)


def _may_use(key: Key, row: str, name: str, *, is_any: bool = False) -> bool:
    """Whether a key may use the row, or this model of it; `is_any`: any model of it."""
    return auth.may_use(key, row, name) or (is_any and any(each.startswith(f"{row}/") for each in key.models))


def _price_of(
    asked: _Asked, model: str | None, members: Mapping[str, Any]
) -> tuple[TaskPrice | None, units.Counts, int, str]:
    """The price of a submission, its counted units, how many outputs it asks for, and the parameter that decides how
    many; no price: the one that is missing, or whose value is no number."""
    param = "model"
    for price in asked.row.prices:
        texts = read_options([*price.when, *price.count, *price.outputs], asked.parts, members)
        texts |= {"model": model or asked.name}
        if not holds(price.when, texts):
            continue
        outputs, asked_by = _number(price.outputs, texts, 1)
        count, counted_by = _number(price.count, texts, price.default if price.count else 1)
        if outputs is None or count is None or outputs * count > MAX_COUNT:
            param = asked_by if outputs is None or (count is not None and outputs > 1) else counted_by
            continue
        made = outputs if price.unit == "seconds" else outputs * count
        return price, units.counts({price.unit: outputs * count}), made, counted_by or asked_by or "model"
    return None, units.counts({"tasks": 1}), 1, param


def _number(names: Sequence[str], texts: Mapping[str, str], default: int | None) -> tuple[int | None, str]:
    """The number in the first of these options that is there, and the name of its parameter; None: it is none."""
    given = next((name for name in names if texts[name]), None)
    if given is None:
        return default, names[0].rpartition("/")[2] if names else ""
    return read_number(texts[given]), given.rpartition("/")[2]


def _row_model(row: Passthrough, price: Price | None, *, repeat: bool) -> Model:
    """The model settings of a call of a row."""
    return Model.model_construct(
        routes=(Route(upstream=row.upstream),), price=price, unpriced=row.unpriced, repeat_when_waiting=repeat
    )


def _words_of(config: Config, endpoint: Endpoint | None, path: str) -> Words | None:
    """Those of the row that a request belongs to, or whose path it asks for in vain."""
    rows = rows_of(config)
    there = (row for row in rows.values() if row.has_path(path))
    row = max(there, key=lambda row: len(row.prefix), default=None) if endpoint is None else rows.get(endpoint)
    if row is None:
        return None
    return Words(partial(formats.error_body, row), [place.header for place in row.key_places if place.header])


APIS = WingApis(lambda parts: PassthroughCalls(parts).handler, _words_of)
