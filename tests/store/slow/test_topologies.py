"""The promises of a store (gateway/store/__init__.py) where it is more than one plain Redis: TLS with a user of few
rights, Sentinels that replace the master, a cluster. It is opened as a gateway does, by `store.url` and `open_store`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from gateway.config import StoreSettings as Settings
from gateway.records import Claim, Granted
from gateway.store import Applied, Item, Store, StoreChange, StoreLostWrites, StoreMisconfigured, StoreUnavailable
from gateway.store.opening import open_store
from tests.fakes.redis_groups import Cluster, Sentinels, wait_until_replicated
from tests.fakes.redis_servers import PATIENCE_S, Certificates, RedisServer, wait_until
from tests.fakes.wire_proxy import WireProxy
from tests.store.changes import SECOND, daily, draw, settlement
from tests.store.test_redis import everything
from tests.store.worker import Worker

SECRET = "e" * 64

T = TypeVar("T")
P = ParamSpec("P")


def calendar(limit: int) -> Claim:
    """A day that lasts until tomorrow by the server's own clock, too."""
    return daily(limit, resets_us=int((time.time() + 86_400) * SECOND))


async def stands(store: Store, claim: Claim) -> tuple[int, int]:
    """Used and reserved."""
    (found,) = await insist(store.window_statuses, [claim.window], time.time())
    return found.used, found.reserved


async def changed(store: Store, change: StoreChange) -> None:
    """It is so now, by this attempt or by one whose answer came too late."""
    if not await store.change(change):
        assert await store.read(change.kind, [change.name]) == [change.after]


async def requests(store: Store) -> int:
    """Of how many calls the daily sums know."""
    return sum(row["requests"] for row in await insist(store.usage, ["key"]))


