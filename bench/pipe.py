"""A proxy that reads nothing, started as `python -m bench.pipe FD PORT`: it joins each connection of a client with one
of its own to the upstream, byte for byte.

No exchange on this event loop costs less, in whatever language its parser and scanner are written: it is the bound for
a compiled one.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import cast

import uvloop


class End(asyncio.Protocol):
    """One side of a pair of connections."""

    def __init__(self, other: End | None = None) -> None:
        self.other = other
        self.waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.other is not None:
            self.other.other = self
            self.transport.writelines(self.other.waiting)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.waiting.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


class Front(End):
    """The side of the client, which opens the other one."""

    def __init__(self, upstream: int) -> None:
        super().__init__()
        self._upstream = upstream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._opening = loop.create_task(loop.create_connection(lambda: End(self), "127.0.0.1", self._upstream))


async def serve(listener: socket.socket, upstream: int) -> None:
    """Join the connections of this listener with the upstream's port until the process is ended."""
    server = await asyncio.get_running_loop().create_server(lambda: Front(upstream), sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))
