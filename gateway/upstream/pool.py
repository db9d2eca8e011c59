"""Connection pool: the connections of one worker to one upstream.

1. A connection counts from the moment its dial is allowed until it is closed, so that there are never more than
   `max_connections`.
2. A call without an idle connection and without room for a dial waits in a FIFO queue. A connection or a slot that
   becomes free is assigned to the first waiter directly. So while a call waits there is neither an idle connection nor
   a free slot, and a later call cannot overtake it.
3. Idle connections are reused last in, first out: under light load a few stay warm, and the others expire.
4. With a proxy, the pool dials the proxy and asks for a tunnel; the proxy resolves the name of the upstream. TLS runs
   end to end through the tunnel.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType
from pydantic import SecretStr

from gateway import config
from gateway.api.form import Upload
from gateway.records import Failure, Fault, Phase
from gateway.tasks import Tasks
from gateway.wings import parts

from .connection import READ_BUFFER_BYTES, Connection
from .tunnel import open_tunnel

_HAPPY_EYEBALLS_S = 0.25
"""Delay before the next address is tried in parallel, as RFC 8305 recommends."""

_ADDRESSES_S = 5.0
"""Lifetime of resolved addresses: a burst of dials resolves once, and a DNS change applies soon."""

_KEEPALIVE_AFTER_S = 60
"""Idle time before TCP keepalive: some firewalls drop idle connections silently after four minutes."""

_JOINED_BODY_BYTES = 65536
"""A body up to this size is appended to its head: one buffer costs less to send than two."""


class Pool:
    """Connections of one worker to one upstream.

    Raises OSError (ssl.SSLError is one) when `ca_file` cannot be used.
    """

    _kind = Connection

    def __init__(self, name: str, settings: config.Upstream, max_connections: int) -> None:
        self._name = name
        self._settings = settings
        self.max_connections = max(1, max_connections)
        url = urlsplit(settings.base_url)
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._proxy = settings.way
        self._dialled = (self._host, self._port) if self._proxy is None else (self._proxy.host, self._proxy.port)
        self.hidden = _hidden(settings, self._host, self._proxy)
        """Secrets and host names that a client must not see, each with its replacement."""
        self._tls = _tls_context(settings.ca_file) if url.scheme == "https" else None
        self._base_path = url.path.rstrip("/")
        self._static_heads = [_static_head(self._host, url.port, settings, key) for key in settings.credentials]
        self._head_lines = HeadLines()
        self._idle: dict[Connection, None] = {}  # in the order in which they became idle
        self._connections: set[Connection] = set()
        self._dial_slots = 0  # dials in progress, and slots assigned to waiters
        self._other_dials = 0  # those of `connect`
        self.kept = Counter[str]()  # requests of each key for what the upstream keeps
        self._waiters: dict[asyncio.Future[Connection | None], None] = {}  # result None: a slot for a dial
        self._is_closed = False
        self._buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        self._tasks = Tasks()
        self._addresses: list[AddrInfoType] = []
        self._addresses_until = 0.0
        self._lookup: asyncio.Task[list[AddrInfoType] | OSError] | None = None

    def __repr__(self) -> str:
        return (
            f"<Pool {self._name} {self._where}: {self.in_flight} in flight, {len(self._idle)} idle, "
            f"{self._dial_slots} dialling, {len(self._waiters)} waiting, of {self.max_connections}"
            f"{', closed' if self._is_closed else ''}>"
        )

    # ---------------------------------------------------------------------------------------------- used by callers

    def is_for(self, settings: config.Upstream, max_connections: int) -> bool:
        """Whether a new pool with these settings would equal this one."""
        return self._settings == settings and self.max_connections == max(1, max_connections)

    @property
    def size(self) -> int:
        """Open connections, idle ones included."""
        return len(self._connections)

    @property
    def in_flight(self) -> int:
        """Connections that are acquired and neither returned nor closed."""
        return len(self._connections) - len(self._idle)

    async def acquire(self, *, is_fresh: bool = False) -> Connection | Failure:
        """A connection for one exchange: an idle one, else a new one.

        `is_fresh` first closes the idle connections: one of them was just found closed, so the others probably are.
        Waits at most `connect_s` in all, for a slot, DNS, TCP, the proxy and TLS; not at all if a connection is idle.
        The caller has to `send` on the connection or to `abort` it. A cancelled call leaves neither a queue entry nor a
        dial, and a connection or slot that was just assigned to it goes to the next waiter.
        """
        if is_fresh:
            for idle in list(self._idle):
                idle.retire()
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.hold():
                return connection
        limit_s = self._settings.timeouts.connect_s
        is_dialling = False
        try:
            async with asyncio.timeout(limit_s):
                handed = await self._wait_for_turn()
                if handed is not None:
                    return handed
                is_dialling = True
                return await self._dial()
        except TimeoutError:
            if is_dialling:
                return self._failure(Fault.TIMEOUT, f"no connection to {self._where} within {limit_s:g} s")
            return self._failure(Fault.BUSY, f"all {self.max_connections} connections were in use for {limit_s:g} s")

    async def connect(self, protocol: asyncio.BaseProtocol) -> Failure | None:
        """Connect this protocol of the caller's to the upstream, through the proxy and TLS, within `connect_s`; or why
        it is not connected. It counts in no `max_connections`."""
        limit_s = self._settings.timeouts.connect_s
        self._other_dials += 1
        try:
            async with asyncio.timeout(limit_s):
                return await self._connect(protocol)
        except TimeoutError:
            return self._failure(Fault.TIMEOUT, f"no connection to {self._where} within {limit_s:g} s")
        finally:
            self._other_dials -= 1

    def request(
        self, path: str, headers: Iterable[tuple[str, str]], body: bytes | Sequence[memoryview] | Upload, *,
        method: str = "POST", key: int = 0,
    ) -> list[bytes | memoryview]:  # fmt: skip
        """The bytes of a request, for `Connection.send`; of an upload only the head. `path` is appended to that of the
        base URL; `key` is the position of the API key to use.

        A line break or NUL inside `path` or a header becomes a space, so that no argument can inject a header line.
        """
        if not path.isprintable() or " " in path:
            path = re.sub(r"[\s\0]+", "%20", path)
        if isinstance(body, Upload):
            size, body = body.size, ()
        else:
            size = len(body) if isinstance(body, bytes) else sum(map(len, body))
        length = f"Content-Length: {size}\r\n" if size or method != "GET" else ""
        # aiohttp decodes bytes that are not UTF-8 as surrogates; this restores the bytes of the client.
        text = (
            f"{method} {self._base_path}{path}{self._static_heads[key]}{self._head_lines[tuple(headers)]}{length}\r\n"
        )
        head = text.encode("utf-8", "surrogateescape")
        if not isinstance(body, bytes):
            return [head, *body]
        if not body:
            return [head]
        return [head + body] if len(body) <= _JOINED_BODY_BYTES else [head, body]

    async def close(self) -> None:
        """Close the idle connections now and the others at the end of their exchange.

        Running calls may still acquire connections, because they keep the settings of their start, and close after use.
        """
        self._is_closed = True
        for connection in list(self._idle):
            connection.retire()
        if self._lookup is not None and not self._dial_slots and not self._other_dials:
            await self._tasks.cancel_all()
        await asyncio.sleep(0)  # the transports close their sockets in the next iteration of the loop

    # ------------------------------------------------------------------------------------------ used by connections

    def returned(self, connection: Connection) -> None:
        """Take an idle connection: assign it to the first waiter, else keep it."""
        if connection not in self._connections:
            return
        self._idle[connection] = None
        waiter = self._first_waiter() if self._waiters else None
        if waiter is None:
            if self._is_closed:
                connection.retire()
        elif connection.hold():
            del self._idle[connection], self._waiters[waiter]
            waiter.set_result(connection)

    def closed(self, connection: Connection) -> None:
        """Forget a closed connection; its slot is free."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._idle.pop(connection, None)
            self._offer_slot()

    # --------------------------------------------------------------------------------------------------- the queue

    def _first_waiter(self) -> asyncio.Future[Connection | None] | None:
        for waiter in self._waiters:
            if not waiter.done():  # a waiter that was just cancelled is still in the queue
                return waiter
        return None

    def _offer_slot(self) -> None:
        waiter = self._first_waiter()
        if waiter is not None and len(self._connections) + self._dial_slots < self.max_connections:
            self._dial_slots += 1
            del self._waiters[waiter]
            waiter.set_result(None)

    def _release_slot(self) -> None:
        self._dial_slots -= 1
        self._offer_slot()

    async def _wait_for_turn(self) -> Connection | None:
        """A connection, or None with a slot assigned to the caller."""
        while True:
            if len(self._connections) + self._dial_slots < self.max_connections:
                self._dial_slots += 1
                return None
            waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                handed = await waiter
            except asyncio.CancelledError:
                if waiter.cancelled():
                    self._waiters.pop(waiter, None)
                elif (handed := waiter.result()) is None:
                    self._release_slot()
                else:
                    handed.release()
                raise
            if handed is None or not handed.is_closed:
                return handed
            # The upstream closed it between assignment and now: try again; its slot may be free.

    # ------------------------------------------------------------------------------------------------------ dialling

    @property
    def _target(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    @property
    def _where(self) -> str:
        """The address for logs and `repr`."""
        return self._target if self._proxy is None else f"{self._target} through the proxy {self._proxy}"

    def _failure(self, fault: Fault, detail: str) -> Failure:
        return Failure(self._name, Phase.CONNECT, fault, detail)

    async def _dial(self) -> Connection | Failure:
        """Dial, using the slot assigned to the caller. The connection takes the slot; a failure frees it."""
        limits = self._settings.timeouts
        connection = self._kind(self._name, self, limits, self._settings.max_connection_age_s, self._buffer)
        try:
            if (failure := await self._connect(connection)) is not None:
                return failure
        except BaseException:
            connection.abort()
            raise
        else:
            if connection.is_closed:
                return self._failure(Fault.CONNECT, f"{self._where} closed the connection at once")
            self._connections.add(connection)
            return connection
        finally:
            self._release_slot()

    async def _connect(self, protocol: asyncio.BaseProtocol) -> Failure | None:
        """Connect this protocol to the upstream, through the proxy and TLS. Has no time limit of its own."""
        try:
            addresses = await self._resolve()
            if isinstance(addresses, OSError):
                name = self._host if self._proxy is None else f"the proxy {self._proxy.host}"
                return self._failure(Fault.CONNECT, f"cannot resolve {name}: {addresses.strerror or addresses}")
            await asyncio.get_running_loop().create_connection(
                lambda: protocol,
                sock=await self._open_socket(addresses),
                ssl=self._tls,
                server_hostname=self._host.rstrip(".") if self._tls else None,
                # `connect_s` fires first and covers more; this replaces the default of 60 s.
                ssl_handshake_timeout=self._settings.timeouts.connect_s + 1 if self._tls else None,
            )
        except (OSError, RuntimeError, UnicodeError) as error:
            # uvloop raises RuntimeError for some addresses, IDNA UnicodeError for some names.
            self._addresses_until = 0.0  # the name may have another address by now
            return self._failure(_fault_of(error), f"cannot connect to {self._where}: {_describe(error)}")
        return None

    async def _open_socket(self, addresses: Sequence[AddrInfoType]) -> socket.socket:
        """A connected socket to the upstream, through the proxy if there is one."""
        sock = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_HAPPY_EYEBALLS_S)
        try:
            _set_options(sock)
            if self._proxy is not None:
                await open_tunnel(sock, self._proxy, self._target)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _resolve(self) -> list[AddrInfoType] | OSError:
        """Addresses, rotated by one for each dial. Simultaneous dials share one DNS query."""
        loop = asyncio.get_running_loop()
        if not self._addresses or loop.time() >= self._addresses_until:
            if self._lookup is None:
                self._lookup = self._tasks.spawn(self._resolve_now(), f"look up {self._dialled[0]}")
            found = await asyncio.shield(self._lookup)  # a cancelled dial must not cancel it for the others
            if isinstance(found, OSError):
                return found
        self._addresses = [*self._addresses[1:], self._addresses[0]]
        return self._addresses

    async def _resolve_now(self) -> list[AddrInfoType] | OSError:
        try:
            found = await self._query()
            if not found:
                return OSError("no address")
            self._addresses = list(found)
            self._addresses_until = asyncio.get_running_loop().time() + _ADDRESSES_S
            return self._addresses
        except OSError as error:
            return error
        except UnicodeError as error:
            return OSError(str(error))
        finally:
            self._lookup = None

    async def _query(self) -> Sequence[AddrInfoType]:
        loop = asyncio.get_running_loop()
        host, port = self._dialled
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)


