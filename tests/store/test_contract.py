"""The promises of every store (gateway/store/__init__.py). Nothing here knows which one it is."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.records import Claim, Draw, Granted, Refused, Settlement, Standing, Usage
from gateway.rules import limits
from gateway.store import USAGE_GROUPS, Ledger

from .conftest import OpensLedgers
from .wishes import NOON, SECOND, Clock, daily, draw, parallel, rate, record, settlement, tokens


async def granted(ledger: Ledger, *claims: Claim, **changes: Any) -> Draw:
    wish = draw(*claims, **changes)
    answer = await ledger.draw(wish)
    assert isinstance(answer, Granted), answer
    return wish


async def refused(ledger: Ledger, *claims: Claim) -> Refused:
    answer = await ledger.draw(draw(*claims))
    assert isinstance(answer, Refused), answer
    return answer


async def standing(ledger: Ledger, claim: Claim, clock: Clock) -> tuple[int, int]:
    (found,) = await ledger.standings([claim.window], clock.now)
    return found.used, found.reserved


async def standings(ledger: Ledger, claims: Sequence[Claim], clock: Clock) -> list[Standing]:
    return await ledger.standings([claim.window for claim in claims], clock.now)


# ------------------------------------------------------------------------------------------------------------- draws


async def test_a_draw_takes_all_windows_or_none(ledger: Ledger, clock: Clock) -> None:
    team = tokens(100, 10, scope="team:red")
    await granted(ledger, daily(5), team, rate(60, 10), parallel(9))
    before = await standings(ledger, [daily(5), team, rate(60, 10), parallel(9)], clock)
    verdict = await refused(ledger, daily(5), rate(60, 10), team._replace(amount=91), parallel(9))
    assert verdict.standing.window.scope == "team:red"
    assert await standings(ledger, [daily(5), team, rate(60, 10), parallel(9)], clock) == before


async def test_a_grant_tells_how_the_windows_stand_after_it(ledger: Ledger) -> None:
    wish = draw(tokens(100, 30), rate(60, 12), parallel(2))
    answer = await ledger.draw(wish)
    assert isinstance(answer, Granted)
    assert [(found.used, found.reserved, found.remaining) for found in answer.standings] == [
        (0, 30, 70), (12, 0, 48), (1, 0, 1),
    ]  # fmt: skip


async def test_a_call_without_quotas_is_recorded_too(ledger: Ledger) -> None:
    wish = await granted(ledger)
    await ledger.settle(settlement(wish, 7))
    assert [row["id"] for row in await ledger.calls(10)] == [wish.record.id]


async def test_of_two_refusals_the_longer_one_is_told(ledger: Ledger) -> None:
    await ledger.settle(settlement(await granted(ledger, daily(1), rate(60, 60), parallel(1))))
    verdict = await refused(ledger, rate(60, 60), daily(1), parallel(1))
    assert (verdict.standing.window.unit, verdict.retry_after_us) == ("requests", None)


async def test_exactly_100_of_500_are_granted(ledger: Ledger, clock: Clock) -> None:
    wishes = [draw(daily(100), parallel(1000)) for _ in range(500)]
    answers = await asyncio.gather(*(ledger.draw(wish) for wish in wishes))
    lucky = [wish for wish, answer in zip(wishes, answers, strict=True) if isinstance(answer, Granted)]
    assert len(lucky) == 100
    assert await standing(ledger, daily(100), clock) == (0, 100)
    for answer in answers:
        if isinstance(answer, Refused):
            assert answer.retry_after_us == limits.IN_THE_WAY_US  # running calls, which may yet give it back
    await asyncio.gather(*(ledger.settle(settlement(wish)) for wish in lucky))
    assert await standing(ledger, daily(100), clock) == (100, 0)
    assert await standing(ledger, parallel(1000), clock) == (0, 0)
    assert (await refused(ledger, daily(100))).retry_after_us is None


async def test_tokens_never_exceed_their_limit(ledger: Ledger, clock: Clock) -> None:
    wishes = [draw(tokens(1000, 1 + number % 37)) for number in range(300)]
    answers = await asyncio.gather(*map(ledger.draw, wishes))
    drawn = [wish.claims[0].amount for wish, found in zip(wishes, answers, strict=True) if isinstance(found, Granted)]
    assert sum(drawn) <= 1000
    assert await standing(ledger, tokens(1000), clock) == (0, sum(drawn))
    left = 1000 - sum(drawn)
    assert all(r.asked > left for r in answers if isinstance(r, Refused))


async def test_shadow_is_counted_and_never_refused(ledger: Ledger, clock: Clock) -> None:
    for _ in range(5):
        await granted(ledger, daily(2, is_enforced=False))
    assert await standing(ledger, daily(2), clock) == (0, 5)
    await refused(ledger, daily(2))


# ------------------------------------------------------------------------------------------------------------- rates


async def test_a_rate_refills_smoothly(ledger: Ledger, clock: Clock) -> None:
    await granted(ledger, rate(60, 60))
    assert (await refused(ledger, rate(60, 1))).retry_after_us == SECOND
    clock.advance(0.999999)
    assert (await refused(ledger, rate(60, 1))).retry_after_us == 1
    clock.advance(0.000001)
    await granted(ledger, rate(60, 1))
    verdict = await refused(ledger, rate(60, 30))
    assert verdict.retry_after_us == 30 * SECOND
    clock.now_us += verdict.retry_after_us
    await granted(ledger, rate(60, 30))
    clock.advance(3600)
    await granted(ledger, rate(60, 60))
    await refused(ledger, rate(60, 1))


async def test_whoever_comes_back_when_told_is_admitted(ledger: Ledger, clock: Clock) -> None:
    for _ in range(20):
        answer = await ledger.draw(draw(rate(7, 3, period_s=11)))
        if isinstance(answer, Refused):
            assert answer.retry_after_us is not None
            clock.now_us += answer.retry_after_us
            await granted(ledger, rate(7, 3, period_s=11))


async def test_a_limit_that_changed_keeps_what_was_used(ledger: Ledger, clock: Clock) -> None:
    await granted(ledger, tokens(100, 50), rate(60, 30))
    await refused(ledger, tokens(40))
    await refused(ledger, rate(20, 1))
    await granted(ledger, tokens(51), rate(31, 1))
    assert await standing(ledger, tokens(51), clock) == (0, 51)


async def test_refund_of_a_rate(ledger: Ledger, clock: Clock) -> None:
    wish = await granted(ledger, rate(60, 50))
    clock.advance(10)
    await ledger.settle(settlement(wish, 20))
    assert await standing(ledger, rate(60), clock) == (20, 0)


async def test_a_long_stream_gives_back_nothing_that_others_have_drawn(ledger: Ledger, clock: Clock) -> None:
    wish = await granted(ledger, rate(60, 60))
    clock.advance(60)
    await granted(ledger, rate(60, 60))
    await ledger.settle(settlement(wish, 0))
    await refused(ledger, rate(60, 1))


async def test_an_excess_is_charged_in_full(ledger: Ledger, clock: Clock) -> None:
    wish = await granted(ledger, rate(60, 10), tokens(100, 10))
    await ledger.settle(settlement(wish, 150))
    assert await standing(ledger, rate(60), clock) == (150, 0)
    assert await standing(ledger, tokens(100), clock) == (150, 0)
    assert (await refused(ledger, rate(60, 1))).retry_after_us == 91 * SECOND
    assert (await refused(ledger, tokens(100, 0))).retry_after_us is None


async def test_a_clock_that_steps_back_changes_nothing(ledger: Ledger, clock: Clock) -> None:
    wish = await granted(ledger, rate(60, 60))
    clock.advance(-3600)
    verdict = await refused(ledger, rate(60, 1))
    assert verdict.retry_after_us == SECOND
    await ledger.settle(settlement(wish, 60))
    clock.advance(3600)
    await refused(ledger, rate(60, 1))
    clock.advance(1)
    await granted(ledger, rate(60, 1))


# -------------------------------------------------------------------------------------------------- parallel, calendar


async def test_parallel_calls(ledger: Ledger, clock: Clock) -> None:
    first, _ = await granted(ledger, parallel(2)), await granted(ledger, parallel(2))
    clock.advance(3600)
    assert (await refused(ledger, parallel(2))).retry_after_us == limits.IN_THE_WAY_US
    await ledger.settle(settlement(first))
    await granted(ledger, parallel(2))
    await refused(ledger, parallel(2))


async def test_used_and_reserved_are_apart(ledger: Ledger, clock: Clock) -> None:
    first, second = await granted(ledger, tokens(100, 40)), await granted(ledger, tokens(100, 40))
    assert (await refused(ledger, tokens(100, 40))).retry_after_us == limits.IN_THE_WAY_US
    await ledger.settle(settlement(first, 10))
    assert await standing(ledger, tokens(100), clock) == (10, 40)
    third = await granted(ledger, tokens(100, 50))
    await asyncio.gather(ledger.settle(settlement(second, 40)), ledger.settle(settlement(third, 30)))
    assert await standing(ledger, tokens(100), clock) == (80, 0)
    assert (await refused(ledger, tokens(100, 21))).retry_after_us is None


async def test_a_call_belongs_to_the_window_in_which_it_began(ledger: Ledger, clock: Clock) -> None:
    wish = await granted(ledger, tokens(100, 40))
    clock.advance(86_400)
    tomorrow = tokens(100, starts="2026-11-21", resets_us=NOON + 129_600 * SECOND)
    await granted(ledger, tomorrow)
    await ledger.settle(settlement(wish, 30))
    assert await standing(ledger, tokens(100), clock) == (30, 0)
    assert await standing(ledger, tomorrow, clock) == (0, 1)
    assert [row["day"] for row in await ledger.usage(["day"])] == ["2026-11-20"]


# ------------------------------------------------------------------------------------------------------- settlements


async def test_a_settlement_counts_once(open_ledger: OpensLedgers, clock: Clock) -> None:
    ledger, other = open_ledger(), open_ledger()
    claims = [tokens(100, 50), rate(60, 50), parallel(5)]
    await granted(ledger, *claims)
    wish = await granted(ledger, daily(9), *(claim._replace(amount=min(claim.amount, 10)) for claim in claims))
    end = settlement(wish, 7)
    await asyncio.gather(*(ledger.settle(end) for _ in range(5)))
    for who in (ledger, other):
        await who.settle(end)
        assert who.errors == 0
    assert [await standing(ledger, claim, clock) for claim in claims] == [(7, 50), (57, 0), (1, 0)]
    assert await standing(ledger, daily(9), clock) == (1, 0)
    (row,) = await ledger.usage([])
    assert (row["requests"], row["total_tokens"]) == (1, 7)
    assert len(await ledger.calls(10)) == 1


async def test_who_was_refused_has_nothing_to_settle(ledger: Ledger, clock: Clock) -> None:
    await granted(ledger, tokens(10, 10))
    wish = draw(tokens(10, 10))
    assert isinstance(await ledger.draw(wish), Refused)
    await ledger.settle(settlement(wish, 10))
    assert await standing(ledger, tokens(10), clock) == (0, 10)
    assert await ledger.calls(10) == []


async def test_drawn_and_settled_in_one_breath(ledger: Ledger, clock: Clock) -> None:
    wishes = [draw(tokens(1000, 10), parallel(100)) for _ in range(60)]
    futures: list[asyncio.Future[Any]] = []
    for wish in wishes:
        futures += [ledger.draw(wish), ledger.settle(settlement(wish, 4))]
    await asyncio.gather(*futures)
    assert await standing(ledger, tokens(1000), clock) == (240, 0)
    assert await standing(ledger, parallel(100), clock) == (0, 0)


async def test_settling_waits_for_nobody(ledger: Ledger) -> None:
    wish = await granted(ledger)
    done = ledger.settle(settlement(wish))
    assert ledger.pending == 1
    done.cancel()
    await ledger.settle(settlement(wish))  # behind it
    assert [row["id"] for row in await ledger.calls(1)] == [wish.record.id]


async def test_close_delivers_what_is_pending(open_ledger: OpensLedgers, clock: Clock) -> None:
    ledger = open_ledger()
    wishes = [await granted(ledger, tokens(1000, 10)) for _ in range(5)]
    ends = [ledger.settle(settlement(wish, 4)) for wish in wishes]
    assert await ledger.close(5) == 0
    assert all(end.done() for end in ends)
    again = open_ledger()
    assert await standing(again, tokens(1000), clock) == (20, 0)
    assert len(await again.calls(10)) == 5


async def test_what_was_settled_outlives_the_worker(open_ledger: OpensLedgers, clock: Clock) -> None:
    ledger = open_ledger()
    await ledger.settle(settlement(await granted(ledger, tokens(100, 40), rate(60, 40)), 30))
    await ledger.close(5)
    again = open_ledger()
    assert await standing(again, tokens(100), clock) == (30, 0)
    assert await standing(again, rate(60), clock) == (30, 0)
    assert len(await again.calls(9)) == 1


# --------------------------------------------------------------------------------------------------- several workers


async def test_two_workers_share_one_limit(open_ledger: OpensLedgers, clock: Clock) -> None:
    workers = [open_ledger(), open_ledger(), open_ledger()]
    answers = await asyncio.gather(*(workers[n % 3].draw(draw(daily(50), rate(40))) for n in range(120)))
    assert Counter(type(answer) for answer in answers) == {Granted: 40, Refused: 80}
    for ledger in workers:
        assert await standing(ledger, daily(50), clock) == (0, 40)


async def test_one_may_settle_what_another_drew(open_ledger: OpensLedgers, clock: Clock) -> None:
    one, other = open_ledger(), open_ledger()
    wish = await granted(one, tokens(100, 40), parallel(1))
    await other.settle(settlement(wish, 5))
    assert await standing(one, tokens(100), clock) == (5, 0)
    await granted(one, parallel(1))


async def test_leases_of_the_living_are_left_alone(open_ledger: OpensLedgers, clock: Clock) -> None:
    one = open_ledger()
    wish = await granted(one, tokens(100, 40), parallel(1))
    clock.advance(100_000)
    other = open_ledger()
    assert await standing(other, tokens(100), clock) == (0, 40)
    await refused(other, parallel(1))
    assert await other.calls(9) == []
    await one.settle(settlement(wish, 5))
    assert [row["ended"] for row in await other.calls(9)] == ["done"]


# ----------------------------------------------------------------------------------------------------------- reports


async def fill(ledger: Ledger) -> None:
    """Seven calls over three days, two months, three keys."""
    for day, key, team, model, upstream, endpoint, status in (
        (0, "a", "red", "m1", "up", "chat", 200),
        (0, "a", "red", "m2", "up", "chat", 200),
        (1, "a", "red", "m1", "other", "completions", 200),
        (1, "b", None, "m1", "up", "chat", 500),
        (15, "b", None, "m2", "up", "embeddings", 200),
        (15, "c", "blue", "m1", "up", "chat", 200),
        (15, "c", "blue", "m1", "up", "chat", 200),
    ):
        wish = await granted(ledger)
        usage = Usage(10, 5, 4, 2, source="reported" if day else "estimated")
        ended = "done" if status == 200 else "error"
        await ledger.settle(settlement(
            wish, time=NOON / SECOND + day * 86_400, key=key, team=team, label_model=model, model="as-asked",
            upstream=upstream, endpoint=endpoint, status=status, usage=usage, ended=ended,
        ))  # fmt: skip


@pytest.mark.parametrize(
    ("group_by", "requests"),
    [
        (["key"], {("a",): 3, ("b",): 2, ("c",): 2}),
        (["team"], {("",): 2, ("blue",): 2, ("red",): 3}),
        (["model"], {("m1",): 5, ("m2",): 2}),
        (["upstream"], {("other",): 1, ("up",): 6}),
        (["endpoint"], {("chat",): 5, ("completions",): 1, ("embeddings",): 1}),
        (["day"], {("2026-11-20",): 2, ("2026-11-21",): 2, ("2026-12-05",): 3}),
        (["month"], {("2026-11",): 4, ("2026-12",): 3}),
        (["month", "key"], {("2026-11", "a"): 3, ("2026-11", "b"): 1, ("2026-12", "b"): 1, ("2026-12", "c"): 2}),
        ([], {(): 7}),
    ],
)
async def test_usage_by_group(ledger: Ledger, group_by: list[str], requests: dict[tuple[str, ...], int]) -> None:
    await fill(ledger)
    rows = await ledger.usage(group_by)
    assert {tuple(row[name] for name in group_by): row["requests"] for row in rows} == requests
    assert [tuple(row[name] for name in group_by) for row in rows] == sorted(requests)
    for row in rows:
        assert row["total_tokens"] == row["prompt_tokens"] + row["completion_tokens"] == 15 * row["requests"]
        assert row["cached_tokens"] == 4 * row["requests"]
        assert row["reasoning_tokens"] == 2 * row["requests"]
    assert sum(row["errors"] for row in rows) == 1
    assert sum(row["estimated_tokens"] for row in rows) == 30


async def test_every_group_can_be_asked_for_at_once(ledger: Ledger) -> None:
    await fill(ledger)
    assert len(await ledger.usage(USAGE_GROUPS)) == 6


@pytest.mark.parametrize(
    ("since", "until", "limit", "days"),
    [
        (None, None, None, ["2026-11-20", "2026-11-21", "2026-12-05"]),
        ("2026-11-21", None, None, ["2026-11-21", "2026-12-05"]),
        (None, "2026-11-21", None, ["2026-11-20", "2026-11-21"]),
        ("2026-11-21", "2026-11-21", None, ["2026-11-21"]),
        ("2026-11-22", "2026-12-01", None, []),
        ("2026-12-31", "2026-01-01", None, []),
        (None, None, 2, ["2026-11-20", "2026-11-21"]),
        (None, None, 0, []),
    ],
)
async def test_usage_of_some_days(
    ledger: Ledger, since: str | None, until: str | None, limit: int | None, days: list[str]
) -> None:
    await fill(ledger)
    assert [row["day"] for row in await ledger.usage(["day"], since, until, limit)] == days


async def test_no_calls_no_rows(ledger: Ledger) -> None:
    assert await ledger.usage([]) == []
    assert await ledger.usage(["key"]) == []
    assert await ledger.calls(10) == []


async def test_calls_are_told_newest_first(ledger: Ledger) -> None:
    wishes = [await granted(ledger) for _ in range(6)]
    for number, wish in enumerate(wishes):
        await ledger.settle(settlement(wish, key="ab"[number % 2]))
    ids = [wish.record.id for wish in wishes]
    assert [row["id"] for row in await ledger.calls(4)] == ids[:1:-1]
    assert [row["id"] for row in await ledger.calls(2, "a")] == [ids[4], ids[2]]
    assert [row["id"] for row in await ledger.calls(9, "b")] == [ids[5], ids[3], ids[1]]
    assert await ledger.calls(9, "nobody") == []
    assert await ledger.calls(0) == []


async def test_a_record_is_kept_as_it_was(ledger: Ledger) -> None:
    wish = await granted(ledger)
    told = record(
        wish.record.id, model='od"d \u2028 \0', returned_model="gpt-z \ud800", team=None, stream=True,
        ended="client_gone", usage=Usage(1, 2, 3, 4, source="estimated"), first_byte_s=None, truncated=True,
        client_request_id="theirs",
    )  # fmt: skip
    await ledger.settle(Settlement(told, wish.claims))
    (row,) = await ledger.calls(1)
    usage = row["usage"]
    assert {name: usage[name] for name in Usage._fields} == told.usage._asdict()
    kept = told._replace(returned_model="gpt-z ?")  # half a character is none, and no upstream has a model of that name
    for name in set(kept._fields) - {"usage"}:
        assert row[name] == getattr(kept, name), name
    json.dumps(row)


async def test_old_records_and_sums_are_forgotten(open_ledger: OpensLedgers, clock: Clock) -> None:
    ledger = open_ledger(usage_records_max=50, sums_days=10)
    for day in (0, 5, 20):
        clock.now_us = NOON + day * 86_400 * SECOND
        wishes = [draw() for _ in range(1000)]
        await asyncio.gather(*(ledger.draw(wish) for wish in wishes))
        await asyncio.gather(*(ledger.settle(settlement(wish, 1, time=clock.now)) for wish in wishes))
    calls = await ledger.calls(100_000)
    assert 50 <= len(calls) < 2000  # looked after now and then, not at each call
    assert calls[0]["time"] == clock.now
    assert [(row["day"], row["requests"]) for row in await ledger.usage(["day"])] == [("2026-12-10", 1000)]


async def test_standings_of_windows_that_nobody_has_drawn_on(ledger: Ledger, clock: Clock) -> None:
    claims = [tokens(100), rate(60), parallel(2)]
    for found in await standings(ledger, claims, clock):
        assert isinstance(found, Standing)
        assert (found.used, found.reserved, found.remaining) == (0, 0, found.window.limit)
    assert await ledger.standings([], clock.now) == []


async def test_standings_leak_without_a_draw(ledger: Ledger, clock: Clock) -> None:
    await granted(ledger, rate(60, 30))
    (found,) = await ledger.standings([rate(60).window], clock.now + 10)
    assert (found.used, found.reset_us) == (20, 20 * SECOND)
