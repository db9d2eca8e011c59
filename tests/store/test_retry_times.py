"""Retry times of every store: with no call open, a call is admitted at that time, and not 50 ms before.

tests/upstream/test_retry_after.py tests the arithmetic to the microsecond, after random histories. These tests use the
stores' own arithmetic and clocks: one that a test moves, and those of servers, which run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from gateway.errors import RateLimited
from gateway.quota import limit_headers
from gateway.records import Claim, Granted, Refused, Unit
from gateway.store import Store

from .changes import SECOND, Clock, daily, draw, rate, tokens
from .worker import Worker

EARLY_US = 50_000
TRIES = 20
"""The number of attempts on a machine that is too slow for a valid result in each attempt."""

LIMITS: dict[Unit, tuple[int, ...]] = {
    "requests": (1, 3, 7, 60), "tokens": (10, 6000, 40_000, 90_001), "usd": (1000, 12_345_678, 5 * 10**9),
}  # fmt: skip
PERIODS_S = {"second": 1, "minute": 60, "hour": 3600, "17": 17}


class StoreTime:
    """The store's time, which a test may set. It goes on meanwhile, or it does not."""

    def __init__(self, clock: Clock, real_us: Callable[[], int]) -> None:
        self._clock, self._real_us = clock, real_us

    def __call__(self) -> int:
        return self._clock.now_us + self._real_us()

    def set(self, now_us: int) -> None:
        self._clock.now_us = now_us - self._real_us()


@pytest.fixture
def store_time(request: pytest.FixtureRequest, clock: Clock, began_us: int) -> StoreTime:
    stands_still = request.node.callspec.params["open_store"] in ("embedded", "written behind")
    return StoreTime(clock, lambda: 0 if stands_still else time.time_ns() // 1000 - began_us)


def received_us(refused: Refused) -> int:
    """What stands in `retry-after-ms`."""
    error = limit_headers.refusal(refused)
    assert isinstance(error, RateLimited)
    return int(error.headers["Retry-After-Ms"]) * 1000


async def is_refused_before(worker: Worker, claims: list[Claim], at_us: int, now_us: StoreTime) -> bool:
    """Come 50 ms before this moment, or a little more, until the answer is there in time. Whether it ever was."""
    for tried in range(1, TRIES + 1):
        now_us.set(at_us - EARLY_US - tried * EARLY_US)
        verdict = await worker.draw(draw(*claims))
        is_early = now_us() <= at_us - EARLY_US
        if is_early:
            assert isinstance(verdict, Refused), f"admitted at least {EARLY_US} us before it was told"
        if is_early or isinstance(verdict, Granted):
            return is_early
    return False


async def check(worker: Worker, claims: list[Claim], now_us: StoreTime) -> bool:
    """Ask, and if that is refused, come too early and then in time. Whether it was refused, and all in good time."""
    began_us = now_us()
    verdict = await worker.draw(draw(*claims))
    heard_us = now_us()
    if isinstance(verdict, Granted):
        return False
    wait_us = received_us(verdict)
    if wait_us > 3 * EARLY_US and not await is_refused_before(worker, claims, began_us + wait_us, now_us):
        return False
    now_us.set(heard_us + wait_us)
    await worker.granted(*claims)
    return True


async def test_a_call_is_admitted_after_the_given_wait_and_not_50_ms_before(
    worker: Worker, store: Store, store_time: StoreTime
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    received = 0
    for number in range(60):
        windows = [
            rate(
                dice.choice(LIMITS[unit]),
                1,
                PERIODS_S[per],
                per=per,
                unit=unit,
                scope=dice.choice(SCOPES).format(number),
            )
            for unit, per in dice.sample([(unit, per) for unit in LIMITS for per in PERIODS_S], dice.randint(1, 4))
        ]
        await live(worker, windows, dice, store_time)
        received += await check(worker, part(windows, dice), store_time)
    assert received > 20


SCOPES = ("key:k{}", "team:t{}", "person:p{}")


def part(windows: list[Claim], dice: random.Random) -> list[Claim]:
    """A claim on some of each limit; often on all of it."""
    return [
        claim._replace(amount=1 if claim.window.unit == "requests" else dice.choice((limit, dice.randint(1, limit))))
        for claim in windows
        for limit in [claim.window.limit]
    ]


async def live(worker: Worker, windows: list[Claim], dice: random.Random, now_us: StoreTime) -> None:
    """Some calls, until one is refused; all of them have ended. They use what they claimed, more or less of it."""
    for _ in range(8):
        wish = draw(*part(windows, dice))
        if not isinstance(await worker.draw(wish), Granted):
            return
        if dice.random() < 0.5:
            now_us.set(now_us() + dice.choice((1234, 300_000, 20 * SECOND)))
        amounts = {claim.window.unit: claim.amount for claim in wish.claims}
        used = int(amounts.get("tokens", 0) * dice.choice((0, 0.3, 1, 1.2)))
        cost_nusd = int(amounts.get("usd", 0) * dice.choice((0, 0.3, 1, 1.2)))
        await worker.settle(wish, used, cost_nusd=cost_nusd)


async def test_level_that_is_full_and_a_part_of_a_unit(worker: Worker, store_time: StoreTime) -> None:
    """The table of the plainest cases: nothing left, something left, and a time that divides into no milliseconds."""
    for number, (limit, first, then) in enumerate([(1, 1, 1), (3, 3, 1), (7, 7, 3), (6000, 5990, 700), (7, 5, 7)]):
        for per, period_s in PERIODS_S.items():
            for tried in range(TRIES):
                claim = rate(limit, first, period_s, per=per, scope=f"key:k{number}-{tried}")
                await worker.settle(await worker.granted(claim), first)
                if await check(worker, [claim._replace(amount=then)], store_time):
                    break
            else:
                raise AssertionError(f"never refused in good time: {claim}")


async def test_what_came_back_counts(worker: Worker, store_time: StoreTime) -> None:
    """A refund shortens the retry time of all later refusals."""
    claims = [rate(6000, 6000, 60), rate(10**9, 10**9, 3600, unit="usd", per="hour")]
    wish = await worker.granted(*claims)
    before_us = received_us(await worker.refused(*claims))
    await worker.settle(wish, 3000, cost_nusd=10**8)
    after_us = received_us(await worker.refused(*claims))
    assert before_us > 3000 * SECOND > 400 * SECOND > after_us  # a tenth of an hour, or half a minute
    store_time.set(store_time() + after_us + SECOND)
    await worker.granted(*claims)


async def test_reserved_is_not_spent(worker: Worker, clock: Clock) -> None:
    """Of a day: what a running call holds may come back at any time, what was used does not before it ends."""
    wish = await worker.granted(daily(1), tokens(100, 80), rate(1000, 10))
    for claims in ([daily(1)], [tokens(100, 21)], [daily(1), tokens(100, 21), rate(1000, 10)]):
        assert received_us(await worker.refused(*claims)) == SECOND
    await worker.settle(wish, 80)
    for claims in ([daily(1)], [tokens(100, 21)], [rate(1000, 950), daily(1)]):
        refused = await worker.refused(*claims)
        assert refused.retry_after_us is None
        assert limit_headers.refusal(refused).code == "insufficient_quota"
        assert [each.window for each in refused.window_statuses] == [each.window for each in claims]
