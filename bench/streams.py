"""Streams: an upstream that puts a timestamp into each event, and clients that measure its age at arrival.

Both are asyncio protocols in this process, so that they share a clock.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import httptools

from . import calls
from .processes import BenchError
from .upstreams import Listening, Reading

WAIT_S = 30.0
"""Seconds for all streams to begin, and to end; one more for each hundred streams."""

MAX_AHEAD = 2
"""Events under way per stream; a slow client gets fewer events instead of a backlog."""

SPREAD = 0.618
"""The golden ratio minus 1: its multiples modulo 1 are evenly spread for any number of streams."""

_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\n{}\r\n\r\n"
STREAM = _HEAD.format("text/event-stream", "Transfer-Encoding: chunked").encode()
WHOLE = _HEAD.format("application/json", f"Content-Length: {calls.ANSWER_BYTES}").encode() + calls.answer()
_BEFORE, _AFTER = calls.event()
_EVENT = b"%x\r\n%s%%020d%s\r\n" % (len(_BEFORE) + 20 + len(_AFTER), _BEFORE, _AFTER)
_STAMP = re.compile(rb'"content":"(\d{20})"')
_REASON = b'"finish_reason":"stop"'
LAST = b"%x\r\n%s\r\n0\r\n\r\n" % (len(calls.ending()), calls.ending())


def http(body: bytes) -> bytes:
    """An HTTP request with this body."""
    return b"\r\n".join([
        b"POST %s HTTP/1.1" % calls.PATH.encode(), b"Host: bench", b"Content-Length: %d" % len(body),
        *(f"{name}: {value}".encode() for name, value in calls.HEADERS.items()), b"", body,
    ])  # fmt: skip


STREAM_REQUEST = http(calls.request(is_streamed=True))


def event() -> bytes:
    """An event that bears the time."""
    return _EVENT % time.monotonic_ns()


class Upstream(Listening):
    """Answers plain calls, and streams with an event every `period_s` until `is_ending`."""

    def __init__(self) -> None:
        super().__init__()
        self.period_s = 0.02
        self.is_ending = False
        self.begun = 0
        self.written = 0
        self.connections: set[asyncio.Transport] = set()
        self.arrived: list[int] = []
        """The age of each event at its client, in nanoseconds."""

    def connection(self) -> _Source:
        return _Source(self)

    async def hang_up(self) -> None:
        """Closes all open connections."""
        async with asyncio.timeout(WAIT_S):
            while self.connections:
                for transport in list(self.connections):
                    transport.close()
                await asyncio.sleep(0.01)

    def is_behind(self) -> bool:
        """Whether the limit of events under way is reached."""
        return self.written - len(self.arrived) >= MAX_AHEAD * self.begun


class _Source(Reading):
    """One connection of the upstream."""

    def __init__(self, upstream: Upstream) -> None:
        super().__init__()
        self._upstream = upstream
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._upstream.connections.add(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._upstream.connections.discard(self._transport)

    def asked(self, request: bytearray) -> None:
        if b'"stream"' not in request:
            self._transport.write(WHOLE)
            return
        self._transport.write(STREAM)
        # Streams begin together; their events are spread over the whole period.
        self._upstream.begun += 1
        self._due = self._loop.time() + self._upstream.period_s * (self._upstream.begun * SPREAD % 1)
        self._write()
        self._loop.call_at(self._due, self._go_on)

    def _go_on(self) -> None:
        if self._transport.is_closing():
            return
        if self._upstream.is_ending:
            self._transport.write(LAST)
            return
        if not self._upstream.is_behind():
            self._write()
        self._due = max(self._due + self._upstream.period_s, self._loop.time())
        self._loop.call_at(self._due, self._go_on)

    def _write(self) -> None:
        self._upstream.written += 1
        self._transport.write(event())


class Client(asyncio.Protocol):
    """One connection of a client, with one stream at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self._arrived = upstream.arrived
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self) -> None:
        """Requests a stream: `begun` at its first event, `ended` at its complete end."""
        self.begun: asyncio.Future[float] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._held = b""
        self._has_reason = self._is_done = False
        self._asked = time.monotonic()
        self.transport.write(STREAM_REQUEST)

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic_ns()
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("the connection was lost")

    def on_body(self, data: bytes) -> None:
        """Called by the parser: a part of the body, which may end inside an event."""
        events, _, self._held = (self._held + data).rpartition(b"\n\n")
        stamps = _STAMP.findall(events)
        self._arrived.extend(self._now - int(stamp) for stamp in stamps)
        if stamps and not self.begun.done():
            self.begun.set_result(time.monotonic() - self._asked)
        self._has_reason |= _REASON in events
        self._is_done = events.endswith(b"data: [DONE]")

    def on_message_complete(self) -> None:
        """Called by the parser at the end of the HTTP body; the stream may be incomplete."""
        status = self._parser.get_status_code()
        if status == 200 and self._has_reason and self._is_done and not self._held:
            self.ended.set_result(None)
        else:
            self._fail(f"status {status}, and at the end {self._held[-500:]!r}")

    def _fail(self, why: str) -> None:
        for future in (self.begun, self.ended):
            if not future.done():
                future.set_exception(BenchError(f"a stream did not end whole: {why}"))
                future.exception()  # one exception of many is reported


@asynccontextmanager
async def streams(port: int, upstream: Upstream, count: int, period_s: float) -> AsyncIterator[list[Client]]:
    """Opens `count` streams through this port; at the end of the `with` each must end complete."""
    upstream.period_s, upstream.is_ending = period_s, False
    upstream.begun = upstream.written = 0
    upstream.arrived.clear()
    loop, wait_s = asyncio.get_running_loop(), WAIT_S + count / 100
    clients: list[Client] = []
    try:
        async with asyncio.timeout(wait_s):
            for _ in range(count):
                _, client = await loop.create_connection(lambda: Client(upstream), "127.0.0.1", port)
                clients.append(client)
                client.ask()
            await asyncio.gather(*(client.begun for client in clients))
        yield clients
        upstream.is_ending = True
        async with asyncio.timeout(wait_s):
            await asyncio.gather(*(client.ended for client in clients))
    except TimeoutError:
        raise BenchError(f"{count} streams did not begin or did not end within {wait_s:g} s") from None
    finally:
        upstream.is_ending = True
        for client in clients:
            client.transport.close()
    if len(upstream.arrived) != upstream.written:
        raise BenchError(f"of {upstream.written} events {len(upstream.arrived)} arrived")
