"""The limit that follows the time to the first token: where it settles in front of simulated servers."""

from __future__ import annotations

import random

import pytest

from gateway.upstream.limits import AdaptiveLimit

BASE_S = 0.2


def settled(capacity: int, most: int = 200, demand: int = 10**6, rounds: int = 3000, seed: int = 1) -> list[float]:
    """The limits of the last third of the rounds. The server computes `capacity` calls at once, and others wait for a
    place; its callers use the whole limit, or `demand`."""
    chance = random.Random(seed)
    state, limits = AdaptiveLimit(), []
    for _ in range(rounds):
        under_way = min(int(state.limit), demand)
        wait_s = max(0, under_way - capacity) / capacity * BASE_S
        state = state.after((BASE_S + wait_s) * chance.uniform(0.9, 1.1), under_way, most)
        limits.append(state.limit)
    return limits[-rounds // 3 :]


@pytest.mark.parametrize("capacity", [1, 4, 12, 50])
def test_it_settles_near_what_the_server_computes_at_once(capacity: int) -> None:
    limits = settled(capacity)
    assert min(limits) >= capacity
    assert max(limits) <= max(16, 2 * capacity)


def test_it_rises_to_the_most_where_the_server_is_never_full() -> None:
    assert min(settled(10_000)) == 200


def test_it_does_not_rise_without_calls_that_need_it() -> None:
    assert max(settled(10_000, demand=5)) <= 11


def test_it_falls_when_the_server_becomes_slow_and_recovers() -> None:
    state = AdaptiveLimit()
    for _ in range(300):  # 0.8 each
        state = state.after(BASE_S, int(state.limit), 200)
    high = state.limit
    for _ in range(20):
        state = state.after(10 * BASE_S, int(state.limit), 200)
    low = state.limit
    for _ in range(300):
        state = state.after(BASE_S, int(state.limit), 200)
    assert low < high / 3
    assert state.limit == high == 200


def test_a_server_that_is_slower_for_good_is_measured_anew_under_light_load() -> None:
    state = AdaptiveLimit()
    for number, seconds in enumerate([BASE_S] * 300 + [10 * BASE_S] * 3000):
        state = state.after(seconds, 3 if number % 10 == 0 else int(state.limit), 200)
    assert state.limit == 200


def test_it_is_never_below_one_or_above_the_most() -> None:
    state = AdaptiveLimit().after(BASE_S, 20, 3)
    assert state.limit == 3
    for _ in range(500):
        state = state.after(1000.0 if _ % 2 else 1e-9, 3, 3)
        assert 1 <= state.limit <= 3
