"""One connection of a client, with the limits that aiohttp's own does not have.

- A head has to be there, whole, within `client_head_timeout_s`: from the beginning of the connection, and later from
  the head's first byte. Between two requests a connection may be idle for `KEEP_ALIVE_S`.
- A head on which two readers may disagree is refused, because a proxy that many clients share may be smuggled a
  request: where its body ends, or which address it names. aiohttp's parser (llhttp) refuses most of that itself: two
  lengths, a length and chunks, folded lines, bare line ends, spaces before a colon. `find_fault` has the rest.
- Input that is not HTTP gets one error answer and ends the connection; later bytes are ignored. If a body becomes
  invalid, its reader gets the error at once.
- Behind a body in chunks the connection ends. aiohttp's parser (llhttp) puts the last trailer of such a body among the
  headers of the request behind it, which may be another client's if a proxy shares the connection, and the parser
  does not report whether there was one.
- When descriptors run short, connections without a request are closed, the oldest first; where all have one, new
  connections get a 503 that asks for a retry.

A head that comes in one piece, as nearly all do, costs no timer.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import ERROR, _ErrInfo

from gateway.errors import GatewayError, InvalidRequest, Unavailable, internal_error
from gateway.web.middleware import Handler, new_id
from gateway.web.responses import Whole, head

MAX_HEAD_BYTES = 65536
"""The maximum size of one head. The parser limits a line to 8 KiB and the number of lines to 128, which together allow
a megabyte."""

MAX_LENGTH_DIGITS = 18
"""The parser takes 2^64 - 1 for "no length", and would read all following bytes as the body."""


MAX_PATH, MAX_SLASHES = 4096, 64
"""Characters and slashes of a path. aiohttp's router hashes the path up to each of its slashes. The longest name in one
is a model of 2,048 characters (API reference of InvokeModel, `modelId`), of which some are escaped."""

STALLED_S = 60
"""A client that takes nothing of its answer for longer is cut off, by the kernel, where it can (Linux)."""

PIECE_BYTES, TURN_S = 8_192, 0.005
"""Bytes that are read without a look at the clock, and seconds for which one connection is read in a turn."""

MOST_CLOSED_AT_ONCE = 32
RESTED_S = 0.5
"""A younger connection is expected to send its request soon."""
TURNED_AWAY_S = 0.25
"""A refused client has this long to read the answer."""
LOOK_AGAIN_S = 0.1
"""Seconds until the next search for connections without a request, because each search goes through all connections."""

CLOSE = ("Connection", "close")

log = logging.getLogger("gateway")


class Malformed(BadHttpMessage):
    """400: the head is not fit to be answered otherwise. Its text holds nothing of the head, and is shown."""

    def __str__(self) -> str:
        return self.message


class ClientConnection(web.RequestHandler):
    """See the head of the file."""

    __slots__ = ("_head_bytes", "_head_timer", "_is_broken", "_server", "_turn", "_unread", "before_parser")

    def __init__(self, server: GuardedServer, **settings: Any) -> None:
        super().__init__(server, loop=server.loop, **settings)
        self._server = server
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        """Bytes received so far of a head that arrives in pieces."""
        self._is_broken = False
        """The input is not HTTP, or its reader is gone."""
        self._unread: deque[bytes] = deque()
        """Bytes that have come and wait for another turn of the event loop, or for who reads the body."""
        self._turn: asyncio.Handle | None = None
        self.before_parser: Callable[[Any], Any] | None = None
        """Makes what gets the bytes of a WebSocket, of the parser that would get them otherwise."""

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        first = parser if self.before_parser is None else self.before_parser(parser)
        web.RequestHandler.set_parser(self, first, data_received_cb)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._head_timer = self._loop.call_later(self._server.head_timeout_s, self._give_up_head)
        end = transport.get_extra_info("socket")
        if end is None:
            return
        if hasattr(socket, "TCP_USER_TIMEOUT") and end.family != socket.AF_UNIX:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_S * 1000)
        if self._server.descriptors.are_short(end.fileno()) and not self._server.make_room():
            self._turn_away()

    def connection_lost(self, error: BaseException | None) -> None:
        self._stop_head_timer()
        self._unread.clear()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if not data or (not self._unread and len(data) <= PIECE_BYTES):
            self._read(data)
            return
        self._unread.extend(data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
        if self._turn is None:
            self._read_on()
        if self._turn is None:  # with uvloop, one turn reads up to 32 times (libuv, `uv__read`)
            self._pause_transport_reading()
            self._turn = self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Read what has come, as much of it as one turn is to read: a read of the socket may have 40,000 chunks, also
        of a client without a key."""
        self._turn, until = None, time.monotonic() + TURN_S
        while self._unread and not (self._reading_paused or self._buffer_paused):
            self._read(self._unread.popleft())
            if self._unread and time.monotonic() > until:
                self._turn = self._turn or self._loop.call_soon(self._read_on)
                break
        if self._unread:
            self._pause_transport_reading()
        elif not (self._reading_paused or self._buffer_paused):
            super()._resume_transport_reading()

    def _resume_transport_reading(self) -> None:
        """Also called by aiohttp, when a body has been read."""
        if not self._unread:
            super()._resume_transport_reading()
        elif self._turn is None:
            self._turn = self._loop.call_soon(self._read_on)

    def _read(self, data: bytes) -> None:
        if self._is_broken:
            return
        try:
            web.RequestHandler.data_received(self, data)
        except Exception as error:
            # The parser has met something that it does not expect itself. Its text may be the client's.
            log.warning("HTTP server: a head could not be read (%s)", type(error).__name__)
            self._break("it could not be read")
            return
        messages = self._messages
        if messages:
            if self._head_timer is not None:
                self._stop_head_timer()
            is_long = len(data) + self._head_bytes > MAX_HEAD_BYTES
            self._head_bytes = 0
            self._check(is_long)
        elif data and self.is_resting:
            self._await_rest(len(data))

    @property
    def is_resting(self) -> bool:
        """Whether no request is under way, nor waiting."""
        waiter = self._waiter
        return self._request_count == 0 or (waiter is not None and not waiter.done())

    @property
    def resting_since(self) -> float:
        """When the connection began, or its last answer was given, on the loop's clock."""
        return self._next_keepalive_close_time - self._keepalive_timeout

    # ------------------------------------------------------------------------------------------------------- heads

    def _check(self, is_long: bool) -> None:
        """Look at the heads that wait, nearly always one."""
        messages = self._messages
        for place, (message, payload) in enumerate(messages):
            if not isinstance(message, RawRequestMessage):
                self._is_broken = True
                self._fail_reader(place)
                self._linger_behind(place)
                return
            fault = find_fault(message)
            if fault is None and is_long and size_of(message) > MAX_HEAD_BYTES:
                fault = f"its head is longer than {MAX_HEAD_BYTES} bytes"
            if fault is not None:
                self._break(fault, place)
                return
            if message.chunked:
                messages[place] = (message._replace(should_close=True), payload)

    def _await_rest(self, size: int) -> None:
        """A head has begun, and is not whole."""
        self._head_bytes += size
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(self._server.head_timeout_s, self._give_up_head)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._break(f"its head is longer than {MAX_HEAD_BYTES} bytes")

    def _break(self, what: str, place: int | None = None) -> None:
        """Answer 400 in the place of this message and of all behind it, and read nothing more."""
        self._is_broken = True
        self._stop_head_timer()
        messages = self._messages
        while place is not None and len(messages) > place:
            messages.pop()
        messages.append((_ErrInfo(400, Malformed(what), what), EMPTY_PAYLOAD))
        self._linger_behind(len(messages) - 1)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _linger_behind(self, place: int) -> None:
        """Discards for a while the bytes that the client still sends after the answer, as aiohttp does for an unread
        body."""
        messages = self._messages
        messages[place] = (messages[place][0], StreamReader(self, 2**16, loop=self._loop))

    def _fail_reader(self, place: int, *, is_late: bool = False) -> None:
        """If a body is unreadable, its reader gets the error without waiting for the rest."""
        request = self._current_request
        if request is not None and request.method == ERROR.method:
            return  # the fault is reported to the reader, or there was none
        if request is None and not place and not is_late:
            # A request is out of the queue for one turn of the loop before it is the current one.
            self._loop.call_soon(partial(self._fail_reader, 0, is_late=True))
            return
        payload = self._messages[place - 1][1] if place else request.content if request is not None else None
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(web.RequestPayloadError("the body is not framed as HTTP"))

    def _give_up_head(self) -> None:
        self._head_timer = None
        if self.is_resting:
            self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # ----------------------------------------------------------------------------------------------------- answers

    def _turn_away(self) -> None:
        """Refuse a new connection with a 503 before it has sent a byte."""
        error = Unavailable("The gateway has too many connections. Please try again.", code="too_many_connections")
        self._server.noted(error.reason)
        self._is_broken = True
        if self.transport is not None:
            self.transport.write(encode_error(error, new_id()))
            self.transport.write_eof()
        self._stop_head_timer()
        self._head_timer = self._loop.call_later(TURNED_AWAY_S, self._give_up_head)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to what could not be read, or went wrong outside the front door. The connection ends with it."""
        self.log_exception("answering %d", status, exc_info=exc)
        number = new_id()
        error = internal_error(number)
        if status == 400:
            what = str(exc) if isinstance(exc, Malformed) else type(exc).__name__ if exc is not None else "malformed"
            error = InvalidRequest(f"The request could not be read as HTTP ({what}). Check its first line and headers.")
            self._server.noted("malformed")
        return Whole(error.status, _headers(error, number), error.body(), is_last=True)


def _headers(error: GatewayError, number: str) -> list[tuple[str, str]]:
    return [("Content-Type", "application/json"), ("x-request-id", number), *error.headers.items()]


def encode_error(error: GatewayError, number: str) -> bytes:
    """A whole answer that ends its connection, where there is no request to answer."""
    body = error.body()
    return head(error.status, [*_headers(error, number), ("Content-Length", str(len(body))), CLOSE]) + body


def find_fault(message: RawRequestMessage) -> str | None:
    """Why this head must not be acted upon; None: there is no reason. Costs 0.3 us."""
    version, headers = message.version, message.headers
    if version is not HttpVersion11 and version not in (HttpVersion10, HttpVersion11):
        return "it is neither HTTP/1.1 nor HTTP/1.0"
    if (coding := headers.get(hdrs.TRANSFER_ENCODING)) is not None:
        if version == HttpVersion10:
            return "HTTP/1.0 has no Transfer-Encoding"
        if coding.lower() != "chunked":
            return "the only Transfer-Encoding understood is chunked"
    elif len(headers.get(hdrs.CONTENT_LENGTH, "")) > MAX_LENGTH_DIGITS:
        return "its Content-Length is too long"
    if message.method == hdrs.METH_CONNECT:
        return "there is no tunnel to be had here"
    if "#" in message.path:
        return "its address has a fragment"
    return None


def size_of(message: RawRequestMessage) -> int:
    """Bytes of a head, without its punctuation."""
    return len(message.path) + sum(len(name) + len(value) for name, value in message.raw_headers)


class GuardedServer(web.Server):
    """Makes a `ClientConnection` for each connection, with a shortcut to the handlers of some POST paths.

    Between the server and a handler, aiohttp's application looks up the route, records the match and passes two
    middlewares, which costs as much as finding the key and forwarding the headers. A call goes straight to its handler
    (with our own middleware already around it, see web/app.py); everything else takes aiohttp's way.
    """

    def __init__(
        self,
        by_application: Handler,
        shortcuts: Mapping[str, Handler],
        no_route: Handler,
        *,
        head_timeout_s: float,
        noted: Callable[[str], None],
        descriptors: FdLimit,
        **more: Any,
    ) -> None:
        super().__init__(cast(Any, self._handle), **more)
        self._by_application = by_application
        self._shortcuts = shortcuts
        self._no_route = no_route
        self.head_timeout_s = head_timeout_s
        self.noted = noted
        """Counts a refusal outside of handlers, by its reason."""
        self.descriptors = descriptors
        self._look_again_at = 0.0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def __call__(self) -> web.RequestHandler:
        return ClientConnection(self, **self._kwargs)

    def _handle(self, request: web.Request) -> Awaitable[web.StreamResponse]:
        path = request.rel_url.raw_path
        shortcut = self._shortcuts.get(path) if request.method == "POST" else None
        if shortcut is None and (len(path) > MAX_PATH or path.count("/") > MAX_SLASHES):
            shortcut = self._no_route
        return (shortcut or self._by_application)(request)

    def make_room(self) -> bool:
        """Close the connections that have been idle longest; False: there are none."""
        now = self._loop.time()
        if now < self._look_again_at:
            return False
        connections = [each for each in self._connections if isinstance(each, ClientConnection)]
        resting = [each for each in connections if each.is_resting and now - each.resting_since > RESTED_S]
        for connection in resting[:MOST_CLOSED_AT_ONCE]:
            connection.force_close()
        if not resting:
            self._look_again_at = now + LOOK_AGAIN_S
        return bool(resting)


OTHERS = 64
"""Store, journal, logs, the control line, the event loop's own."""


class FdLimit:
    """Estimates the number of open descriptors from the newest one: the kernel assigns the lowest free number.

    A process without free descriptors cannot even refuse a connection. So a part of them is reserved: new clients are
    refused while they can be answered, and calls can open upstream connections, store and journal.
    """

    def __init__(self, limit: int, connections: int) -> None:
        """`connections`: how many a process may open by itself, to upstreams."""
        self._short = limit - min(limit // 4, connections + OTHERS)

    def are_short(self, newest: int) -> bool:
        """Whether a connection with this descriptor has to be refused."""
        return newest >= self._short


def raise_limit() -> int:
    """Raise this process's limit to the administrator's hard limit; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        return soft  # macOS reports no limit, and has another one
    return hard if hard != resource.RLIM_INFINITY else 2**31
