"""Calls in lockstep, to count what a gateway does for them.

Clients and upstream run in this process. Each byte is sent after the one before has arrived, so that the gateway's work
does not depend on timing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import cast

import httptools

from . import calls
from .processes import BenchError
from .streams import LAST, STREAM, STREAM_REQUEST, WHOLE, event, http
from .upstreams import Listening, Reading

PATIENCE_S = 600.0
"""Seconds for one load; under callgrind a call takes fifty times as long."""


class Upstream(Listening):
    """Answers plain calls at once; writes an event of a stream on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: asyncio.Queue[_Source] = asyncio.Queue()

    def connection(self) -> _Source:
        return _Source(self)


class _Source(Reading):
    """One connection of the upstream."""

    def __init__(self, upstream: Upstream) -> None:
        super().__init__()
        self._upstream = upstream

    def asked(self, request: bytearray) -> None:
        if b'"stream"' not in request:
            self._transport.write(WHOLE)
        else:
            self._upstream.streams.put_nowait(self)

    def begin(self) -> None:
        """Writes the head with the first event."""
        self._transport.write(STREAM + event())

    def write(self) -> None:
        """Writes one event."""
        self._transport.write(event())

    def end(self) -> None:
        """Writes the finish reason, the usage and the end."""
        self._transport.write(LAST)


class Caller(asyncio.Protocol):
    """One connection of a client, with one call at a time."""

    def __init__(self) -> None:
        self._received = asyncio.Event()
        self.is_whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes) -> None:
        """Send a call."""
        self._parser = httptools.HttpResponseParser(self)
        self.is_whole = False
        self.transport.write(request)

    async def received(self) -> None:
        """Waits until data has arrived."""
        self._received.clear()
        await self._received.wait()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        self._received.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._received.set()

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self._parser.get_status_code() != 200:
            raise BenchError(f"a call was answered with {self._parser.get_status_code()}")
        self.is_whole = True


async def plain(port: int, upstream: Upstream, count: int, connections: int, pause_s: float = 0.0) -> None:
    """`count` plain calls over this many connections, on each one after the other, with a pause in between."""
    request = http(calls.request())

    async def talk(caller: Caller, share: int) -> None:
        for _ in range(share):
            caller.ask(request)
            while not caller.is_whole:
                await caller.received()
                _check(caller)
            if pause_s:
                await asyncio.sleep(pause_s)

    await _all([talk(caller, count // connections) for caller in await _connected(port, connections)])


async def streamed(port: int, upstream: Upstream, count: int, events: int) -> None:
    """`count` streams, one after the other, each with this many events; an event waits until the one before arrived."""

    async def talk(caller: Caller) -> None:
        for _ in range(count):
            caller.ask(STREAM_REQUEST)
            source = await upstream.streams.get()
            for number in range(events):
                source.write() if number else source.begin()
                await caller.received()
                _check(caller)
            source.end()
            while not caller.is_whole:
                await caller.received()
                _check(caller)

    await _all([talk(*await _connected(port, 1))])


def _check(caller: Caller) -> None:
    if caller.transport.is_closing():
        raise BenchError("the gateway has closed a connection")


async def _connected(port: int, count: int) -> list[Caller]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Caller, "127.0.0.1", port))[1] for _ in range(count)]


async def _all(talks: Sequence[Awaitable[None]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*talks)
