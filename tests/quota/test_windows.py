"""The arithmetic of quotas: claims of calls, and how windows fill, leak and empty."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.api.json_document import parse
from gateway.config import Config, Model, Quota
from gateway.errors import InvalidRequest, ModelNotPriced
from gateway.quota import scopes
from gateway.quota import windows as limits
from gateway.records import Call, Claim, Key, LargeBody, Params, Record, Refused, Usage, Window, WindowState
from tests.fakes.params import SET_BY_FORMAT

SECOND = 1_000_000
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()


def config(**changes: Any) -> Config:
    return Config.model_validate({
        "upstreams": {"up": {"base_url": "http://127.0.0.1:1/v1"}},
        "models": {"*": {"routes": [{"upstream": "up"}], "max_output_tokens": 500}},
        **changes,
    })  # fmt: skip


def quota(**changes: Any) -> Quota:
    return Quota.model_validate({"per": "day", **changes})


def call(endpoint: str = "completions", key: Key | None = None, **changes: Any) -> Call:
    body = changes.pop("body", b"{}")
    settings = {"routes": [{"upstream": "up"}], "max_output_tokens": 500, **changes.pop("settings", {})}
    document = parse(body)
    if "max_tokens" in document.members:
        changes["output_param"] = "max_tokens"
    params = Params(document=document, model=changes.pop("model", "gpt-x"), **(SET_BY_FORMAT[endpoint] | changes))
    return Call("c1", NOW, key or Key("k"), endpoint, params, Model.model_validate(settings), "gpt-x", 0.0)  # type: ignore[arg-type]


def claims(this: Call, settings: Config) -> tuple[Claim, ...]:
    return limits.claims(this, limits.LimitTable(settings.quotas, settings.teams, {}).of_call(this))


def rate(limit: int = 60, amount: int = 1, period_s: int = 60, **changes: Any) -> Claim:
    window = Window("w", "key:k", "requests", "minute", None, limit, period_us=period_s * SECOND, **changes)
    return Claim(window, amount)


def daily(limit: int = 100, amount: int = 1, **changes: Any) -> Claim:
    window = Window("w", "key:k", "tokens", "day", None, limit, starts="2026-11-20", resets_us=10**15, **changes)
    return Claim(window, amount)


def parallel(limit: int = 2) -> Claim:
    return Claim(Window("w", "key:k", "parallel", "", None, limit), 1)


# ------------------------------------------------------------------------------------------------ what a call claims

EVERYONE = {
    "teams": {"t": {"quotas": [{"requests": 50, "per": "hour"}]}},
    "quotas": [{"tokens": 10**6, "per": "month"}],
}


def test_a_call_draws_on_key_team_and_gateway() -> None:
    key = Key("k", team="t", max_parallel=3, quotas=(quota(requests=5, per=90), quota(tokens=9000)))
    drawn = claims(call(key=key, prompt_tokens=10, output_limit=20, n=2), config(**EVERYONE))
    assert [(claim.window.id, claim.window.limit, claim.amount, claim.window.period_us) for claim in drawn] == [
        ("key:k|requests|90||", 5, 1, 90 * SECOND),
        ("key:k|tokens|day||2026-11-20", 9000, 50, 0),
        ("team:t|requests|hour||", 50, 1, 3600 * SECOND),
        ("gateway|tokens|month||2026-11", 10**6, 50, 0),
        ("key:k|parallel|||", 3, 1, 0),
    ]
    assert all(claim.window.is_enforced for claim in drawn)


def test_a_key_without_quotas_draws_on_nothing() -> None:
    assert claims(call(), config()) == ()
    assert claims(call(key=Key("k", team="gone")), config()) == ()


def test_a_window_is_identified_by_scope_unit_and_period_not_by_its_limit() -> None:
    windows = {window_id("k", quota(requests=number, per=60)) for number in (1, 2, 3)}
    assert windows == {"key:k|requests|60||"}
    others = [quota(requests=1, per=60, model="gpt-*"), quota(tokens=1, per=60), quota(requests=1, per="minute")]
    assert len(windows | {window_id("k", other) for other in others}) == 4
    assert window_id("other", quota(requests=1, per=60)) not in windows


def window_id(key: str, its: Quota) -> str:
    (term,) = limits.LimitTable((), {}, {}).of(Key(key, quotas=(its,)))
    return term.window(NOW).id


def test_a_calendar_window_is_that_of_the_day_in_which_the_call_began() -> None:
    (term,) = limits.LimitTable((), {}, {}).of(Key("k", quotas=(quota(tokens=5),)))
    assert [term.window(NOW + 86400 * days).starts for days in (0, 1, 0)] == ["2026-11-20", "2026-11-21", "2026-11-20"]
    assert term.window(NOW) is term.window(NOW + 60)


def test_terms_follow_the_key_and_are_worked_out_once() -> None:
    settings = config(**EVERYONE)
    terms = limits.LimitTable(settings.quotas, settings.teams, {})
    key = Key("k", team="t", quotas=(quota(tokens=5),))
    assert terms.of(key) is terms.of(key)
    changed = Key("k", quotas=(quota(tokens=7),))
    assert [term.limit for term in terms.of(changed)] == [7, 10**6]
    for number in range(limits.MAX_CACHED_KEYS + 1):
        terms.of(Key(f"k{number}"))
    assert len(terms._known) <= limits.MAX_CACHED_KEYS


def test_the_limits_of_a_key_for_a_model_are_worked_out_once() -> None:
    settings = config(**EVERYONE)
    terms = limits.LimitTable(settings.quotas, settings.teams, {})
    this = call(key=Key("k", quotas=(quota(tokens=5, model="gpt-3*"), quota(tokens=6))))
    found = terms.of_call(this)
    assert [each.limit for each in found.each][:1] == [6]
    assert terms.of_call(this) is found
    assert [each.limit for each in terms.of_call(this._replace(target="gpt-3.5")).each][:2] == [5, 6]
    changed = this._replace(key=Key("k", quotas=(quota(tokens=7),)))
    assert [each.limit for each in terms.of_call(changed).each][:1] == [7]
    for number in range(limits.MAX_CACHED_KEYS + 1):
        terms.of_call(this._replace(target=f"m{number}"))
    assert len(terms._of_calls) <= limits.MAX_CACHED_KEYS


def test_the_windows_of_a_call_are_those_of_the_day_in_which_it_began() -> None:
    terms, key = limits.LimitTable((), {}, {}), Key("k", quotas=(quota(tokens=5), quota(tokens=9, per=60)))

    def units(started: float) -> tuple[Claim, ...]:
        return terms.of_call(call(key=key)._replace(started=started)).units

    starts = [[unit.window.starts for unit in units(NOW + 86400 * days)] for days in (0, 1, 0)]
    assert starts == [["2026-11-20", ""], ["2026-11-21", ""], ["2026-11-20", ""]]
    assert units(NOW) is units(NOW + 60)


@pytest.mark.parametrize(
    ("pattern", "model", "is_counted"),
    [(None, "gpt-4o", True), ("gpt-4*", "gpt-4o", True), ("gpt-4*", "gpt-3.5", False), ("GPT-4*", "gpt-4o", False)],
)
def test_a_quota_may_count_some_models_only(pattern: str | None, model: str, is_counted: bool) -> None:
    key = Key("k", quotas=(quota(tokens=1000, model=pattern),))
    assert len(claims(call(key=key, model=model), config())) == int(is_counted)


@pytest.mark.parametrize(
    ("endpoint", "params", "tokens"),
    [
        ("completions", {"prompt_tokens": 10}, 26),  # OpenAI's own default of 16
        ("completions", {"prompt_tokens": 10, "output_limit": 0}, 10),
        ("completions", {"prompt_tokens": 10, "output_limit": 100, "n": 3}, 310),
        ("completions", {"prompt_tokens": 10, "output_limit": 100, "n": 2, "best_of": 5}, 510),
        ("completions", {"prompt_tokens": 10, "output_limit": 100, "best_of": 3, "prompts": 2}, 610),
        ("chat", {"prompt_tokens": 10}, 510),  # the model's max_output_tokens
        ("chat", {"prompt_tokens": 10, "output_limit": 7, "n": 2}, 24),
        ("embeddings", {"prompt_tokens": 10}, 10),
        ("embeddings", {"prompt_tokens": 10, "prompts": 4}, 10),
    ],
)
def test_tokens_that_a_call_claims(endpoint: str, params: dict[str, Any], tokens: int) -> None:
    key = Key("k", quotas=(quota(tokens=10**6),))
    assert [claim.amount for claim in claims(call(endpoint, key, **params), config())] == [tokens]


@pytest.mark.parametrize(
    ("endpoint", "params", "body", "names"),
    [
        ("completions", {"output_limit": 101}, b"{}", "max_tokens"),
        ("completions", {"output_limit": 34, "n": 3}, b"{}", "max_tokens"),
        ("completions", {"output_limit": 51, "prompts": 2}, b"{}", "max_tokens"),
        ("completions", {"output_limit": 20, "best_of": 6}, b"{}", "max_tokens"),
        ("completions", {"output_limit": 1, "prompt_tokens": 100, "is_prompt_exact": True}, b"{}", "max_tokens"),
        ("chat", {}, b"{}", "max_completion_tokens"),
        ("chat", {"output_limit": 101}, b'{"max_tokens":101}', "max_tokens"),
        ("chat", {"output_limit": 101}, b'{"max_completion_tokens":101}', "max_completion_tokens"),
        ("embeddings", {"prompt_tokens": 101, "is_prompt_exact": True}, b"{}", "input"),
    ],
)
def test_what_can_never_fit_is_refused_by_name(endpoint: str, params: dict[str, Any], body: bytes, names: str) -> None:
    key = Key("k", quotas=(quota(tokens=100, per="hour"),))
    with pytest.raises(InvalidRequest) as caught:
        claims(call(endpoint, key, body=body, **params), config())
    error = caught.value
    assert (error.status, error.param, error.code) == (400, names, "quota_too_small")
    assert "100 tokens per hour of your key" in error.message


@pytest.mark.parametrize("params", [{"output_limit": 100}, {"output_limit": 0, "prompt_tokens": 807}])
def test_what_only_an_estimate_keeps_from_fitting_is_not(params: dict[str, Any]) -> None:
    """An estimated prompt of up to eight windows claims the whole window."""
    key = Key("k", quotas=(quota(tokens=100),))
    (claim,) = claims(call(key=key, **{"prompt_tokens": 30, **params}), config())
    assert claim.amount == 100
    assert limits.check(claim, WindowState(), 0) is None


def test_a_shadow_key_is_counted_and_never_refused() -> None:
    key = Key("k", team="t", is_shadow=True, max_parallel=1, quotas=(quota(tokens=100), quota(requests=1)))
    drawn = claims(call(key=key, output_limit=1000), config(**EVERYONE))
    assert [claim.amount for claim in drawn] == [1000, 1, 1, 1000, 1]
    full = WindowState(10**9, 10**9, 0)
    assert not any(claim.window.is_enforced or limits.check(claim, full, 0) for claim in drawn)


# ------------------------------------------------------------------------------------------------------------- money

PRICED = {"price": {"input": 1.5, "output": 2, "cached_input": 0.5}}


@pytest.mark.parametrize(
    ("endpoint", "params", "nusd"),
    [
        ("completions", {"prompt_tokens": 10}, 10 * 1500 + 16 * 2000),
        ("completions", {"prompt_tokens": 10, "output_limit": 0}, 15_000),
        ("completions", {"prompt_tokens": 10, "output_limit": 100, "n": 2, "best_of": 5}, 15_000 + 500 * 2000),
        ("completions", {"prompt_tokens": 10, "output_limit": 100, "best_of": 3, "prompts": 2}, 15_000 + 600 * 2000),
        ("chat", {"prompt_tokens": 10}, 15_000 + 500 * 2000),
        ("chat", {"prompt_tokens": 10, "output_limit": 7, "n": 2}, 15_000 + 14 * 2000),
        ("embeddings", {"prompt_tokens": 10}, 15_000),
    ],
)
def test_money_that_a_call_claims(endpoint: str, params: dict[str, Any], nusd: int) -> None:
    key = Key("k", quotas=(quota(usd=50, per="month"),))
    (claim,) = claims(call(endpoint, key, settings=PRICED, **params), config())
    assert claim.amount == nusd
    window = claim.window
    assert (window.id, window.unit, window.limit) == ("key:k|usd|month||2026-11", "usd", 50 * 10**9)


@pytest.mark.parametrize(
    ("per", "period_us"), [("second", SECOND), ("hour", 3600 * SECOND), (90, 90 * SECOND), ("day", 0), ("month", 0)]
)
def test_money_has_every_kind_of_window(per: str | int, period_us: int) -> None:
    settings = config(quotas=[{"usd": 0.5, "per": per}], teams={"t": {"quotas": [{"usd": "0.25", "per": per}]}})
    key = Key("k", team="t", quotas=(quota(usd=0.125, per=per),))
    drawn = claims(call(key=key, settings=PRICED, prompt_tokens=1), settings)
    assert [(claim.window.limit, claim.window.period_us) for claim in drawn] == [
        (125_000_000, period_us), (250_000_000, period_us), (500_000_000, period_us),
    ]  # fmt: skip
    assert {claim.amount for claim in drawn} == {1500 + 16 * 2000}


def test_a_quota_of_money_may_count_some_models_only() -> None:
    key = Key("k", quotas=(quota(usd=1, model="gpt-4*"),))
    assert len(claims(call(key=key, model="gpt-4o", settings=PRICED), config())) == 1
    assert claims(call(key=key, model="gpt-3.5"), config()) == ()  # neither counted nor refused for lack of a price


@pytest.mark.parametrize("where", ["key", "team", "gateway"])
def test_without_a_price_nothing_is_bought_on_a_quota_of_money(where: str) -> None:
    quotas = {"key": (), "team": (), "gateway": (), where: [{"usd": 50, "per": "month"}]}
    key = Key("k", team="t", quotas=tuple(quota(**its) for its in quotas["key"]))
    settings = config(quotas=quotas["gateway"], teams={"t": {"quotas": quotas["team"]}})
    with pytest.raises(ModelNotPriced) as caught:
        claims(call(key=key), settings)
    error = caught.value
    assert (error.status, error.type, error.param, error.code) == (
        403, "invalid_request_error", "model", "model_not_priced",
    )  # fmt: skip
    assert "`gpt-x`" in error.message
    (claim,) = claims(call(key=key, settings={"unpriced": "allow"}), settings)
    assert claim.amount == 0
    (claim,) = claims(call(key=key, settings={"price": {"input": 0, "output": 0}}), settings)
    assert claim.amount == 0  # a price of 0 is a price


def test_a_shadow_key_buys_without_a_price_and_without_an_end() -> None:
    key = Key("k", is_shadow=True, quotas=(quota(usd=0.000001),))
    (claim,) = claims(call(key=key), config())
    assert (claim.amount, claim.window.is_enforced) == (0, False)
    (claim,) = claims(call(key=key, settings=PRICED, output_limit=10), config())
    assert claim.amount == 20_000
    dear = {"price": {"input": 9_000_000, "output": 9_000_000}}
    (claim,) = claims(call(key=key, settings=dear, output_limit=2**31 - 1, n=128), config())
    assert claim.amount == 2**53 - 1  # the largest number of a store


@pytest.mark.parametrize(
    ("endpoint", "params", "body", "names", "cost"),
    [
        ("completions", {"output_limit": 501}, b"{}", "max_tokens", "$0.001002 (501 tokens for each of 1 outputs)"),
        ("completions", {"output_limit": 251, "n": 2}, b"{}", "max_tokens", "$0.001004 (251 tokens for each of 2"),
        (
            "completions", {"output_limit": 400, "prompt_tokens": 600, "is_prompt_exact": True}, b"{}", "max_tokens",
            "$0.0017 (a prompt of 600 tokens and 400 tokens for each of 1 outputs)",
        ),
        ("completions", {"output_limit": 1, "prompt_tokens": 700, "is_prompt_exact": True}, b"{}", "prompt", "$0.0010"),
        ("chat", {"output_limit": 501}, b'{"max_tokens":501}', "max_tokens", "$0.001002"),
        ("embeddings", {"prompt_tokens": 667, "is_prompt_exact": True}, b"{}", "input", "$0.0010005"),
    ],
)  # fmt: skip
def test_what_can_never_be_paid_is_refused_by_name(
    endpoint: str, params: dict[str, Any], body: bytes, names: str, cost: str
) -> None:
    key = Key("k", quotas=(quota(usd=0.001),))
    with pytest.raises(InvalidRequest) as caught:
        claims(call(endpoint, key, body=body, settings=PRICED, **params), config())
    error = caught.value
    assert (error.status, error.param, error.code) == (400, names, "quota_too_small")
    assert f"may cost up to {cost}" in error.message
    assert "more than the whole quota of $0.001 per day of your key" in error.message


@pytest.mark.parametrize("params", [{"output_limit": 500}, {"output_limit": 500, "prompt_tokens": 5300}])
def test_a_prompt_that_only_may_be_too_dear_is_no_reason(params: dict[str, Any]) -> None:
    key = Key("k", quotas=(quota(usd=0.001),))
    (claim,) = claims(call(key=key, settings=PRICED, **params), config())
    assert claim.amount == 1_000_000
    assert limits.check(claim, WindowState(), 0) is None


@pytest.mark.parametrize(
    ("per", "state", "retry_after_us"),
    [
        ("month", WindowState(10**6, 0), None),  # fully used: waiting is useless
        ("month", WindowState(10**6 - 1, 10**6), limits.IN_THE_WAY_US),
        (10, WindowState(10**6, 0), 320_000),  # a rate of money refills, too
    ],
)
def test_spent_money(per: str | int, state: WindowState, retry_after_us: int | None) -> None:
    key = Key("k", quotas=(quota(usd=0.001, per=per),))
    (claim,) = claims(call(key=key, settings=PRICED), config())
    short = limits.check(claim._replace(amount=1 if state.reserved else claim.amount), state, 0)
    assert short is not None
    assert short.retry_after_us == retry_after_us


@pytest.mark.parametrize(
    ("per", "now", "name", "end"),
    [
        ("day", "2026-11-20T00:00:00", "2026-11-20", "2026-11-21"),
        ("day", "2026-11-20T23:59:59.999999", "2026-11-20", "2026-11-21"),
        ("day", "2026-02-28T12:00:00", "2026-02-28", "2026-03-01"),
        ("day", "2028-02-28T12:00:00", "2028-02-28", "2028-02-29"),
        ("day", "2028-02-29T12:00:00", "2028-02-29", "2028-03-01"),
        ("day", "2026-12-31T23:59:59", "2026-12-31", "2027-01-01"),
        ("week", "2026-11-22T23:59:59.999999", "2026-W47", "2026-11-23"),
        ("week", "2026-11-23T00:00:00", "2026-W48", "2026-11-30"),
        ("week", "2026-12-31T12:00:00", "2026-W53", "2027-01-04"),
        ("week", "2027-01-03T12:00:00", "2026-W53", "2027-01-04"),
        ("week", "2024-12-30T00:00:00", "2025-W01", "2025-01-06"),
        ("month", "2026-11-01T00:00:00", "2026-11", "2026-12-01"),
        ("month", "2026-01-31T23:59:59", "2026-01", "2026-02-01"),
        ("month", "2028-02-29T23:59:59", "2028-02", "2028-03-01"),
        ("month", "2026-12-31T23:59:59.999999", "2026-12", "2027-01-01"),
    ],
)
def test_calendar_window(per: str, now: str, name: str, end: str) -> None:
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    end_us = int(datetime.fromisoformat(end).replace(tzinfo=UTC).timestamp()) * SECOND
    assert limits.calendar_window(per, moment.timestamp()) == (name, end_us)


@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)), st.sampled_from(["day", "week", "month"]))  # noqa: DTZ001
def test_calendar_windows_follow_one_another(moment: datetime, per: str) -> None:
    now = moment.replace(tzinfo=UTC).timestamp()
    name, end_us = limits.calendar_window(per, now)
    assert now * SECOND < end_us <= (now + timedelta(days=31).total_seconds()) * SECOND
    following, _ = limits.calendar_window(per, end_us / SECOND)
    assert following > name
    assert limits.calendar_window(per, end_us / SECOND - 0.001)[0] == name


@pytest.mark.parametrize(
    ("scope", "spelt"),
    [
        ("key:k", "your key"),
        ("person:ann@example.org", "the person ann@example.org over all her keys"),
        ("member:red/ann", "the person ann in the team red"),
        ("team:red", "your team red"),
        ("upstream:up#2", "the upstream up#2"),
        ("gateway", "the whole gateway"),
    ],
)
def test_spell_scope(scope: str, spelt: str) -> None:
    assert scopes.format_scope(scope) == spelt


def test_spell_per() -> None:
    assert [limits.format_per(per) for per in ("day", "90")] == ["day", "90 seconds"]


# -------------------------------------------------------------------------------------------------- what a store does


@pytest.mark.parametrize(
    ("claim", "used", "at_us", "now_us", "left", "left_at"),
    [
        (rate(), 10, 0, 0, 10, 0),
        (rate(), 10, 0, SECOND - 1, 10, 0),  # less than one unit; the time is kept
        (rate(), 10, 0, SECOND, 9, SECOND),
        (rate(), 10, 0, 5 * SECOND + 7, 5, 5 * SECOND),
        (rate(), 10, 0, 10 * SECOND, 0, 10 * SECOND),
        (rate(), 10, 0, 3600 * SECOND, 0, 3600 * SECOND),  # idle time saves nothing up
        (rate(), 0, 0, 500, 0, 500),
        (rate(), 10, 9 * SECOND, 5 * SECOND, 10, 9 * SECOND),  # a clock that stepped back
        (rate(limit=7, period_s=1), 7, 0, 142_857, 7, 0),  # one unit is 142857.14 us
        (rate(limit=7, period_s=1), 7, 0, 142_858, 6, 142_858),
        (rate(limit=7, period_s=1), 7, 0, 285_715, 5, 285_715),
        (daily(), 10, 0, 10**12, 10, 0),
        (parallel(), 2, 0, 10**12, 2, 0),
    ],
)
def test_leaked(claim: Claim, used: int, at_us: int, now_us: int, left: int, left_at: int) -> None:
    assert limits.leak(claim.window, WindowState(used, 3, at_us), now_us) == WindowState(left, 3, left_at)


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.lists(st.integers(0, 10**8), max_size=20))
def test_looking_often_leaks_as_much_as_looking_once(limit: int, period_s: int, looks: list[int]) -> None:
    """Exact to one unit, and never more than the rate."""
    claim, used = rate(limit=limit, period_s=period_s), 10**9
    state, now_us = WindowState(used, 0, 0), 0
    for pause in looks:
        now_us += pause
        state = limits.leak(claim.window, state, now_us)
    once = limits.leak(claim.window, WindowState(used, 0, 0), now_us)
    assume(once.used > 0)
    lost = len(looks) * -(-limit // (period_s * SECOND))  # up to one microsecond each
    assert once.used <= state.used <= once.used + lost + 1


@pytest.mark.parametrize(
    ("claim", "state", "retry_after_us"),
    [
        (rate(limit=10), WindowState(9), "fits"),
        (rate(limit=10), WindowState(10), 6 * SECOND),
        (rate(limit=10, amount=10), WindowState(0), "fits"),
        (rate(limit=10, amount=10), WindowState(1), 6 * SECOND),
        (rate(limit=10, amount=5), WindowState(10, 0, 0), 30 * SECOND),
        (rate(limit=10), WindowState(25), 96 * SECOND),  # an excess has to leak first
        (rate(limit=10), WindowState(10, 0, -4 * SECOND), 2 * SECOND),
        (rate(limit=10, amount=0), WindowState(10), "fits"),
        (rate(limit=10, is_enforced=False), WindowState(10**9), "fits"),
        (daily(limit=10), WindowState(9, 0), "fits"),
        (daily(limit=10), WindowState(4, 5), "fits"),
        (daily(limit=10), WindowState(10, 0), None),
        (daily(limit=10), WindowState(12, 3), None),
        (daily(limit=10), WindowState(5, 5), limits.IN_THE_WAY_US),
        (daily(limit=10), WindowState(0, 10), limits.IN_THE_WAY_US),
        (daily(limit=10, amount=6), WindowState(5, 0), None),  # this much settled use leaves no room for it
        (daily(limit=10, amount=6), WindowState(4, 1), limits.IN_THE_WAY_US),
        (daily(limit=10, is_enforced=False), WindowState(99, 99), "fits"),
        (parallel(2), WindowState(1), "fits"),
        (parallel(2), WindowState(2), limits.IN_THE_WAY_US),
    ],
)
def test_shortage(claim: Claim, state: WindowState, retry_after_us: int | str | None) -> None:
    short = limits.check(claim, state, 0)
    if retry_after_us == "fits":
        assert short is None
    else:
        assert short is not None
        assert short.retry_after_us == retry_after_us
        assert (short.window_status.used, short.window_status.reserved) == (state.used, state.reserved)


@given(
    st.integers(1, 10**6), st.integers(1, 10**5), st.integers(0, 2 * 10**6), st.integers(0, 10**9), st.data()
)  # fmt: skip
def test_a_call_is_admitted_after_exactly_the_wait_and_no_sooner(
    limit: int, period_s: int, used: int, since_us: int, data: st.DataObject
) -> None:
    claim = rate(limit=limit, period_s=period_s, amount=data.draw(st.integers(1, limit)))
    state = limits.leak(claim.window, WindowState(used, 0, 0), since_us)
    short = limits.check(claim, state, since_us)
    if short is None:
        return
    assert short.retry_after_us is not None
    assert short.retry_after_us > 0
    then = since_us + short.retry_after_us
    assert limits.check(claim, limits.leak(claim.window, state, then), then) is None
    assert limits.check(claim, limits.leak(claim.window, state, then - 1), then - 1) is not None


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 2 * 10**6), st.integers(0, 10**9))
def test_reset_is_when_the_whole_limit_is_free_again(limit: int, period_s: int, used: int, now_us: int) -> None:
    claim = rate(limit=limit, period_s=period_s)
    state = limits.leak(claim.window, WindowState(used, 0, 0), now_us)
    reset_us = limits.window_status(claim.window, state, now_us).reset_us
    assert limits.leak(claim.window, state, now_us + reset_us).used == 0
    assert reset_us == 0 or limits.leak(claim.window, state, now_us + reset_us - 1).used > 0


@pytest.mark.parametrize(
    ("claim", "state", "now_us", "reset_us", "remaining"),
    [
        (rate(limit=10), WindowState(4, 0, 0), 0, 24 * SECOND, 6),
        (rate(limit=10), WindowState(4, 0, 0), 4 * SECOND, 20 * SECOND, 6),
        (rate(limit=10), WindowState(0, 0, 0), 4 * SECOND, 0, 10),
        (rate(limit=10), WindowState(14, 0, 0), 0, 84 * SECOND, 0),
        (daily(limit=10), WindowState(4, 5), 10**15 - 7, 7, 1),
        (daily(limit=10), WindowState(4, 5), 10**15 + 7, 0, 1),  # the window has ended
        (daily(limit=10), WindowState(9, 5), 0, 10**15, 0),
        (parallel(2), WindowState(1), 0, 0, 1),
    ],
)
def test_standing(claim: Claim, state: WindowState, now_us: int, reset_us: int, remaining: int) -> None:
    found = limits.window_status(claim.window, state, now_us)
    assert (found.reset_us, found.remaining) == (reset_us, remaining)


@pytest.mark.parametrize(
    ("claim", "state", "after"),
    [
        (rate(amount=5), WindowState(1, 0, 7), WindowState(6, 0, 7)),
        (daily(amount=5), WindowState(1, 2, 7), WindowState(1, 7, 7)),
        (parallel(), WindowState(1, 0, 7), WindowState(2, 0, 7)),
    ],
)
def test_drawn(claim: Claim, state: WindowState, after: WindowState) -> None:
    assert limits.draw(claim, state) == after


@pytest.mark.parametrize(
    ("claim", "state", "actual", "age_s", "after"),
    [
        # A calendar window: the reservation ends, actual use is charged.
        (daily(amount=50), WindowState(10, 60), 20, 0, WindowState(30, 10)),
        (daily(amount=50), WindowState(10, 60), 70, 0, WindowState(80, 10)),
        (daily(amount=50), WindowState(10, 20), 20, 0, WindowState(30, 0)),
        # Parallel: the slot is free again.
        (parallel(), WindowState(2), 0, 0, WindowState(1)),
        (parallel(), WindowState(0), 0, 0, WindowState(0)),
        # A rate: of what was not used goes back 1 - age / 240 s, rounded down.
        (rate(amount=50), WindowState(50), 20, 0, WindowState(20)),
        (rate(amount=50), WindowState(40), 20, 10, WindowState(12)),
        (rate(amount=50), WindowState(40), 20, 30, WindowState(14)),
        (rate(amount=50), WindowState(40), 20, 120, WindowState(25)),
        (rate(amount=50), WindowState(60), 20, 240, WindowState(60)),
        (rate(amount=50), WindowState(60), 20, 300, WindowState(60)),  # all of it has leaked: others' use stands
        (rate(amount=50, period_s=3600, limit=60), WindowState(60), 20, 1800, WindowState(45)),  # 1 - age / period
        (rate(amount=1, limit=2), WindowState(2), 0, 29, WindowState(1)),  # of its one unit nothing has leaked
        (rate(amount=1, limit=2), WindowState(2), 0, 30, WindowState(2)),
        (rate(amount=50), WindowState(50), 0, 0, WindowState(0)),
        (rate(amount=50), WindowState(10), 0, 0, WindowState(0)),  # never below 0
        (rate(amount=50), WindowState(50), 0, -5, WindowState(0)),  # a clock that stepped back
        # More than was drawn is charged in full, however old.
        (rate(amount=50), WindowState(10), 80, 0, WindowState(40)),
        (rate(amount=50), WindowState(0), 80, 3600, WindowState(30)),
        (rate(amount=1), WindowState(1), 1, 9, WindowState(1)),
    ],
)
def test_settled(claim: Claim, state: WindowState, actual: int, age_s: int, after: WindowState) -> None:
    assert limits.settle(claim, state, actual, age_s * SECOND) == after


@pytest.mark.parametrize(
    ("claim", "state", "age_s", "after"),
    [
        (daily(amount=50), WindowState(10, 60, 7), 0, WindowState(10, 10, 7)),
        (daily(amount=50), WindowState(10, 20), 0, WindowState(10, 0)),
        (parallel(), WindowState(2), 9, WindowState(1)),
        (parallel(), WindowState(0), 0, WindowState(0)),
        (rate(amount=50), WindowState(60, 0, 7), 0, WindowState(10, 0, 7)),
        (rate(amount=50), WindowState(60), 24, WindowState(15)),
        (rate(amount=50), WindowState(60), 120, WindowState(35)),
        (rate(amount=50), WindowState(60), 300, WindowState(60)),  # all of it has leaked: others' use stands
        (rate(amount=50), WindowState(10), 0, WindowState(0)),
        (rate(amount=50), WindowState(60), -5, WindowState(10)),  # a clock that stepped back
        (rate(amount=1), WindowState(1), 0, WindowState(0)),  # no request was sent
    ],
)
def test_voided(claim: Claim, state: WindowState, age_s: int, after: WindowState) -> None:
    assert limits.void(claim, state, age_s * SECOND) == after


@pytest.mark.parametrize(
    ("claim", "state", "actual", "age_s", "after"),
    [
        (daily(), WindowState(10, 60, 7), 20, 0, WindowState(30, 60, 7)),
        (daily(), WindowState(10, 60, 7), 20, 10**6, WindowState(30, 60, 7)),
        (parallel(), WindowState(2), 0, 5, WindowState(2)),  # the slot was released already
        (rate(), WindowState(5, 0, 7), 20, 0, WindowState(25, 0, 7)),
        (rate(), WindowState(5), 20, 8, WindowState(17)),
        (rate(), WindowState(5), 20, 20, WindowState(5)),
        (rate(), WindowState(5), 20, 3600, WindowState(5)),  # it would have leaked completely
        (rate(), WindowState(5), 20, -3, WindowState(25)),  # begun in the future: a clock that stepped back
        (rate(), WindowState(5), 0, 8, WindowState(5)),
        (rate(limit=10), WindowState(5), 20, 8, WindowState(24)),  # a unit every 6 s
    ],
)
def test_charged(claim: Claim, state: WindowState, actual: int, age_s: int, after: WindowState) -> None:
    assert limits.charge(claim.window, state, actual, age_s * SECOND) == after


@pytest.mark.parametrize(
    ("claim", "state", "charged", "actual", "age_s", "after"),
    [
        (daily(), WindowState(60, 5, 7), 50, 20, 30, WindowState(30, 5, 7)),
        (daily(), WindowState(60, 5, 7), 50, 70, 30, WindowState(80, 5, 7)),
        (daily(), WindowState(60, 5, 7), 50, 0, 30, WindowState(10, 5, 7)),
        (daily(), WindowState(60, 5, 7), 50, 50, 30, WindowState(60, 5, 7)),
        (daily(), WindowState(0, 5), 50, 20, 30, WindowState(0, 5)),  # the store lost the window meanwhile
        (parallel(), WindowState(2), 0, 0, 30, WindowState(2)),  # released when the call was lost
        (rate(), WindowState(50, 0, 7), 50, 20, 0, WindowState(20, 0, 7)),
        (rate(), WindowState(30, 0, 7), 50, 20, 24, WindowState(3, 0, 7)),
        (rate(), WindowState(30), 50, 20, 120, WindowState(15)),
        (rate(), WindowState(60), 50, 20, 300, WindowState(60)),  # others' use stands
        (rate(), WindowState(40), 50, 0, 10, WindowState(0)),
        (rate(), WindowState(50), 50, 20, -5, WindowState(20)),  # a clock that stepped back
        (rate(), WindowState(10), 50, 80, 300, WindowState(40)),  # an excess is charged in full, however old
        (rate(), WindowState(1), 1, 1, 30, WindowState(1)),  # a lost request counts as well
        (rate(), WindowState(1), 1, 0, 0, WindowState(0)),  # no request was sent
    ],
)
def test_corrected(claim: Claim, state: WindowState, charged: int, actual: int, age_s: int, after: WindowState) -> None:
    assert limits.correct(claim.window, state, charged, actual, age_s * SECOND) == after


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200), st.integers(0, 200 * SECOND), st.booleans())
def test_lost_and_corrected_at_once_is_as_good_as_settled(
    others: int, estimate: int, actual: int, age_us: int, is_calendar: bool
) -> None:
    claim = daily(amount=estimate) if is_calendar else rate(amount=estimate)
    state = limits.draw(claim, WindowState(others))
    lost = limits.settle(claim, state, estimate, age_us)
    assert limits.correct(claim.window, lost, estimate, actual, age_us) == limits.settle(claim, state, actual, age_us)


def upstream(scope: str, unit: Any, amount: int) -> Claim:
    return Claim(rate().window._replace(id=f"{scope}|{unit}|minute||", scope=scope, unit=unit), amount)


@pytest.mark.parametrize(
    ("claims", "charged"),
    [
        ([], []),
        ([rate(amount=90)], [1]),
        ([rate(amount=90), upstream("upstream:up", "requests", 1), upstream("upstream:up", "tokens", 90)], [1, 1, 15]),
        # Each attempted upstream counts a request, as reserved; tokens count only at the one that served the call.
        ([upstream("upstream:up2", "requests", 3), upstream("upstream:up2", "tokens", 90)], [3, 0]),
        ([upstream("upstream:up#2", "tokens", 90), upstream("upstream:u", "tokens", 9)], [15, 0]),
        ([upstream("upstream:up", "parallel", 2), upstream("upstream:u", "parallel", 1)], [0, 0]),
    ],
)
def test_charges(claims: list[Claim], charged: list[int]) -> None:
    usage = Usage(10, 5, source="reported")
    record = Record("c", 0, "k", None, "chat", "m", "m", "m", None, "up", 200, False, usage, "done", None, 0, 1)
    assert limits.charges(record, claims) == charged


def test_an_unknown_cost_counts_as_what_was_reserved() -> None:
    record = Record("c", 0, "k", None, "chat", "m", "m", "m", None, "up", 200, False, Usage(), "done", None, 0, 1)
    money = Window("key:k|usd|day||", "key:k", "usd", "day", None, 10**9)
    claims = [Claim(money._replace(unit="tokens"), 900), Claim(money, 40), Claim(money, 50)]
    assert limits.charges(record, claims) == [0, 40, 50]
    assert limits.charges(record._replace(cost_nusd=7), claims) == [0, 7, 7]


@pytest.mark.parametrize(
    ("model", "charged"), [("asked", 15), ("served", 15), ("serv*", 15), ("another", 0), ("as[kx]ed", 15)]
)
def test_a_quota_for_other_models_is_not_used(model: str, charged: int) -> None:
    usage = Usage(10, 5, source="reported")
    record = Record(
        "c", 0, "k", None, "chat", "asked", "served", "s", None, "up", 200, False, usage, "done", None, 0, 1
    )
    claim = daily(amount=90)
    claim = claim._replace(window=claim.window._replace(model=model))
    assert limits.charges(record, [claim]) == [charged]


def test_the_dearest_of_several_ways_is_claimed() -> None:
    one, other = daily(amount=5), daily(amount=7)
    alone = rate(amount=1)._replace(window=rate().window._replace(id="alone"))
    assert limits.dearest([[one], [other, alone]]) == (other, alone)
    assert limits.dearest([[other], [one]]) == (other,)


def refused(retry_after_us: int | None, reset_us: int = 0) -> Refused:
    return Refused(limits.window_status(rate().window, WindowState(), 0)._replace(reset_us=reset_us), 1, retry_after_us)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (refused(5), refused(9)),
        (refused(9, reset_us=99), refused(None, reset_us=1)),
        (refused(None, reset_us=5), refused(None, reset_us=9)),
        (None, refused(1)),
    ],
)
def test_worse(one: Refused | None, other: Refused) -> None:
    assert limits.later_refusal(one, other) is other
    if one is not None:
        assert limits.later_refusal(other, one) is other


# ------------------------------------------------------------------------------------------------------- properties

# (pause in us before it, estimate to draw or actual use of the oldest open draw)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 40 * SECOND) | st.integers(0, 1000),
        st.one_of(
            st.tuples(st.just("draw"), st.integers(0, 120)),
            st.tuples(st.sampled_from(["settle first", "settle last"]), st.integers(0, 150)),
        ),
    ),
    max_size=60,
)


class Trial:
    """One window under random calls, with an independent sum to compare with."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.state = WindowState(0, 0, 0)
        self.now_us = 0
        self.open: list[tuple[int, int]] = []
        self.admitted: list[tuple[int, int]] = []
        self.actual: list[tuple[int, int]] = []
        """(time of the draw, actual use)"""
        self.excess = 0

    def step(self, pause_us: int, deed: str, units: int) -> None:
        self.now_us += pause_us
        self.state = limits.leak(self.claim.window, self.state, self.now_us)
        if deed == "draw":
            claim = self.claim._replace(amount=min(units, self.claim.window.limit))
            if limits.check(claim, self.state, self.now_us) is None:
                self.state = limits.draw(claim, self.state)
                self.open.append((self.now_us, claim.amount))
                self.admitted.append((self.now_us, claim.amount))
        elif self.open:
            drawn_us, amount = self.open.pop(0 if deed == "settle first" else -1)
            claim = self.claim._replace(amount=amount)
            self.state = limits.settle(claim, self.state, units, self.now_us - drawn_us)
            self.actual.append((drawn_us, units))
            self.excess += max(0, units - amount)


