"""The promises of every store about workers that fall silent, come back, or are retired. Nothing here knows which store
it is."""

from __future__ import annotations

import pytest

from gateway.records import Claim, Granted, Usage
from gateway.store import (
    MAX_GAP_S,
    REAPED_AT_ONCE,
    REOPENED_AT_ONCE,
    SIGN_OF_LIFE_S,
    SILENT_S,
    Batch,
    Progress,
    Reserve,
    Store,
)

from .changes import HOUR_S, NOON, SECOND, Clock, daily, draw, money, parallel, settlement, slow, tokens
from .conftest import OpensStores
from .worker import Worker, endings, levels, standing

DAY_S = 86_400
A_WHILE_S = SILENT_S + 1


async def lost(worker: Worker, by: Worker, clock: Clock, *claims: Claim, **changes: object) -> Reserve:
    """What a worker drew before it fell silent, and another closed."""
    wish = await worker.granted(*claims, **changes)
    await by.listen(clock, A_WHILE_S)
    assert (await by.send()).lost == 1
    return wish


# ------------------------------------------------------------------------------------------------------ lost workers


async def test_what_a_silent_worker_drew_is_charged_at_its_estimate(
    worker: Worker, other: Worker, clock: Clock
) -> None:
    claims = [daily(100), tokens(100, 40), money(100, 50), slow(60, 40), parallel(1)]
    await worker.settle(await worker.granted(*claims), 7, cost_nusd=8)
    wish = await lost(worker, other, clock, *claims)
    store = other.store
    assert await levels(store, clock, *claims) == [(2, 0), (47, 0), (58, 0), (47, 0), (0, 0)]
    newest, _ = await store.calls(9)
    assert (newest["id"], newest["ended"], newest["cost_nusd"]) == (wish.record.id, "lost", 50)
    assert newest["usage"] == Usage(0, 40, source="estimated")._asdict()
    (row,) = await store.usage([])
    assert (row["requests"], row["total_tokens"], row["estimated_tokens"]) == (2, 47, 40)
    await other.granted(parallel(1))
    assert (await other.send()).lost == 0


async def test_a_cached_report_is_as_fresh_as_a_new_one(worker: Worker, other: Worker, clock: Clock) -> None:
    """Whatever changes a day: a settlement, a call that is lost, the truth of it, and its being taken back."""

    async def sums() -> list[tuple[int, int]]:
        for store in (worker.store, other.store):
            assert await store.usage(["key"], "2026-11-01") == await other.store.usage(["key"])
            assert await store.usage(["key"], "2026-11-01T00") == await other.store.usage(["key"])
        return [(row["requests"], row["total_tokens"]) for row in await worker.store.usage(["key"], "2026-11-01")]

    assert await sums() == []
    await worker.settle(await worker.granted(daily(100), tokens(100, 40)), 7)
    assert await sums() == [(1, 7)]
    first, second = [await worker.granted(daily(100), tokens(100, 40)) for _ in range(2)]
    assert await sums() == [(1, 7)]
    await other.listen(clock, A_WHILE_S)
    assert (await other.send()).lost == 2
    assert await sums() == [(3, 87)]
    await worker.settle(first, 5)
    assert await sums() == [(2, 12)]
    await worker.void(second)
    assert await sums() == [(2, 12)]
    clock.advance(2 * DAY_S)
    await other.settle(await other.granted(daily(100)), 1, time=NOON / SECOND)
    assert await sums() == [(3, 13)]


async def test_a_worker_that_was_silent_and_comes_in_time_settles_as_ever(
    worker: Worker, other: Worker, clock: Clock
) -> None:
    """A silent worker's leases are closed only by a call of another worker; no worker closes its own."""
    wish = await worker.granted(tokens(100, 40), parallel(1))
    clock.advance(10 * SILENT_S)
    assert (await worker.send()).lost == 0
    assert (await other.send()).lost == 0
    await worker.settle(wish, 5)
    assert await levels(other.store, clock, tokens(100), parallel(1)) == [(5, 0), (0, 0)]


async def test_time_in_which_the_store_heard_no_worker_is_no_silence(
    worker: Worker, other: Worker, clock: Clock
) -> None:
    """The store was unavailable, the machine suspended, or the clock set forward."""
    await other.send()
    running = await worker.granted(tokens(100, 40), parallel(1))
    for away_s in (A_WHILE_S, HOUR_S):
        clock.advance(away_s)
        assert (await other.send()).lost == 0
        await other.refused(parallel(1))
        assert (await worker.send()).lost == 0
    await worker.settle(running, 5)
    assert await endings(other.store) == ["done"]


