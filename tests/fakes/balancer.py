"""A small balancer: it asks each place whether it is ready, and gives new connections to those that are, in turn.

    with Balancer([port, other]) as balancer:
        ...                                                  # clients connect to balancer.port

It carries bytes and knows no HTTP but for `GET /readyz`; a connection stays with the place that it was given to. A
place that cannot be connected to is passed over.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from typing import Self

ASK_EVERY_S = 0.1


class Balancer:
    """See the head of the file. `ready` may be read at any time from any thread."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.port = 0
        self.ready: tuple[int, ...] = ()
        """The ports that were ready when they were asked last."""
        self._ports = tuple(ports)
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="balancer", daemon=True)
        self._running: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result(10)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _begin(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        await self._ask_all()
        self._asking = asyncio.ensure_future(self._keep_asking())

    async def _end(self) -> None:
        self._asking.cancel()
        self._server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(self._asking, *self._running, return_exceptions=True)
        await asyncio.sleep(0.05)  # asyncio's transports end in a later turn of their loop

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            await self._ask_all()

    async def _ask_all(self) -> None:
        answers = await asyncio.gather(*map(_is_ready, self._ports))
        self.ready = tuple(port for port, is_ready in zip(self._ports, answers, strict=True) if is_ready)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        there = None
        try:
            there = await self._connect()
            if there is not None:
                await asyncio.gather(_carry(reader, there[1]), _carry(there[0], writer))
        except asyncio.CancelledError:
            pass  # the balancer ends; asyncio's streams would call it a fault
        finally:
            self._running.discard(task)
            writer.close()
            if there is not None:
                there[1].close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        start, ports = next(self._turn), self.ready
        for number in range(len(ports)):
            try:
                return await asyncio.open_connection("127.0.0.1", ports[(start + number) % len(ports)])
            except OSError:
                continue
        return None


async def _is_ready(port: int) -> bool:
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: balancer\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return answer.startswith(b"HTTP/1.1 200 ")


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()
