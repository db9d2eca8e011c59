"""The outermost middleware: a request id, one conversion from errors to JSON, one access line.

Every answer of the gateway passes here, so that all of them carry `x-request-id` and every error is the OpenAI object
with its four keys. Client faults are logged at a low level, the gateway's own at error level.

Paths that the gateway does not serve: what the client meant, and what it should do instead.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import random
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.api.auth import API_KEY_PATTERN, KEY_HEADERS, client_address, digest
from gateway.config import Config
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
from gateway.formats.format import Format
from gateway.formats.table import AZURE, FORMATS, of_client, of_path
from gateway.observe.metrics import Telemetry
from gateway.observe.tracing import CLIENT_GONE, NO_TRACE, Trace
from gateway.pipeline import CurrentServices, Services
from gateway.records import NOT_AMENDED, Amended, Endpoint, StoredBytes
from gateway.store import RefusalEntry
from gateway.tasks import is_cut_off
from gateway.wings import parts

from . import cors
from .access_log import AccessLog
from .capacity import Capacity
from .responses import EventStream, Whole
from .status import Status, shutting_down

_OF_GOOGLE = (
    "of Google's API it has generateContent, streamGenerateContent, countTokens, embedContent and batchEmbedContents, "
    "and the list of models"
)
GOOGLE = f"The gateway does not have this endpoint: {_OF_GOOGLE}."

_OF_OLLAMA = frozenset({
    "/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/tags", "/api/show", "/api/ps", "/api/version",
})  # fmt: skip
"""Paths of Ollama's own API (ollama, docs/api.md)."""

_ELSEWHERE: Mapping[str, str] = {
    "/v1/responses": "docs/formats.md lists what is served of a stored response",
    "/v1/conversations": "docs/formats.md lists what is served of a conversation",
    "/v1/realtime": "it has GET /v1/realtime, a WebSocket",
    "/v1/edits": "use POST /v1/chat/completions",
    "/v1/engines": "use POST /v1/completions with the model in the body",
    "/v1/complete": "use POST /v1/messages",
    "/v1beta": _OF_GOOGLE,
    "/v1/uploads": "send the whole file with POST /v1/files",
    "/v1/skills": "send messages that need none to POST /v1/messages",
} | dict.fromkeys(
    (
        "/v1/assistants", "/v1/audio", "/v1/containers", "/v1/evals",
        "/v1/fine_tuning", "/v1/images", "/v1/moderations", "/v1/threads", "/v1/vector_stores",
        "/v1/videos",
    ),
    "docs/formats.md lists the endpoints that it has",
) | dict.fromkeys(
    _OF_OLLAMA,
    "it belongs to Ollama's own API. Set the provider of this client to OpenAI or OpenAI-compatible, its base URL to "
    "this gateway's address with /v1, and its key to one of this gateway",
)  # fmt: skip
"""Endpoints of the APIs that the gateway does not have, and what to do instead."""

_PROBES = ("/healthz", "/readyz", "/metrics", "/dashboard")
_DOUBLED = "/v1/v1/"
_SLASHES = re.compile("/{2,}")
MODELS = "/v1/models"


def _served() -> list[str]:
    return [MODELS, *[path for spec in FORMATS.values() for path in (spec.path, *spec.more_paths)]]


def meant(path: str) -> str:
    """The path that a client with a wrong base URL meant, or the same path."""
    path = _SLASHES.sub("/", path)
    if path in _served():
        return path
    if path.startswith(_DOUBLED):
        path = path.removeprefix("/v1")
    elif path.rstrip("/") in {served.removeprefix("/v1") for served in _served()}:
        path = f"/v1{path}"
    elif (appended := _appended(path.rstrip("/"))) is not None:
        path = appended
    return path


def _appended(path: str) -> str | None:
    """The path that was appended to another one: a client whose base URL is the address of an endpoint."""
    served = _served()
    rests = [path.removeprefix(base) for base in served if path.startswith(f"{base}/")]
    return next((each for each in served for rest in rests if rest in (each, each.removeprefix("/v1"))), None)


