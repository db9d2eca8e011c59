"""The promises of every store about claims: of all workers, one has a name, for as long as it said."""

from __future__ import annotations

import asyncio

from gateway.store import CLAIMS_KEPT_S, Store
from gateway.store.redis.store import RedisStore
from gateway.store.sqlite.store import SqliteStore
from tests.patience import at_least

from .changes import HOUR_S, Clock
from .conftest import OpensStores
from .test_sqlite import opened
from .worker import Worker, pass_days

YEAR_S = 365 * 24 * HOUR_S


async def test_of_many_who_ask_at_once_one_has_it(open_store: OpensStores) -> None:
    stores = [await open_store() for _ in range(4)]
    asked = [stores[number % 4].claim(f"worker-{number}", {"a": HOUR_S}) for number in range(40)]
    held = [answer["a"] for answer in await asyncio.gather(*asked)]
    assert held.count(0) == 1
    assert all(HOUR_S - 60 < left <= HOUR_S for left in held if left)


async def test_each_name_is_claimed_for_itself(store: Store) -> None:
    assert await store.claim("one", {"a": HOUR_S, "b": 2 * HOUR_S}) == {"a": 0, "b": 0}
    held = await store.claim("other", {"b": HOUR_S, "c": HOUR_S, "a": HOUR_S})
    assert held["c"] == 0
    assert HOUR_S - 60 < held["a"] <= HOUR_S < 2 * HOUR_S - 60 < held["b"] <= 2 * HOUR_S
    assert list(held) == ["b", "c", "a"]


async def test_who_holds_a_name_may_hold_it_longer_or_shorter(store: Store, clock: Clock) -> None:
    await store.claim("one", {"a": HOUR_S})
    clock.advance(HOUR_S / 2)
    assert await store.claim("one", {"a": 24 * HOUR_S}) == {"a": 0}
    clock.advance(20 * HOUR_S)
    assert 3 * HOUR_S < (await store.claim("other", {"a": HOUR_S}))["a"] <= 4 * HOUR_S
    assert await store.claim("one", {"a": HOUR_S}) == {"a": 0}
    assert 0 < (await store.claim("other", {"a": HOUR_S}))["a"] <= HOUR_S


async def test_a_released_name_is_free_at_once(store: Store) -> None:
    await store.claim("one", {"a": HOUR_S, "b": HOUR_S})
    assert await store.claim("one", {"a": 0}) == {"a": 0}
    held = await store.claim("other", {"a": HOUR_S, "b": HOUR_S})
    assert held["a"] == 0 < held["b"]


async def test_releasing_a_name_of_another_holder_changes_nothing(store: Store) -> None:
    await store.claim("one", {"a": HOUR_S})
    assert (await store.claim("other", {"a": 0}))["a"] > 0
    assert (await store.claim("third", {"a": HOUR_S}))["a"] > 0


async def test_a_name_whose_holder_has_ended_is_free_after_its_time(store: Store, clock: Clock) -> None:
    await store.claim("one", {"a": HOUR_S})
    clock.advance(HOUR_S - 60)
    assert 0 < (await store.claim("other", {"a": HOUR_S}))["a"] <= 60
    clock.advance(61)
    assert await store.claim("other", {"a": HOUR_S}) == {"a": 0}
    assert (await store.claim("one", {"a": HOUR_S}))["a"] > 0


async def test_another_process_knows_it(open_store: OpensStores) -> None:
    first = await open_store()
    await first.claim("one", {"a": HOUR_S})
    await first.close()
    assert (await (await open_store()).claim("other", {"a": HOUR_S}))["a"] > 0


async def test_names_may_hold_what_windows_are_called(store: Store) -> None:
    names = {
        f"log|80|100|{scope}|tokens|day|gpt-4*|2026-11-20": HOUR_S
        for scope in ("key:a.b-c", "team:Zoë & Co", "gateway")
    }
    assert set((await store.claim("one", names)).values()) == {0}
    assert all(left > 0 for left in (await store.claim("other", names)).values())


async def test_a_hundred_names_at_once(store: Store) -> None:
    names = dict.fromkeys([f"name-{number}" for number in range(100)], HOUR_S)
    assert set((await store.claim("one", names)).values()) == {0}
    assert min((await store.claim("other", names)).values()) > 0


