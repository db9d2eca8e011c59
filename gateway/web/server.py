"""aiohttp's server with the settings that everything here counts on, and with our words where it has its own.

What cannot be read as HTTP never becomes a request and never sees the front door: aiohttp answers it itself, in plain
text, and logs its head with a traceback, the client's key included. Here it gets the OpenAI error object and a request
id as everybody else does, and the log only says what kind of trouble it was.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import Any, cast

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.errors import InvalidRequest, internal_error

from .middleware import Handler, new_id
from .responses import Whole

KEEP_ALIVE_S = 75.0
"""Idle client connections; nginx's default, and longer than most balancers keep theirs (theirs should close first)."""

SHORTEST_WAIT_S = 0.001
"""aiohttp takes 0 for "without end"."""


class QuietServerLog(logging.Filter):
    """Leaves out what a client did wrong, which it is told; of the rest, keeps only the name of what went wrong."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError):
            return False
        record.msg = "HTTP server: a connection ended with %s"
        record.args = (type(error).__name__ if error is not None else "an error",)
        record.exc_info = None
        record.exc_text = None
        return True


class ClientConnection(web.RequestHandler):
    """One connection of a client."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what could not be read, or went wrong outside the front door. The connection ends with it."""
        self.log_exception("answering %d", status, exc_info=exc)
        number = new_id()
        error = internal_error(number)
        if status == 400:
            what = type(exc).__name__ if exc is not None else "malformed"
            error = InvalidRequest(f"The request could not be read as HTTP ({what}). Check its first line and headers.")
        headers = [("Content-Type", "application/json"), ("x-request-id", number)]
        return Whole(error.status, headers, error.body(), is_last=True)


class Server(web.Server):
    """Makes a `ClientConnection` for each connection."""

    def __call__(self) -> web.RequestHandler:
        return ClientConnection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """The production runner, with our server, and with a shortcut to the handlers of some POST paths.

    Between the server and a handler, aiohttp's application looks up the route, records the match and passes two
    middlewares, which costs as much as finding the key and forwarding the headers. A call goes straight to its handler
    (with our own middleware already around it, see web/app.py); everything else takes aiohttp's way.
    """

    __slots__ = ("_shortcuts",)

    def __init__(self, app: web.Application, shortcuts: Mapping[str, Handler], **settings: Any) -> None:
        super().__init__(app, **settings)
        self._shortcuts = shortcuts

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        shortcuts, by_application = self._shortcuts, made.request_handler

        def handle(request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
            answer = shortcuts.get(request.rel_url.raw_path) if request.method == "POST" else None
            if answer is None or hdrs.EXPECT in request.headers:
                return by_application(request)
            return answer(cast(web.Request, request))

        return Server(handle, request_factory=made.request_factory, **self._kwargs)


def runner_of(app: web.Application, shortcuts: Mapping[str, Handler], drain_timeout_s: float) -> Runner:
    """The runner of a worker, which lets running calls go on for `drain_timeout_s` when it is cleaned up."""
    logger = logging.getLogger("gateway.http")
    if not logger.filters:
        logger.addFilter(QuietServerLog())
    more: dict[str, Any] = {"handler_cancellation": True, "keepalive_timeout": KEEP_ALIVE_S, "logger": logger}
    # aiohttp waits twice: once for its handlers, and once more before it cancels them.
    shutdown_timeout = max(drain_timeout_s / 2, SHORTEST_WAIT_S)
    return Runner(app, shortcuts, access_log=None, shutdown_timeout=shutdown_timeout, **more)