async def test_a_worker_that_ended_during_an_outage_is_found_afterwards(
    worker: Worker, other: Worker, clock: Clock
) -> None:
    await worker.granted(tokens(100, 40), parallel(1))
    clock.advance(HOUR_S)
    assert (await other.send()).lost == 0
    await other.listen(clock, SILENT_S - MAX_GAP_S - 1)
    assert (await other.send()).lost == 0
    await other.listen(clock, 2)
    assert (await other.send()).lost == 1


async def test_a_clock_that_is_set_back_closes_no_call(worker: Worker, other: Worker, clock: Clock) -> None:
    await worker.granted(parallel(1))
    await other.send()
    clock.advance(-2 * HOUR_S)
    assert (await other.send()).lost == 0
    clock.advance(2 * HOUR_S)
    assert (await other.send()).lost == 0
    await other.refused(parallel(1))


async def test_leases_of_silent_workers_are_closed_in_portions(
    worker: Worker, other: Worker, open_store: OpensStores, clock: Clock
) -> None:
    third = Worker(await open_store())
    for silent in (worker, third):
        await silent.draw_all(draw(daily(200), tokens(10_000, 3)) for _ in range(REAPED_AT_ONCE + 5))
    await other.listen(clock, A_WHILE_S)
    closed = [(await other.send()).lost for _ in range(5)]
    assert closed == [REAPED_AT_ONCE, REAPED_AT_ONCE, 10, 0, 0]
    number = 2 * REAPED_AT_ONCE + 10
    assert await levels(other.store, clock, daily(200), tokens(10_000)) == [(number, 0), (3 * number, 0)]
    assert await endings(other.store) == ["lost"] * number


