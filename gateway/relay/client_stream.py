"""The client stream of one call, over all its attempts: opened when needed, and kept alive by comments.

It is opened by an upstream's first bytes; or by a comment, if `server.keepalive_comment_s` is set and that time has
passed without bytes, also while no upstream has answered yet, or while the call waits for room at one. From then on the
status is 200: another route may still be tried, but a call that fails in the end, or is refused after a wait, gets an
error event. A comment counts neither as the first byte nor as a sign of life of the upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.formats import sse
from gateway.records import Key
from gateway.upstream.connection import TIMER_GRAIN_S

Headers = Sequence[tuple[str, str]]
HoldsAnswers = Callable[[int, Callable[[], None]], bool]


class StreamWriter(Protocol):
    """The side that asked, while its answer is streamed. Implemented by web/responses.py."""

    @property
    def is_congested(self) -> bool:
        """Whether more is waiting to be sent than should be."""

    def write(self, data: bytes) -> bool:
        """Send, without waiting, the head first; returns `is_congested`. Nothing happens once the client is gone."""

    def write_last(self, data: bytes) -> None:
        """Send the last event: what else would end the stream is left out."""

    async def wait_until_writable(self) -> None:
        """Wait until the client has taken what was sent."""


class OpensStreams(Protocol):
    """Makes the client's side of a stream when it is needed."""

    def __call__(self, headers: Headers) -> StreamWriter: ...


class ClientPort(Protocol):
    """The client of a call. Implemented by web/endpoints.py."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the call: asking asyncio for it is a system call before Python 3.12."""

    def open_stream(self, headers: Headers) -> StreamWriter:
        """Make the client's side of a stream when it is needed."""

    async def check_again(self, first: Key) -> None:
        """Find the key of a call that has waited again. Raises its refusal, or `Unavailable` where it does not permit
        the same as this one, as which it was found first."""

    def hold(self, size: int, proceed: Callable[[], None]) -> bool:
        """Count this number of further bytes of an answer that is kept in memory. Returns whether it may be read on;
        else `proceed`, a method, is called once it may, or earlier."""

    def left(self, closes: Callable[[Callable[[], None]], None]) -> None:
        """The client has left, and the call goes on: its bytes count until then. `closes` takes what is to be called at
        its end."""

    def reserved(self) -> None:
        """The ledger has granted the call: its record and its access line are written with its settlement."""


class InterruptibleWriter(Protocol):
    """The exchange that writes to the client at present."""

    @property
    def may_be_interrupted(self) -> bool:
        """Whether a comment may go to the client now: between two events, and before the end."""


class ClientStream:
    """Holds the client's side. To be closed.

    One timer for the whole call, which looks at `spoke_at` when it fires: passing on costs it nothing. There is none
    where no comments are asked for (`keepalive_s` 0).
    """

    def __init__(
        self,
        open_stream: OpensStreams,
        own_headers: Callable[[], Headers],
        keepalive_s: float,
        keepalive: bytes = b"",
        hold: HoldsAnswers = lambda size, proceed: True,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        reads_plain: bool = False,
        is_stream: bool = True,
        position: Callable[[], int | None] | None = None,
    ) -> None:
        self.writer: StreamWriter | None = None
        self.speaker: InterruptibleWriter | None = None
        """The exchange whose answer is awaited or passed on; None between attempts."""
        self.hold = hold
        """Called for further bytes of an answer that is not streamed (`ClientPort.hold`)."""
        self.reads_plain = reads_plain
        """Whether a plain answer is handed out as it is where a stream was asked for."""
        self._open_stream = open_stream
        self._own_headers = own_headers
        self._keepalive_s = keepalive_s
        self._keepalive = keepalive
        self.position = position
        """Where the call waits for room at an upstream, from 1; None: it does not wait."""
        self.loop = loop or asyncio.get_running_loop()
        """The event loop of the call."""
        self.spoke_at = self.loop.time()
        """When something was last passed on, on the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        if keepalive_s and is_stream:
            self._timer = self.loop.call_at(self.spoke_at + keepalive_s, self._break_silence)

    def open(self, headers: Headers) -> StreamWriter:
        """The client's side; made with these headers and the gateway's own, unless it is there already."""
        if self.writer is None:
            self.writer = self._open_stream((*headers, *self._own_headers()))
        return self.writer

    def close(self) -> None:
        """Stops the keep-alive comments: their timer is cancelled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _break_silence(self) -> None:
        now = self.loop.time()
        if now - self.spoke_at > self._keepalive_s - TIMER_GRAIN_S:
            self._comment()
            self.spoke_at = now
        self._timer = self.loop.call_at(self.spoke_at + self._keepalive_s, self._break_silence)

    def _comment(self) -> None:
        if self.speaker is not None and not self.speaker.may_be_interrupted:
            return
        writer = self.open((("content-type", "text/event-stream"),))
        if not writer.is_congested:
            writer.write(self._text())

    def _text(self) -> bytes:
        position = None if self.position is None else self.position()
        if (
            position is None or self._keepalive != sse.KEEPALIVE
        ):  # a format with keepalive events of its own has no more
            return self._keepalive
        return sse.queued(position)
