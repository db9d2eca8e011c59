"""The queue in front of a store: one batch in flight, nothing lost, nothing answered twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.records import Draw, Granted, Refused, Settlement, Usage
from gateway.store import StoreAway
from gateway.store import batch as batches
from gateway.store.batch import MAX_BATCH, Batcher

from .wishes import draw, record

Wish = Draw | Settlement


class Store:
    """Applies batches when a test lets it; fails on request."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.applied: list[str] = []
        self.wishes: list[Wish] = []
        self.under_way = 0
        self.errors = 0
        self.poison: set[str] = set()
        self.is_away = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()

    async def apply(self, wishes: Sequence[Wish]) -> Sequence[Granted | Refused | None]:
        assert wishes, "an empty batch is a round trip for nothing"
        self.under_way += 1
        assert self.under_way == 1, "one batch in flight at a time"
        names = [wish.record.id for wish in wishes]
        self.batches.append(names)
        self.called.set()
        try:
            await self.gate.wait()
            if self.is_away:
                raise StoreAway("away on request")
            if self.poison & set(names):
                raise OverflowError("poisoned")
            self.applied += names
            self.wishes += wishes
            return [Granted() if isinstance(wish, Draw) else None for wish in wishes]
        finally:
            self.under_way -= 1

    def count_error(self) -> None:
        self.errors += 1


@pytest.fixture
async def store() -> Store:
    return Store()


@pytest.fixture
async def batcher(store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Batcher]:
    monkeypatch.setattr(batches, "RETRY_S", 0.01)
    made = Batcher(store.apply, store.count_error)
    yield made
    store.gate.set()
    store.is_away = False
    await made.close(5)


def settle(name: str) -> Settlement:
    return Settlement(record(name), ())


async def in_flight(store: Store, batcher: Batcher, wish: Wish) -> asyncio.Future[Granted | Refused | None]:
    """Submit a wish, and stop the store while it has it."""
    store.gate.clear()
    store.called.clear()
    answer = batcher.submit(wish)
    await store.called.wait()
    return answer


async def test_a_single_wish_waits_for_nobody(store: Store, batcher: Batcher) -> None:
    assert await batcher.submit(draw(call="a")) == Granted()
    assert await batcher.submit(settle("a")) is None
    assert store.batches == [["a"], ["a"]]
    assert batcher.pending == 0


async def test_batches_grow_while_one_is_in_flight(store: Store, batcher: Batcher) -> None:
    first = await in_flight(store, batcher, draw(call="first"))
    rest = [batcher.submit(draw(call=f"{number}")) for number in range(MAX_BATCH + 20)]
    store.gate.set()
    await asyncio.gather(first, *rest)
    assert [len(names) for names in store.batches] == [1, MAX_BATCH, 20]
    assert store.applied == ["first", *(f"{number}" for number in range(MAX_BATCH + 20))]


async def test_what_arrives_in_one_turn_goes_in_one_batch(store: Store, batcher: Batcher) -> None:
    await asyncio.gather(*(batcher.submit(draw(call=f"{number}")) for number in range(7)))
    assert [len(names) for names in store.batches] == [7]


async def test_draws_raise_at_once_and_settlements_are_kept_in_order(store: Store, batcher: Batcher) -> None:
    first = await in_flight(store, batcher, settle("a"))
    draws = [batcher.submit(draw()) for _ in range(3 * MAX_BATCH)]
    ends = [first, *(batcher.submit(settle(name)) for name in "bcd")]
    store.is_away = True
    store.gate.set()
    for answer in draws:
        with pytest.raises(StoreAway, match="away on request"):
            await answer
    assert len(store.batches) == 1  # those that waited did not wait for a time-out of their own
    assert batcher.pending == 4
    store.is_away = False
    await asyncio.gather(*ends)
    assert store.applied == ["a", "b", "c", "d"]
    assert batcher.pending == 0
    assert store.errors >= 1


