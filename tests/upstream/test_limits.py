"""Which windows an attempt draws on, by the limits of its upstream."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from gateway.api.json_document import parse
from gateway.config import Config, ConfigError, Model, Price, Route, build
from gateway.errors import ModelNotPriced
from gateway.quota.windows import BY_LIMIT, charges, refusal, unreserved
from gateway.records import Call, Claim, Key, Params, Record, Usage, WindowState
from gateway.upstream.limits import Place, UpstreamLimitTable, further, is_spent, with_end
from gateway.upstream.router import Router

A, B = Route(upstream="a"), Route(upstream="b", model="b-model")


def config(**limits: Any) -> Config:
    up: dict[str, Any] = {"base_url": "http://up/v1", "api_keys": ["sk-1", "sk-2"]}
    return build(
        {"upstreams": {"a": {**up, "limits": limits}, "b": up}, "models": {"*": {"routes": [{"upstream": "a"}]}}}
    )


def table(**limits: Any) -> UpstreamLimitTable:
    return UpstreamLimitTable(config(**limits).upstreams)


def a_call(prompt_tokens: int = 30, n: int = 2, output: int | None = 100) -> Call:
    params = Params(parse(b'{"model": "m"}'), "m", prompt_tokens=prompt_tokens, output_limit=output, n=n)
    return Call("c", 1.0, Key("k"), "chat", params, Model(routes=(A, B)), label_model="m", arrived=0.0)


def drawn(claims: tuple[Claim, ...]) -> list[tuple[str, int, int]]:
    return [(claim.window.id, claim.window.limit, claim.amount) for claim in claims]


def test_nothing_is_limited_by_default() -> None:
    none = table()
    assert not any([none.binds("a"), none.binds_keys("a"), none.binds_any([A, B])])
    assert none.claims(a_call(), A, 0) == ()


def test_a_call_draws_on_every_limit_of_its_upstream() -> None:
    whole = table(requests=["10/s", "5000/day"], tokens="200000/min", parallel=50)
    assert drawn(whole.claims(a_call(), A)) == [
        ("upstream:a|requests|second||", 10, 1),
        ("upstream:a|requests|86400||", 5000, 1),
        ("upstream:a|tokens|minute||", 200_000, 230),
        ("upstream:a|parallel|||", 50, 1),
    ]
    assert [claim.window.period_us for claim in whole.claims(a_call(), A)] == [1_000_000, 86_400_000_000, 60_000_000, 0]
    assert whole.claims(a_call(), B) == ()
    assert (whole.binds_any([B, A]), whole.binds_any([B])) == (True, False)


def test_limits_of_models_and_keys() -> None:
    some = table(per_model={"m*": {"tokens": "9/min"}, "x": {"parallel": 1}}, per_key={"parallel": 3})
    assert drawn(some.claims(a_call(2, 1, 3), A, 1)) == [
        ("upstream:a|tokens|minute|m*|", 9, 5),
        ("upstream:a#2|parallel|||", 3, 1),
    ]
    assert drawn(some.claims(a_call(2, 1, 3), Route(upstream="a", model="x"), None)) == [
        ("upstream:a|parallel||x|", 1, 1)
    ]


def test_a_call_that_is_larger_than_a_limit_takes_the_whole_of_it() -> None:
    assert drawn(table(tokens="100/min").claims(a_call(), A)) == [("upstream:a|tokens|minute||", 100, 100)]
    many = table(requests="100/min", parallel=4)
    assert [amount for _, _, amount in drawn(many.claims(a_call(), A, requests=30, at_once=8))] == [30, 4]


@pytest.mark.parametrize(
    ("address", "counts", "amount", "end"),
    [
        ("http://up/v1", None, 50, "||"),
        ("https://api.anthropic.com/v1", None, 50, "||"),
        ("http://up/v1", "output_limit", 230, "||" + BY_LIMIT),
        ("https://api.openai.com/v1", None, 230, "||" + BY_LIMIT),
        ("https://api.openai.com/v1", "used", 50, "||"),
    ],
)
def test_tokens_are_counted_as_the_upstream_does(address: str, counts: str | None, amount: int, end: str) -> None:
    limits = {"tokens": "1000/min", **({} if counts is None else {"counts": counts})}
    settings = {
        "upstreams": {"a": {"base_url": address, "limits": limits}}, "models": {"*": {"routes": [{"upstream": "a"}]}},
    }  # fmt: skip
    call = a_call()._replace(expected_output=10)
    found = UpstreamLimitTable(build(settings).upstreams).claims(call, A)
    assert drawn(found) == [("upstream:a|tokens|minute" + end, 1000, amount)]
    usage = Usage(30, 4, source="reported")
    record = Record("c", 0, "k", None, "chat", "m", "m", "m", None, "a", 200, False, usage, "done", None, 0, 1)
    for upstream, used in (("a", 34), ("b", 0)):
        charged = amount if end.endswith(BY_LIMIT) else used
        assert charges(record._replace(upstream=upstream), found) == [charged]


def test_what_is_reserved_is_for_interactive_calls() -> None:
    some = table(requests="9/s", parallel=4, reserved=1, per_model={"m": {"parallel": 3, "reserved": 2}, "x": {}})
    whole, of_model = "upstream:a|parallel|||", "upstream:a|parallel||m|"
    for priority, limits in {"interactive": (4, 3), "normal": (3, 1), "batch": (3, 1)}.items():
        call = a_call()._replace(priority=priority)  # type: ignore[arg-type]
        claims = some.claims(call, A)
        assert drawn(claims)[1:] == [(whole, limits[0], 1), (of_model, limits[1], 1)]
        amounts = {"upstream:a|requests|second||": 1, whole: 1, of_model: 1}
        pauses = {"upstream:a|requests|retry-after|m|": 1, "upstream:a|requests|retry-after|m|of|own|k|": 1}
        more = {} if priority == "interactive" else {unreserved(whole): 1, unreserved(of_model): 1}
        assert some.named(call, Place(A, None, claims)) == amounts | more | pauses
    adaptive = table(parallel=40, reserved=9, adaptive=True)  # begins at 4
    assert [limit for _, limit, _ in drawn(adaptive.claims(a_call(), A))] == [1]


@pytest.mark.parametrize("limits", [{"reserved": 1}, {"parallel": 2, "reserved": 2}, {"parallel": 2, "reserved": -1}])
def test_one_place_at_least_is_for_all(limits: dict[str, Any]) -> None:
    for where in (limits, {"per_key": limits}, {"per_model": {"m": limits}}):
        with pytest.raises(ConfigError, match="reserved"):
            config(**where)


def test_another_attempt_is_another_request_and_nothing_else_is_drawn_twice() -> None:
    whole = table(requests="5/min", tokens="9999/min", parallel=2)
    first = whole.claims(a_call(), A)
    assert further((), first) == first
    assert [claim.window.unit for claim in further(first, first)] == ["requests"]


def test_a_dearer_attempt_draws_the_rest_of_what_it_may_cost() -> None:
    some = budgeted("1 USD/day", {"tokens": 500, "per": "month"}, **PRICED)
    cheap, dear = [
        some.claims(
            a_call()._replace(model=Model(routes=(B,), max_output_tokens=100, price=Price(input=usd, output=usd))), B
        )
        for usd in (Decimal(1), Decimal(3))
    ]
    (rest,) = further(cheap, dear)
    assert rest == Claim(cheap[0].window, dear[0].amount - cheap[0].amount)
    assert further((*cheap, rest), dear) == further(dear, cheap) == ()


async def test_places_are_routes_and_keys_in_the_order_of_the_routes() -> None:
    def show(upstream: str, state: int) -> None:
        pass

    router = Router(config(per_key={"parallel": 1}), show)

    def places() -> list[tuple[str, int | None]]:
        found: list[Place] = router.places(a_call(), [A, B], lambda _: (1, 1))
        return [(place.route.upstream, place.key) for place in found]

    assert places() == [("a", 0), ("a", 1), ("b", None)]
    assert places() == [("a", 1), ("a", 0), ("b", None)]  # round robin
    assert router.begin(A, "m", key=1).key == 1


@pytest.mark.parametrize("text", ["500", "0/min", "-1/s", "5/fortnight", "1.5/s", "5/0s", "1/9999999999s", "", "/min"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected a rate such as 10/s, 500/min"):
        config(requests=text)


@pytest.mark.parametrize("bad", [{"parallel": 0}, {"rquests": "5/min"}, {"per_model": {"a|b": {}}}], ids=str)
def test_what_is_no_limit_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"upstreams\.a\.limits"):
        config(**bad)


def test_the_limit_of_parallel_calls_follows_the_time_to_the_first_token() -> None:
    limits = table(parallel=50, requests="500/min", adaptive=True, per_model={"x": {"parallel": 2}})

    def allowed(route: Route = A) -> list[int]:
        return [claim.window.limit for claim in limits.claims(a_call(), route) if claim.window.unit == "parallel"]

    assert allowed() == [4]  # to begin with
    under_way = {"upstream:a|parallel|||": 8}
    for _ in range(30):
        limits.first_token(limits.claims(a_call(), A), under_way, 0.2)
    high = allowed()[0]
    assert 10 < high < 50
    for _ in range(9):
        limits.first_token(limits.claims(a_call(), A), {"upstream:a|parallel|||": 40}, 9.0)
    assert allowed()[0] < high
    assert allowed(Route(upstream="a", model="x"))[1] == 2  # which is a limit of its own
    assert limits.claims(a_call(), A)[0].window.limit == 500


def test_a_limit_that_does_not_adapt_stays() -> None:
    limits = table(parallel=50)
    limits.first_token(limits.claims(a_call(), A), {"upstream:a|parallel|||": 50}, 9.0)
    assert limits.claims(a_call(), A)[0].window.limit == 50


def test_without_a_highest_number_nothing_can_adapt() -> None:
    with pytest.raises(ConfigError, match="adaptive needs parallel"):
        config(requests="5/min", adaptive=True)


def budgeted(*quotas: Any, **model: Any) -> UpstreamLimitTable:
    up = {"base_url": "http://up/v1", "quotas": [*quotas], "limits": {"requests": "9/s"}}
    settings = {
        "upstreams": {"a": up, "b": {**up, "limits": {}}},
        "models": {"m": {"routes": [{"upstream": "a"}], **model}},
    }
    return UpstreamLimitTable(build(settings).upstreams)


PRICED = {"max_output_tokens": 100, "price": {"input": 1, "output": 2}}


def test_a_call_draws_the_most_that_it_may_cost_on_what_may_be_spent() -> None:
    some = budgeted("1 USD/day", {"tokens": 500, "per": "month", "model": "m"}, "2 USD/week:other*", **PRICED)
    call = a_call()._replace(model=Model(routes=(A, B), **PRICED), expected_output=1)  # type: ignore[arg-type]
    drawn_on = {claim.window.id: (claim.window.limit, claim.amount) for claim in some.claims(call, B)}
    assert drawn_on == {
        "upstream:b|usd|day||1970-01-01": (10**9, 30 * 1000 + 200 * 2000),
        "upstream:b|tokens|month|m|1970-01": (500, 230),
    }
    both = some.claims(call, A)
    assert [claim.window.unit for claim in both] == ["requests", "usd", "tokens"]
    assert further(both, some.claims(call, B)) == some.claims(call, B)
    assert not some.counts_tokens
    usage = Usage(30, 4, source="reported")
    record = Record("c", 0, "k", None, "chat", "m", "m", "m", None, "b", 200, False, usage, "done", None, 0, 1)
    assert charges(record._replace(cost_nusd=7), (*both, *some.claims(call, B))) == [1, 0, 0, 7, 34]


def test_a_call_without_a_price_is_refused_where_money_is_counted() -> None:
    some = budgeted("1 USD/day", **PRICED)
    with pytest.raises(ModelNotPriced):
        some.claims(a_call(), B)
    (claim,) = some.claims(a_call()._replace(model=Model(routes=(B,), unpriced="allow")), B)
    assert claim.amount == 0


@pytest.mark.parametrize(
    ("quotas", "words"),
    [
        (["10 USD/hour"], "per day, week or month"), (["10 requests/day"], "rates and requests are limits"),
        (["1 USD/day", "2 USD/day"], "counts the same"), (["1M tokens/day"], "max_output_tokens"),
    ],
)  # fmt: skip
def test_what_may_be_spent_is_money_or_tokens_of_a_day_week_or_month(quotas: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        budgeted(*quotas)


def test_settled_use_alone_means_spent_until_the_window_starts_anew() -> None:
    (claim,) = budgeted("1 USD/day", **PRICED).claims(a_call()._replace(model=Model(routes=(B,), unpriced="allow")), B)
    full = refusal([(claim._replace(amount=5), WindowState(10**9, 0, 0))], 1_000_000)
    held = refusal([(claim._replace(amount=5), WindowState(0, 10**9, 0))], 1_000_000)
    assert full is not None
    assert held is not None
    assert (is_spent(full), is_spent(held)) == (True, False)
    assert with_end(full).retry_after_us == 86_399_000_000
    assert with_end(held) == held
