"""The promises of every store about deferred leases: they outlive their worker, and are settled once."""

from __future__ import annotations

from gateway.quota.ledger_entry import encode
from gateway.records import Settlement
from gateway.store import SILENT_S, Defer, Deferred, Reserve, heir_of

from .changes import Clock, daily, draw, parallel, tokens
from .worker import Worker, endings, levels

CLAIMS = [daily(100), tokens(100, 40), parallel(1)]
HELD = [(0, 1), (0, 40), (1, 0)]
NOTE = '{"id":"resp_1"}'
MANY = 700
"""More than a hash of Redis has in one piece (`hash-max-listpack-entries`), which a scan returns whole."""


async def defer(worker: Worker, wish: Reserve) -> None:
    worker.number += 1
    estimate = Settlement(wish.record, wish.claims)
    await worker.send(Defer(worker.number, *estimate, encode(*estimate), NOTE))


async def settle(by: Worker, wish: Reserve, used: int) -> None:
    """As any worker would, in the name of the heir."""
    heir = Worker(by.store, heir_of(wish.record.id))
    heir.seq = heir.acked = (await by.store.progress(heir.name)).seq
    await heir.settle(wish, used)


async def test_it_outlives_its_worker_and_is_settled_once(worker: Worker, other: Worker, clock: Clock) -> None:
    wish = await worker.granted(*CLAIMS)
    await defer(worker, wish)
    store = other.store
    entry = encode(wish.record, wish.claims)
    assert await store.deferred(10) == [Deferred(wish.record.id, entry, NOTE)]
    assert await store.find_deferred(wish.record.id) == Deferred(wish.record.id, entry, NOTE)
    assert await store.find_deferred("another") is None
    await other.listen(clock, SILENT_S + 1)
    assert (await other.send()).lost == 0
    await store.void_leases(worker.name)
    await store.retire(worker.name)
    assert await levels(store, clock, *CLAIMS) == HELD
    await other.refused(parallel(1))
    for by in (other, worker, other):
        await settle(by, wish, 7)
    assert await levels(store, clock, *CLAIMS) == [(1, 0), (7, 0), (0, 0)]
    assert await endings(store) == ["done"]
    await store.remove_deferred(wish.record.id)
    await store.retire(heir_of(wish.record.id))
    assert await store.deferred(10) == []
    assert await store.find_deferred(wish.record.id) is None
    await other.listen(clock, SILENT_S + 1)
    assert await levels(store, clock, *CLAIMS) == [(1, 0), (7, 0), (0, 0)]


async def test_each_is_found_in_turn_where_there_are_many(worker: Worker) -> None:
    """The calls of one key, which has no limit of parallel calls, would keep those of others from being settled."""
    wishes, found = [draw(*CLAIMS[:2]) for _ in range(MANY)], set[str]()
    for wish in wishes:
        await defer(worker, wish)
    for _ in range(2 * MANY // 100):
        found |= {each.lease for each in await worker.store.deferred(100)}
    assert found == {wish.record.id for wish in wishes}


async def test_one_that_was_closed_as_lost_is_reserved_again(worker: Worker, other: Worker, clock: Clock) -> None:
    wish = await worker.granted(*CLAIMS)
    await other.listen(clock, SILENT_S + 1)
    assert (await other.send()).lost == 1
    assert await levels(other.store, clock, *CLAIMS) == [(1, 0), (40, 0), (0, 0)]
    await defer(worker, wish)
    assert await levels(other.store, clock, *CLAIMS) == HELD
    await settle(other, wish, 7)
    assert await levels(other.store, clock, *CLAIMS) == [(1, 0), (7, 0), (0, 0)]
    assert await endings(other.store) == ["done"]


async def test_one_that_the_store_does_not_know_is_reserved(worker: Worker, clock: Clock) -> None:
    """As after a loss of data."""

    wish = draw(*CLAIMS)
    await defer(worker, wish)
    assert await levels(worker.store, clock, *CLAIMS) == HELD
    await settle(worker, wish, 7)
    assert await levels(worker.store, clock, *CLAIMS) == [(1, 0), (7, 0), (0, 0)]


async def test_in_the_batch_of_its_draw(worker: Worker, clock: Clock) -> None:

    wish = draw(*CLAIMS)
    worker.number += 1
    estimate = Settlement(wish.record, wish.claims)
    await worker.send(worker.opening(wish), Defer(worker.number, *estimate, encode(*estimate), NOTE))
    await worker.store.void_leases(worker.name)
    assert await levels(worker.store, clock, *CLAIMS) == HELD
    await settle(worker, wish, 7)
    assert await levels(worker.store, clock, *CLAIMS) == [(1, 0), (7, 0), (0, 0)]