async def test_a_claim_that_was_made_by_a_clock_that_was_ahead_is_void(store: Store, clock: Clock) -> None:
    """Not to those who only look: what is over stays so."""
    clock.advance(40 * YEAR_S)
    assert await store.claim("one", {"a": 15, "b": HOUR_S}) == {"a": 0, "b": 0}
    clock.advance(-40 * YEAR_S)
    assert (await store.claim("other", {"b": 0}))["b"] > 0
    assert await store.claim("other", {"a": HOUR_S, "b": HOUR_S}) == {"a": 0, "b": 0}
    assert 0 < (await store.claim("one", {"a": HOUR_S}))["a"] <= HOUR_S


async def test_a_small_step_back_of_the_clock_ends_no_claim(store: Store, clock: Clock) -> None:
    await store.claim("one", {"a": 24 * HOUR_S})
    clock.advance(-30)
    assert (await store.claim("other", {"a": 15}))["a"] > 0


async def test_a_clock_that_was_ahead_forgets_no_claim(store: Store, worker: Worker, clock: Clock) -> None:
    """Such as that of a session that is over."""
    await worker.send()
    await store.claim("one", {"over": 8 * HOUR_S})
    for ahead_s in (9 * HOUR_S, 40 * YEAR_S):
        clock.advance(ahead_s)
        assert await store.claim("other", {"over": 0}) == {"over": 0}
        assert await store.claim("other", {"more": HOUR_S}) == {"more": 0}
        await worker.send()
        await worker.send()
        clock.advance(-ahead_s)
        assert (await store.claim("third", {"over": 0}))["over"] > 0


async def test_retention_deletes_what_was_not_released(store: Store, worker: Worker, clock: Clock) -> None:
    await store.claim("one", {"past": HOUR_S, "held": 90 * 24 * HOUR_S, "freed": HOUR_S})
    await store.claim("one", {"freed": 0})
    await pass_days(worker, clock, CLAIMS_KEPT_S // 86_400 + 2)
    await store.claim("one", {"new": HOUR_S})
    await worker.send()
    if isinstance(store, RedisStore):
        (found,) = await store._reading.ask(("KEYS", f"{store._base}claim:*"))
        assert {name.rpartition(":")[2] for name in found} == {"held", "new"}
        assert (await store._reading.ask(("ZCOUNT", f"{store._base}ages", "-inf", clock.now)))[0] == 0
    else:
        assert isinstance(store, SqliteStore)
        with opened(store._path.parent) as db:
            assert {name for (name,) in db.execute("SELECT name FROM claims")} == {"held", "new"}


# --------------------------------------------------------------------------------------------------------- exchange


async def test_workers_exchange_texts(store: Store) -> None:
    assert await store.exchange("here", "one", "hello world 1", HOUR_S) == {}
    assert await store.exchange("here", "two", "", HOUR_S) == {"one": "hello world 1"}
    assert await store.exchange("here", "one", '["x", "é|"]', HOUR_S) == {"two": ""}
    assert await store.exchange("here", "two", "2", HOUR_S) == {"one": '["x", "é|"]'}
    assert await store.exchange("there", "three", "3", HOUR_S) == {}


async def test_a_text_stands_for_as_long_as_it_said(store: Store, clock: Clock) -> None:
    await store.exchange("here", "one", "1", HOUR_S)
    await store.exchange("here", "two", "2", 3 * HOUR_S)
    clock.advance(2 * HOUR_S)
    assert await store.exchange("here", "three", "3", HOUR_S) == {"two": "2"}
    clock.advance(2 * HOUR_S)
    assert await store.exchange("here", "one", "1", HOUR_S) == {}


async def test_a_short_post_does_not_end_a_longer_one(store: Store, clock: Clock) -> None:
    await store.exchange("here", "one", "1", HOUR_S)
    await store.exchange("here", "two", "", 0.001)
    await at_least(0.05)  # Redis ends a whole place by its own clock
    clock.advance(1)
    assert await store.exchange("here", "three", "", HOUR_S) == {"one": "1"}


async def test_a_text_of_a_clock_that_was_ahead_is_dropped(store: Store, clock: Clock) -> None:
    clock.advance(40 * YEAR_S)
    await store.exchange("here", "one", "1", HOUR_S)
    clock.advance(-40 * YEAR_S)
    assert await store.exchange("here", "two", "2", HOUR_S) == {}
    assert await store.exchange("here", "one", "1", HOUR_S) == {"two": "2"}
    assert await store.exchange("here", "two", "2", 3 * HOUR_S) == {"one": "1"}
    assert await store.exchange("here", "three", "", 1) == {"one": "1", "two": "2"}
