"""Bytes of WebSocket messages that the gateway holds for one side of a session: the pieces of an unfinished message,
messages that wait to be read, and the one in hand.

aiohttp keeps the pieces of a message of `max_msg_size` bytes at most, and reads on until it is whole. So what comes is
counted here before aiohttp's reader gets it, and is dropped where there is no room. Private members of its queue are
read, because nothing else shows which messages wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol

from aiohttp import WSMsgType

FREE_BYTES = 65_536
"""Bytes of one side that are not counted, like the buffer of its connection, because most messages are shorter."""

_HEAD_BYTES = 14
"""The longest head of a frame (RFC 6455, 5.2)."""

_OF_DATA = frozenset({WSMsgType.TEXT, WSMsgType.BINARY})


class HoldsBytes(Protocol):
    """Room for bytes in the name of a key."""

    def hold(self, size: int, key: str) -> bool: ...

    def release(self, size: int, key: str) -> None: ...


class HeldMessages:
    """One side of a session. `full` is done once there is no room for what comes; the session has to end then."""

    def __init__(self, room: HoldsBytes, key: str, full: asyncio.Future[None]) -> None:
        self._room = room
        self._key = key
        self._full = full
        self._parser: Any = None
        self._queue: Any = None
        self._unfinished = 0
        """Bytes that came behind the last whole message."""
        self._counted_whole = 0
        """Whole messages that wait to be read, and are counted by the queue alone."""
        self._in_hand = 0
        self._held = 0

    def __repr__(self) -> str:
        return f"<HeldMessages {self._unfinished} unfinished, {self._in_hand} in hand, {self._held} counted>"

    def watch(self, parser: Any, queue: Any) -> HeldMessages:
        """Itself, which a protocol uses in place of this `WebSocketReader` of aiohttp; that one fills the queue, a
        `WebSocketDataQueue`."""
        self._parser, self._queue = parser, queue
        return self

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Passes data to aiohttp's reader. Returns, in the reader's form, whether it cannot read on, and the bytes that
        it left."""
        if self._parser is None or self._full.done():
            return False, b""
        self._unfinished += len(data)
        if not self._count():
            return False, b""
        queue = self._queue
        waiting, before = queue._buffer, len(queue._buffer)  # noqa: SLF001
        result: tuple[bool, bytes] = self._parser.feed_data(data)
        if any(message.type in _OF_DATA for message, _ in islice(waiting, before, None)):
            whole = [size for message, size in waiting if message.type in _OF_DATA]
            more = whole[self._counted_whole :]
            self._counted_whole = len(whole)
            self._unfinished = max(0, self._unfinished - sum(more) - len(more) * _HEAD_BYTES)
            if queue._stalled_reader is None:  # noqa: SLF001  # all of `data` was read
                self._unfinished = min(self._unfinished, len(data))
        self._count()
        return result

    def feed_eof(self) -> None:
        if self._parser is not None:
            self._parser.feed_eof()

    @contextmanager
    def in_hand(self, size: int) -> Iterator[None]:
        """A message of this size was read, and is held until it is dealt with."""
        if self._counted_whole:
            self._counted_whole -= 1
        else:  # the queue had been full, and the reader has gone on by itself
            self._unfinished = max(0, self._unfinished - size - _HEAD_BYTES)
        self._in_hand = size
        self._count()
        try:
            yield
        finally:
            self._in_hand = 0
            self._count()

    def close(self) -> None:
        """The session has ended: nothing is held, and what still comes is dropped."""
        self._parser = None
        self._room.release(self._held, self._key)
        self._held = 0

    def _count(self) -> bool:
        """Hold what there is now. False: there is no room."""
        if self._parser is None:
            return True
        waiting = self._queue._size  # noqa: SLF001
        more = max(0, self._unfinished + waiting + self._in_hand - FREE_BYTES) - self._held
        if more <= 0:
            self._room.release(-more, self._key)
        elif not self._room.hold(more, self._key):
            if not self._full.done():
                self._full.set_result(None)
            return False
        self._held += more
        return True
