"""The outermost middleware: a request id, one conversion from errors to JSON, one access line.

Every answer of the gateway passes here, so that all of them carry `x-request-id` and every error is the OpenAI object
with its four keys. Client faults are logged at a low level, the gateway's own at error level.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.api.auth import API_KEY_PATTERN, KEY_HEADERS, digest
from gateway.api.client_ip import client_address
from gateway.config import Config, Passthrough
from gateway.config.sections import BAD_SIGNS
from gateway.errors import (
    BodyTooLarge,
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Unavailable,
    UpstreamFailed,
    UpstreamRefused,
    internal_error,
)
from gateway.formats import AZURE, FORMATS, of_client, of_path, passthrough
from gateway.formats.format import Format
from gateway.observe.metrics import Telemetry
from gateway.observe.tracing import CLIENT_GONE, NO_TRACE, Trace
from gateway.pipeline import CurrentServices, Services
from gateway.records import Endpoint, StoredBytes
from gateway.store import RefusalEntry
from gateway.tasks import is_cut_off

from . import cors, unknown_paths
from .access_log import AccessLog
from .capacity import Capacity
from .responses import EventStream, Whole
from .status import Status, shutting_down

log = logging.getLogger("gateway")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_NOT_FRAMED = "The request body could not be read as HTTP. Check the sizes of its chunks."


def new_id() -> str:
    """A request id, in the form of OpenAI's. Never the same twice; not a secret."""
    return f"req_{random.getrandbits(128):032x}"


@dataclass(slots=True)
class RequestContext:
    """The request context: collects the values for the access line.

    The request refers to it, so it must not refer to the request, nor to a finished answer: objects in a reference
    cycle, bodies included, wait for the garbage collector, and their memory is out of the CPU caches when used again.
    """

    id: str
    arrived: float
    """Seconds on the clock of `time.perf_counter`."""
    parts: Services
    """The services of this request until its end, also after a reload. An idle client connection keeps them, with the
    last request."""
    remote: str | None
    """The client's address, as far as it is known."""
    endpoint: Endpoint | None = None
    key: str = ""
    team: str | None = None
    model: str = ""
    """The model's label: a configured name, `other`, or empty."""
    requested_model: str = ""
    """The model as the client named it; only the refusal log uses it."""
    user: str = ""
    tags: str = ""
    """Tags of the call; only the refusal log uses them."""
    held_bytes: int = 0
    """Room that its body and its answer take of the worker's, in the name of `key`; given back at its end."""
    is_recorded: bool = False
    """A reservation was made: the call has a record."""
    is_quiet: bool = False
    """Not worth a line: probes and scrapes."""
    trace: Trace = NO_TRACE
    form: StoredBytes | None = None
    """The stored multipart form of the request."""
    stream: EventStream | None = None
    """The answer, once it has begun to be streamed."""


CONTEXT = web.RequestKey("context", RequestContext)


