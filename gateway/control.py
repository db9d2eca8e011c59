"""The line between the supervisor and one worker: JSON messages over a pair of sockets, both ways.

Down come the configuration (with its generation number) and the order to drain; up come "ready", "failed" and requests
for the gateway's metrics. The end of the line says that the other side is gone, whatever it died of. Secrets travel
here and nowhere else: not in arguments, not in the environment.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

MAX_MESSAGE_BYTES = 1 << 28


class Line:
    """One end of the line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Line:
        """Take over a connected socket."""
        return cls(*await asyncio.open_connection(sock=end, limit=MAX_MESSAGE_BYTES))

    def send(self, **message: Any) -> None:
        """Send one message; nothing happens when the other side is gone."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """The next message, or None when the other side is gone."""
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            return None
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