async def insist(attempt: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
    """Again and again while the store is away; each batch is a new one, with a higher number."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await attempt(*arguments, **named)
        except StoreUnavailable:
            assert time.monotonic() < deadline, "the store did not come back"
            await asyncio.sleep(0.1)


class Patient(Worker):
    """A worker that does not mind a slow machine, or a server that is away for a while."""

    async def send(self, *items: Item) -> Applied:
        return await insist(super().send, *items)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = await open_store(Settings(url=url))
    try:
        yield store
    finally:
        await store.close()


# -------------------------------------------------------------------------------------------------------------- TLS

COMMANDS = """
    +@connection +eval +evalsha +script|load +time +get +set +del +unlink +expire +hset +hget +hmget +hdel +hlen +hscan
    +hrandfield +zadd +zrem +zcard +zscore +zrange +zrangebyscore +zrangebylex +zremrangebyscore +xadd +xdel +xtrim
    +xlen +xrange +xrevrange
"""
"""Command by command what the gateway does; gateway/store/redis/store.py says it more shortly."""

USER = f"gateway on >user-secret ~{{gateway}}:* {' '.join(COMMANDS.split())}"


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    folder = tmp_path_factory.mktemp("tls")
    certificates = Certificates(folder / "certificates")
    with RedisServer(folder / "redis", tls=certificates, password="owner-secret", acl=[USER]) as server:
        yield server


@pytest.fixture
def empty_tls_server(tls_server: RedisServer) -> RedisServer:
    tls_server.call("FLUSHALL")
    return tls_server


async def test_a_user_of_few_rights_over_tls_draws_and_settles(empty_tls_server: RedisServer) -> None:
    claim = calendar(2)
    async with opened(empty_tls_server.url_for("gateway", "user-secret")) as store:
        await insist(store.ping)
        worker = Patient(store)
        first = await worker.granted(claim)
        await worker.granted(claim)
        await worker.refused(claim)
        await worker.settle(first)
        assert await stands(store, claim) == (1, 1)
        assert await requests(store) == 1
        assert [row["id"] for row in await store.calls(10)] == [first.record.id]
        # Of keys only what is repeated without harm: a change may have been applied when its answer is late.
        resets = (claim.window,)
        await insist(changed, store, StoreChange("key", "a", None, "1", "made", (SECRET,), resets=resets))
        await insist(changed, store, StoreChange("key", "a", "1", "2", "rotated", ("f" * 64,), (SECRET,)))
        assert await insist(store.find_keys, [SECRET, "f" * 64]) == [None, "2"]
        assert await insist(store.page, "key") == [("a", "2")]
        assert [received.audit for received in await insist(store.audit, 10)] == ["rotated", "made"]
        assert (await insist(store.changes_since, "0-0")).changed == (("key", "a"),)
        assert await stands(store, claim) == (0, 1)


async def test_a_draw_whose_reply_is_lost_over_tls_is_taken_back(empty_tls_server: RedisServer) -> None:
    claim = calendar(2)
    with WireProxy(empty_tls_server.port) as proxy:
        url = empty_tls_server.url_for("gateway", "user-secret", port=proxy.port)
        async with opened(url) as store, opened(empty_tls_server.url) as onlooker:
            worker = Patient(store)
            await worker.send()
            wish = draw(claim)
            proxy.lose_reply()
            with pytest.raises(StoreUnavailable):
                await Worker.send(worker, worker.opening(wish))
            assert await stands(onlooker, claim) == (0, 1)
            assert proxy.cuts == 1
            # One entry, however often it has to be sent.
            voiding = worker.voiding(wish)
            await worker.send(voiding)
            assert await stands(onlooker, claim) == (0, 0)


async def test_a_wrong_password_is_refused_in_words_without_it(empty_tls_server: RedisServer) -> None:
    with pytest.raises(StoreMisconfigured) as refused:
        await open_store(Settings(url=empty_tls_server.url_for("gateway", "guessed-secret")))
    assert "guessed-secret" not in f"{refused.value} {refused.value!r} {refused.value.__cause__!r}"


async def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    empty_tls_server: RedisServer, tmp_path: Path
) -> None:
    url = empty_tls_server.url.partition("?")[0] + f"?ca_file={Certificates(tmp_path).ca_file}"
    with pytest.raises((StoreUnavailable, StoreMisconfigured)):
        async with opened(url) as store:
            await store.ping()


# --------------------------------------------------------------------------------------------------------- Sentinels


@pytest.mark.timeout(240)
async def test_a_failover_that_forgets_a_batch_is_noticed_and_mended(tmp_path: Path) -> None:
    claim = calendar(10)
    with Sentinels(tmp_path, password="a-secret") as group:
        async with opened(group.url) as store:
            worker = Patient(store)
            assert store.may_forget
            kept = await worker.granted(claim)
            wait_until_replicated(group.master, 2)
            group.stop_replication()
            forgotten = await worker.granted(claim)
            closing = worker.closing(settlement(kept))
            await worker.send(closing)
            assert await stands(store, claim) == (1, 1)

            group.failover_by_kill()
            with pytest.raises(StoreLostWrites) as behind:
                await worker.send()
            assert behind.value.progress.seq < worker.acked
            assert behind.value.progress.mark == 0
            assert await stands(store, claim) == (0, 1)

            worker.acked = behind.value.progress.seq
            await worker.send(worker.opening(forgotten, is_forced=True), closing)
            assert await stands(store, claim) == (1, 1)
            assert await requests(store) == 1


@pytest.mark.timeout(240)
async def test_a_blocked_master_is_left_for_the_new_one(tmp_path: Path) -> None:
    claim = calendar(100)
    with Sentinels(tmp_path) as group:
        async with opened(group.url) as store:
            worker = Patient(store)
            await worker.granted(claim)
            wait_until_replicated(group.master, 2)
            stopped = group.master
            stopped.stop()
            wish = draw(claim)
            with pytest.raises(StoreUnavailable):
                await Worker.send(worker, worker.opening(wish))
            # Its result is unknown: the stopped server may still execute it.
            group.wait_until_master_changed(stopped)
            assert isinstance(await worker.draw(wish), Granted)
            stopped.cont()
            closing = worker.closing(settlement(wish))
            await worker.send(closing)
            wait_until(lambda: stopped.info("role") == "slave", "the stopped master was demoted")
            for _ in range(5):
                wish = draw(claim)
                await worker.send(worker.opening(wish), worker.closing(settlement(wish)))
            assert await stands(store, claim) == (6, 1)
            assert await requests(store) == 6


# ----------------------------------------------------------------------------------------------------------- cluster


@pytest.mark.timeout(240)
async def test_a_cluster_keeps_all_sums_through_the_loss_of_a_master(tmp_path: Path) -> None:
    claim = calendar(3)
    with Cluster(tmp_path, has_replicas=True) as group:
        # Two workers that connect to different nodes first see the same data.
        hosts = group.url.removeprefix("redis+cluster://").split(",")
        first, second = (f"redis+cluster://{','.join(some)}" for some in (hosts, hosts[::-1]))
        async with opened(first) as store, opened(second) as neighbour:
            worker, other = Patient(store), Patient(neighbour)
            wish = await worker.granted(claim)
            await other.granted(claim)
            await worker.granted(claim)
            await other.refused(claim)
            await worker.settle(wish)
            assert await stands(neighbour, claim) == (1, 2)
            await insist(changed, store, StoreChange("key", "a", None, "1", "made", (SECRET,)))
            since = (await insist(neighbour.changes_since, None)).position
            await insist(changed, neighbour, StoreChange("key", "a", "1", "2", "updated"))
            assert (await insist(store.changes_since, since)).changed == (("key", "a"),)
            assert await insist(store.find_keys, [SECRET]) == ["2"]
            owner = group.node_of("{gateway}")
            wait_until_replicated(owner, 1)

            former = group.failover_by_kill("{gateway}")
            assert former is owner
            for each in (worker, other):
                await each.send()
            assert await stands(store, claim) == await stands(neighbour, claim) == (1, 2)
            await insist(changed, store, StoreChange("key", "a", "2", "3", "updated", resets=(claim.window,)))
            assert await insist(neighbour.find_keys, [SECRET]) == ["3"]
            assert (await insist(neighbour.changes_since, since)).changed == (("key", "a"),)
            assert await stands(neighbour, claim) == (0, 2)
            await worker.granted(claim)
            await worker.refused(claim)
            assert await requests(neighbour) == 1


@pytest.mark.timeout(240)
async def test_a_node_changes_nothing_while_the_slot_is_moved_away(tmp_path: Path) -> None:
    """Of a call whose keys are not all there a node carries out the part before the first that is missing."""
    with Cluster(tmp_path) as group:
        owner = group.node_of("{gateway}")
        slot = owner.cli("CLUSTER", "KEYSLOT", "{gateway}")
        target = next(node for node in group.nodes if node is not owner).cli("CLUSTER", "MYID")
        async with opened(group.url) as store:
            worker, claim = Worker(store), calendar(3)
            await worker.settle(await worker.granted(claim))
            wish = await worker.granted(claim)
            # All that it reads is there, and one key that it writes is not.
            lease = owner.cli("HGET", f"{{gateway}}:1:leases:{worker.name}", wish.record.id)
            owner.call("HSET", f"{{gateway}}:1:lost:{worker.name}", "another", f"1-1\t{lease}")
            (index,) = owner.cli("KEYS", "*sums:groups-*").split()
            owner.call("DEL", index)
            owner.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
            before = everything(owner)
            for attempt in (worker.settle(wish, key="new"), worker.granted(claim), store.retire(worker.name)):
                with pytest.raises(StoreUnavailable, match="slot is being moved"):
                    await attempt
            assert everything(owner) == before
            owner.call("CLUSTER", "SETSLOT", slot, "STABLE")
            await worker.settle(wish)
            assert wish.record.id in [row["id"] for row in await store.calls(10)]
