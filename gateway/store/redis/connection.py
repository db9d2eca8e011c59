"""One connection to the master, through redis-py, one request at a time and each within its time.

redis-py's clients repeat commands by themselves, and wait: ten times and 5 s each by default. A batch must never be
sent twice, and its caller waits 0.8 s at most. So only redis-py's connections are used, and a request is sent again
only if the server has answered that it did not carry it out (NOSCRIPT, MOVED).

The time limit of a request includes connecting, if there is no connection: finding the master, TLS and greeting.

This is also twice as fast: most of a client's time goes into what is not needed here.

The master is one server, the one that the Sentinels name, or the cluster node with the store's slot. All keys of a
store are in one slot, so in a cluster too one server has all of it. Any node names it (MOVED), so no other knowledge of
the cluster is needed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from redis.asyncio import Connection, SSLConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)

from gateway.config import RedisURL
from gateway.store import StoreUnavailable
from gateway.tasks import StallTolerantTimeout

Address = tuple[str, int]

ANSWER_WITHIN_S = 0.1
"""How long one Sentinel or node of several may take, so that another can be asked within the time of one request."""


class MasterDiscovery(Protocol):
    @property
    def tries(self) -> int:
        """The maximum number of places at which one request may look for the master."""

    async def find(self) -> Address:
        """Where it seems to be now. Raises `StoreUnavailable`."""

    def failed(self) -> None:
        """It was not there, or is no master any more."""

    def moved(self, address: Address) -> None:
        """A server has redirected a request to this address."""


class ClusterDiscovery:
    """One server, or some nodes of a cluster: the first that is known not to fail."""

    def __init__(self, hosts: Sequence[Address]) -> None:
        self._hosts = deque(hosts)
        self._learned: Address | None = None

    @property
    def tries(self) -> int:
        return 1 if len(self._hosts) == 1 and self._learned is None else len(self._hosts) + 1

    async def find(self) -> Address:
        return self._learned or self._hosts[0]

    def failed(self) -> None:
        if self._learned is None:
            self._hosts.rotate(-1)
        self._learned = None

    def moved(self, address: Address) -> None:
        host, port = address
        # A node without a configured name leaves it out: it means the queried host.
        self._learned = (host or (self._learned or self._hosts[0])[0], port)


class SentinelDiscovery:
    """The master that a Sentinel names. The one that answered last is asked first."""

    def __init__(self, hosts: Sequence[Address], service: str) -> None:
        self._hosts = deque(hosts)
        self._service = service

    @property
    def tries(self) -> int:
        return 1

    async def find(self) -> Address:
        reasons = []
        for _ in range(len(self._hosts)):
            host, port = self._hosts[0]
            self._hosts.rotate(-1)  # before the result: the caller may time out meanwhile
            try:
                async with StallTolerantTimeout(ANSWER_WITHIN_S):
                    found = await self._ask(host, port)
            except TimeoutError:
                reasons.append(f"{host}:{port} does not answer")
            except (RedisError, OSError) as error:
                reasons.append(f"{host}:{port}: {error}")
            else:
                if found is not None:
                    self._hosts.rotate(1)
                    return found
                reasons.append(f"{host}:{port} knows no {self._service}")
        raise StoreUnavailable(f"no Sentinel names a master: {'; '.join(reasons)}")

    def failed(self) -> None:
        """The next request asks again anyway."""

    def moved(self, address: Address) -> None:
        raise StoreUnavailable(f"the server belongs to a cluster, and redirects to {address}; use redis+cluster://")

    async def _ask(self, host: str, port: int) -> Address | None:
        connection = Connection(host=host, port=port, protocol=2, socket_timeout=None, decode_responses=True)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            found = await connection.read_response()
        finally:
            await connection.disconnect(nowait=True)
        return (found[0], int(found[1])) if found else None


Command = Sequence[str | int]

MAX_STEPS = 5
"""How often one request is redirected or its script loaded; two are enough, unless a cluster is in disorder."""

AWAY = {
    "READONLY": "it is a replica, not the master",
    "MISCONF": "it cannot save to its disk, and so takes no writes",
    "OOM": "its memory is full",
    "LOADING": "it is loading its data",
    "BUSY": "it is busy with a script",
    "CLUSTERDOWN": "its cluster is down",
    "MASTERDOWN": "its master is down",
    "NOREPLICAS": "it has too few replicas to take writes",
    "TRYAGAIN": "the store's slot is being moved to another node",
    "ASK": "the store's slot is being moved to another node",
    "CROSSSLOT": "it belongs to a cluster; use redis+cluster://",
    "MOVED": "its cluster nodes disagree about the owner of the store's slot",
    "NOSCRIPT": "it forgets scripts as soon as they are loaded",
    "MAXCLIENTS": "it has too many clients",
}
"""The meaning of temporary errors that do not depend on the request."""

WITHOUT_CODE = {
    "non local key in a cluster node": "ASK", "during rehashing of the slot": "TRYAGAIN",
    "slot not served": "CLUSTERDOWN", "cluster is down": "CLUSTERDOWN", "hash to the same slot": "CROSSSLOT",
    "on a stale replica": "MASTERDOWN", "max number of clients": "MAXCLIENTS",
    "ACL failure in script": "NOPERM", "user executing the script can't": "NOPERM",
    "Script killed by user": "BUSY",  # by SCRIPT KILL, which an administrator gives while it is busy
}  # fmt: skip
"""Parts of errors that servers answer without the word for them, most of them inside scripts. Sources: src/script.c
(scriptVerifyClusterState, scriptVerifyAllowStale, scriptVerifyACL) and src/networking.c (acceptCommonHandler) of Redis
7.0 to 7.4 and Valkey 8, and src/scripting.c of Redis 6.2."""


class ServerMisconfigured(StoreUnavailable):
    """The store is away until a person mends something: the password, what the user may do, a server too old."""


class Script(NamedTuple):
    """A Lua script and the name under which Redis keeps it."""

    text: str
    sha: str

    @classmethod
    def read(cls, *names: str, constants: str = "") -> Script:
        """Reads files of this package and joins them in order, after the line that defines the constants."""
        texts = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in names]
        return cls.of("\n".join([constants, *texts] if constants else texts))

    @classmethod
    def of(cls, text: str) -> Script:
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


Ask = Callable[..., Awaitable[list[Any]]]
Sent = Callable[[], None] | None
"""Is called when commands are on their way, before the server answers."""


class RedisConnection:
    """One connection to the master of a store, made when it is needed, and again when it is lost.

    `greet` is called for each new connection, with a function that sends commands on it, before any other command.
    """

    def __init__(self, url: RedisURL, limit_s: float, greet: Callable[[Ask], Awaitable[None]]) -> None:
        self._url = url
        self._limit_s = limit_s
        self._greet = greet
        self._route: MasterDiscovery = (
            SentinelDiscovery(url.hosts, url.service) if url.kind == "redis+sentinel" else ClusterDiscovery(url.hosts)
        )
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Link {self._url}{'' if self._connection else ', not connected'}>"

    async def ask(self, *commands: Command) -> list[Any]:
        """Send these commands at once; their replies, texts and numbers.

        Raises `StoreUnavailable`: then nothing is known of what was carried out. `ServerMisconfigured` is one.
        Raises redis-py's
        `ResponseError` where the server finds fault with a command.
        """
        return await self._in_time(commands)

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[str], *before: Command, sent: Sent = None
    ) -> Any:
        """Run a script, after the commands `before`, sent with it; its result. Raises as `ask`."""
        command: Command = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        *_, reply = await self._in_time([*before, command], script, sent)
        return reply

    async def close(self) -> None:
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.disconnect()
            except RedisError:
                pass

    async def _in_time(self, commands: Sequence[Command], script: Script | None = None, sent: Sent = None) -> list[Any]:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        timeout = StallTolerantTimeout(self._limit_s)
        try:
            async with timeout, self._lock:
                return await self._ask(commands, script, sent)
        except TimeoutError:
            raise StoreUnavailable(f"{self._url} has not answered within {self._limit_s:g} s") from None
        except ResponseError as error:
            raise self._explained(error) from None
        except (RedisError, OSError) as error:
            if isinstance(error, AuthenticationError):
                raise ServerMisconfigured(f"{self._url}: {str(error).rstrip('.')}") from None
            if "LOADING" in type(error).__name__.upper():
                raise StoreUnavailable(f"{self._url}: {AWAY['LOADING']}") from None
            raise StoreUnavailable(f"{self._url} cannot be reached: {error}") from None

    async def _ask(self, commands: Sequence[Command], script: Script | None, sent: Sent) -> list[Any]:
        for _ in range(MAX_STEPS):
            try:
                connection = await self._connected()
                return await self._exchange(connection, commands, sent)
            except MovedError as moved:
                await self._drop()
                self._route.moved((moved.host, moved.port))
                last: ResponseError = moved
            except NoScriptError as missing:
                assert script is not None
                assert self._connection is not None
                await self._exchange(self._connection, [("SCRIPT", "LOAD", script.text)])
                last = missing
            except BaseException as error:
                if not isinstance(error, ResponseError) or _code(error) in AWAY:
                    await self._drop()
                    self._route.failed()
                raise
        raise last

    async def _connected(self) -> Connection:
        # One that the server has closed meanwhile is at its end; nothing was sent on it yet.
        if (known := self._connection) is not None and known.is_connected and not await known.can_read():
            return known
        await self._drop()
        try:
            connection = await self._connect()
            await self._greet(lambda *commands: self._exchange(connection, commands))
        except BaseException as error:
            await self._drop()  # or the next request would take it for a connection that was greeted
            if isinstance(error, ResponseError) and _code(error) not in {"NOPERM", *AWAY}:
                # Nothing of what was asked has been sent yet: it is the server that will not do.
                raise ServerMisconfigured(f"{self._url}: {error}") from None
            raise
        return connection

    async def _connect(self) -> Connection:
        tries = self._route.tries
        for left in reversed(range(tries)):
            connection = self._connection = self._make(*await self._route.find())
            try:
                async with StallTolerantTimeout(None if tries == 1 else ANSWER_WITHIN_S):
                    await connection.connect()  # type: ignore[no-untyped-call]
                break
            except (TimeoutError, RedisError, OSError) as error:
                if not left or isinstance(error, AuthenticationError):
                    raise
                await self._drop()
                self._route.failed()
        return connection

    def _make(self, host: str, port: int) -> Connection:
        url = self._url
        password = None if url.password is None else url.password.get_secret_value()
        settings: dict[str, Any] = {
            "host": host, "port": port, "db": url.db, "username": url.user, "password": password, "protocol": 2,
            "client_name": "gateway", "driver_info": None, "decode_responses": True, "encoding_errors": "replace",
            # One time limit for the whole request, of our own; redis-py's costs a task for each write.
            "socket_timeout": None, "socket_connect_timeout": None,
        }  # fmt: skip
        if url.is_tls:
            return SSLConnection(
                ssl_ca_certs=url.ca_file, ssl_cert_reqs="required", ssl_check_hostname=True, **settings
            )
        return Connection(**settings)

    async def _exchange(self, connection: Connection, commands: Sequence[Command], sent: Sent = None) -> list[Any]:
        """All replies, the first error raised when all were read."""
        await connection.send_packed_command([b"".join(map(pack, commands))], check_health=False)
        if sent is not None:
            sent()
        replies = []
        fault: ResponseError | None = None
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except ResponseError as error:
                fault = fault or error
        if fault is not None:
            raise fault
        return replies

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    # --------------------------------------------------------------------------------------------------- in plain words

    def _explained(self, error: ResponseError) -> Exception:
        """An error of the server in plain words; errors in our own requests unchanged."""
        code = _code(error)
        if code == "NOPERM":
            return ServerMisconfigured(f"{self._url}: the user may not do all that the gateway does: {error}")
        if code in AWAY:
            return StoreUnavailable(f"{self._url}: {AWAY[code]}")
        return error


def _code(error: BaseException) -> str:
    """The first word of a server's error, also of one inside a script: READONLY, NOSCRIPT ..."""
    if isinstance(error, AskError):
        return "MOVED" if isinstance(error, MovedError) else "ASK"
    text = str(error)
    if isinstance(error, NoPermissionError):
        return "NOPERM"
    if known := [code for part, code in WITHOUT_CODE.items() if part in text]:
        return known[0]
    # Inside a script the word may be behind the place in the script. redis-py takes it out of the errors that it knows.
    found = re.match(r"([A-Z]{3,})\b", text) or re.search(r": -([A-Z]{3,})\b", text)
    return found[1] if found else getattr(error, "status_code", None) or ""


def pack(command: Command) -> bytes:
    """A command in the form of the protocol (RESP, redis.io/docs/reference/protocol-spec)."""
    arguments = [b"$%d\r\n%b\r\n" % (len(data := str(each).encode()), data) for each in command]
    return b"*%d\r\n%b" % (len(arguments), b"".join(arguments))
