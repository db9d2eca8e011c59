"""The two aiohttp responses of the hot path, which write pre-joined bytes.

`Whole` is one answer in one write; `EventStream` is chunked and written to from the upstream's reading callback. Both
keep aiohttp's promises to its server loop (`prepare`, `write_eof`, `keep_alive`) and leave out its header machinery,
which costs more than the rest of a short answer (10 to 20 us).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from http import HTTPStatus

from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time

from gateway.formats.format import Framing

CONGESTED_BYTES = 65536
"""Bytes that may wait for a slow client before reading from its upstream pauses."""

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
_UNSAFE = re.compile(r"[^\x20-\x7e\x80-\xff]")


def head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """The head of an answer up to its blank line, with the `Date` that RFC 9110, 6.6.1 requires. Characters
    that are invalid in headers become spaces."""
    lines = [f"{name}: {value}" for name, value in headers]
    if _UNSAFE.search("".join(lines)):
        lines = [_UNSAFE.sub(" ", line) for line in lines]
    first = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Unknown"
    return "\r\n".join([first, f"Date: {rfc822_formatted_time()}", *lines, "\r\n"]).encode("latin-1", "replace")


CORS = web.RequestKey("cors", list)
"""The headers that let the page of a request with an `Origin` read the answer."""


class Whole(web.StreamResponse):
    """A whole answer. `is_last` closes the connection behind it. `on_sent` is called once, sent or not."""

    def __init__(
        self,
        status: int,
        headers: Iterable[tuple[str, str]],
        body: bytes,
        *,
        is_last: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        # Not aiohttp's own __init__, which makes a map of headers and a state that nothing here looks at.
        self._status = status
        self.own_headers = list(headers)
        """May be added to until it is sent."""
        self._bytes = body
        self._request: web.BaseRequest | None = None
        self._is_last = is_last
        self._on_sent = on_sent

    def make_last(self) -> None:
        """Close the connection behind it; only before the answer is sent."""
        self._is_last = True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        self._request = request
        self._keep_alive = request.keep_alive and not self._is_last
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        try:
            request, self._request = self._request, None
            whole, self._bytes = self._bytes, b""  # aiohttp keeps the answer while the connection is idle
            transport = None if request is None else request.transport
            if request is None or transport is None or transport.is_closing():
                return
            if self._status != 204:  # which has no length (RFC 9110, 8.6)
                self.own_headers.append(("Content-Length", str(len(whole))))
            if not self._keep_alive:
                self.own_headers.append(("Connection", "close"))
            elif request.version < (1, 1):
                self.own_headers.append(("Connection", "keep-alive"))
            body = b"" if request.method == "HEAD" else whole
            if len(body) <= CONGESTED_BYTES:
                transport.write(head(self._status, self.own_headers) + body)
            else:
                transport.writelines([head(self._status, self.own_headers), body])  # which does not copy it
            if self._is_last and transport.can_write_eof():
                transport.write_eof()  # the client does not wait while the rest of its body is discarded
            if transport.get_write_buffer_size():
                await request.writer.drain()
        finally:
            if self._on_sent is not None:
                self._on_sent()


class EventStream(web.StreamResponse):
    """A stream of server-sent events. Its head goes with the first bytes; `finish` ends it. `is_last` as for `Whole`.

    An EventStream that is not finished ends with a closed connection and an incomplete message, so that a client never
    takes a cut stream for a whole one.
    """

    def __init__(self, request: web.BaseRequest, headers: Iterable[tuple[str, str]], *, is_last: bool = False) -> None:
        super().__init__(status=200)
        self._request = request
        self._transport = request.transport
        self._is_chunked = request.version >= (1, 1)
        self._keep_alive = False
        self._is_last = is_last or not self._is_chunked or not request.keep_alive
        lines = [*headers, ("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no")]
        if hdrs.ORIGIN in request.headers:
            lines += request.get(CORS, ())
        if self._is_chunked:
            lines.append(("Transfer-Encoding", "chunked"))
        if self._is_last:
            lines.append(("Connection", "close"))
        self._head = head(200, lines)
        self._is_finished = self._has_last = False

    @property
    def is_congested(self) -> bool:
        transport = self._transport
        return transport is not None and transport.get_write_buffer_size() > CONGESTED_BYTES

    def write(self, data: bytes) -> bool:  # type: ignore[override] # not a coroutine: called from a reading callback
        transport = self._transport
        if transport is None or transport.is_closing() or self._is_finished:
            return False
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        transport.write(data)
        return transport.get_write_buffer_size() > CONGESTED_BYTES

    async def wait_until_writable(self) -> None:
        await self._request.writer.drain()

    def write_last(self, data: bytes) -> None:
        """Send the last event: `finish` sends no other."""
        self.write(data)
        self._has_last = True

    def finish(self, last: bytes | None) -> None:
        """Send the last event, if any, and the end of the message; None: leave the message incomplete."""
        if last is None:
            return
        if last and not self._has_last:
            self.write(last)
        transport = self._transport
        if transport is None or transport.is_closing() or self._is_finished:
            return
        self._is_finished = True
        end = b"0\r\n\r\n" if self._is_chunked else b""
        if self._head or end:
            transport.write(self._head + end)
            self._head = b""
        self._keep_alive = not self._is_last

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        if not self._is_finished and self._transport is not None:
            self._transport.close()
        elif self._transport is not None and not self._transport.is_closing():
            await self._request.writer.drain()


class FramedStream(EventStream):
    """A stream of server-sent events in another form."""

    def __init__(
        self, request: web.BaseRequest, headers: Iterable[tuple[str, str]], framing: Framing, *, is_last: bool = False
    ) -> None:
        kept = [(name, value) for name, value in headers if name.lower() != "content-type"]
        super().__init__(request, [*framing.headers, *kept], is_last=is_last)
        self._framing = framing

    def write(self, data: bytes) -> bool:  # type: ignore[override] # as above
        written = self._framing.write(data)
        return super().write(written) if written else self.is_congested

    def finish(self, last: bytes | None) -> None:
        if last is not None:
            if rest := self._framing.write(b"" if self._has_last else last) + self._framing.end():
                super().write(rest)
            super().finish(b"")


JSON_HEADERS = (("Content-Type", "application/json"),)


def json_response(body: bytes, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> Whole:
    return Whole(status, [*JSON_HEADERS, *headers], body)