@given(st.integers(1, 100), STEPS)
def test_the_sums_of_calendar_windows_are_exact(limit: int, steps: list[tuple[int, tuple[str, int]]]) -> None:
    trial = Trial(daily(limit=limit))
    for pause, deed in steps:
        trial.step(pause, *deed)
        assert trial.state.reserved == sum(amount for _, amount in trial.open)
        assert trial.state.used == sum(units for _, units in trial.actual)
        assert trial.state.used + trial.state.reserved <= limit + trial.excess


@given(st.integers(1, 100), st.integers(1, 90), STEPS)
def test_a_rate_is_never_ahead_of_itself(limit: int, period_s: int, steps: list[tuple[int, tuple[str, int]]]) -> None:
    trial = Trial(rate(limit=limit, period_s=period_s))
    for pause, deed in steps:
        trial.step(pause, *deed)
        assert 0 <= trial.state.used <= limit + trial.excess
        assert trial.state.reserved == 0
        assert trial.state.at_us <= trial.now_us
        assert trial.state.used >= honest_level(trial) - given_back(trial) - 1


def honest_level(trial: Trial) -> Fraction:
    """The level of a bucket that knows actual use in advance: each call is charged its use when it is drawn."""
    per_us = Fraction(trial.claim.window.limit, trial.claim.window.period_us)
    level, at_us = Fraction(0), 0
    for drawn_us, units in sorted(trial.actual):
        level = max(Fraction(0), level - (drawn_us - at_us) * per_us) + units
        at_us = drawn_us
    return max(Fraction(0), level - (trial.now_us - at_us) * per_us)


