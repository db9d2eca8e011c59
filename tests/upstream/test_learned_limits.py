"""What 429 and rate limit headers make of a configured limit."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Route
from gateway.upstream.learned_limits import Announced, Assumed, announced
from gateway.upstream.limits import UpstreamLimitTable

from .test_limits import a_call, config


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, {}),
        (
            {"x-ratelimit-limit-requests": "500", "x-ratelimit-limit-tokens": "30000"},
            {"requests": Announced(500, None, 60), "tokens": Announced(30000, None, 60)},
        ),
        ({"anthropic-ratelimit-requests-limit": "50"}, {"requests": Announced(50, None, 60)}),
        ({"anthropic-ratelimit-tokens-limit": "40000"}, {"tokens": Announced(40000, None, 60)}),
        (
            {"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "2026-11-20T14:00:00Z"},
            {"tokens": Announced(None, 0, 60)},
        ),
        (
            {
                "x-ratelimit-limit-tokens": "9",
                "x-ratelimit-remaining-tokens": "3",
                "x-ratelimit-reset-tokens": "120ms",
            },
            {"tokens": Announced(9, 3, 0.12)},
        ),
        ({"x-ratelimit-limit-requests": "0"}, {}),
        ({"x-ratelimit-limit-requests": "-1", "x-ratelimit-limit-tokens": "9" * 30}, {}),
        ({"x-ratelimit-limit-requests": "1.5", "x-ratelimit-remaining-tokens": "many"}, {}),
    ],
)
def test_announced(headers: dict[str, str], found: dict[str, Announced]) -> None:
    assert announced(headers.get) == found


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("8.64s", 8.64), ("6m0s", 60), ("1h", 60), ("20ms", 0.02), ("soon", 60), ("", 60)]
)
def test_the_time_until_all_remains(text: str, seconds: float) -> None:
    headers = {"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": text}
    assert announced(headers.get)["requests"].resets_s == seconds


def test_what_others_use_is_taken_off_and_comes_back_until_the_reset() -> None:
    assumed = Assumed().heard(Announced(1000, 300, 20), 1000, 100, 50.0)
    assert [assumed.limit(1000, at) for at in (50.0, 55.0, 60.0, 70.0, 99.0)] == [400, 550, 700, 1000, 1000]
    assert not assumed.is_plain(60.0)
    assert assumed.is_plain(70.0)
    assert assumed.refused(50.0).limit(1000, 50.0) == 280
    assert assumed.heard(Announced(1000, 890, 20), 1000, 100, 51.0).is_plain(51.0)


@pytest.mark.parametrize(
    ("answer", "used"),
    [
        (Announced(1000, 805, 60), 100),
        (Announced(9000, 1000, 60), 0),
        (Announced(1000, 0, 60), 1000),
        (Announced(1000, 0, 60), None),
    ],
)
def test_what_the_gateway_itself_has_used_counts_for_no_other(answer: Announced, used: int | None) -> None:
    assert Assumed().heard(answer, 1000, used, 50.0).is_plain(50.0)


def test_others_and_a_lower_limit_are_learned_from_one_answer() -> None:
    assert Assumed().heard(Announced(500, 100, 60), 1000, 0, 50.0).limit(1000, 50.0) == 100
    assert Assumed(ceiling=500).heard(Announced(None, 400, 60), 400, 0, 50.0).limit(400, 50.0) == 400


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