class ErrorMiddleware:
    """The only middleware: it assigns request ids, converts errors to answers and writes the access log."""

    def __init__(
        self,
        live: CurrentServices,
        telemetry: Telemetry,
        access_log: AccessLog,
        status: Status,
        add_refusal: Callable[[RefusalEntry], None],
        capacity: Capacity,
    ) -> None:
        self._live = live
        self._telemetry = telemetry
        self._access_log = access_log
        self._status = status
        self._add_refusal = add_refusal
        self._memory = capacity.memory

    @property
    def config(self) -> Config:
        return self._live.parts.config

    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        parts, remote = self._live.parts, request.remote
        trusted = parts.config.server.trusted_proxies
        remote = (
            client_address(remote, request.headers.getall(hdrs.X_FORWARDED_FOR, ()), trusted) if trusted else remote
        )
        context = request[CONTEXT] = RequestContext(new_id(), time.perf_counter(), parts, remote)
        permission = cors.permit(parts.config, request) if hdrs.ORIGIN in request.headers else None
        try:
            response = await handler(request)
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if not is_cut_off(cancelled) or task is None:
                self._note(request, context, 499, None)
                if context.endpoint is not None and not context.is_recorded:  # else its record is counted
                    self._telemetry.client_left()
                raise
            task.uncancel()  # its client is still there, and hears of it
            response = self._fail(request, context, shutting_down())
        except GatewayError as error:
            response = self._fail(request, context, error)
        except Exception as error:
            response = self._fail(request, context, _translate(request, context, error))
        else:
            if not context.is_recorded:
                self._note(request, context, response.status, None)
        finally:
            context.stream = None
            self._memory.release(context.held_bytes, context.key)
        if isinstance(response, Whole):
            response.own_headers.append(("x-request-id", context.id))
            if permission:
                response.own_headers += permission
            if (id_header := _format_of(request, context).id_header) is not None:
                response.own_headers.append((id_header, context.id))
            if not self._status.is_ready:
                response.make_last()  # the client's next call is for another gateway
        return response

    def _fail(self, request: web.Request, context: RequestContext, error: GatewayError) -> web.StreamResponse:
        self._note(request, context, error.status, error)
        is_own = context.endpoint is not None and not isinstance(error, UpstreamFailed | UpstreamRefused)
        if is_own or isinstance(error, Unavailable):  # that of a worker without room counts, whatever was asked for
            self._telemetry.rejected(error.reason)
        if context.stream is not None:
            context.stream.finish(_format_of(request, context).error_event(error, None, context.id))
            return context.stream
        headers = [("Content-Type", "application/json"), *error.headers.items()]
        body = _error_body(request, context, error)
        return Whole(error.status, headers, body, is_last=_has_unread_body(request, error.status))

    def _note(self, request: web.Request, context: RequestContext, status: int, error: GatewayError | None) -> None:
        """Count and log a request without a record."""
        if context.is_recorded or context.is_quiet:
            return
        if context.endpoint is not None:
            self._telemetry.answered(
                key=context.key, model=context.model, endpoint=context.endpoint, upstream="", status=status
            )
        what = error.name if error is not None else CLIENT_GONE if status == 499 else None
        path = _shown_path(request, _row_of(request, context))
        fields: dict[str, str | float | None] = {
            "id": context.id,
            "trace_id": context.trace.id,
            "key": context.key or None,
            "endpoint": context.endpoint,
            "method": request.method,
            "path": path,
            "model": context.model or None,
            "status": status,
            "error": what,
            "param": _shown_param(error.param) if error is not None else None,
            "limit": error.limit if error is not None else None,
            "limit_state": error.limit_state if error is not None else None,
            "duration_ms": round((time.perf_counter() - context.arrived) * 1000, 1),
            "remote": context.remote,
        }
        self._access_log.write(**fields)
        if error is not None and (context.endpoint is not None or path.startswith(CLIENT_PATHS)):
            self._add_refusal(_entry_of(path, context, error))
        context.trace.refused(fields, what, status)


def _entry_of(path: str, context: RequestContext, error: GatewayError) -> RefusalEntry:
    name, message = context.requested_model, error.message
    if name and digest(name) in context.parts.key_cache.known:  # a key was sent as the model
        name, message = "***", message.replace(name, "***")
    return RefusalEntry(
        id=context.id,
        time=context.parts.clock.now(),
        key=context.key or None,
        team=context.team,
        endpoint=context.endpoint,
        path=path,
        model=context.model or None,
        status=error.status,
        code=error.name,
        param=_shown_param(error.param),
        message=_LIKE_A_KEY.sub("***", message),
        limit=error.limit,
        remote=context.remote,
        requested_model=_shown_model(name) if name and name != context.model else None,
        user=context.user,
        tags=context.tags,
    )


def _format_of(request: web.Request, context: RequestContext) -> Format:
    """The format in whose words an error is written."""
    if context.endpoint is not None:
        return FORMATS[context.endpoint]
    path = unknown_paths.meant(request.rel_url.raw_path)
    return of_path(path) or of_client(request.headers) or FORMATS["chat"]


def _row_of(request: web.Request, context: RequestContext) -> Passthrough | None:
    """The passthrough row that a request belongs to, or whose path it asks for in vain; None: there is none."""
    rows = context.parts.config.passthrough
    if context.endpoint is not None:
        return rows.get(context.endpoint)
    path = request.rel_url.raw_path
    return max([row for row in rows.values() if row.has_path(path)], key=lambda row: len(row.prefix), default=None)


