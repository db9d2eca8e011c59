"""What one worker admits during outages: the bound, whatever the store does."""

from __future__ import annotations

import random

import pytest

from gateway.accounting.offline_quota import OfflineQuota
from gateway.quota import windows
from gateway.records import Claim, Granted, Refused, WindowState, WindowStatus
from gateway.store import Reserve
from tests.store.changes import HOUR, NOON, SECOND, daily, draw, parallel, record, slow, tokens

SHARE = 0.1


def admitted(quota: OfflineQuota, *claims: Claim, now_us: int = NOON, most: int = 1000) -> list[Reserve]:
    """The calls that are admitted one after the other, until one is refused."""
    found: list[Reserve] = []
    while len(found) < most and isinstance(quota.draw(wish := draw(*claims), now_us), Granted):
        found.append(wish)
    return found


def test_one_share_of_a_calendar_window_over_all_outages() -> None:
    quota = OfflineQuota(SHARE)
    counts = []
    for outage in range(5):
        quota.begin([], NOON + outage * SECOND)
        counts.append(len(admitted(quota, daily(100), now_us=NOON + outage * SECOND, most=4)))
    assert counts == [4, 4, 2, 0, 0]


def test_a_window_that_has_ended_is_forgotten() -> None:
    quota = OfflineQuota(SHARE)
    quota.begin([], NOON)
    assert len(admitted(quota, daily(100))) == 10
    quota.begin([], NOON + 12 * HOUR)
    assert len(admitted(quota, daily(100), now_us=NOON + 12 * HOUR)) == 10


def test_a_rate_leaks_at_the_rate_of_the_share() -> None:
    quota = OfflineQuota(SHARE)
    quota.begin([], NOON)
    assert len(admitted(quota, slow(60))) == 6
    quota.begin([], NOON + 25 * HOUR)
    assert len(admitted(quota, slow(60), now_us=NOON + 25 * HOUR)) == 2


def test_parallel_calls_are_those_that_run_at_the_beginning_of_each_outage() -> None:
    quota = OfflineQuota(SHARE)
    before = draw(parallel(3))
    quota.begin([before], NOON)
    first, second = admitted(quota, parallel(3))
    quota.settle(before.taken_back(), before.claims, NOON)
    assert len(admitted(quota, parallel(3))) == 1
    quota.begin([first, second], NOON)
    assert len(admitted(quota, parallel(3))) == 1


@pytest.mark.parametrize(
    ("claim", "used", "count", "is_final"),
    [
        (daily(100), 0, 10, False),
        (daily(100), 50, 10, False),
        (daily(100), 95, 5, False),
        (daily(100), 100, 0, True),
        (slow(60), 55, 5, False),
        (slow(60), 60, 0, False),
    ],
)
def test_what_the_store_said_last_is_the_base(claim: Claim, used: int, count: int, is_final: bool) -> None:
    quota = OfflineQuota(SHARE)
    quota.note([WindowStatus(claim.window, used, 0, 0)], NOON)
    quota.begin([], NOON)
    assert len(admitted(quota, claim)) == count
    refused = quota.draw(draw(claim), NOON)
    assert isinstance(refused, Refused)
    assert (refused.retry_after_us is None) == is_final


def test_settled_usage_replaces_a_reservation() -> None:
    quota = OfflineQuota(SHARE)
    quota.begin([], NOON)
    (wish,) = admitted(quota, tokens(1000, 100))
    quota.settle(record(wish.record.id, 30), wish.claims, NOON)
    assert len(admitted(quota, tokens(1000, 70))) == 1
    assert admitted(quota, tokens(1000, 1)) == []


def test_a_void_gives_back_the_request_too() -> None:
    quota = OfflineQuota(SHARE)
    quota.begin([], NOON)
    for wish in admitted(quota, daily(100)):
        quota.settle(wish.taken_back(), wish.claims, NOON, is_void=True)
    assert len(admitted(quota, daily(100))) == 10


@pytest.mark.parametrize("seed", range(50))
def test_a_window_never_exceeds_its_limit_by_more_than_a_share_for_each_worker(seed: int) -> None:
    """Workers lose the store and reach it again at random times; the store itself admits up to the limit."""
    dice = random.Random(seed)
    limit, count = 100, dice.randint(1, 4)
    share = dice.choice([0.05, 0.1, 0.5])
    workers = [OfflineQuota(share) for _ in range(count)]
    is_away = [False] * count
    undelivered: list[list[int]] = [[] for _ in workers]
    state = WindowState(0, 0, NOON)
    total = now_us = 0
    for _ in range(600):
        now_us += SECOND
        at = dice.randrange(count)
        worker, amount = workers[at], dice.randint(1, 4)
        claim = tokens(limit, amount)
        if dice.random() < 0.2:
            is_away[at] = not is_away[at]
            if is_away[at]:
                worker.begin([], now_us)
            else:
                state = state._replace(used=state.used + sum(undelivered[at]))
                undelivered[at] = []
        if is_away[at]:
            wish = draw(claim)
            if isinstance(worker.draw(wish, now_us), Granted):
                used = dice.randint(0, amount)
                worker.settle(record(wish.record.id, used), wish.claims, now_us)
                undelivered[at].append(used)
                total += used
        elif windows.check(claim, state, now_us) is None:
            state = state._replace(used=state.used + amount)
            total += amount
            worker.note([windows.window_status(claim.window, state, now_us)], now_us)
    assert limit <= total <= limit + count * share * limit
