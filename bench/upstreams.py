"""What the upstreams of a bench have in common: they listen, and read whole requests."""

from __future__ import annotations

import asyncio
import re
from typing import cast

from .processes import listener

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Listening:
    """Has a port, once it is started."""

    def __init__(self) -> None:
        self.port = 0

    def connection(self) -> asyncio.Protocol:
        """What reads a new connection."""
        raise NotImplementedError

    async def start(self) -> asyncio.Server:
        """To be closed."""
        server = await asyncio.get_running_loop().create_server(self.connection, sock=listener(), backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        return server


class Reading(asyncio.Protocol):
    """One connection: reads requests whose bodies have a length, one after the other."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._size: int | None = None
        """Of the whole request; None: not known yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        if self._size is None:
            head, end, _ = self._held.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if not end or length is None:
                return
            self._size = len(head) + len(end) + int(length[1])
        if len(self._held) < self._size:
            return
        whole, self._held, self._size = self._held, bytearray(), None
        self.asked(whole)

    def asked(self, request: bytearray) -> None:
        """A whole request is there, its head with it."""
        raise NotImplementedError