class WingPool(NamedTuple):
    """Makes the pool of an upstream whose settings ask for what a wing adds."""

    make: Callable[[str, config.Upstream, int], Pool | None]


def pool_of(name: str, settings: config.Upstream, max_connections: int) -> Pool:
    made = [each.make(name, settings, max_connections) for each in parts(WingPool, "pool")]
    return next((pool for pool in made if pool is not None), None) or Pool(name, settings, max_connections)


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Certificate and host name are always verified; `ca_file` replaces the system's authorities."""
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _hidden(settings: config.Upstream, host: str, proxy: config.Proxy | None) -> tuple[tuple[str, str], ...]:
    secrets = [key.get_secret_value() for key in settings.credentials if key is not None]
    secrets += [value.get_secret_value() for value in settings.headers.values()]
    names = [(settings.base_url, "the upstream"), (host, "the upstream")]
    if proxy is not None:
        secrets += proxy.secrets
        names.append((proxy.host, "the proxy"))
    return *((secret, "***") for secret in secrets), *names


def _static_head(host: str, port: int | None, settings: config.Upstream, key: SecretStr | None) -> str:
    """The constant part of each request with this API key: everything behind the path."""
    name = f"[{host}]" if ":" in host else host
    lines = [" HTTP/1.1", f"Host: {name}:{port}" if port else f"Host: {name}"]
    if key is not None and settings.key_header == "authorization":
        lines.append(f"Authorization: Bearer {key.get_secret_value()}")
    elif key is not None:
        lines.append(f"{settings.key_header}: {key.get_secret_value()}")
    lines += [f"{name}: {value.get_secret_value()}" for name, value in settings.headers.items()]
    lines += ["Accept-Encoding: identity", "Connection: keep-alive", ""]
    return "\r\n".join(lines)


