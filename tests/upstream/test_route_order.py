"""The order of routes: priority, then weight by chance, then the fewest calls among equals."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Route
from gateway.upstream.router import order


def routes(*spelt: tuple[str, int, int]) -> list[Route]:
    return [Route(upstream=name, priority=priority, weight=weight) for name, priority, weight in spelt]


def names(given: list[Route], busy: Mapping[str, int] = {}, seed: int = 0) -> str:
    ordered = order(given, lambda route: busy.get(route.upstream, 0), random.Random(seed).random)
    return "".join(route.upstream for route in ordered)


def test_priority_comes_first() -> None:
    given = routes(("c", 3, 9), ("a", 1, 1), ("b", 2, 100))
    for seed in range(20):
        assert names(given, {"a": 1000}, seed) == "abc"


@pytest.mark.parametrize(
    ("weights", "shares"), [((1, 1), (0.5, 0.5)), ((3, 1), (0.75, 0.25)), ((1, 2, 5), (0.125, 0.25, 0.625))]
)
def test_weights_are_shares(weights: tuple[int, ...], shares: tuple[float, ...]) -> None:
    given = routes(*[(str(place), 1, weight) for place, weight in enumerate(weights)])
    chance = random.Random(7).random
    first = Counter(order(given, lambda _: 0, chance)[0].upstream for _ in range(8000))
    for place, share in enumerate(shares):
        assert first[str(place)] / 8000 == pytest.approx(share, abs=0.025)


def test_weight_decides_about_the_second_place_too() -> None:
    given = routes(("a", 1, 1000), ("b", 1, 3), ("c", 1, 1))
    chance = random.Random(7).random
    second = Counter(order(given, lambda _: 0, chance)[1].upstream for _ in range(4000))
    assert second["b"] / 4000 == pytest.approx(0.75, abs=0.03)


def test_among_equals_the_one_with_the_fewest_calls_is_first() -> None:
    given = routes(("a", 1, 1), ("b", 1, 1), ("c", 1, 1))
    for seed in range(20):
        assert names(given, {"a": 5, "b": 3, "c": 4}, seed) == "bca"


def test_who_has_another_weight_is_no_equal() -> None:
    given = routes(("a", 1, 3), ("b", 1, 1))
    chance = random.Random(7).random
    first = Counter(
        order(given, lambda route: {"a": 9}.get(route.upstream, 0), chance)[0].upstream for _ in range(4000)
    )
    assert first["a"] / 4000 == pytest.approx(0.75, abs=0.03)


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(1, 3)), max_size=6),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.floats(0, 1, exclude_max=True),
)
def test_no_route_is_lost_or_doubled(spelt: list[tuple[int, int]], busy: list[int], at: float) -> None:
    given = routes(*[(str(place), priority, weight) for place, (priority, weight) in enumerate(spelt)])
    ordered = order(given, lambda route: busy[int(route.upstream)], lambda: at)
    assert sorted(route.upstream for route in ordered) == sorted(route.upstream for route in given)
    assert [route.priority for route in ordered] == sorted(route.priority for route in given)
