"""The promise of every store about ids of keys that were used (`KeyStore.is_used`)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from gateway.store import Defer, Store
from gateway.store.redis.store import RedisStore
from gateway.store.sqlite.store import SqliteStore
from tests.store.test_sqlite import opened

from .changes import Clock, draw
from .conftest import OpensStores
from .test_contract_bonds import bond
from .test_contract_refusals import entry
from .worker import Worker

NOW = time.time()

Leaves = Callable[[Store, str], Awaitable[None]]


async def usage(store: Store, key: str) -> None:
    worker = Worker(store)
    await worker.settle(await worker.granted(key=key), 5, key=key)


async def call_under_way(store: Store, key: str) -> None:
    await Worker(store).granted(key=key)


async def deferred_call(store: Store, key: str) -> None:
    worker, wish = Worker(store), draw(key=key)
    await worker.draw(wish)
    await worker.send(Defer(1, wish.record, wish.claims, wish.text, "ask the upstream"))


async def refusal(store: Store, key: str) -> None:
    await store.add_refusals([entry(1, key=key)], NOW)


async def response(store: Store, key: str) -> None:
    await store.add_bond(bond(id=f"resp_{len(key)}", key=key), NOW)


async def item(store: Store, key: str) -> None:
    await store.add_bond(bond(id=f"msg_{len(key)}", key=key, kind="item"), NOW)


@pytest.mark.parametrize("leaves", [usage, call_under_way, deferred_call, refusal, response, item])
async def test_what_a_key_leaves_is_found_under_its_id_alone(
    store: Store, open_store: OpensStores, leaves: Leaves
) -> None:
    key = 'zoë "k"'
    assert not await store.is_used(key)
    await leaves(store, f"{key}2")
    await leaves(store, "alice")
    assert not await store.is_used(key)
    other = Worker(store)
    voided = await other.granted(key=key)
    await other.void(voided)
    for each in (store, await open_store()):
        assert not await each.is_used(key)
        assert await each.is_used("alice")
        assert not await each.is_used("m")  # the name of a model


async def test_records_of_which_the_sums_are_deleted_count(store: Store, clock: Clock) -> None:
    worker = Worker(store)
    await worker.settle(await worker.granted(key="old"), 5, key="old", time=clock.now)
    await delete_sums(store)
    assert not await store.usage(())
    assert await store.is_used("old")
    later = datetime(2999, 1, 1, tzinfo=UTC).timestamp()
    await worker.settle(await worker.granted(key="new"), 5, key="new", time=later)
    assert [row["day"] for row in await store.usage(("day",))] == ["2999-01-01"]
    assert await store.is_used("old")
    assert not await store.is_used("none")


async def delete_sums(store: Store) -> None:
    """As retention does, which goes by days."""
    if isinstance(store, RedisStore):
        (days,) = await store._reading.ask(("ZRANGE", f"{store._base}days", 0, -1))
        await store._reading.ask(("DEL", f"{store._base}days", *[f"{store._base}sums:{day}" for day in days]))
        return
    assert isinstance(store, SqliteStore)
    await store._all_written()
    with opened(store._path.parent) as db:
        for table in ("sums", "hours"):
            db.execute(f"DELETE FROM {table}")
        db.commit()
