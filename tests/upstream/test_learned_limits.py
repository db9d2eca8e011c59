"""What 429 and rate limit headers make of a configured limit."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Route
from gateway.upstream.learned_limits import Assumed, announced
from gateway.upstream.limits import UpstreamLimitTable

from .test_limits import a_call, config


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, {}),
        (
            {"x-ratelimit-limit-requests": "500", "x-ratelimit-limit-tokens": "30000"},
            {"requests": 500, "tokens": 30000},
        ),
        ({"anthropic-ratelimit-requests-limit": "50"}, {"requests": 50}),
        ({"anthropic-ratelimit-tokens-limit": "40000"}, {"tokens": 40000}),
        ({"x-ratelimit-limit-requests": "0"}, {}),
        ({"x-ratelimit-limit-requests": "-1", "x-ratelimit-limit-tokens": "9" * 30}, {}),
        ({"x-ratelimit-limit-requests": "1.5", "x-ratelimit-limit-tokens": "many"}, {}),
    ],
)
def test_announced(headers: dict[str, str], found: dict[str, int]) -> None:
    assert announced(headers.get) == found


def test_a_429_lowers_at_once_and_the_limit_rises_slowly() -> None:
    assumed = Assumed().refused(100.0)
    assert [assumed.limit(1000, at) for at in (100.0, 110.0, 120.0, 130.0, 999.0)] == [700, 800, 900, 1000, 1000]
    assert not assumed.is_plain(129.0)
    assert assumed.is_plain(131.0)


def test_refusals_of_one_moment_count_once() -> None:
    assumed = Assumed().refused(100.0)
    assert assumed.refused(100.5) is assumed
    assert assumed.refused(101.0).limit(1000, 101.0) == 497


def test_a_limit_never_falls_below_one() -> None:
    assumed = Assumed()
    for second in range(50):
        assumed = assumed.refused(float(second))
    assert assumed.limit(3, 50.0) == 1


def test_an_announced_limit_bounds_the_configured_one() -> None:
    assert Assumed(ceiling=300).limit(1000, 0.0) == 300
    assert Assumed(ceiling=3000).limit(1000, 0.0) == 1000
    assert Assumed(ceiling=300).refused(5.0).limit(1000, 5.0) == 210


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def limits(table: UpstreamLimitTable, key: int | None = None) -> list[tuple[str, int]]:
    return [(claim.window.id, claim.window.limit) for claim in table.claims(a_call(1, 1, 1), Route(upstream="a"), key)]


def test_a_table_lowers_the_limits_of_the_request_only() -> None:
    clock = Clock()
    some = {"requests": "100/min", "per_model": {"m": {"requests": "50/min"}, "x": {"requests": "60/min"}}}
    table = UpstreamLimitTable(config(**some).upstreams, clock)
    table.refused("a", "m", 0)
    assert limits(table) == [("upstream:a|requests|minute||", 70), ("upstream:a|requests|minute|m|", 35)]
    assert [table.window(limit, 1.0).limit for _, limit in table.every()] == [70, 35, 60]
    clock.now += 60
    assert [limit for _, limit in limits(table)] == [100, 50]


def test_headers_are_about_one_key() -> None:
    table = UpstreamLimitTable(config(requests="900/min", per_key={"requests": "500/min"}).upstreams, Clock())
    table.heard("a", "m", 1, {"x-ratelimit-limit-requests": "300"}.get)
    assert limits(table, 0) == [("upstream:a|requests|minute||", 900), ("upstream:a#1|requests|minute||", 500)]
    assert limits(table, 1) == [("upstream:a|requests|minute||", 900), ("upstream:a#2|requests|minute||", 300)]
    table.heard("a", "m", 1, {"x-ratelimit-limit-requests": "5000"}.get)
    assert limits(table, 1)[1] == ("upstream:a#2|requests|minute||", 500)


@pytest.mark.parametrize(("learn", "learning"), [(True, {"a"}), (False, set[str]())])
def test_learning_can_be_turned_off(learn: bool, learning: Any) -> None:
    assert UpstreamLimitTable(config(requests="1/s", learn=learn).upstreams).learning == learning