def advice_on(path: str) -> str | None:
    """Advice for a client of this path, as the end of a sentence in brackets or behind a full stop; None: there is
    none."""
    wanted = meant(path)
    if (single := _SLASHES.sub("/", path)) != path:
        further = advice_on(single) or f"Did you mean {single}?"
        return f"{further} Leave out the slash at the end of the base URL."
    if path.startswith(_DOUBLED):
        return (
            f"Did you mean {wanted}? This client adds /v1 itself: leave it out of its base URL (ANTHROPIC_BASE_URL "
            "for Anthropic's clients)."
        )
    if wanted != path:
        return f"Did you mean {wanted.rstrip('/')}? The base URL of this client has to end in /v1."
    if path.endswith("/") and path.rstrip("/") in _served():
        return f"Did you mean {path.rstrip('/')}? Leave out the slash at the end."
    if (below := next((each for each in _served() if path.endswith(each) and path != each), None)) is not None:
        return f"Did you mean {below}? Leave {path.removesuffix(below)} out of the base URL."
    hint = next((hint for start, hint in _ELSEWHERE.items() if path == start or path.startswith(f"{start}/")), None)
    if hint:
        return f"The gateway does not have this endpoint: {hint}."
    near = difflib.get_close_matches(path, [*_served(), *_PROBES], n=1, cutoff=0.85)
    return f"Did you mean {near[0]}?" if near else None


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
    spoken: Format | None = None
    """The format in which its call is answered; None: that of its endpoint."""
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
    is_written_later: bool = False
    """Whether the bytes of its answer are held beyond that, until the client has them."""
    goes_on: bool = False
    """The client has left, and its call is read on: the room is given back at the end of that."""
    has_place: bool = False
    """It is one of `Capacity.uncounted`, in the name of `key`, until its end."""
    is_recorded: bool = False
    """A reservation was made: the call has a record."""
    is_quiet: bool = False
    """Not worth a line: probes and scrapes."""
    amended: Amended = NOT_AMENDED
    """The changes of wings to the call so far."""
    trace: Trace = NO_TRACE
    form: StoredBytes | None = None
    """The stored multipart form of the request."""
    stream: EventStream | None = None
    """The answer, once it has begun to be streamed."""

    def take_place(self, capacity: Capacity) -> None:
        """Raises `Unavailable` if its key has half of all calls with requests that draw on none of its limits."""
        if not self.has_place:
            capacity.take_place(self.key)
            self.has_place = True


CONTEXT = web.RequestKey("context", RequestContext)
NO_ROUTE = web.AppKey[Handler]("no_route")
"""Answers a path that no route of an application can have."""


class Words(NamedTuple):
    """The own ways of an API that a configuration adds."""

    error_body: Callable[[GatewayError, str], bytes]
    """Writes an error, given the request id."""
    key_headers: Sequence[str] = ()
    """Further headers in which its clients may put the key."""


FindsWords = Callable[[Config, Endpoint | None, str], Words | None]
"""Those for a request to an endpoint, or for a path that is asked for in vain; None: it is of no such API."""


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
        added: Iterable[FindsWords],
    ) -> None:
        _paths_of_wings()  # imports modules, which takes too long for the first request
        self._live = live
        self._telemetry = telemetry
        self._access_log = access_log
        self._status = status
        self._add_refusal = add_refusal
        self._memory = capacity.memory
        self._uncounted = capacity.uncounted
        self._added = tuple(added)

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
            self._give_back(context)
        if isinstance(response, Whole):
            response.own_headers.append(("x-request-id", context.id))
            response.own_headers += permission or ()
            if (id_header := _format_of(request, context).id_header) is not None:
                response.own_headers.append((id_header, context.id))
            if not self._status.is_ready:
                response.make_last()  # the client's next call is for another gateway
        return response

    def _give_back(self, context: RequestContext) -> None:
        """The room of a request that has ended."""
        if not context.goes_on:
            self._memory.release(context.held_bytes, context.key, "" if context.is_written_later else context.id)
        if context.has_place:
            self._uncounted.release(1, context.key)

    def _fail(self, request: web.Request, context: RequestContext, error: GatewayError) -> web.StreamResponse:
        self._note(request, context, error.status, error)
        is_own = context.endpoint is not None and not isinstance(error, UpstreamFailed | UpstreamRefused)
        if is_own or isinstance(error, Unavailable):  # that of a worker without room counts, whatever was asked for
            self._telemetry.rejected(error.reason)
        spec = _format_of(request, context)
        if context.stream is not None:
            context.stream.finish(spec.error_event(error, error.scan, context.id))
            return context.stream
        headers = [("Content-Type", "application/json"), *error.headers.items(), *spec.error_headers(error)]
        body = _error_body(request, context, error, self._words(request, context))
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
        path = _shown_path(request, self._words(request, context))
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

    def _words(self, request: web.Request, context: RequestContext) -> Words | None:
        path = request.rel_url.raw_path
        found = (find(context.parts.config, context.endpoint, path) for find in self._added)
        return next((words for words in found if words is not None), None)


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


