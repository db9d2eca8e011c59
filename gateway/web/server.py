"""aiohttp's server with the gateway's settings.

Input that is not HTTP never becomes a request and never reaches the middleware: aiohttp would answer it itself, in
plain text, and log its head with a traceback, the client's key included. Here it gets the OpenAI error object and a
request id like every error (`http_guard/client_connection.py`), and the log has only the kind of fault.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.config import Config
from gateway.pipeline import Services

from .http_guard.client_connection import FdLimit, GuardedServer, raise_limit
from .middleware import NO_ROUTE, Handler

KEEP_ALIVE_S = 75.0
"""Idle client connections; nginx's default, and longer than most balancers keep theirs (theirs should close first)."""

LINGER_S = 5.0
"""How long what a client still sends is thrown away, behind an answer that did not wait for it. To close with bytes
unread is to reset the connection, and the answer may be lost with it; nginx's default."""

END_WITHIN_S = 1.0
"""Calls under way when a worker ends are cancelled after half of it; the other half is for settling."""


class QuietServerLog(logging.Filter):
    """Drops log lines about clients' faults, which the clients get as errors; reduces others to the name of the
    error."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError):
            return False
        record.msg = "HTTP server: a connection ended with %s"
        record.args = (type(error).__name__ if error is not None else "an error",)
        record.exc_info = None
        record.exc_text = None
        return True


class Runner(web.AppRunner):
    """The production runner, with our server."""

    __slots__ = ("_limits", "_shortcuts")

    def __init__(
        self, app: web.Application, shortcuts: Mapping[str, Handler], limits: Mapping[str, Any], **settings: Any
    ) -> None:
        super().__init__(app, **settings)
        self._shortcuts = shortcuts
        self._limits = limits

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return GuardedServer(
            cast(Handler, made.request_handler), self._shortcuts, self.app[NO_ROUTE],
            request_factory=made.request_factory, **self._limits, **self._kwargs,
        )  # fmt: skip

    def configure(self, config: Config) -> None:
        """Go by this configuration from now on: connections that are made, and heads that begin."""
        if isinstance(server := self.server, GuardedServer):
            for name, limit in _limits(config).items():
                setattr(server, name, limit)


def runner_of(app: web.Application, shortcuts: Mapping[str, Handler], parts: Services) -> Runner:
    """The runner of a worker. Raises the process's limit of descriptors as far as it may."""
    logger = logging.getLogger("gateway.http")
    if not logger.filters:
        logger.addFilter(QuietServerLog())
    limits = {**_limits(parts.config), "noted": parts.accounting.telemetry.rejected}
    more: dict[str, Any] = {
        "handler_cancellation": True,
        "keepalive_timeout": KEEP_ALIVE_S,
        "lingering_time": LINGER_S,
        "logger": logger,
        "auto_decompress": False,  # the gateway decodes them itself, within its limits
    }
    return Runner(app, shortcuts, limits, access_log=None, shutdown_timeout=END_WITHIN_S / 2, **more)


def _limits(config: Config) -> dict[str, Any]:
    """The settings that the server uses, by the names of its attributes."""
    connections = sum(upstream.max_connections // config.server.workers for upstream in config.upstreams.values())
    return {
        "head_timeout_s": config.server.client_head_timeout_s,
        "descriptors": FdLimit(raise_limit(), connections),
    }
