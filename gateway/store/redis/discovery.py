"""Discovery of the master: one server, the one that the Sentinels name, or the cluster node with the store's slot.

All keys of a store are in one slot, so in a cluster too one server has all of it. Any node names it (MOVED), so no
other knowledge of the cluster is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from redis.asyncio import Connection
from redis.exceptions import RedisError

from gateway.config import RedisURL
from gateway.store import StoreUnavailable

from .timeout import StallTolerantTimeout

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


def discovery_for(url: RedisURL) -> MasterDiscovery:
    if url.kind == "redis+sentinel":
        return SentinelDiscovery(url.hosts, url.service)
    return ClusterDiscovery(url.hosts)


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