async def test_settlements_are_tried_until_they_are_delivered(
    store: Store, batcher: Batcher, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    store.is_away = True
    ends = [batcher.submit(settle(name)) for name in "abc"]
    while store.errors < 5:
        store.called.clear()
        await store.called.wait()
    late = batcher.submit(settle("d"))
    assert batcher.pending == 4
    store.is_away = False
    await asyncio.gather(*ends, late)
    assert store.applied == ["a", "b", "c", "d"]
    assert "the store is away" in caplog.text


async def test_a_new_draw_tries_again_without_waiting(
    store: Store, batcher: Batcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "RETRY_S", 3600)
    store.is_away = True
    end = batcher.submit(settle("a"))
    await store.called.wait()
    await asyncio.sleep(0)
    assert store.errors == 1
    store.is_away = False
    assert await batcher.submit(draw(call="b")) == Granted()
    assert await end is None
    assert store.applied == ["a", "b"]


async def test_a_cancelled_draw_is_carried_out_and_taken_back(store: Store, batcher: Batcher) -> None:
    first = await in_flight(store, batcher, draw(call="a"))
    later = [batcher.submit(draw(call="b")), batcher.submit(settle("c"))]
    last = batcher.submit(draw(call="d"))
    for answer in (first, *later):
        answer.cancel()
    store.gate.set()
    assert await last == Granted()
    assert await batcher.close(1) == 0
    assert store.applied == ["a", "b", "c", "d", "a", "b"]
    assert [(wish.record.ended, wish.record.usage) for wish in store.wishes[-2:]] == [("client_gone", Usage())] * 2


async def test_cancelling_is_harmless_when_the_store_is_away(store: Store, batcher: Batcher) -> None:
    first = await in_flight(store, batcher, draw(call="a"))
    end = batcher.submit(settle("b"))
    first.cancel()
    end.cancel()
    store.is_away = True
    store.gate.set()
    with pytest.raises(StoreAway):
        await batcher.submit(draw())
    store.is_away = False
    assert await batcher.submit(draw(call="c")) == Granted()
    assert store.applied == ["b", "c"]


async def test_one_bad_wish_does_not_stop_the_others(
    store: Store, batcher: Batcher, caplog: pytest.LogCaptureFixture
) -> None:
    """That would be our bug. It must not keep every other call from the store for ever."""
    store.poison = {"bad", "worse"}
    wishes: list[Wish] = [draw(call="a"), draw(call="bad"), settle("b"), settle("worse"), draw(call="c")]
    answers = [batcher.submit(wish) for wish in wishes]
    results = await asyncio.gather(*answers, return_exceptions=True)
    assert [type(result) for result in results] == [Granted, StoreAway, type(None), StoreAway, Granted]
    assert store.applied == ["a", "b", "c"]
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == [
        "the store cannot take call bad", "the store cannot take call worse",
    ]  # fmt: skip
    caplog.clear()
    await asyncio.gather(*(batcher.submit(draw()) for _ in range(3)))
    assert len(store.batches[-1]) == 3  # together again


async def test_close_delivers_what_waits(store: Store, batcher: Batcher) -> None:
    first = await in_flight(store, batcher, settle("a"))
    second = batcher.submit(settle("b"))
    store.gate.set()
    assert await batcher.close(5) == 0
    assert first.done()
    assert second.done()
    assert store.applied == ["a", "b"]


async def test_close_says_how_many_were_left(store: Store, batcher: Batcher) -> None:
    store.is_away = True
    ends = [batcher.submit(settle(name)) for name in "abc"]
    assert await batcher.close(0.05) == 3
    assert not any(end.done() for end in ends)


async def test_what_was_under_way_when_time_ran_out_counts_as_left(store: Store, batcher: Batcher) -> None:
    await in_flight(store, batcher, settle("a"))
    batcher.submit(settle("b"))
    waiting = batcher.submit(draw())
    assert await batcher.close(0.01) == 2
    with pytest.raises(StoreAway, match="closed"):
        await waiting


async def test_nothing_waits_for_ever_on_a_closed_batcher(store: Store, batcher: Batcher) -> None:
    assert await batcher.close(1) == 0
    with pytest.raises(StoreAway, match="closed"):
        await batcher.submit(draw())
    assert store.batches == []


async def test_repr(store: Store, batcher: Batcher) -> None:
    await in_flight(store, batcher, settle("a"))
    batcher.submit(settle("b"))
    assert repr(batcher) == "<Batcher 1 waiting, 1 in flight>"
    store.gate.set()