def given_back(trial: Trial) -> Fraction:
    """What running calls may get back at most beyond the level: what the rate refills in that time."""
    window = trial.claim.window
    return Fraction(window.limit * max(window.period_us, limits.GIVE_BACK_US), window.period_us)


@given(st.integers(1, 100), st.integers(1, 90), STEPS)
def test_a_period_never_admits_more_than_twice_the_limit_and_what_goes_back(
    limit: int, period_s: int, steps: list[tuple[int, tuple[str, int]]]
) -> None:
    """A burst after an idle time, plus the refill meanwhile. Calls count with their actual use."""
    trial = Trial(rate(limit=limit, period_s=period_s))
    for pause, deed in steps:
        trial.step(pause, *deed)
    for end_us, _ in trial.actual:
        within = [units for at, units in trial.actual if end_us - period_s * SECOND < at <= end_us]
        assert sum(within) <= 2 * limit + given_back(trial) + trial.excess


@pytest.mark.parametrize(("age_s", "used"), [(0, 0), (60, 15), (120, 30), (236, 59), (240, 60), (10**6, 60)])
def test_a_refund_after_a_long_stream_does_not_admit_a_second_burst(age_s: int, used: int) -> None:
    """Draw all, let it leak, let others draw it, then refund all: the longer that took, the less goes back."""
    claim = rate(limit=60, amount=60)
    state = limits.draw(claim, WindowState(0, 0, 0))
    now_us = age_s * SECOND
    state = limits.draw(
        claim._replace(amount=60 - limits.leak(claim.window, state, now_us).used),
        limits.leak(claim.window, state, now_us),
    )
    assert state.used == 60
    assert limits.settle(claim, state, 0, now_us).used == used


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 1000))
def test_changing_a_limit_keeps_what_was_used(old: int, new: int, used: int) -> None:
    state = WindowState(used, 0, 0)
    assert limits.window_status(rate(limit=new).window, limits.leak(rate(limit=new).window, state, 0), 0).used == used
    short = limits.check(rate(limit=new), limits.leak(rate(limit=old).window, state, 0), 0)
    assert (short is None) == (used + 1 <= new)


