"""The stores that the promises are checked on. To add one: another name in `STORES`, and how to open it."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import StoreSettings as Settings
from gateway.store import Store
from gateway.store.redis.store import RedisStore
from gateway.store.sqlite.store import SqliteStore
from tests.fakes.redis_servers import RedisServer, name_of, servers_to_test

from .changes import Clock
from .store_behind import StoreBehind
from .worker import Worker

OpensStores = Callable[..., Awaitable[Store]]


async def open_embedded(request: pytest.FixtureRequest, clock: Clock, **settings: Any) -> Store:
    folder: Path = request.getfixturevalue("folder")
    return SqliteStore(Settings(url=f"embedded:{folder}", **settings), lambda: clock.now_us)


async def open_behind(request: pytest.FixtureRequest, clock: Clock, **settings: Any) -> Store:
    folder: Path = request.getfixturevalue("folder")
    others: list[StoreBehind] = request.getfixturevalue("stores_behind")
    others.append(StoreBehind(Settings(url=f"embedded:{folder}", **settings), clock, others))
    return others[-1]


@pytest.fixture(scope="session")
def redis_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RedisServer]]:
    """One server of each kind, begun when it is first wanted."""
    running: dict[str, RedisServer] = {}
    with contextlib.ExitStack() as stack:

        def server(binary: str) -> RedisServer:
            if binary not in running:
                folder = tmp_path_factory.mktemp("redis")
                running[binary] = stack.enter_context(RedisServer(folder, binary=binary))
            return running[binary]

        yield server


@pytest.fixture
def began_us() -> int:
    """When the test began, which is `NOON` to it. From then on a server's clock goes on by itself."""
    return time.time_ns() // 1000


@pytest.fixture
def stores_behind() -> list[StoreBehind]:
    """All that a test has opened on its file."""
    return []


def opens_redis(binary: str) -> OpensStores:
    async def open_redis(request: pytest.FixtureRequest, clock: Clock, **settings: Any) -> Store:
        server: RedisServer = request.getfixturevalue("redis_servers")(binary)
        namespace = uuid.uuid5(uuid.NAMESPACE_OID, request.node.nodeid).hex  # one for each test
        store_settings = Settings(url=server.url, namespace=namespace, **settings)
        began_us: int = request.getfixturevalue("began_us")
        store = await RedisStore.open(store_settings, lambda: clock.now_us - began_us)
        for link in (store._writing, store._finding, store._reading):
            link._limit_s = 30  # however slow the machine is
        return store

    return open_redis


STORES: dict[str, Callable[..., Awaitable[Store]]] = {
    "embedded": open_embedded, "written behind": open_behind,
    **{name_of(binary): opens_redis(binary) for binary in servers_to_test()},
}  # fmt: skip
"""Each opens another instance on the data of its test, as another worker or another process would. The store's clock
follows `clock.now_us`: at every moment, or by an offset of its own clock that `clock.advance` changes."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(params=STORES)
async def open_store(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[OpensStores]:
    """Opens instances of one store; what is still open is closed at the end."""
    opened: list[Store] = []

    async def open_one(**settings: Any) -> Store:
        store = await STORES[request.param](request, clock, **settings)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpensStores) -> Store:
    return await open_store()


@pytest.fixture
async def worker(store: Store) -> Worker:
    return Worker(store)


@pytest.fixture
async def other(open_store: OpensStores) -> Worker:
    """Another worker, with an instance of its own."""
    return Worker(await open_store())
