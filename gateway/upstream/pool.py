"""Connections of one worker to one upstream: idle ones, limits, dialling.

Private to a worker. A connection is counted from the moment somebody may dial it until it is closed, so that there are
never more than `max_connections`. Whoever finds no idle connection and no free place waits in a queue, first come first
served; what becomes free (an idle connection, or a place to dial in) is handed to the head of the queue by name, never
thrown into the open. Hence: while somebody waits there is neither an idle connection nor a free place, and a newcomer
cannot overtake.

Idle connections are taken last in, first out: under light load the same few stay warm and the rest grow old and close.

Where there is a proxy, it is dialled instead, and asked for a tunnel; the upstream's name is then the proxy's to look
up. What goes through the tunnel, TLS included, is between us and the upstream.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType
from pydantic import SecretStr

from gateway import config
from gateway.records import Failure, Fault, Phase
from gateway.tasks import Tasks

from .connection import READ_BUFFER_BYTES, Connection
from .tunnel import open_tunnel

_HAPPY_EYEBALLS_S = 0.25
"""Head start of one address before the next is tried beside it: RFC 8305 recommends it."""

_ADDRESSES_S = 5.0
"""How long looked-up addresses are used. Long enough that a burst of dials asks once, short beside any DNS change."""

_KEEPALIVE_AFTER_S = 60
"""Silence before the kernel probes: firewalls forget quiet connections, some after four minutes, and tell nobody."""

_JOINED_BODY_BYTES = 65536
"""A body up to this size is copied behind its head: one buffer costs less to send than two."""

_UNSAFE = re.compile(r"[\r\n\0]+")


class Pool:
    """Connections of one worker to one upstream.

    Raises OSError (ssl.SSLError is one) when `ca_file` cannot be used.
    """

    def __init__(self, name: str, settings: config.Upstream, max_connections: int) -> None:
        self._name = name
        self._settings = settings
        self._max_connections = max(1, max_connections)
        url = urlsplit(settings.base_url)
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._proxy = settings.way
        self._dialled = (self._host, self._port) if self._proxy is None else (self._proxy.host, self._proxy.port)
        self.hidden = _hidden(settings, self._host, self._proxy)
        """What of the upstream and of the way to it no client may see, each with its stand-in."""
        self._tls = _tls_context(settings.ca_file) if url.scheme == "https" else None
        self._base_path = url.path.rstrip("/")
        self._static_heads = [_static_head(self._host, url.port, settings, key) for key in settings.credentials]
        self._idle: dict[Connection, None] = {}  # in the order in which they became idle
        self._connections: set[Connection] = set()
        self._places_promised = 0  # to dials under way, and to waiters who have been told to dial
        self._waiters: dict[asyncio.Future[Connection | None], None] = {}  # None: a place to dial in
        self._is_closed = False
        self._buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        self._tasks = Tasks()
        self._addresses: list[AddrInfoType] = []
        self._addresses_until = 0.0
        self._lookup: asyncio.Task[list[AddrInfoType] | OSError] | None = None

    def __repr__(self) -> str:
        return (
            f"<Pool {self._name} {self._where}: {self.in_flight} in flight, {len(self._idle)} idle, "
            f"{self._places_promised} dialling, {len(self._waiters)} waiting, of {self._max_connections}"
            f"{', closed' if self._is_closed else ''}>"
        )

    # ------------------------------------------------------------------------------------------------- for callers

    def is_for(self, settings: config.Upstream, max_connections: int) -> bool:
        """Whether a new pool for this upstream would be just like this one."""
        return self._settings == settings and self._max_connections == max(1, max_connections)

    @property
    def size(self) -> int:
        """Connections that are open, idle or not."""
        return len(self._connections)

    @property
    def in_flight(self) -> int:
        """Connections that somebody has acquired and that are not back, nor closed."""
        return len(self._connections) - len(self._idle)

    async def acquire(self, *, is_fresh: bool = False) -> Connection | Failure:
        """A connection for one exchange: an idle one, else a new one. `is_fresh` lets go of the idle ones first: one
        of them was just found closed, so the others are likely to be.

        Waits at most `connect_s` in all, for a free place, the name, TCP, the proxy and TLS; with an idle connection at
        hand it does not wait at all. Whoever gets a connection has to `send` on it or to `abort` it. Cancelled: nothing
        is left behind, neither a place in the queue nor a dial; what had just been handed over goes to the next waiter.
        """
        if is_fresh:
            for idle in list(self._idle):
                idle.retire()
        connection = self._take_idle()
        if connection is not None:
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
            return self._failure(Fault.BUSY, f"all {self._max_connections} connections were in use for {limit_s:g} s")

    def request(
        self,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | Sequence[memoryview],
        *,
        method: str = "POST",
        key: int = 0,
    ) -> list[bytes | memoryview]:
        """The bytes of a request, for `Connection.send`. `path` goes behind that of the base URL; `key` is the place of
        the API key that is presented.

        A line break or NUL inside `path` or a header becomes a space: nothing given here can begin a line of its own.
        """
        given = list(headers)
        lines = "".join([f"{name}: {value}\r\n" for name, value in given])
        breaks = len(given)
        if lines.count("\n") != breaks or lines.count("\r") != breaks or "\0" in lines:
            lines = "".join([f"{_UNSAFE.sub(' ', name)}: {_UNSAFE.sub(' ', value)}\r\n" for name, value in given])
        if not path.isprintable() or " " in path:
            path = re.sub(r"[\s\0]+", "%20", path)
        size = len(body) if isinstance(body, bytes) else sum(map(len, body))
        length = f"Content-Length: {size}\r\n" if body or method != "GET" else ""
        # aiohttp's server hands on bytes that are not UTF-8 as surrogates; so the upstream gets the client's own bytes.
        text = f"{method} {self._base_path}{path}{self._static_heads[key]}{lines}{length}\r\n"
        head = text.encode("utf-8", "surrogateescape")
        if not isinstance(body, bytes):
            return [head, *body]
        if not body:
            return [head]
        return [head + body] if len(body) <= _JOINED_BODY_BYTES else [head, body]

    async def close(self) -> None:
        """Keep nothing any longer: idle connections are closed now, those in use by the end of their exchange.

        Running calls may go on acquiring (they keep the settings they began with); nothing of theirs is kept either.
        """
        self._is_closed = True
        for connection in list(self._idle):
            connection.retire()
        if self._lookup is not None and not self._places_promised:
            await self._tasks.cancel_all()
        await asyncio.sleep(0)  # the transports close their sockets in the next turn of the loop

    # --------------------------------------------------------------------------------------------- for connections

    def returned(self, connection: Connection) -> None:
        """Idle again: to the head of the queue, else kept."""
        if connection not in self._connections:
            return
        self._idle[connection] = None
        waiter = self._first_waiter()
        if waiter is None:
            if self._is_closed:
                connection.retire()
        elif connection.hold():
            del self._idle[connection], self._waiters[waiter]
            waiter.set_result(connection)

    def left(self, connection: Connection) -> None:
        """Closed: its place is free."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._idle.pop(connection, None)
            self._offer_place()

    # --------------------------------------------------------------------------------------------------- the queue

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.hold():
                return connection
        return None

    def _first_waiter(self) -> asyncio.Future[Connection | None] | None:
        for waiter in self._waiters:
            if not waiter.done():  # one that was cancelled in this turn of the loop has not left the queue yet
                return waiter
        return None

    def _offer_place(self) -> None:
        waiter = self._first_waiter()
        if waiter is not None and len(self._connections) + self._places_promised < self._max_connections:
            self._places_promised += 1
            del self._waiters[waiter]
            waiter.set_result(None)

    def _give_up_place(self) -> None:
        self._places_promised -= 1
        self._offer_place()

    async def _wait_for_turn(self) -> Connection | None:
        """A connection, or None with a place promised to the caller."""
        while True:
            if len(self._connections) + self._places_promised < self._max_connections:
                self._places_promised += 1
                return None
            waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                handed = await waiter
            except asyncio.CancelledError:
                if waiter.cancelled():
                    self._waiters.pop(waiter, None)
                elif (handed := waiter.result()) is None:
                    self._give_up_place()
                else:
                    handed.release()
                raise
            if handed is None or not handed.is_closed:
                return handed
            # It was closed by the upstream in the moment between: once more, and its place may have become free.

    # ------------------------------------------------------------------------------------------------------ dialling

    @property
    def _target(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    @property
    def _where(self) -> str:
        """For people."""
        return self._target if self._proxy is None else f"{self._target} through the proxy {self._proxy}"

    def _failure(self, fault: Fault, detail: str) -> Failure:
        return Failure(self._name, Phase.CONNECT, fault, detail)

    async def _dial(self) -> Connection | Failure:
        """Dial in the place promised to the caller. The place becomes the connection's, or is free again."""
        connection: Connection | None = None
        try:
            addresses = await self._resolve()
            if isinstance(addresses, OSError):
                name = self._host if self._proxy is None else f"the proxy {self._proxy.host}"
                return self._failure(Fault.CONNECT, f"cannot resolve {name}: {addresses.strerror or addresses}")
            loop = asyncio.get_running_loop()
            sock = await self._open_socket(addresses)
            limits = self._settings.timeouts
            connection = Connection(self._name, self, limits, self._settings.max_connection_age_s, self._buffer)
            dialled = connection
            await loop.create_connection(
                lambda: dialled,
                sock=sock,
                ssl=self._tls,
                server_hostname=self._host.rstrip(".") if self._tls else None,
                # Our own limit fires first and covers more; this only replaces the default of 60 s.
                ssl_handshake_timeout=limits.connect_s + 1 if self._tls else None,
            )
        except (OSError, RuntimeError, UnicodeError) as error:
            # RuntimeError is uvloop's for some addresses, UnicodeError a label of a name that IDNA cannot write.
            self._addresses_until = 0.0  # perhaps the name leads elsewhere by now
            return self._failure(_fault_of(error), f"cannot connect to {self._where}: {_in_words(error)}")
        except BaseException:
            if connection is not None:
                connection.abort()
            raise
        else:
            if connection.is_closed:
                return self._failure(Fault.CONNECT, f"{self._where} hung up at once")
            self._connections.add(connection)
            return connection
        finally:
            self._give_up_place()

    async def _open_socket(self, addresses: Sequence[AddrInfoType]) -> socket.socket:
        """A socket on which every byte is the upstream's."""
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
        """Addresses, the next one first each time. Dials that ask at the same time share one look-up."""
        loop = asyncio.get_running_loop()
        if not self._addresses or loop.time() >= self._addresses_until:
            if self._lookup is None:
                self._lookup = self._tasks.spawn(self._look_up(), f"look up {self._dialled[0]}")
            found = await asyncio.shield(self._lookup)  # one dial given up does not take it from the others
            if isinstance(found, OSError):
                return found
        self._addresses = [*self._addresses[1:], self._addresses[0]]
        return self._addresses

    async def _look_up(self) -> list[AddrInfoType] | OSError:
        try:
            found = await self._ask_resolver()
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

    async def _ask_resolver(self) -> Sequence[AddrInfoType]:
        loop = asyncio.get_running_loop()
        host, port = self._dialled
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)


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
    """What stands behind the path in every request to this upstream with this API key."""
    name = f"[{host}]" if ":" in host else host
    lines = [" HTTP/1.1", f"Host: {name}:{port}" if port else f"Host: {name}"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key.get_secret_value()}")
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
    """What is said of a dial that failed. That this process may open nothing more is not the upstream's fault."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return Fault.BUSY
    return Fault.TIMEOUT if isinstance(error, TimeoutError) else Fault.CONNECT


def _in_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
