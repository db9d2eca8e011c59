"""The pool of a cloud: writes its addresses, authorizes its requests when they are sent, and reads its streams."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from urllib.parse import urlsplit

from gateway.api.form import Upload
from gateway.api.large_body import Replaced
from gateway.config import Upstream
from gateway.records import Failure, Fault, Phase
from gateway.upstream.connection import Connection, Head, Receiver
from gateway.upstream.pool import Pool, WingPool

from . import sources
from .addresses import ADDRESS
from .amazon import UnreadableStream, status_of
from .betas import KNOWN, with_known
from .grant import Unsigned
from .renewal import Renewal
from .settings import CloudUpstream
from .vertex_stream import VertexEvents

BINARY = "application/vnd.amazon.eventstream"


class UnauthorizedRequest(list[bytes | memoryview]):
    """The bytes of a request, into whose head the authorization is written when it is sent."""


class CloudPool(Pool):
    """Connections of one worker to one upstream at a cloud."""

    _settings: CloudUpstream

    def __init__(self, name: str, settings: CloudUpstream, max_connections: int) -> None:
        super().__init__(name, settings, max_connections)
        self.upstream = name
        self._kind = CloudConnection
        url = urlsplit(settings.base_url)
        self._origin = f"{url.scheme}://{url.netloc}"
        self._address = ADDRESS.get(settings.paths)
        self.is_vertex = settings.paths == "vertex"
        self._betas = KNOWN.get(settings.paths) if settings.betas is None else settings.betas
        self._always_hidden = self.hidden
        source = sources.of(settings)
        self.renewal = (
            None if source is None else Renewal(name, source, settings.auth.within_s, spread=random.random())  # noqa: S311
        )
        if self.renewal is not None:
            self.renewal.users.add(self)
        self.identity = sources.identity_of(settings)

    async def acquire(self, *, is_fresh: bool = False) -> Connection | Failure:
        """Returns a connection as any pool does, or a `Failure` where nothing authorizes requests now."""
        while (renewal := self.renewal) is not None and renewal.grant is None:
            why = await renewal.ready(self._settings.timeouts.connect_s)
            if why is not None and renewal is self.renewal:
                return Failure(self._name, Phase.CONNECT, Fault.AUTH, why, is_of_credential=True)
        if renewal is not None and renewal.secrets and self.hidden[0][0] != renewal.secrets[0]:
            self.hidden = (*((secret, "***") for secret in renewal.secrets), *self._always_hidden)
        return await super().acquire(is_fresh=is_fresh)

    def request(
        self, path: str, headers: Iterable[tuple[str, str]], body: bytes | Sequence[memoryview] | Upload, *,
        method: str = "POST", key: int = 0,
    ) -> list[bytes | memoryview]:  # fmt: skip
        headers = tuple(headers) if self._betas is None else with_known(headers, self._betas)
        if self._address is not None:
            whole = (
                body if isinstance(body, bytes) else _beginning(body) if isinstance(body, Upload) else b"".join(body)
            )
            values = {name.lower(): value for name, value in headers}
            path, whole = self._address(
                path, whole, lambda name: values.get(name, ""), self._settings.api_version or "",
                body.places if isinstance(body, Replaced) else None,
            )  # fmt: skip
            body = body if isinstance(body, Upload) else whole
        made = super().request(path, headers, body, method=method, key=key)
        return made if self.renewal is None else UnauthorizedRequest(made)

    def authorized(self, request: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """The request with the lines that authorize it now."""
        grant = self.renewal.grant if self.renewal is not None else None
        if grant is None or not isinstance(request, UnauthorizedRequest):
            return request
        first, rest = bytes(request[0]), request[1:]
        line = first.index(b"\r\n") + 2
        lines = grant.head
        if not isinstance(lines, str):
            method, target, _ = first[:line].decode("utf-8", "surrogateescape").split(" ", 2)
            body = b"".join([first[first.index(b"\r\n\r\n") + 4 :], *rest])
            lines = lines(Unsigned(method, self._origin + target, body, self._settings.service, self._settings.region))
        return [first[:line] + lines.encode() + first[line:], *rest]

    def share(self, renewal: Renewal) -> Renewal | None:
        """Use the renewal of a pool with the same `identity`; returns the one of before, which may have to end."""
        left, self.renewal = self.renewal, renewal
        renewal.users.add(self)
        return left

    async def close(self) -> None:
        await super().close()
        if self.renewal is not None and not self.in_flight:
            await self.renewal.close(self)


class CloudConnection(Connection):
    """A connection whose requests are authorized when they are sent."""

    __slots__ = ()

    _owner: CloudPool

    def send(
        self, request: Sequence[bytes | memoryview], receiver: Receiver, upload: Iterator[bytes] | None = None
    ) -> None:
        owner = self._owner
        super().send(owner.authorized(request), _Reading(self, owner, receiver), upload)


class _Reading:
    """Hands an answer on; a binary event stream as server-sent events."""

    def __init__(self, connection: CloudConnection, pool: CloudPool, receiver: Receiver) -> None:
        self._connection = connection
        self._pool = pool
        self._receiver = receiver
        self.ended = receiver.ended
        self.body_received = receiver.body_received

    def head_received(self, head: Head) -> None:
        if (status := status_of(head.status, head.get("x-amzn-errortype"))) != head.status:
            head = Head(status, head.headers)
        if head.status == 401 and self._pool.renewal is not None:
            self._pool.renewal.refused()
        kind = (head.get("content-type") or "").partition(";")[0].strip()
        if kind == BINARY:
            from .event_stream import EventStreamReader

            self.body_received = partial(self._read, EventStreamReader().read)
            others = [pair for pair in head.headers if pair[0] not in ("content-type", "content-length")]
            head = Head(head.status, (*others, ("content-type", "text/event-stream; charset=utf-8")))
        elif self._pool.is_vertex and head.status == 200 and kind == "text/event-stream":
            events = VertexEvents()
            self.body_received, self.ended = partial(self._read, events.read), partial(self._end, events)
        self._receiver.head_received(head)

    def _read(self, read: Callable[[bytes], bytes], data: bytes) -> None:
        try:
            events, fault = read(data), None
        except UnreadableStream as error:
            events, fault = error.before, str(error)
        if events:
            self._receiver.body_received(events)
        if fault is not None and not self._connection.is_closed:
            self._connection.abort()
            self._receiver.ended(Failure(self._pool.upstream, Phase.RELAYING, Fault.PROTOCOL, fault))

    def _end(self, events: VertexEvents, failure: Failure | None) -> None:
        if rest := events.rest():
            self._receiver.body_received(rest)
        self._receiver.ended(failure)


def _beginning(upload: Upload) -> bytes:
    """The first piece of a form, which has its short fields."""
    return next(upload.open(), b"")


def make(name: str, settings: Upstream, max_connections: int) -> Pool | None:
    """The pool of an upstream that asks for anything here."""
    if not isinstance(settings, CloudUpstream) or not (settings.auth.renews or settings.paths != "openai"):
        return None
    return CloudPool(name, settings, max_connections)


POOL = WingPool(make)
