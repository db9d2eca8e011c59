"""How many repetitions an upstream has to bear: never more than a share of its calls, and a few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.health import MIN_REPEATS, RETRY_SHARE, RETRY_SLICE_S, RetryBudget


def spend(budget: RetryBudget, wanted: int, now: float) -> int:
    """Repeat as often as one may."""
    done = 0
    while done < wanted and not budget.is_spent(now):
        budget.note_repeat(now)
        done += 1
    return done


@pytest.mark.parametrize(("calls", "allowed"), [(0, 10), (1, 11), (10, 12), (200, 50), (1000, 210)])
def test_a_fifth_of_the_calls_and_ten_more(calls: int, allowed: int) -> None:
    budget = RetryBudget()
    for _ in range(calls):
        budget.note_call(100.0)
    assert spend(budget, 10_000, 100.0) == allowed
    assert budget.is_spent(100.0)


def test_budget_comes_back_with_time() -> None:
    budget = RetryBudget()
    assert spend(budget, 99, 100.0) == MIN_REPEATS
    assert spend(budget, 99, 100.0 + RETRY_SLICE_S) == 0
    assert spend(budget, 99, 100.0 + 2 * RETRY_SLICE_S) == MIN_REPEATS


def test_calls_of_long_ago_allow_nothing() -> None:
    budget = RetryBudget()
    for _ in range(1000):
        budget.note_call(100.0)
    assert spend(budget, 10_000, 500.0) == MIN_REPEATS


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=300))
def test_no_window_holds_more_repetitions_than_its_calls_allow(steps: list[tuple[float, bool]]) -> None:
    """Whatever comes when: in ten seconds at most a fifth of the calls of twenty, and twice ten."""
    budget, now = RetryBudget(), 0.0
    calls: list[float] = []
    repeats: list[float] = []
    for wait_s, is_call in steps:
        now += wait_s
        if is_call:
            budget.note_call(now)
            calls.append(now)
        elif not budget.is_spent(now):
            budget.note_repeat(now)
            repeats.append(now)
        window = [at for at in repeats if at > now - 2 * RETRY_SLICE_S]
        around = [at for at in calls if at > now - 4 * RETRY_SLICE_S]
        assert len(window) <= 2 * MIN_REPEATS + 2 + RETRY_SHARE * len(around)
