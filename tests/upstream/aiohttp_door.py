"""aiohttp's client behind the door of `gateway.upstream`: an oracle, in tests only.

A second implementation of what the relay uses of a pool and its connections, over a client that many people have
debugged. The same calls through both show where ours reads HTTP differently (tests/test_oracle.py). It shares with
ours only the bytes of the request, which are not in question; everything that is read, aiohttp reads.

What aiohttp has no notion of is done here: a limit on the whole head (its own `sock_read` begins anew at each byte), an
idle limit that rests while the reading is paused, and the word for a connection that was already stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp
from yarl import URL

from gateway import config
from gateway.records import Failure, Fault, Phase
from gateway.tasks import Tasks
from gateway.upstream import pool
from gateway.upstream.connection import MAX_HEAD_BYTES, STALE_S, Head, Receiver


class Pool:
    """Takes the place of `gateway.upstream.pool.Pool`."""

    def __init__(self, name: str, settings: config.Upstream, max_connections: int) -> None:
        self.name = name
        self.settings = settings
        self.session = self._session(max_connections)
        self.tasks = Tasks()
        self._max_connections = max_connections
        self._writer = pool.Pool(name, settings, max_connections)  # never dials: it only words the requests
        self._left: list[aiohttp.ClientSession] = []

    @property
    def hidden(self) -> tuple[tuple[str, str], ...]:
        return self._writer.hidden

    def request(
        self, path: str, headers: Iterable[tuple[str, str]], body: bytes, *, method: str = "POST", key: int = 0
    ) -> list[bytes | memoryview]:
        return self._writer.request(path, headers, body, method=method, key=key)

    async def acquire(self, *, is_fresh: bool = False) -> Connection | Failure:
        """Never waits and never fails: aiohttp connects when a request is sent, so `ended` reports the failure."""
        if is_fresh:
            self._left.append(self.session)  # not closed yet: its other exchanges go on
            self.session = self._session(self._max_connections)
        return Connection(self)

    async def close(self) -> None:
        await self.tasks.cancel_all()
        for session in (*self._left, self.session):
            await session.close()
        await self._writer.close()

    def _session(self, max_connections: int) -> aiohttp.ClientSession:
        limits = self.settings.timeouts
        trace = aiohttp.TraceConfig()
        trace.on_connection_queued_start.append(_queued)
        trace.on_connection_queued_end.append(_at_the_head_of_the_queue)
        trace.on_connection_create_end.append(_connected)
        trace.on_connection_reuseconn.append(_connected_again)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=max_connections),
            timeout=aiohttp.ClientTimeout(connect=limits.connect_s, ceil_threshold=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=65536,
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
            max_headers=MAX_HEAD_BYTES // 32,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            trace_configs=[trace],
        )


class Connection:
    """Takes the place of `gateway.upstream.connection.Connection`: one exchange, on whatever connection aiohttp has."""

    def __init__(self, owner: Pool) -> None:
        self._owner = owner
        self._receiver: Receiver | None = None
        self._task: asyncio.Task[None] | None = None
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._clock: asyncio.Timeout | None = None
        self._total_at = 0.0
        self._has_head = False
        self.is_queued = False
        self.is_reused = False
        self.is_sending = False
        self.sent_at: float | None = None

    # ------------------------------------------------------------------------------------------- what the relay uses

    def send(self, request: Sequence[bytes], receiver: Receiver, upload: object = None) -> None:
        assert upload is None, "forms are not carried by this door"
        self._receiver = receiver
        self._task = self._owner.tasks.spawn(self._carry(b"".join(request)), "an exchange of the oracle")

    def abort(self) -> None:
        self._receiver = None
        if self._task is not None:
            self._task.cancel()

    def pause_reading(self, *, by_client: bool = True) -> None:
        self._may_read.clear()
        self._limit_by(self._owner.settings.timeouts.idle_s)

    def resume_reading(self) -> None:
        self._may_read.set()
        self._limit_by(self._owner.settings.timeouts.idle_s)

    # ---------------------------------------------------------------------------------------------------- what it does

    def connected(self, *, is_reused: bool) -> None:
        """A connection is there and the request about to leave: the time limits on the answer begin."""
        limits = self._owner.settings.timeouts
        self.is_reused = is_reused
        self.sent_at = asyncio.get_running_loop().time()
        self._total_at = self.sent_at + limits.total_s
        self._limit_by(limits.head_s)

    async def _carry(self, request: bytes) -> None:
        try:
            async with asyncio.timeout(None) as self._clock:
                await self._exchange(request)
            failure = None
        except (TimeoutError, aiohttp.ClientError) as error:
            failure = self._failure(error)
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.ended(failure)

    async def _exchange(self, request: bytes) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        first, *lines = head.decode("utf-8", "surrogateescape").split("\r\n")
        method, path, _ = first.split(" ")
        url = URL(self._owner.settings.base_url).origin().join(URL(path, encoded=True))
        headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
        async with self._owner.session.request(
            method, url, headers=headers, data=body, allow_redirects=False, trace_request_ctx=self
        ) as response:
            self._has_head = True
            idle_s = self._owner.settings.timeouts.idle_s
            self._limit_by(idle_s)
            if self._receiver is not None:
                self._receiver.head_received(_head(response))
            while self._receiver is not None:
                await self._may_read.wait()
                if not (piece := await response.content.readany()):
                    break
                self._limit_by(idle_s)
                self._receiver.body_received(piece)

    def _limit_by(self, seconds: float) -> None:
        """This much more time, but never more than in all; while the reading is paused, only that."""
        if self._clock is not None and not self._clock.expired() and self.sent_at is not None:
            limit = asyncio.get_running_loop().time() + seconds
            self._clock.reschedule(min(limit, self._total_at) if self._may_read.is_set() else self._total_at)

    def _failure(self, error: Exception) -> Failure:
        phase, fault = Phase.WAITING, Fault.CUT
        if self.sent_at is None:
            phase, fault = Phase.CONNECT, Fault.CONNECT
            if isinstance(error, TimeoutError):
                fault = Fault.BUSY if self.is_queued else Fault.TIMEOUT
        elif isinstance(error, TimeoutError):
            fault = Fault.TIMEOUT
        elif isinstance(error, aiohttp.ClientResponseError) or _is_framing(error):
            fault = Fault.PROTOCOL
        elif self.is_reused and not self._has_head and not _has_begun(error):
            is_soon = asyncio.get_running_loop().time() - self.sent_at <= STALE_S
            phase = Phase.STALE if is_soon else Phase.WAITING
        return Failure(self._owner.name, phase, fault, repr(error))


def _head(response: aiohttp.ClientResponse) -> Head:
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1").strip()) for name, value in response.raw_headers]
    return Head(response.status, tuple(pairs))


def _has_begun(error: Exception) -> bool:
    """Whether the head had begun when the connection ended: aiohttp keeps the piece in the place of a message."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)


def _is_framing(error: Exception) -> bool:
    """Whether a body ended because its framing is wrong: a connection that ended too early has the same class."""
    return isinstance(error, aiohttp.ClientPayloadError) and "not enough data" not in str(error).lower()


async def _queued(_: object, context: Any, __: object) -> None:
    context.trace_request_ctx.is_queued = True


async def _at_the_head_of_the_queue(_: object, context: Any, __: object) -> None:
    context.trace_request_ctx.is_queued = False


async def _connected(_: object, context: Any, __: object) -> None:
    context.trace_request_ctx.connected(is_reused=False)


async def _connected_again(_: object, context: Any, __: object) -> None:
    context.trace_request_ctx.connected(is_reused=True)
