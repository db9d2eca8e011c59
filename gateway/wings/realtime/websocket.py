"""A WebSocket to an upstream, and the messages of either side's.

aiohttp's client makes it over a connection that the upstream's pool dials: the proxy's tunnel, certificates and
`connect_s` are those of every call. `max_connections` does not count it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from gateway.chunked import Turns
from gateway.config import Upstream
from gateway.errors import UpstreamRefused
from gateway.records import Failure, Fault, Phase
from gateway.upstream import provider_errors
from gateway.upstream.connection import Head
from gateway.upstream.pool import Pool

from .held_messages import HeldMessages

HEARTBEAT_S = 30.0
"""A side that does not answer a ping within half of this is gone."""
CLOSE_WITHIN_S = 1.0

MESSAGE_BYTES = 2_048
"""Bytes that take as long as what each message costs, however short."""

UpstreamSocket = aiohttp.ClientWebSocketResponse
Opened = UpstreamSocket | Failure | UpstreamRefused


async def messages_of(socket: UpstreamSocket | web.WebSocketResponse) -> AsyncIterator[aiohttp.WSMessage]:
    """The texts and binary messages of a socket, so that other calls have their turn between them.

    A message that waits is read without a turn of the event loop, and aiohttp answers pings in the same way, so that
    `autoping` is off: who sends thousands of short ones at once would hold up other calls until all are dealt with.
    """
    turns = Turns(MESSAGE_BYTES)
    async for message in socket:
        size = 0
        if message.type is WSMsgType.PING:
            await socket.pong(message.data)
        elif message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
            size = len(message.data)
            yield message
        if turns.is_over(size):
            await asyncio.sleep(0)


class _NotConnected(Exception):
    """The pool could not connect."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class _Counted(ResponseHandler):
    """A connection whose messages are counted while they are held."""

    def __init__(self, held: HeldMessages) -> None:
        super().__init__(asyncio.get_running_loop())
        self._counts = held

    def set_parser(self, parser: Any, payload: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        super().set_parser(self._counts.watch(parser, payload), payload, data_received_cb)


class _PoolConnector(aiohttp.BaseConnector):
    """Connects as the pool does, whatever aiohttp asks for."""

    def __init__(self, pool: Pool, held: HeldMessages) -> None:
        super().__init__(force_close=True)
        self._pool = pool
        self._counts = held

    async def _create_connection(self, *_: Any) -> ResponseHandler:
        protocol = _Counted(self._counts)
        if (failure := await self._pool.connect(protocol)) is not None:
            raise _NotConnected(failure)
        return protocol


class _Redirected(Exception):
    """The upstream answered with a redirect, which is not followed: the key is for its own host."""


async def _refuse_redirect(*_: Any) -> None:
    raise _Redirected


@asynccontextmanager
async def open_socket(
    name: str, settings: Upstream, pool: Pool, path: str, headers: Iterable[tuple[str, str]], protocols: Iterable[str],
    *, key: int, max_bytes: int, held: HeldMessages,
) -> AsyncIterator[Opened]:  # fmt: skip
    """The WebSocket at `path` (with its query) below the base URL, presenting the API key at position `key`; or why
    there is none. `max_bytes` limits one message; `held` counts those that have come."""
    limits = settings.timeouts
    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_refuse_redirect)
    session = aiohttp.ClientSession(
        connector=_PoolConnector(pool, held),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        trace_configs=[tracing],
        skip_auto_headers=("User-Agent",),
    )
    async with session:
        try:
            async with asyncio.timeout(limits.connect_s + limits.head_s):
                opened = await _connect(session, settings, path, headers, protocols, key, max_bytes)
        except _NotConnected as error:
            yield error.failure
            return
        except aiohttp.WSServerHandshakeError as error:
            yield _judged(name, error, pool)
            return
        except _Redirected:
            yield Failure(name, Phase.REFUSED, Fault.REDIRECT, "a redirect")
            return
        except TimeoutError:
            yield Failure(name, Phase.CONNECT, Fault.TIMEOUT, "no WebSocket in time")
            return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            yield Failure(name, Phase.CONNECT, Fault.CONNECT, f"no WebSocket: {type(error).__name__}")
            return
        try:
            yield opened
        finally:
            await opened.close()


async def _connect(
    session: aiohttp.ClientSession, settings: Upstream, path: str, headers: Iterable[tuple[str, str]],
    protocols: Iterable[str], key: int, max_bytes: int,
) -> UpstreamSocket:  # fmt: skip
    opened: UpstreamSocket = await session.ws_connect(
        URL(f"{settings.base_url}{path}", encoded=True),
        headers=[*headers, *_own_headers(settings, key)],
        protocols=tuple(protocols),
        heartbeat=HEARTBEAT_S,
        autoping=False,
        max_msg_size=max_bytes,
        timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_WITHIN_S),
    )
    return opened


def _own_headers(settings: Upstream, position: int) -> list[tuple[str, str]]:
    own = [(name, value.get_secret_value()) for name, value in settings.headers.items()]
    if (key := settings.credentials[position]) is not None:
        prefix = "Bearer " if settings.key_header == "authorization" else ""
        own.append((settings.key_header, prefix + key.get_secret_value()))
    return own


def _judged(name: str, error: aiohttp.WSServerHandshakeError, pool: Pool) -> Failure | UpstreamRefused:
    """Classifies an answer to the handshake that opens no WebSocket. The body of the answer is not read."""
    given = error.headers.items() if error.headers is not None else ()
    head = Head(error.status, tuple([(key.lower(), value) for key, value in given]))
    if error.status < 300:
        return Failure(name, Phase.REFUSED, Fault.PROTOCOL, f"no WebSocket: status {error.status}", error.status)
    return provider_errors.judge(name, head, b"", now=time.time(), hide=pool.hidden)
