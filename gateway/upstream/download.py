"""One answer of an upstream that is read in pieces at the reader's speed: the content of a stored file."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

from gateway.records import Failure, Fault, Phase

from .connection import Connection, Head
from .pool import Pool

WAITING_BYTES = 262_144
"""Bytes that may wait for the reader before reading from the upstream pauses."""


class Download:
    """A context manager; leaving it before the end closes the connection. `name` is the upstream's."""

    def __init__(self, name: str, pool: Pool) -> None:
        self.head: Head | None = None
        self.failure: Failure | None = None
        """Why the answer is incomplete; set at its end."""
        self._name = name
        self._pool = pool
        self._connection: Connection | None = None
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._is_over = False
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def begin(self, request: list[bytes | memoryview], within_s: float) -> Head | Failure:
        """Send a request and return the head of the answer, within this time. Call it once."""
        try:
            async with asyncio.timeout(within_s):
                got = await self._pool.acquire()
                if isinstance(got, Failure):
                    return got
                self._connection = got
                got.send(request, self)
                while self.head is None and not self._is_over:
                    await self._until_changed()
        except TimeoutError:
            return Failure(self._name, Phase.WAITING, Fault.TIMEOUT, f"no answer within {within_s:g} s")
        return self.head or self.failure or Failure(self._name, Phase.WAITING, Fault.CUT)

    async def read(self) -> bytes:
        """The next bytes; empty at the end: then `failure` is None if the answer is complete."""
        while not self._pieces and not self._is_over:
            await self._until_changed()
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        self._waiting -= len(piece)
        if self._waiting < WAITING_BYTES and self._connection is not None:
            self._connection.resume_reading()
        return piece

    async def read_all(self, most: int) -> bytes:
        """The remaining bytes, but not many more than `most`."""
        body = bytearray()
        while len(body) <= most and (piece := await self.read()):
            body += piece
        return bytes(body)

    async def _until_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def head_received(self, head: Head) -> None:
        self.head = head
        self._changed.set()

    def body_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._waiting += len(data)
        if self._waiting >= WAITING_BYTES and self._connection is not None:
            self._connection.pause_reading()
        self._changed.set()

    def ended(self, failure: Failure | None) -> None:
        self._connection, self.failure, self._is_over = None, failure, True
        self._changed.set()
