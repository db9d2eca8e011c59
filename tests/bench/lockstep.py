"""Calls whose every step is known, to count what a gateway does for them.

Callers and upstream live in this process. Nobody sends a byte before the last one has arrived where it belongs, so
that what the gateway has to do does not depend on how fast anybody is.
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
"""For one load; under callgrind a call takes as long as fifty."""


class Upstream(Listening):
    """Answers whole at once; of a stream it writes an event when it is told to."""

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
        """The head, and the first event with it."""
        self._transport.write(STREAM + event())

    def write(self) -> None:
        """One event."""
        self._transport.write(event())

    def end(self) -> None:
        """The reason, the usage and the end."""
        self._transport.write(LAST)


class Caller(asyncio.Protocol):
    """One connection of a client, with one call at a time."""

    def __init__(self) -> None:
        self._told = asyncio.Event()
        self.is_whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, request: bytes) -> None:
        """Send a call."""
        self._parser = httptools.HttpResponseParser(self)
        self.is_whole = False
        self.transport.write(request)

    async def told(self) -> None:
        """Until something has come."""
        self._told.clear()
        await self._told.wait()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        self._told.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._told.set()

    def on_message_complete(self) -> None:
        """Of the parser."""
        if self._parser.get_status_code() != 200:
            raise BenchError(f"a call was answered with {self._parser.get_status_code()}")
        self.is_whole = True


async def plain(port: int, upstream: Upstream, count: int, connections: int, pause_s: float = 0.0) -> None:
    """So many calls with whole answers over so many connections, on each one after the other, with a pause between."""
    request = http(calls.request())

    async def talk(caller: Caller, share: int) -> None:
        for _ in range(share):
            caller.ask(request)
            while not caller.is_whole:
                await caller.told()
                _check(caller)
            if pause_s:
                await asyncio.sleep(pause_s)

    await _all([talk(caller, count // connections) for caller in await _connected(port, connections)])


async def streamed(port: int, upstream: Upstream, count: int, events: int) -> None:
    """So many streams, one after the other, each with so many events and an end; an event waits for the one before."""

    async def talk(caller: Caller) -> None:
        for _ in range(count):
            caller.ask(STREAM_REQUEST)
            source = await upstream.streams.get()
            for number in range(events):
                source.write() if number else source.begin()
                await caller.told()
                _check(caller)
            source.end()
            while not caller.is_whole:
                await caller.told()
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