async def test_who_falls_silent_is_found_however_often_others_have_looked(
    worker: Worker, other: Worker, open_store: OpensStores, clock: Clock
) -> None:
    third = Worker(await open_store())
    await worker.granted(daily(9))
    for _ in range(SILENT_S // SIGN_OF_LIFE_S - 1):
        clock.advance(SIGN_OF_LIFE_S)
        assert (await other.send()).lost == 0
        assert (await third.send()).lost == 0
    await third.granted(daily(9))
    clock.advance(SIGN_OF_LIFE_S + 1)
    assert (await other.send()).lost == 1
    await other.listen(clock, SILENT_S - SIGN_OF_LIFE_S - 2)
    assert (await other.send()).lost == 0
    clock.advance(4)
    assert (await other.send()).lost == 1
    assert await endings(other.store) == ["lost", "lost"]


@pytest.mark.parametrize("used", [0, 15, 40, 90])
async def test_a_late_settlement_corrects_a_lost_call_by_the_difference(
    worker: Worker, other: Worker, clock: Clock, used: int
) -> None:
    claims = [daily(100), tokens(100, 40), money(100, 50), slow(60, 40), parallel(1)]
    wish = await lost(worker, other, clock, *claims, upstream="")
    await worker.settle(wish, used, cost_nusd=2 * used)
    store = other.store
    assert await levels(store, clock, *claims) == [(1, 0), (used, 0), (2 * used, 0), (used, 0), (0, 0)]
    (call,) = await store.calls(9)
    assert (call["id"], call["ended"], call["usage"]["prompt_tokens"]) == (wish.record.id, "done", used)
    (row,) = await store.usage(["upstream"])
    assert (row["upstream"], row["requests"], row["total_tokens"], row["estimated_tokens"]) == ("up", 1, used, 0)
    assert row["cost_usd"] == 2 * used / 1e9


async def test_a_lost_call_is_corrected_once(worker: Worker, other: Worker, clock: Clock) -> None:
    wish = await lost(worker, other, clock, tokens(100, 40), slow(60, 40))
    end = worker.closing(settlement(wish, 15))
    await worker.send(end, end)
    await worker.send(end)
    assert await levels(other.store, clock, tokens(100), slow(60)) == [(15, 0), (15, 0)]
    assert await endings(other.store) == ["done"]


async def test_the_slot_of_a_lost_call_is_freed_once(worker: Worker, other: Worker, clock: Clock) -> None:
    wish = await lost(worker, other, clock, parallel(2))
    await other.granted(parallel(2))
    await worker.settle(wish)
    assert await standing(other.store, parallel(2), clock) == (1, 0)


async def test_a_late_correction_gives_back_less(worker: Worker, other: Worker, clock: Clock) -> None:
    wish = await lost(worker, other, clock, slow(60, 40), tokens(100, 40))
    clock.advance(30 * HOUR_S)
    await other.granted(slow(60, 20))
    await worker.settle(wish, 5)  # of the 35 too many, half are lost after half of the period
    assert await levels(other.store, clock, slow(60), tokens(100)) == [(13, 0), (5, 0)]


async def test_a_lost_call_of_yesterday_is_corrected_there(worker: Worker, other: Worker, clock: Clock) -> None:
    wish = await lost(worker, other, clock, tokens(100, 40))
    clock.advance(DAY_S)
    tomorrow = tokens(100, 10, starts="2026-11-21", resets_us=NOON + 129_600 * SECOND)
    await other.settle(await other.granted(tomorrow), 10, time=clock.now)
    await worker.settle(wish, 15)
    assert await levels(other.store, clock, tokens(100), tomorrow) == [(15, 0), (10, 0)]
    assert [(row["day"], row["total_tokens"]) for row in await other.store.usage(["day"])] == [
        ("2026-11-20", 15), ("2026-11-21", 10),
    ]  # fmt: skip


async def test_a_void_takes_a_lost_call_back(worker: Worker, other: Worker, clock: Clock) -> None:
    claims = [daily(100), tokens(100, 40), money(100, 50), slow(60, 40), parallel(5)]
    await other.granted(parallel(5))
    wish = await lost(worker, other, clock, *claims)
    await worker.void(wish)
    store = other.store
    assert await levels(store, clock, *claims) == [(0, 0), (0, 0), (0, 0), (0, 0), (1, 0)]
    assert await store.calls(9) == []
    assert await store.usage([]) == await store.usage(["key"]) == []
    await worker.void(wish)
    assert await standing(store, tokens(100), clock) == (0, 0)


async def test_lost_calls_of_a_worker_that_is_heard_again_are_open_again(
    worker: Worker, other: Worker, clock: Clock
) -> None:
    """Even beyond the limit: others have drawn meanwhile. A sign of life is enough."""
    claims = [daily(100), tokens(100, 40), money(100, 50), slow(60, 40), parallel(1)]
    wish = await lost(worker, other, clock, *claims)
    taken = await other.granted(tokens(100, 50), parallel(1))
    await worker.send()
    store = other.store
    assert await levels(store, clock, *claims) == [(0, 1), (0, 90), (0, 50), (40, 0), (2, 0)]
    assert await store.calls(9) == await store.usage([]) == await store.usage(["key"], "2026-11-01T00") == []
    await other.settle(taken, 50)
    await other.refused(parallel(1))
    await worker.settle(wish, 15, cost_nusd=9)
    assert await levels(store, clock, *claims) == [(1, 0), (65, 0), (9, 0), (15, 0), (0, 0)]
    assert await endings(store) == ["done", "done"]


async def test_a_call_can_be_lost_and_open_again_more_than_once(worker: Worker, other: Worker, clock: Clock) -> None:
    wish = await worker.granted(tokens(100, 40), slow(60, 40), parallel(1))
    for _ in range(3):
        await other.listen(clock, A_WHILE_S)
        assert (await other.send()).lost == 1
        assert await endings(other.store) == ["lost"]
        await worker.send()
        assert await endings(other.store) == []
    await worker.settle(wish, 15)
    assert await levels(other.store, clock, tokens(100), parallel(1)) == [(15, 0), (0, 0)]


async def test_lost_calls_are_opened_again_in_portions(worker: Worker, other: Worker, clock: Clock) -> None:
    number = REOPENED_AT_ONCE + 20
    await worker.draw_all(draw(tokens(10_000, 3), parallel(1000)) for _ in range(number))
    await other.listen(clock, A_WHILE_S)
    while (await other.send()).lost:
        pass
    assert await levels(other.store, clock, tokens(10_000), parallel(1000)) == [(3 * number, 0), (0, 0)]
    await worker.send()
    assert await levels(other.store, clock, tokens(10_000), parallel(1000)) == [(60, 300), (REOPENED_AT_ONCE, 0)]
    await worker.send()
    assert await levels(other.store, clock, tokens(10_000), parallel(1000)) == [(0, 3 * number), (number, 0)]
    assert await endings(other.store) == []


async def test_a_lost_call_that_is_drawn_again_is_open_once(worker: Worker, other: Worker, clock: Clock) -> None:
    """As after a loss of data, with a claim more than before."""
    wish = await lost(worker, other, clock, tokens(100, 40), parallel(1))
    more = wish._replace(claims=(*wish.claims, daily(100)))
    assert isinstance(await worker.draw(more, is_forced=True), Granted)
    assert await levels(other.store, clock, *more.claims) == [(0, 40), (1, 0), (0, 1)]
    await worker.settle(more, 15)
    assert await levels(other.store, clock, *more.claims) == [(15, 0), (0, 0), (1, 0)]


async def test_a_worker_that_comes_back_goes_on(worker: Worker, other: Worker, clock: Clock) -> None:
    """A worker is stopped for a minute during its calls, then continues: the sums are right."""
    wishes = [await worker.granted(daily(100), tokens(1000, 40), parallel(9)) for _ in range(3)]
    await other.listen(clock, A_WHILE_S)
    assert (await other.send()).lost == 3
    clock.advance(3 * SILENT_S)
    late = draw(daily(100), tokens(1000, 10), parallel(9))
    applied = await worker.send(
        worker.closing(settlement(wishes[0], 50)), worker.opening(late), worker.voiding(wishes[1])
    )
    assert applied.lost == 0
    assert await levels(other.store, clock, daily(100), tokens(1000), parallel(9)) == [(1, 2), (50, 50), (2, 0)]
    await worker.settle_all([settlement(wishes[2], 1), settlement(late, 2)])
    assert await levels(other.store, clock, daily(100), tokens(1000), parallel(9)) == [(3, 0), (53, 0), (0, 0)]
    assert await endings(other.store) == ["done"] * 3
    (row,) = await other.store.usage([])
    assert (row["requests"], row["total_tokens"], row["estimated_tokens"]) == (3, 53, 0)


async def test_an_adopter_delivers_the_journal_of_a_killed_worker(worker: Worker, other: Worker, clock: Clock) -> None:
    """Its entries go under its name, so that what it had delivered itself is skipped; then it is retired."""
    wishes = [await worker.granted(tokens(1000, 40)) for _ in range(3)]
    ends = [worker.closing(settlement(wish, 4)) for wish in wishes]
    await worker.send(ends[0])
    await other.listen(clock, A_WHILE_S)
    assert (await other.send()).lost == 2
    seq, _ = await other.store.progress(worker.name)
    await other.store.apply(Batch(worker.name, seq + 1, seq, ends[:2], is_adopted=True))
    assert await endings(other.store) == ["done", "lost", "done"]
    await other.store.apply(Batch(worker.name, seq + 2, seq + 1, ends[2:], is_adopted=True))
    await other.store.retire(worker.name)
    assert await standing(other.store, tokens(1000), clock) == (12, 0)
    assert await endings(other.store) == ["done"] * 3


# ------------------------------------------------------------------------------------------------------- retirement


async def test_a_worker_that_is_retired_is_forgotten(worker: Worker, other: Worker, clock: Clock) -> None:
    await worker.settle(await worker.granted(tokens(100, 40)), 4)
    await other.store.retire(worker.name)
    assert await worker.store.progress(worker.name) == Progress(0, 0)
    await other.listen(clock, A_WHILE_S)
    assert (await other.send()).lost == 0
    assert await standing(other.store, tokens(100), clock) == (4, 0)


async def test_what_a_retired_worker_has_left_open_came_to_nothing(worker: Worker, other: Worker, clock: Clock) -> None:
    claims = [tokens(10_000, 40), slow(60_000, 40), parallel(500)]
    await other.granted(*claims)
    await worker.draw_all(draw(*claims) for _ in range(230))
    await other.store.retire(worker.name)
    assert await levels(other.store, clock, *claims) == [(0, 40), (40, 0), (1, 0)]
    assert await other.store.calls(9) == []
    await other.listen(clock, A_WHILE_S)
    assert (await other.send()).lost == 0


async def test_what_a_retired_worker_lost_stays_charged(worker: Worker, other: Worker, clock: Clock) -> None:
    wish = await lost(worker, other, clock, tokens(100, 40))
    await other.store.retire(worker.name)
    await Worker(other.store, worker.name).void(wish)  # as if it had been given up too soon
    assert await standing(other.store, tokens(100), clock) == (40, 0)
    assert await endings(other.store) == ["lost"]


async def test_a_worker_that_is_retired_twice_or_was_never_there(worker: Worker, store: Store, clock: Clock) -> None:
    await worker.granted(tokens(100, 40))
    await store.retire("nobody")
    assert await standing(store, tokens(100), clock) == (0, 40)
    await store.retire(worker.name)
    await store.retire(worker.name)
    assert await standing(store, tokens(100), clock) == (0, 0)
