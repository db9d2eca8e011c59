"""The control channel between the supervisor and one worker: JSON messages over a pair of sockets, both ways.

Down come the configuration, those that come after it, and the order to drain; up come "ready",
"failed" and requests for the gateway's metrics. Each side may also ask the other a question and wait for the answer.
The end of the channel means that the other process has ended, for any reason. Secrets are passed only here, not in
arguments or the environment. Before the first message the supervisor hands down its listening sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

MAX_MESSAGE_BYTES = 1 << 28
MAX_LISTENERS = 2


class ChannelClosed(Exception):
    """The other side is gone, and will not answer."""


class ControlChannel:
    """One end of the line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._is_over = False
        self._asked: dict[int, asyncio.Future[Any]] = {}
        """Questions that wait for their answers, by number."""
        self._number = 0

    @classmethod
    async def over(cls, end: socket.socket) -> ControlChannel:
        return cls(*await asyncio.open_connection(sock=end, limit=MAX_MESSAGE_BYTES))

    def send(self, **message: Any) -> None:
        """Send one message; nothing happens when the other side is gone."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def ask(self, what: str, /, **more: Any) -> Any:
        """The other side's answer to a message `{"ask": what, ...}`; another task must be in `receive`.

        Raises `ChannelClosed`. Cancelled: the answer is discarded.
        """
        if self._is_over or self._writer.is_closing():
            raise ChannelClosed
        self._number = number = self._number + 1
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send(ask=what, number=number, **more)
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    def answer(self, question: Mapping[str, Any], answer: Any) -> None:
        self.send(answers=question["number"], answer=answer)

    async def receive(self) -> dict[str, Any] | None:
        """The next message that is no answer, or None when the other side is gone."""
        while (message := await self._receive()) is not None:
            if "answers" not in message:
                return message
            waiting = self._asked.get(message["answers"])
            if waiting is not None and not waiting.done():
                waiting.set_result(message["answer"])
        self._is_over = True
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(ChannelClosed())
        return None

    async def _receive(self) -> dict[str, Any] | None:
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            return None
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self._writer.close()


def hand_down(line: socket.socket, listeners: Sequence[socket.socket]) -> None:
    """Give a started worker its listeners. Nothing happens when it has ended."""
    with contextlib.suppress(ConnectionError):
        socket.send_fds(line, [b"\n"], [each.fileno() for each in listeners])


def take_over(line: socket.socket) -> list[socket.socket]:
    """The listeners that the supervisor hands down; blocks until then. None: it has ended."""
    _, descriptors, _, _ = socket.recv_fds(line, 1, MAX_LISTENERS)
    for number in descriptors:
        os.set_inheritable(number, False)
    return [socket.socket(fileno=number) for number in descriptors]
