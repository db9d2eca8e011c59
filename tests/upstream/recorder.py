"""The receiver of the tests: writes down what it hears, and insists on the order that `Receiver` promises."""

from __future__ import annotations

import asyncio

from gateway import config
from gateway.records import Failure
from gateway.upstream.connection import Connection, Head
from gateway.upstream.pool import Pool


class Ear:
    def __init__(self) -> None:
        self.head: Head | None = None
        self.pieces: list[bytes] = []
        self.failure: Failure | None = None
        self.has_ended = False
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def head_received(self, head: Head) -> None:
        assert self.head is None
        assert not self.has_ended
        self.head = head

    def body_received(self, data: bytes) -> None:
        assert self.head is not None
        assert not self.has_ended
        assert data
        self.pieces.append(data)

    def ended(self, failure: Failure | None) -> None:
        assert not self.has_ended
        self.has_ended = True
        self.failure = failure
        if not self._end.done():
            self._end.set_result(None)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def scenario(self) -> tuple[object, ...]:
        """Everything that must not depend on how the bytes were cut into packets."""
        return self.head, self.body, self.has_ended, self.failure

    async def end(self) -> Failure | None:
        await asyncio.wait_for(self._end, 10)
        return self.failure


def settings(url: str, **changes: object) -> config.Upstream:
    """Of an upstream; time limits may be given by their own names."""
    limits = {name: changes.pop(name) for name in ("connect_s", "head_s", "idle_s", "total_s") if name in changes}
    return config.Upstream.model_validate({"base_url": url, "timeouts": limits, **changes})


def pool_of(url: str, max_connections: int = 10, **changes: object) -> Pool:
    return Pool("up", settings(url, **changes), max_connections)


async def acquired(pool: Pool) -> Connection:
    connection = await pool.acquire()
    assert isinstance(connection, Connection), connection
    return connection


async def begin(pool: Pool, body: bytes = b"{}", ear: Ear | None = None) -> tuple[Connection, Ear]:
    """Acquire and send."""
    connection = await acquired(pool)
    ear = ear or Ear()
    connection.send(pool.request("/completions", [("Content-Type", "application/json")], body), ear)
    return connection, ear


async def ask(pool: Pool, body: bytes = b"{}") -> Ear:
    """A whole exchange."""
    _, ear = await begin(pool, body)
    await ear.end()
    return ear