def _set_options(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    after = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)  # Linux, macOS
    if after is not None:
        sock.setsockopt(socket.IPPROTO_TCP, after, _KEEPALIVE_AFTER_S)


def _fault_of(error: Exception) -> Fault:
    """The fault of a failed dial. A lack of file descriptors in this process is not the fault of the upstream."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return Fault.BUSY
    return Fault.TIMEOUT if isinstance(error, TimeoutError) else Fault.CONNECT


def _describe(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate rejected: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "it speaks no TLS: write http:// in its address"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


MAX_KEPT = 256
"""The kept entries take at most two megabytes for one upstream, because a client's head is at most 8 KB a line."""

_OF_ONE_CALL = frozenset({"traceparent", "tracestate", "x-codex-turn-state", "x-codex-turn-metadata"})
_UNSAFE = re.compile(r"[\r\n\0]+")

Headers = tuple[tuple[str, str], ...]


class HeadLines(dict[Headers, str]):
    """The lines of headers, kept because a client sends the same ones with most of its calls: `lines[headers]`.

    Keeps no headers of one call alone: those of a trace, and the boundary of a multipart form.
    """

    def __missing__(self, headers: Headers) -> str:
        text = "".join([f"{name}: {value}\r\n" for name, value in headers])
        if not text.count("\n") == text.count("\r") == len(headers) or "\0" in text:
            text = "".join([f"{_UNSAFE.sub(' ', name)}: {_UNSAFE.sub(' ', value)}\r\n" for name, value in headers])
        if not any(name.lower() in _OF_ONE_CALL or value.startswith("multipart/") for name, value in headers):
            if len(self) >= MAX_KEPT:
                self.clear()
            self[headers] = text
        return text