# ------------------------------------------------------------------------------------- money, by what the body says

CACHING = {
    "input": 1, "output": 2, "cache_write": 3, "cache_write_1h": 4, "audio_in": 9, "variants": {"flex": {"output": 1}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("price", "body", "nusd"),
    [
        (CACHING, {}, 10 * 3_000 + 5 * 2_000),
        (CACHING, {"service_tier": "flex"}, 10 * 3_000 + 5 * 1_000),
        (CACHING, {"serviceTier": "flex"}, 10 * 3_000 + 5 * 1_000),  # Gemini's
        (CACHING, {"serviceTier": "SERVICE_TIER_FLEX"}, 10 * 3_000 + 5 * 1_000),
        (CACHING, {"cache": {"ttl": "1h"}}, 10 * 4_000 + 5 * 2_000),
        (CACHING, {"modalities": ["audio"]}, 10 * 9_000 + 5 * 2_000),
        ({**CACHING, "cache_write_on_request": True}, {}, 10 * 1_000 + 5 * 2_000),
        ({**CACHING, "cache_write_on_request": True}, {"cache_control": {}}, 10 * 3_000 + 5 * 2_000),
    ],
)
def test_what_a_body_says_of_its_cost(price: dict[str, Any], body: dict[str, Any], nusd: int) -> None:
    this = call(body=json.dumps({"model": "m", **body}).encode(), settings={"price": price})
    assert limits.most_nusd(this, 10, 5) == nusd
    unread = this.params.document._replace(text="", large=LargeBody((), 0, {}))
    assert (limits.most_nusd(this._replace(params=this.params._replace(document=unread)), 10, 5) or 0) >= nusd


def test_what_a_request_says_that_it_uses_is_reserved() -> None:
    price = {"input": 1, "characters_per_million": 15, "image": 0.04, "variants": {"hd": {"image": 0.08}}}
    this = call(settings={"price": price}, units=(("characters", 100), ("images", 2)))
    assert limits.most_nusd(this, 10, 0) == 10 * 1_000 + 100 * 15_000 + 80_000_000
    this = call(settings={"price": price}, units=(("images", 2),), variant="hd")
    assert limits.most_nusd(this, 0, 0) == 160_000_000