def _error_body(request: web.Request, context: RequestContext, error: GatewayError) -> bytes:
    """The JSON of an error, in the words of the API that the client speaks."""
    row = _row_of(request, context)
    if row is not None:
        return passthrough.error_body(row, error, context.id)
    return _format_of(request, context).error_body(error, context.id)


def _translate(request: web.Request, context: RequestContext, error: Exception) -> GatewayError:
    """An error that is none of the gateway's: aiohttp's own in OpenAI's words, any other logged as a fault here."""
    if isinstance(error, web.HTTPException):
        return _translate_http(request, error)
    if isinstance(error, web.RequestPayloadError | HttpProcessingError):  # their texts are the client's bytes
        return InvalidRequest(_NOT_FRAMED)
    # The place without the error's text and that of its causes: they may quote a client's data.
    log.error("request %s failed: %s\n%s", context.id, type(error).__name__, _where(error))
    return internal_error(context.id)


def _translate_http(request: web.Request, error: web.HTTPException) -> GatewayError:
    path = request.rel_url.raw_path[:200]
    if isinstance(error, web.HTTPMethodNotAllowed):
        if request.method == hdrs.METH_POST and ":" in path.rpartition("/")[2]:  # a custom method (google.aip.dev/136)
            return NotFound(f"Invalid URL (POST {path}). {unknown_paths.GOOGLE}")
        return MethodNotAllowed(
            f"Not allowed to {request.method} on {path}. (HINT: Perhaps you meant to use a different HTTP method?)",
            headers={"Allow": ", ".join(sorted(error.allowed_methods))},
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        limit = request[CONTEXT].parts.config.server.max_request_bytes
        return BodyTooLarge(f"Maximum content size limit ({limit}) exceeded.")
    if error.status == 404:
        advice = unknown_paths.advice(path)
        return NotFound(f"Invalid URL ({request.method} {path})" + (f". {advice}" if advice else ""))
    return InvalidRequest(f"The request was refused: {error.reason}.")


CLIENT_PATHS = ("/v1", AZURE)
"""Where clients call: of other paths only refusals of calls are kept."""

MAX_MODEL = 200
"""Characters of a model's name in the refusal log."""

LIKE_A_KEY_FROM = 8
_PARAM = re.compile(r"[a-z][a-z_]{0,23}(?:\[\d+\]|\.[a-z_]{1,24}){0,6}")
_LIKE_A_KEY = re.compile(rf"{API_KEY_PATTERN}|[A-Za-z0-9_]{{24,}}")


def _shown_path(request: web.Request, row: Passthrough | None) -> str:
    """The path without what looks like a key, or is the one that the request bears: some write it into the address.
    `row`: whose clients may put it elsewhere, too."""
    path = request.rel_url.raw_path
    _, _, bearer = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    names = KEY_HEADERS if row is None else (*KEY_HEADERS, *[place.header for place in row.key_places if place.header])
    for secret in (bearer, *[request.headers.get(name, "").removeprefix("Bearer ") for name in names]):
        if len(secret.strip()) >= LIKE_A_KEY_FROM:
            path = path.replace(secret.strip(), "***")
    return _LIKE_A_KEY.sub("***", path)[:200]


def _shown_param(param: str | None) -> str | None:
    """The name of a parameter if the API has it; invented names are not logged."""
    return param if param is not None and _PARAM.fullmatch(param) else None


def _shown_model(name: str) -> str:
    """The name of a model that a client sent, in one line, without what looks like a key."""
    return _LIKE_A_KEY.sub("***", BAD_SIGNS.sub(" ", name))[:MAX_MODEL]


def _where(error: BaseException) -> str:
    """The traceback without the texts of errors."""
    return "Traceback (most recent call last):\n" + "".join(traceback.format_tb(error.__traceback__)).rstrip()


def _has_unread_body(request: web.Request, status: int) -> bool:
    """Whether the begin of the next request on this connection is unknown, or finding it costs too much.

    A client that did not get `100 Continue` may leave out the body that it announced.
    """
    content = request.content
    is_broken = content.exception() is not None
    return is_broken or status in (408, 413) or (hdrs.EXPECT in request.headers and not content.is_eof())
