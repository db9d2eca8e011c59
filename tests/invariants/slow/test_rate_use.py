"""The same in the stores themselves, and with the rules under many random schedules."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from tests.invariants import rate_load
from tests.invariants.rate_load import DOORS, LOADS, PER_S, Claims, InStore, Load, Rules
from tests.store.changes import SECOND, Clock
from tests.store.worker import Worker


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
async def test_a_rate_is_used_in_every_store(
    worker: Worker, clock: Clock, load: Load, door: Callable[[], Claims]
) -> None:
    began_us, began = clock.now_us, time.monotonic()
    outcome = await rate_load.run(load, door(), InStore(worker), clock, 120, random.Random(2))
    real_s = time.monotonic() - began  # the clock of a Redis runs beside that of the test
    used = outcome.used(began_us + 60 * SECOND, began_us + 120 * SECOND)
    assert used >= 0.9 * PER_S * 60
    assert outcome.refused
    assert outcome.excess(60 * SECOND) <= PER_S * real_s


@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
async def test_a_rate_is_used_for_ten_minutes(load: Load, spread: float) -> None:
    for seed in range(2):
        clock = Clock()
        began_us = clock.now_us
        this = load._replace(spread=spread)
        outcome = await rate_load.run(this, rate_load.of_key(), Rules(clock), clock, 600, random.Random(seed))
        used = outcome.used(began_us + 60 * SECOND, began_us + 600 * SECOND)
        assert used >= 0.9 * PER_S * 540
        assert all(outcome.excess(minutes * 60 * SECOND) <= 0 for minutes in (1, 5))


async def test_no_random_load_exceeds_the_bound() -> None:
    """Few or many callers, short and long calls, of one size or of all."""
    for seed in range(20):
        chance = random.Random(seed)
        load = Load(
            callers=chance.randrange(1, 60),
            prompt=chance.choice((1, 100, 10_000)),
            limit=chance.choice((100, 4000, 16_000, 50_000)),
            output=chance.choice((1, 50, 1000, 20_000)),
            lasts_s=chance.choice((1, 4, 20, 90, 400)),
            spread=chance.choice((0, 1, 3)),
        )
        clock = Clock()
        outcome = await rate_load.run(load, rate_load.of_key(), Rules(clock), clock, 300, chance)
        for seconds in (1, 60, 200):
            assert outcome.excess(seconds * SECOND) <= 0, (seed, load)
