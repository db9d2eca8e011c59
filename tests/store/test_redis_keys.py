"""Keys, teams and overlays where the store is a Redis: what is lost on the way, what the server forgets or refuses. On
every server that is at hand (see `servers_to_test`)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.exceptions import ResponseError

from gateway.config import StoreSettings as Settings
from gateway.store import ChangeFeed, StoreChange, StoreUnavailable
from gateway.store.redis.store import RedisStore
from tests.fakes.redis_servers import RedisServer, name_of, servers_to_test, wait_until
from tests.fakes.wire_proxy import WireProxy

from .changes import slow, tokens
from .test_contract_keys import digest, put
from .test_redis import acl
from .worker import Worker

PATIENCE_S = 30
Opens = Callable[[str], Awaitable[RedisStore]]


@pytest.fixture(params=servers_to_test(), ids=name_of)
def server(request: pytest.FixtureRequest, redis_servers: Callable[[str], RedisServer]) -> RedisServer:
    return redis_servers(request.param)


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return uuid.uuid5(uuid.NAMESPACE_OID, request.node.nodeid).hex


@pytest.fixture
async def opens(namespace: str) -> AsyncIterator[Opens]:
    opened: list[RedisStore] = []

    async def open_one(url: str) -> RedisStore:
        store = await RedisStore.open(Settings(url=url, namespace=namespace))
        opened.append(store)
        for link in (store._writing, store._finding, store._reading):
            link._limit_s = PATIENCE_S  # however slow the machine is
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(server: RedisServer, opens: Opens) -> RedisStore:
    return await opens(server.url)


def keys_of(server: RedisServer, namespace: str) -> dict[str, str]:
    """All keys of this test, and what they hold."""
    names = server.cli("KEYS", f"{{{namespace}}}:*").split()
    return {name.removeprefix(f"{{{namespace}}}:"): str(server.call("DUMP", name)) for name in names}


def now_ms(server: RedisServer) -> int:
    """What its clock says."""
    seconds, micros = map(int, server.cli("TIME").split())
    return seconds * 1000 + micros // 1000


async def audited(store: RedisStore) -> list[str]:
    return [entry.audit for entry in await store.audit(100)]


async def test_scripts_that_were_flushed_are_loaded_again(store: RedisStore, server: RedisServer) -> None:
    server.cli("SCRIPT", "FLUSH")
    assert await put(store, "a", "1", secrets_added=(digest("a"),))
    server.cli("SCRIPT", "FLUSH")
    assert await store.find_keys([digest("a")]) == ["1"]
    assert await audited(store) == ["a: None -> 1"]


async def test_keys_are_kept_where_it_is_said(store: RedisStore, server: RedisServer, namespace: str) -> None:
    # A reset does not create a window: a window made here would never be deleted.
    await put(store, "a", "1", secrets_added=(digest("a"),), resets=(tokens().window, slow().window))
    await put(store, "red", "2", kind="team")
    # No batch has come yet: a newer gateway has to know all the same whose data it finds.
    assert set(keys_of(server, namespace)) == {
        "schema", "1:audit", "1:secrets", "1:names:key", "1:documents:key", "1:names:team", "1:documents:team",
    }  # fmt: skip
    assert server.cli("HGET", f"{{{namespace}}}:1:secrets", digest("a")) == "a"
    await put(store, "a", None, before="1", secrets_removed=(digest("a"),))
    assert set(keys_of(server, namespace)) == {"schema", "1:audit", "1:names:team", "1:documents:team"}


# --------------------------------------------------------------------------------------------------- lost on the way


async def test_a_change_whose_answer_is_lost_is_not_repeated(server: RedisServer, opens: Opens) -> None:
    onlooker = await opens(server.url)
    await put(onlooker, "a", "1")
    with WireProxy(server.port) as proxy:
        store = await opens(server.url_for(port=proxy.port))
        proxy.lose_reply(of=b"=2\r\n")
        with pytest.raises(StoreUnavailable):
            await put(store, "a", "2", before="1")
        assert proxy.cuts == 1
        # A repeated change is refused: the document has changed since it was read.
        assert not await put(store, "a", "2", before="1")
        assert await onlooker.read("key", ["a"]) == ["2"]
        proxy.cut_request(of=b"=3\r\n")
        with pytest.raises(StoreUnavailable):
            await put(store, "a", "3", before="2")
        assert proxy.cuts == 2
        assert await onlooker.read("key", ["a"]) == ["2"]
        assert await put(store, "a", "3", before="2")
    assert await audited(onlooker) == ["a: 2 -> 3", "a: 1 -> 2", "a: None -> 1"]


async def test_a_key_look_up_does_not_wait_for_a_blocked_server(store: RedisStore, server: RedisServer) -> None:
    await put(store, "a", "1", secrets_added=(digest("a"),))
    assert await store.find_keys([digest("a")]) == ["1"]
    store._finding._limit_s = 0.3
    server.stop()
    try:
        for attempt in (store.find_keys([digest("a")]), store.read("key", ["a"]), store.changes_since(None)):
            with pytest.raises(StoreUnavailable, match=r"has not answered within 0\.[38] s"):
                await attempt
    finally:
        server.cont()
    store._finding._limit_s = PATIENCE_S
    assert await store.find_keys([digest("a")]) == ["1"]


async def test_keys_are_found_while_a_report_and_a_batch_take_their_time(store: RedisStore) -> None:
    await put(store, "a", "1", secrets_added=(digest("a"),))
    async with store._reading._lock, store._writing._lock, asyncio.timeout(PATIENCE_S):
        assert await store.find_keys([digest("a")]) == ["1"]
        assert await store.read("key", ["a"]) == ["1"]
        assert (await store.changes_since("0-0")).changed == (("key", "a"),)


async def test_batches_are_applied_while_keys_are_changed(store: RedisStore) -> None:
    async with store._reading._lock, store._finding._lock, asyncio.timeout(PATIENCE_S):
        await Worker(store).granted(tokens(10))


# ----------------------------------------------------------------------------------------------- forgotten, or refused


async def test_a_server_that_has_forgotten_makes_the_news_incomplete(
    store: RedisStore, server: RedisServer, namespace: str
) -> None:
    log, backup = f"{{{namespace}}}:1:audit", f"{{{namespace}}}:aside"
    await put(store, "a", "1")
    kept = (await store.changes_since(None)).position
    server.cli("COPY", log, backup)
    await put(store, "a", "2", before="1")
    seen = (await store.changes_since(None)).position
    # As after a failover that did not have the last change.
    server.cli("COPY", backup, log, "REPLACE")
    assert await store.changes_since(seen) == ChangeFeed(kept, is_complete=False)
    assert await store.changes_since(kept) == ChangeFeed(kept)
    # A failover takes longer than the millisecond that names an entry; this one may not have.
    wait_until(lambda: now_ms(server) > int(seen.partition("-")[0]), "the clock went on")
    await put(store, "b", "1")
    assert (await store.changes_since(kept)).changed == (("key", "b"),)
    assert not (await store.changes_since(seen)).is_complete
    server.cli("DEL", *(f"{{{namespace}}}:{name}" for name in keys_of(server, namespace)))
    assert await store.changes_since(kept) == ChangeFeed("0-0", is_complete=False)
    assert await store.find_keys([digest("a")]) == [None]


async def test_a_change_that_cannot_be_applied_leaves_no_trace(
    store: RedisStore, server: RedisServer, namespace: str
) -> None:
    claims = [tokens(100, 40), slow(60, 40)]
    worker = Worker(store)
    await worker.settle(await worker.granted(*claims), 30)
    await put(store, "a", "1", secrets_added=(digest("a"),))
    old, new, windows = digest("a"), digest("new"), tuple(claim.window for claim in claims)
    rotated = StoreChange("key", "a", "1", "2", "rotated", (new,), (old,), windows)
    made = StoreChange("key", "b", None, "1", "made", (new,), (), windows)
    removed = StoreChange("key", "a", "1", None, "removed", (), (old,), windows)
    for kind in ("documents:key", "names:key", "secrets", "audit", "windows", "windows:2026-11-20"):
        key, aside = f"{{{namespace}}}:1:{kind}", f"{{{namespace}}}:aside"
        server.cli("RENAME", key, aside)
        server.cli("SET", key, "of somebody else")
        before = keys_of(server, namespace)
        for change in (rotated, made, removed):
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                await store.change(change)
            assert keys_of(server, namespace) == before, f"{kind}: {change.audit}"
        server.cli("RENAME", aside, key)
    assert await store.change(rotated)
    found = await store.window_statuses(windows, 0)
    assert [standing.used for standing in found] == [0, 0]


async def test_a_server_whose_memory_is_full_changes_nothing_and_is_read(
    store: RedisStore, server: RedisServer, namespace: str
) -> None:
    await put(store, "a", "1", secrets_added=(digest("a"),))
    before = keys_of(server, namespace)
    server.cli("CONFIG", "SET", "maxmemory", "1")
    try:
        for after in ("2", None):
            with pytest.raises(StoreUnavailable, match="its memory is full"):
                await put(store, "a", after, before="1", secrets_removed=(digest("a"),))
        assert await store.find_keys([digest("a")]) == ["1"]
        assert (await store.changes_since("0-0")).changed == (("key", "a"),)
    finally:
        server.cli("CONFIG", "SET", "maxmemory", "0")
    assert keys_of(server, namespace) == before
    assert await put(store, "a", None, before="1")


async def test_names_that_have_lost_their_documents_are_passed_over(
    store: RedisStore, server: RedisServer, namespace: str
) -> None:
    """A server that was killed during a write may restore one and not the other (apply_writing.lua)."""
    names = [f"key-{number:04}" for number in range(1500)]
    server.cli("ZADD", f"{{{namespace}}}:1:names:key", *(word for name in names for word in ("0", name)))
    server.cli("HSET", f"{{{namespace}}}:1:documents:key", *(word for name in names[700:] for word in (name, "text")))
    assert await store.page("key", limit=10) == [(name, "text") for name in names[700:710]]
    assert await store.page("key", "key-0650", 800) == [(name, "text") for name in names[700:]]
    assert await put(store, names[0], "1")
    assert await store.page("key", limit=2) == [(names[0], "1"), (names[700], "text")]


async def test_the_documented_rights_are_enough_for_keys(server: RedisServer, opens: Opens, namespace: str) -> None:
    server.cli("ACL", "SETUSER", "steward", "reset", "on", ">a-secret", *acl().replace("gateway", namespace).split())
    server.cli("ACL", "LOG", "RESET")
    store = await opens(server.url_for("steward", "a-secret"))
    worker = Worker(store)
    claims = [tokens(100, 40), slow(60, 40)]
    await worker.settle(await worker.granted(*claims), 30)
    since = (await store.changes_since(None)).position
    await put(store, "a", "1", secrets_added=(digest("a"),))
    windows = tuple(claim.window for claim in claims)
    await put(store, "a", "2", before="1", secrets_added=(digest("b"),), secrets_removed=(digest("a"),), resets=windows)
    assert await store.find_keys([digest("a"), digest("b")]) == [None, "2"]
    assert await store.read("key", ["a"]) == ["2"]
    assert await store.page("key") == [("a", "2")]
    assert (await store.changes_since(since)).changed == (("key", "a"),)
    assert len(await store.audit(10)) == 2
    await put(store, "a", None, before="2", secrets_removed=(digest("b"),))
    assert await store.page("key", "A") == []
    assert server.cli("ACL", "LOG") == ""
    await store.close()
    server.cli("ACL", "DELUSER", "steward")