class WingPaths(NamedTuple):
    """Paths below which a wing has endpoints."""

    format_of: Callable[[str], Format | None]
    """The format in whose words an error on a path is written, whether the path is served or not."""


@cache
def _paths_of_wings() -> Sequence[WingPaths]:
    return parts(WingPaths, "paths")


def _format_of(request: web.Request, context: RequestContext) -> Format:
    """The format in whose words an error is written."""
    if context.endpoint is not None:
        return context.spoken or FORMATS[context.endpoint]
    path = meant(request.rel_url.raw_path[:SHOWN])
    of_wings = (format_ for each in _paths_of_wings() if (format_ := each.format_of(path)) is not None)
    return of_path(path) or next(of_wings, None) or of_client(request.headers) or FORMATS["chat"]


def _error_body(request: web.Request, context: RequestContext, error: GatewayError, words: Words | None) -> bytes:
    """The JSON of an error, in the words of the API that the client speaks."""
    if words is not None:
        return words.error_body(error, context.id)
    if request.rel_url.raw_path in _OF_OLLAMA:  # its clients read a text (ollama, docs/api/errors.mdx; ollama-js)
        return json.dumps({"error": error.message}).encode()
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
    path = request.rel_url.raw_path[:SHOWN]
    if isinstance(error, web.HTTPMethodNotAllowed):
        if request.method == hdrs.METH_POST and ":" in path.rpartition("/")[2]:  # a custom method (google.aip.dev/136)
            return NotFound(f"Invalid URL (POST {path}). {GOOGLE}")
        return MethodNotAllowed(
            f"Not allowed to {request.method} on {path}. (HINT: Perhaps you meant to use a different HTTP method?)",
            headers={"Allow": ", ".join(sorted(error.allowed_methods))},
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        limit = request[CONTEXT].parts.config.server.max_request_bytes
        return BodyTooLarge(f"Maximum content size limit ({limit}) exceeded.")
    if error.status == 404:
        advice = advice_on(path)
        return NotFound(f"Invalid URL ({request.method} {path})" + (f". {advice}" if advice else ""))
    return InvalidRequest(f"The request was refused: {error.reason}.")


CLIENT_PATHS = ("/v1", AZURE)
"""Where clients call: of other paths only refusals of calls are kept."""

SHOWN, READ = 200, 1000
"""Characters of a path that are shown, and those in which keys are looked for before: the rest may be long."""

MAX_MODEL = 200
"""Characters of a model's name in the refusal log."""

LIKE_A_KEY_FROM = 8
_PARAM = re.compile(r"[a-z][a-z_]{0,23}(?:\[\d+\]|\.[a-z_]{1,24}){0,6}")
_LIKE_A_KEY = re.compile(rf"{API_KEY_PATTERN}|[A-Za-z0-9_]{{24,}}")


def _shown_path(request: web.Request, words: Words | None) -> str:
    """The path without what looks like a key, or is the one that the request bears: some write it into the address.
    `words`: of the API whose clients may put it elsewhere, too."""
    path = request.rel_url.raw_path
    _, _, bearer = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    names = KEY_HEADERS if words is None else (*KEY_HEADERS, *words.key_headers)
    for secret in (bearer, *[request.headers.get(name, "").removeprefix("Bearer ") for name in names]):
        if len(secret.strip()) >= LIKE_A_KEY_FROM:
            path = path.replace(secret.strip(), "***")
    return _LIKE_A_KEY.sub("***", path[:READ])[:SHOWN]


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
