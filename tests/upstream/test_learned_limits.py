"""What 429 and rate limit headers make of a configured limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api.json_document import parse
from gateway.config import Route
from gateway.quota import windows
from gateway.records import Document
from gateway.upstream.circuit_breaker import WINDOW_S
from gateway.upstream.credentials import Asker
from gateway.upstream.health import LONG_PROMPT, asker_of
from gateway.upstream.learned_limits import Announced, Assumed, announced, has_room
from gateway.upstream.limits import UpstreamLimitTable

from .test_limits import a_call, config

FULL = {
    "x-ratelimit-limit-requests": "50", "x-ratelimit-remaining-requests": "49", "x-ratelimit-limit-tokens": "30000",
}  # fmt: skip


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


CALLERS = ALICE, BOB, CAROL = Asker("alice"), Asker("bob"), Asker("carol")


def lowest(table: UpstreamLimitTable, *askers: Asker) -> list[int]:
    (limit,) = [limit for _, limit in table.every()]
    return [table.window(limit, 1.0, asker).limit for asker in askers]


def test_refusals_of_one_caller_lower_its_own_limit() -> None:
    clock = Clock()
    table = UpstreamLimitTable(config(requests="100/min").upstreams, clock)
    for _ in range(20):
        table.refused("a", "m", 0, ALICE)
        clock.now += 1
    assert lowest(table, *CALLERS) == [3, 100, 100]
    table.refused("a", "m", 0, BOB)
    clock.now += 1
    for _ in range(20):
        table.refused("a", "m", 0, ALICE)  # the first one comes after that of another caller
        clock.now += 1
    assert lowest(table, BOB, CAROL) == [70, 70]
    (limit,) = [limit for _, limit in table.every()]
    assert table.window(limit, 1.0).limit == 3  # reports have the lowest
    clock.now += 200
    assert lowest(table, *CALLERS) == [100, 100, 100]


def test_refusals_of_many_callers_lower_the_limit_of_all() -> None:
    clock = Clock()
    table = UpstreamLimitTable(config(requests="100/min").upstreams, clock)
    for number in range(20):
        table.refused("a", "m", 0, Asker(f"k-{number}"))
        clock.now += 1
    assert lowest(table, CAROL) == [3]


def test_refusals_that_are_far_apart_are_no_evidence() -> None:
    clock = Clock()
    table = UpstreamLimitTable(config(requests="100/min").upstreams, clock)
    for asker in (ALICE, BOB):
        table.refused("a", "m", 0, asker)
        clock.now += WINDOW_S
    assert lowest(table, CAROL) == [100]


@pytest.mark.parametrize(
    ("asker", "has_room", "lowered"),
    [
        (ALICE, False, [70, 70]), (ALICE, True, [70, 100]), (ALICE, None, [70, 100]),
        (ALICE._replace(service="flex"), False, [100, 100]), (Asker(), None, [70, 70]),
    ],
)  # fmt: skip
def test_whose_limit_a_429_lowers(asker: Asker, has_room: bool | None, lowered: list[int]) -> None:
    table = UpstreamLimitTable(config(requests="100/min").upstreams, Clock())
    table.refused("a", "m", 0, asker, has_room)
    assert lowest(table, ALICE, BOB) == lowered


def test_answers_of_a_service_are_about_that_service() -> None:
    flex = ALICE._replace(service="flex")
    table = UpstreamLimitTable(config(per_key={"requests": "100/min"}).upstreams, Clock())
    table.heard("a", "m", 0, {"x-ratelimit-limit-requests": "9"}.get, {}, flex)
    every = [limit for _, limit in table.every()]
    assert [table.window(every[0], 1.0, asker).limit for asker in (flex, BOB._replace(service="flex"), BOB)] == [
        9,
        9,
        100,
    ]


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, None),
        ({"anthropic-ratelimit-requests-remaining": "0"}, False),
        ({"anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "49"}, None),
        ({**FULL, "x-ratelimit-remaining-tokens": "0"}, False),
        ({**FULL, "x-ratelimit-remaining-tokens": "3000"}, None),
        ({**FULL, "x-ratelimit-remaining-tokens": "3001"}, True),
        ({"x-ratelimit-remaining-requests": "49", "x-ratelimit-remaining-tokens": "3001"}, None),
    ],
)
def test_has_room(headers: dict[str, str], found: bool | None) -> None:
    assert has_room(headers.get) is found


@pytest.mark.parametrize(
    ("body", "service"),
    [
        ({}, ""), ({"service_tier": "auto"}, ""), ({"service_tier": "flex"}, "flex"), ({"speed": "fast"}, "fast"),
        ({"service_tier": "SERVICE_TIER_PRIORITY"}, "priority"), ({"service_tier": "made up"}, ""),
        ({"speed": "fast", "inference_geo": "us"}, "fast-us"), ({"fallbacks": [{"speed": "fast"}]}, "fast"),
    ],
)  # fmt: skip
def test_the_service_that_a_call_asks_for(body: dict[str, Any], service: str) -> None:
    call = a_call()
    asking = call._replace(params=call.params._replace(document=parse(json.dumps({"model": "m", **body}).encode())))
    assert asker_of(asking) == Asker("k", service)
    assert asker_of(a_call(LONG_PROMPT + 1)) == Asker("k", "long")


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


def test_every_member_that_asks_for_a_service_is_listed() -> None:
    """`asker_of` takes a request with none of these for an ordinary one."""

    class Read(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return default

    asked = set[str]()
    windows.variants_of(a_call(1).params._replace(document=Document("{}", Read())))
    assert asked == windows.SERVICES
