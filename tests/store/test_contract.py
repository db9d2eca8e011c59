"""The promises of every store (gateway/store/__init__.py). Nothing here knows which one it is.

The clock of a store may run during a test, so rates are slow here (one unit an hour) and times are compared by the
minute. The arithmetic to the microsecond is tested in tests/quota/test_windows.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gateway.quota import windows
from gateway.records import Claim, Granted, Refused
from gateway.store import (
    SIGN_OF_LIFE_S,
    SILENT_S,
    Batch,
    Item,
    Progress,
    RateDraw,
    Reserve,
    Store,
    StoreLostWrites,
    StoreUnavailable,
    Void,
)

from .changes import HOUR, HOUR_S, NOON, SECOND, Clock, daily, draw, money, parallel, settlement, slow, tokens
from .conftest import OpensStores
from .worker import Worker, about, endings, levels, standing

DAY_S = 86_400


# ------------------------------------------------------------------------------------------------------------- draws


async def test_a_draw_takes_all_windows_or_none(worker: Worker, store: Store, clock: Clock) -> None:
    claims = [daily(5), tokens(100, 10, scope="team:red"), slow(60, 10), parallel(9)]
    await worker.granted(*claims)
    before = await levels(store, clock, *claims)
    verdict = await worker.refused(daily(5), slow(60, 10), tokens(100, 91, scope="team:red"), parallel(9))
    assert verdict.window_status.window.scope == "team:red"
    assert await levels(store, clock, *claims) == before == [(0, 1), (0, 10), (10, 0), (1, 0)]


async def test_a_grant_returns_the_windows_after_it(worker: Worker) -> None:
    verdict = await worker.draw(draw(tokens(100, 30), slow(60, 12), parallel(2)))
    assert isinstance(verdict, Granted)
    assert [(found.used, found.reserved, found.remaining) for found in verdict.window_statuses] == [
        (0, 30, 70), (12, 0, 48), (1, 0, 1),
    ]  # fmt: skip
    assert verdict.window_statuses[1].reset_us == about(12 * HOUR)


async def test_a_refusal_returns_the_use_and_the_claim(worker: Worker) -> None:
    await worker.settle(await worker.granted(tokens(100, 30)), 30)
    await worker.granted(tokens(100, 50))
    verdict = await worker.refused(tokens(100, 21))
    assert (verdict.window_status.used, verdict.window_status.reserved, verdict.asked) == (30, 50, 21)
    assert verdict.window_status.window == tokens(100).window


async def test_a_call_without_quotas_is_recorded_too(worker: Worker, store: Store) -> None:
    wish = await worker.granted()
    await worker.settle(wish, 7)
    assert [row["id"] for row in await store.calls(10)] == [wish.record.id]


async def test_of_two_refusals_the_longer_one_is_returned(worker: Worker) -> None:
    await worker.settle(await worker.granted(daily(1), slow(60, 60), parallel(1)), 60)
    verdict = await worker.refused(slow(60, 60), daily(1), parallel(1))
    assert (verdict.window_status.window.unit, verdict.retry_after_us) == ("requests", None)


async def test_exactly_100_of_500_are_granted(worker: Worker, store: Store, clock: Clock) -> None:
    wishes = [draw(daily(100), parallel(1000)) for _ in range(500)]
    verdicts = await worker.draw_all(wishes)
    lucky = [wish for wish, verdict in zip(wishes, verdicts, strict=True) if isinstance(verdict, Granted)]
    assert len(lucky) == 100
    assert await standing(store, daily(100), clock) == (0, 100)
    for verdict in verdicts:
        if isinstance(verdict, Refused):
            assert verdict.retry_after_us == windows.IN_THE_WAY_US  # running calls, which may yet give it back
    await worker.settle_all(settlement(wish) for wish in lucky)
    assert await levels(store, clock, daily(100), parallel(1000)) == [(100, 0), (0, 0)]
    assert (await worker.refused(daily(100))).retry_after_us is None


async def test_tokens_never_exceed_their_limit(worker: Worker, store: Store, clock: Clock) -> None:
    wishes = [draw(tokens(1000, 1 + number % 37)) for number in range(300)]
    verdicts = await worker.draw_all(wishes)
    drawn = [wish.claims[0].amount for wish, found in zip(wishes, verdicts, strict=True) if isinstance(found, Granted)]
    assert sum(drawn) <= 1000
    assert await standing(store, tokens(1000), clock) == (0, sum(drawn))
    left = 1000 - sum(drawn)
    assert all(found.asked > left for found in verdicts if isinstance(found, Refused))


async def test_shadow_is_counted_and_never_refused(worker: Worker, store: Store, clock: Clock) -> None:
    for _ in range(5):
        await worker.granted(daily(2, is_enforced=False))
    assert await standing(store, daily(2), clock) == (0, 5)
    await worker.refused(daily(2))


async def test_a_draw_that_is_repeated_is_granted_and_draws_once(worker: Worker, store: Store, clock: Clock) -> None:
    claims = [tokens(100, 60), slow(60, 60), parallel(1)]
    wish = await worker.granted(*claims)
    again = await worker.send(worker.opening(wish), worker.opening(wish))
    for verdict in again.verdicts:
        assert isinstance(verdict, Granted)
        assert [(found.used, found.reserved) for found in verdict.window_statuses] == [(0, 60), (60, 0), (1, 0)]
    twice = draw(tokens(100, 30))
    await worker.send(worker.opening(twice), worker.opening(twice))
    assert await levels(store, clock, *claims) == [(0, 90), (60, 0), (1, 0)]


async def test_a_forced_draw_takes_what_is_not_there(worker: Worker, store: Store, clock: Clock) -> None:
    claims = [tokens(100, 80), slow(60, 40), parallel(1)]
    await worker.granted(*claims)
    verdict = await worker.draw(draw(*claims), is_forced=True)
    assert isinstance(verdict, Granted)
    assert [found.remaining for found in verdict.window_statuses] == [0, 0, 0]
    assert await levels(store, clock, *claims) == [(0, 160), (80, 0), (2, 0)]
    assert (await worker.refused(slow(60, 1))).retry_after_us == about(21 * HOUR)


async def test_a_forced_draw_of_an_open_lease_draws_nothing(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(tokens(100, 80), parallel(1))
    assert isinstance(await worker.draw(wish, is_forced=True), Granted)
    assert await levels(store, clock, tokens(100), parallel(1)) == [(0, 80), (1, 0)]


# ------------------------------------------------------------------------------------------------------------- rates


async def test_a_rate_refills_smoothly(worker: Worker, clock: Clock) -> None:
    await worker.granted(slow(60, 60))
    assert (await worker.refused(slow(60, 1))).retry_after_us == about(HOUR)
    clock.advance(0.9 * HOUR_S)
    assert (await worker.refused(slow(60, 1))).retry_after_us == about(HOUR // 10)
    clock.advance(0.1 * HOUR_S)
    await worker.granted(slow(60, 1))
    verdict = await worker.refused(slow(60, 30))
    assert verdict.retry_after_us == about(30 * HOUR)
    clock.advance(30 * HOUR_S)
    await worker.granted(slow(60, 30))
    clock.advance(1000 * HOUR_S)
    await worker.granted(slow(60, 60))
    await worker.refused(slow(60, 1))


async def test_a_call_after_the_given_wait_is_admitted(worker: Worker, clock: Clock) -> None:
    for _ in range(20):
        verdict = await worker.draw(draw(slow(7, 3)))
        if isinstance(verdict, Refused):
            assert verdict.retry_after_us is not None
            clock.advance(verdict.retry_after_us / SECOND)
            await worker.granted(slow(7, 3))


async def test_a_limit_that_changed_keeps_what_was_used(worker: Worker, store: Store, clock: Clock) -> None:
    await worker.granted(tokens(100, 50), slow(60, 30))
    await worker.refused(tokens(40))
    await worker.refused(slow(20, 1))
    await worker.granted(tokens(51), slow(31, 1))
    assert await standing(store, tokens(51), clock) == (0, 51)


async def test_refund_of_a_rate(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(slow(60, 50))
    clock.advance(11 * HOUR_S)
    await worker.settle(wish, 20)  # after 11 of 60 hours 5.5 of the 30 are lost
    assert await standing(store, slow(60), clock) == (15, 0)


async def test_a_long_stream_gives_back_nothing_that_others_have_drawn(worker: Worker, clock: Clock) -> None:
    wish = await worker.granted(slow(60, 60))
    clock.advance(60 * HOUR_S)
    await worker.granted(slow(60, 60))
    await worker.settle(wish, 0)
    await worker.refused(slow(60, 1))


async def test_an_excess_is_charged_in_full(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(slow(60, 10), tokens(100, 10))
    await worker.settle(wish, 150)
    assert await levels(store, clock, slow(60), tokens(100)) == [(150, 0), (150, 0)]
    assert (await worker.refused(slow(60, 1))).retry_after_us == about(91 * HOUR)
    assert (await worker.refused(tokens(100, 0))).retry_after_us is None


async def test_a_clock_that_steps_back_changes_nothing(worker: Worker, clock: Clock) -> None:
    wish = await worker.granted(slow(60, 60))
    clock.advance(-10 * HOUR_S)
    await worker.refused(slow(60, 1))
    await worker.settle(wish, 60)
    clock.advance(10 * HOUR_S)
    await worker.refused(slow(60, 1))
    clock.advance(HOUR_S)
    await worker.granted(slow(60, 1))


# --------------------------------------------------------------------------------------------- draws without a lease


async def counted(worker: Worker, *claims: Claim) -> Granted | Refused | None:
    (verdict,) = (await worker.send(RateDraw(claims))).verdicts
    return verdict


async def test_a_count_stays_drawn(worker: Worker, store: Store, clock: Clock) -> None:
    one, other = slow(60, 20), slow(60, 20, scope="team:red")
    verdict = await counted(worker, one, other)
    assert isinstance(verdict, Granted)
    assert [(found.used, found.remaining) for found in verdict.window_statuses] == [(20, 40), (20, 40)]
    assert await worker.granted(one)
    await store.void_leases(worker.name)  # of calls alone
    assert await levels(store, clock, one, other) == [(20, 0), (20, 0)]
    clock.advance(5.5 * HOUR_S)
    assert await levels(store, clock, one, other) == [(15, 0), (15, 0)]
    assert await store.calls(10) == []


async def test_a_count_takes_all_windows_or_none(worker: Worker, store: Store, clock: Clock) -> None:
    one, other = slow(60, 1), slow(60, 59, scope="team:red")
    assert isinstance(await counted(worker, one, other), Granted)
    refused = await counted(worker, one, slow(60, 2, scope="team:red"))
    assert isinstance(refused, Refused)
    assert (refused.window_status.window.scope, refused.asked, refused.retry_after_us) == ("team:red", 2, about(HOUR))
    assert [found.used for found in refused.window_statuses] == [1, 59]
    assert await levels(store, clock, one, other) == [(1, 0), (59, 0)]


async def test_counts_and_calls_of_one_batch_share_their_windows(worker: Worker, store: Store, clock: Clock) -> None:
    claim = slow(3, 1)
    wish = draw(claim)
    items = [RateDraw((claim,)), worker.opening(wish), RateDraw((claim,)), RateDraw((claim,))]
    kinds = [type(verdict) for verdict in (await worker.send(*items)).verdicts]
    assert sorted(kinds, key=str) == [Granted, Granted, Granted, Refused]
    await worker.send(worker.voiding(wish))
    assert await standing(store, claim, clock) in ((2, 0), (3, 0))  # whichever was drawn last was refused


async def test_a_count_in_shadow_is_never_refused(worker: Worker, store: Store, clock: Clock) -> None:
    for _ in range(3):
        assert isinstance(await counted(worker, slow(2, 1, is_enforced=False)), Granted)
    assert await standing(store, slow(2), clock) == (3, 0)


# -------------------------------------------------------------------------------------------------- parallel, calendar


async def test_parallel_calls(worker: Worker, clock: Clock) -> None:
    first, _ = await worker.granted(parallel(2)), await worker.granted(parallel(2))
    clock.advance(HOUR_S)
    assert (await worker.refused(parallel(2))).retry_after_us == windows.IN_THE_WAY_US
    await worker.settle(first)
    await worker.granted(parallel(2))
    await worker.refused(parallel(2))


async def test_used_and_reserved_are_apart(worker: Worker, store: Store, clock: Clock) -> None:
    first, second = await worker.granted(tokens(100, 40)), await worker.granted(tokens(100, 40))
    assert (await worker.refused(tokens(100, 40))).retry_after_us == windows.IN_THE_WAY_US
    await worker.settle(first, 10)
    assert await standing(store, tokens(100), clock) == (10, 40)
    third = await worker.granted(tokens(100, 50))
    await worker.settle_all([settlement(second, 40), settlement(third, 30)])
    assert await standing(store, tokens(100), clock) == (80, 0)
    assert (await worker.refused(tokens(100, 21))).retry_after_us is None


async def test_money_is_counted_to_a_billionth(worker: Worker, store: Store, clock: Clock) -> None:
    most = 2**53 - 1
    wish = await worker.granted(money(most, most))
    await worker.refused(money(most, 1))
    await worker.settle(wish, cost_nusd=most - 1)
    assert await standing(store, money(most), clock) == (most - 1, 0)
    await worker.refused(money(most, 2))
    await worker.granted(money(most, 1))


async def test_a_call_belongs_to_the_window_in_which_it_began(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(tokens(100, 40))
    clock.advance(DAY_S)
    tomorrow = tokens(100, starts="2026-11-21", resets_us=NOON + 129_600 * SECOND)
    await worker.granted(tomorrow)
    await worker.settle(wish, 30)
    assert await levels(store, clock, tokens(100), tomorrow) == [(30, 0), (0, 1)]
    assert [row["day"] for row in await store.usage(["day"])] == ["2026-11-20"]


# ----------------------------------------------------------------------------------------------------------- batches


async def test_a_batch_is_applied_in_its_order(worker: Worker, store: Store, clock: Clock) -> None:
    first, second = await worker.granted(parallel(1)), draw(parallel(1))
    applied = await worker.send(worker.opening(second), worker.closing(settlement(first)), worker.opening(second))
    assert [type(verdict) for verdict in applied.verdicts] == [Refused, type(None), Granted]
    assert await standing(store, parallel(1), clock) == (1, 0)


async def test_drawn_and_settled_in_one_breath(worker: Worker, store: Store, clock: Clock) -> None:
    wishes = [draw(tokens(1000, 10), parallel(100)) for _ in range(50)]
    items = [item for wish in wishes for item in (worker.opening(wish), worker.closing(settlement(wish, 4)))]
    await worker.send(*items)
    assert await levels(store, clock, tokens(1000), parallel(100)) == [(200, 0), (0, 0)]
    assert [row["id"] for row in await store.calls(100)] == [wish.record.id for wish in wishes][::-1]
    assert await store.progress(worker.name) == Progress(1, 50)


async def test_an_unknown_worker_has_no_position(store: Store) -> None:
    assert await store.progress("nobody") == Progress(0, 0)


async def test_progress_is_what_was_applied(worker: Worker, other: Worker) -> None:
    wish = await worker.granted()
    assert await other.store.progress(worker.name) == Progress(1, 0)
    await worker.settle(wish)
    await worker.send()
    assert await other.store.progress(worker.name) == Progress(3, 1)
    assert await other.store.progress(other.name) == Progress(0, 0)


async def test_a_late_copy_of_a_batch_does_nothing(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(tokens(100, 10))
    end = worker.closing(settlement(wish, 4))
    batch = Batch(worker.name, 5, 1, [worker.opening(draw(tokens(100, 20))), end])  # 2 to 4 were given up
    await store.apply(batch)
    for seq in (5, 4, 1):
        late = batch._replace(seq=seq, acked=0, items=[worker.opening(draw(tokens(100, 7))), worker.voiding(wish)])
        for copy in (late, batch._replace(seq=seq)):
            with pytest.raises(StoreUnavailable):
                await store.apply(copy)
    assert await standing(store, tokens(100), clock) == (4, 20)
    assert await store.progress(worker.name) == Progress(5, end.number)
    assert await endings(store) == ["done"]


async def test_a_batch_that_is_sent_twice_at_once_is_applied_once(worker: Worker, other: Worker, clock: Clock) -> None:
    batch = Batch(worker.name, 1, 0, [worker.opening(draw(daily(100))) for _ in range(50)])
    answers = await asyncio.gather(worker.store.apply(batch), other.store.apply(batch), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Applied", "StoreUnavailable"]
    assert await standing(other.store, daily(100), clock) == (0, 50)


async def test_a_draw_that_was_voided_before_it_arrived_is_a_late_copy(
    worker: Worker, store: Store, clock: Clock
) -> None:
    """The worker gave a batch up, and said so in the next one, which was faster."""
    wish = draw(tokens(100, 10), parallel(1))
    slower = Batch(worker.name, 1, 0, [worker.opening(wish)])
    worker.seq = 1
    await worker.void(wish)
    with pytest.raises(StoreUnavailable):
        await store.apply(slower)
    assert await levels(store, clock, tokens(100), parallel(1)) == [(0, 0), (0, 0)]


async def test_entries_at_or_below_the_mark_are_skipped(worker: Worker, store: Store, clock: Clock) -> None:
    wishes = [await worker.granted(tokens(100, 10)) for _ in range(4)]
    ends = [worker.closing(settlement(wish, 4)) for wish in wishes]
    await worker.send(*ends[:2])
    await worker.send(*ends[:3], ends[2])  # as after a time-out, with one more
    assert await standing(store, tokens(100), clock) == (12, 10)
    await worker.send(Void(ends[1].number, wishes[3].record.id))
    assert await standing(store, tokens(100), clock) == (12, 10)
    await worker.send(ends[3])
    await worker.send(*ends)
    assert await standing(store, tokens(100), clock) == (16, 0)
    assert await store.progress(worker.name) == Progress(worker.seq, 4)
    assert len(await store.calls(10)) == 4
    (row,) = await store.usage([])
    assert (row["requests"], row["total_tokens"]) == (4, 16)


async def test_a_store_that_does_not_know_what_was_acknowledged_is_behind(
    worker: Worker, store: Store, clock: Clock
) -> None:
    wish = await worker.granted(tokens(100, 10))
    await worker.settle(wish, 4)
    items: list[Item] = [worker.opening(draw(tokens(100, 20))), worker.closing(settlement(wish, 9))]
    with pytest.raises(StoreLostWrites) as caught:
        await store.apply(Batch(worker.name, 9, 8, items))
    assert caught.value.progress == Progress(2, 1)
    assert await standing(store, tokens(100), clock) == (4, 0)
    assert await store.progress(worker.name) == Progress(2, 1)
    await store.apply(Batch(worker.name, 10, 2, items))
    assert await standing(store, tokens(100), clock) == (13, 20)


async def test_a_store_that_has_forgotten_a_worker_is_behind(store: Store) -> None:
    with pytest.raises(StoreLostWrites) as caught:
        await store.apply(Batch("forgotten", 2, 1))
    assert caught.value.progress == Progress(0, 0)
    await store.apply(Batch("forgotten", 3, 0))


async def test_a_ping_is_answered_and_changes_nothing(worker: Worker, store: Store) -> None:
    await worker.send()
    await store.ping()
    assert await store.progress(worker.name) == Progress(1, 0)


async def test_nothing_can_be_asked_of_a_closed_store(open_store: OpensStores, clock: Clock) -> None:
    store = await open_store()
    await store.close()
    await store.close()
    for question in (
        store.apply(Batch("w", 1, 0)), store.progress("w"), store.retire("w"), store.ping(),
        store.window_statuses([daily(1).window], clock.now), store.usage([]), store.calls(1),
    ):  # fmt: skip
        with pytest.raises(StoreUnavailable):
            await question


# ------------------------------------------------------------------------------------------------------- settlements


async def test_a_settlement_counts_once(worker: Worker, other: Worker, store: Store, clock: Clock) -> None:
    claims = [tokens(100, 50), slow(60, 50), parallel(5)]
    await worker.granted(*claims)
    wish = await worker.granted(daily(9), *(claim._replace(amount=min(claim.amount, 10)) for claim in claims))
    end = worker.closing(settlement(wish, 7))
    await worker.send(*[end] * 5)
    await worker.send(end)
    heir = Worker(other.store, worker.name)  # the process that adopts the journal
    heir.seq = heir.acked = worker.seq
    await heir.send(end)
    assert await levels(store, clock, *claims, daily(9)) == [(7, 50), (57, 0), (1, 0), (1, 0)]
    (row,) = await store.usage([])
    assert (row["requests"], row["total_tokens"]) == (1, 7)
    assert len(await store.calls(10)) == 1


async def test_what_was_settled_outlives_the_worker(open_store: OpensStores, clock: Clock) -> None:
    store = await open_store()
    worker = Worker(store)
    await worker.settle(await worker.granted(tokens(100, 40), slow(60, 40)), 30)
    await store.close()
    again = await open_store()
    assert await levels(again, clock, tokens(100), slow(60)) == [(30, 0), (30, 0)]
    assert len(await again.calls(9)) == 1
    assert await again.progress(worker.name) == Progress(2, 1)


async def test_a_settlement_without_a_lease_charges_the_truth(worker: Worker, store: Store, clock: Clock) -> None:
    """The server has forgotten the draw, or the worker granted it by itself while there was no store."""
    claims = [daily(100, 1), tokens(100, 50), money(100, 50), slow(60, 50), parallel(5)]
    await worker.granted(parallel(5))
    await worker.settle(draw(*claims, time=clock.now), 30, time=clock.now, cost_nusd=20)
    assert await levels(store, clock, *claims) == [(1, 0), (30, 0), (20, 0), (30, 0), (1, 0)]
    assert await endings(store) == ["done"]
    (row,) = await store.usage([])
    assert (row["requests"], row["total_tokens"]) == (1, 30)


async def test_without_a_lease_a_rate_is_charged_what_has_not_leaked_since_the_call_began(
    worker: Worker, store: Store, clock: Clock
) -> None:
    await worker.granted(slow(60, 5))
    began = clock.now
    clock.advance(5 * HOUR_S)
    await worker.settle(draw(slow(60, 50)), 30, time=began)
    assert await standing(store, slow(60), clock) == (25, 0)
    await worker.settle(draw(slow(60, 50)), 5, time=began)
    assert await standing(store, slow(60), clock) == (25, 0)


async def test_without_a_lease_a_call_belongs_to_the_day_in_which_it_began(
    worker: Worker, store: Store, clock: Clock
) -> None:
    began = clock.now
    clock.advance(DAY_S)
    await worker.settle(draw(tokens(100, 50)), 30, time=began)
    assert await standing(store, tokens(100), clock) == (30, 0)
    assert [row["day"] for row in await store.usage(["day"])] == ["2026-11-20"]


# ------------------------------------------------------------------------------------------------------------- voids


async def test_a_void_gives_everything_back(worker: Worker, store: Store, clock: Clock) -> None:
    claims = [daily(100, 1), tokens(100, 50), money(100, 50), slow(60, 50), parallel(5)]
    await worker.granted(*claims)
    before = await levels(store, clock, *claims)
    wish = await worker.granted(*(claim._replace(amount=min(claim.amount, 9)) for claim in claims))
    await worker.void(wish)
    assert await levels(store, clock, *claims) == before
    assert await store.calls(9) == []
    assert await store.usage([]) == []


async def test_a_void_in_the_batch_of_its_draw(worker: Worker, store: Store, clock: Clock) -> None:
    claims = [tokens(100, 50), slow(60, 50), parallel(1)]
    wish = draw(*claims)
    applied = await worker.send(worker.opening(wish), worker.voiding(wish), worker.opening(draw(*claims)))
    assert [type(verdict) for verdict in applied.verdicts] == [Granted, type(None), Granted]
    assert await levels(store, clock, *claims) == [(0, 50), (50, 0), (1, 0)]


async def test_a_late_void_gives_back_less_of_a_rate(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(slow(60, 50))
    clock.advance(20 * HOUR_S)
    await worker.granted(slow(60, 15))
    await worker.void(wish)  # after 20 of 60 hours a third is lost
    assert await standing(store, slow(60), clock) == (12, 0)


async def test_a_void_of_what_was_never_drawn_changes_nothing(worker: Worker, store: Store, clock: Clock) -> None:
    full, wish = tokens(10, 10), draw(tokens(10, 10))
    await worker.granted(full)
    assert isinstance(await worker.draw(wish), Refused)
    await worker.void(wish)
    await worker.void(draw(tokens(10, 10)))
    assert await standing(store, full, clock) == (0, 10)
    assert await store.progress(worker.name) == Progress(4, 2)


async def test_a_void_counts_once(worker: Worker, store: Store, clock: Clock) -> None:
    await worker.granted(tokens(100, 50), parallel(5))
    wish = await worker.granted(tokens(100, 10), parallel(5))
    for _ in range(3):
        await worker.void(wish)
    assert await levels(store, clock, tokens(100), parallel(5)) == [(0, 50), (1, 0)]


async def test_what_was_voided_may_be_drawn_again(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(tokens(100, 60))
    await worker.void(wish)
    assert isinstance(await worker.draw(wish), Granted)
    await worker.settle(wish, 5)
    assert await standing(store, tokens(100), clock) == (5, 0)


async def test_what_was_voided_may_be_drawn_again_in_the_same_batch(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(tokens(100, 60), parallel(1))
    await worker.send(worker.voiding(wish), worker.opening(wish))
    assert await levels(store, clock, tokens(100), parallel(1)) == [(0, 60), (1, 0)]
    await worker.settle(wish, 5)
    assert await levels(store, clock, tokens(100), parallel(1)) == [(5, 0), (0, 0)]
    assert await endings(store) == ["done"]


# --------------------------------------------------------------------------------------------------- several workers


async def test_workers_share_one_limit(open_store: OpensStores, clock: Clock) -> None:
    workers = [Worker(await open_store()) for _ in range(3)]

    async def draw_some(worker: Worker) -> list[Granted | Refused]:
        return [await worker.draw(draw(daily(50), slow(40))) for _ in range(40)]

    verdicts = await asyncio.gather(*map(draw_some, workers))
    assert Counter(type(verdict) for some in verdicts for verdict in some) == {Granted: 40, Refused: 80}
    for worker in workers:
        assert await standing(worker.store, daily(50), clock) == (0, 40)


async def test_an_adopter_settles_what_the_worker_drew(worker: Worker, other: Worker, clock: Clock) -> None:
    """Under its name, for a lease belongs to a worker."""
    wish = await worker.granted(tokens(100, 40), parallel(1))
    heir = Worker(other.store, worker.name)
    heir.seq = heir.acked = worker.seq
    await heir.settle(wish, 5)
    assert await standing(worker.store, tokens(100), clock) == (5, 0)
    await other.granted(parallel(1))


async def test_leases_of_running_workers_are_not_closed(worker: Worker, other: Worker, clock: Clock) -> None:
    wish = await worker.granted(tokens(100, 40), parallel(1))
    for _ in range(20):
        clock.advance(SIGN_OF_LIFE_S)
        await worker.send()
        assert (await other.send()).lost == 0
    clock.advance(SILENT_S - SIGN_OF_LIFE_S)
    assert (await other.send()).lost == 0
    assert await standing(other.store, tokens(100), clock) == (0, 40)
    await other.refused(parallel(1))
    await worker.settle(wish, 5)
    assert await endings(other.store) == ["done"]


# ------------------------------------------------------------------------------------------------------- extensions


def extended(wish: Reserve, *claims: Claim) -> Reserve:
    return wish._replace(claims=wish.claims + claims)


async def extend(worker: Worker, wish: Reserve, held: int) -> Granted | Refused | None:
    (verdict,) = (await worker.send(worker.opening(wish)._replace(held=held))).verdicts
    return verdict


async def test_an_open_lease_takes_further_claims(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(daily(5), slow(60, 20))
    more = extended(wish, parallel(1, scope="upstream:up"), daily(2, scope="upstream:up"))
    assert isinstance(await extend(worker, more, 2), Granted)
    assert await levels(store, clock, *more.claims) == [(0, 1), (20, 0), (1, 0), (0, 1)]
    await worker.settle(more, 7)
    assert await levels(store, clock, *more.claims) == [(1, 0), (7, 0), (0, 0), (1, 0)]


async def test_an_extension_that_is_repeated_draws_once(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(daily(5))
    more = extended(wish, parallel(3, scope="upstream:up"))
    for _ in range(2):
        assert isinstance(await extend(worker, more, 1), Granted)
    assert isinstance(await worker.draw(more, is_forced=True), Granted)
    assert await levels(store, clock, *more.claims) == [(0, 1), (1, 0)]


async def test_an_extension_takes_all_of_its_claims_or_none(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(daily(1))
    more = extended(wish, parallel(3, scope="upstream:up"), daily(5, 6, scope="upstream:up"))
    verdict = await extend(worker, more, 1)
    assert isinstance(verdict, Refused)
    assert (verdict.window_status.window, verdict.asked) == (more.claims[2].window, 6)
    assert await levels(store, clock, *more.claims) == [(0, 1), (0, 0), (0, 0)]


async def test_an_extension_may_draw_again_on_the_same_window(worker: Worker, store: Store, clock: Clock) -> None:
    claim = slow(60, 1, unit="requests", scope="upstream:up")
    more = extended(await worker.granted(claim), claim)
    assert isinstance(await extend(worker, more, 1), Granted)
    await worker.settle(more)
    assert await levels(store, clock, claim) == [(2, 0)]


async def test_two_claims_on_one_day_of_an_upstream_are_charged_once(
    worker: Worker, store: Store, clock: Clock
) -> None:
    """A dearer model took over: its claim is the rest of what it may use."""
    first = [money(100, 10, scope="upstream:up"), tokens(100, 20, scope="upstream:up")]
    more = [money(100, 50, scope="upstream:up"), tokens(100, 30, scope="upstream:up")]
    for cost_nusd, charged in ((40, 40), (None, 60)):  # a cost that is not known is what was reserved
        wish = await worker.granted(*first)
        before = await levels(store, clock, *first)
        assert isinstance(await extend(worker, extended(wish, *more), 2), Granted)
        assert await levels(store, clock, *first) == [
            (used, held + more[n].amount) for n, (used, held) in enumerate(before)
        ]
        await worker.settle(extended(wish, *more), 35, cost_nusd=cost_nusd)
        assert await levels(store, clock, *first) == [(before[0][0] + charged, 0), (before[1][0] + 35, 0)]
    too_much = extended(await worker.granted(*[claim._replace(amount=0) for claim in first]), more[0])
    assert isinstance(await extend(worker, too_much, 2), Refused)


async def test_a_void_gives_back_what_an_extension_drew(worker: Worker, store: Store, clock: Clock) -> None:
    wish = await worker.granted(daily(5))
    more = extended(wish, parallel(3, scope="upstream:up"))
    await extend(worker, more, 1)
    await worker.void(wish)
    assert await levels(store, clock, *more.claims) == [(0, 0), (0, 0)]


async def test_drawn_extended_and_settled_in_one_batch(worker: Worker, store: Store, clock: Clock) -> None:
    wish = draw(daily(5))
    more = extended(wish, parallel(3, scope="upstream:up"))
    await worker.send(worker.opening(wish), worker.opening(more)._replace(held=1), worker.closing(settlement(more)))
    assert await levels(store, clock, *more.claims) == [(1, 0), (0, 0)]


async def test_an_extended_lease_of_a_silent_worker_is_lost_as_a_whole(
    worker: Worker, other: Worker, store: Store, clock: Clock
) -> None:
    wish = await worker.granted(daily(5))
    more = extended(wish, parallel(3, scope="upstream:up"))
    await extend(worker, more, 1)
    await other.listen(clock, SILENT_S + 1)
    await other.send()
    assert await endings(store) == ["lost"]
    assert await levels(store, clock, *more.claims) == [(1, 0), (0, 0)]


async def test_a_lost_lease_with_two_claims_on_one_day_is_corrected_once(
    worker: Worker, other: Worker, store: Store, clock: Clock
) -> None:
    claim = money(100, 10, scope="upstream:up")
    wish = await worker.granted(claim)
    more = extended(wish, money(100, 50, scope="upstream:up"))
    more = Reserve.of(more.record, more.claims)
    await extend(worker, more, 1)
    await other.listen(clock, SILENT_S + 1)
    await other.send()
    assert await levels(store, clock, claim) == [(10, 0)]
    await worker.send(worker.closing(settlement(more, cost_nusd=40)))
    assert await levels(store, clock, claim) == [(40, 0)]


async def test_an_upstream_that_did_not_serve_is_charged_its_request_only(
    worker: Worker, store: Store, clock: Clock
) -> None:
    asked = [slow(600, 1, unit="requests", scope=f"upstream:{name}") for name in ("one", "up")]
    used = [slow(600, 50, scope=f"upstream:{name}") for name in ("one", "up")]
    wish = await worker.granted(daily(5), asked[0], used[0])
    more = extended(wish, asked[1], used[1])
    await extend(worker, more, 3)
    await worker.settle(more, 30)
    assert await levels(store, clock, *asked, *used) == [(1, 0), (1, 0), (0, 0), (30, 0)]


async def test_a_limit_of_the_caller_is_returned_before_one_of_an_upstream(worker: Worker) -> None:
    await worker.settle(await worker.granted(slow(60, 60), daily(1, scope="upstream:up")), 60)
    verdict = await worker.refused(slow(60, 1), daily(1, scope="upstream:up"))
    assert verdict.window_status.window.scope == "key:k"
