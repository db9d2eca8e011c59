"""How far a call's default output is reduced to what its quotas have left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config
from gateway.quota import windows
from gateway.quota.output_fit import OutputFit, shrunk
from gateway.records import Call, WindowStatus

from .test_windows import call, claims, config

PRICE = {"input": 1, "output": 2}


def chat(prompt_tokens: int = 100, least: int | None = 50, **changes: Any) -> Call:
    given = changes.pop("settings", {})
    return call("chat", prompt_tokens=prompt_tokens, settings={"min_output_tokens": least, **given}, **changes)


def fit_of(this: Call, settings: Config) -> OutputFit:
    return OutputFit(this, lambda smaller: claims(smaller, settings))


def held(this: Call, settings: Config, **used: int) -> list[WindowStatus]:
    """The windows of the call, with so much used and reserved of each."""
    limits = windows.LimitTable(settings.quotas, {}, {}).of(this.key)
    return [
        WindowStatus(limit.window(this.started), used.get("used", 0), used.get("reserved", 0), 0) for limit in limits
    ]


def largest(this: Call, settings: Config, **used: int) -> int | None:
    found = fit_of(this, settings).largest(held(this, settings, **used))
    return None if found is None else found.params.output_limit


def test_a_call_gets_what_a_day_has_left() -> None:
    settings = config(quotas=["1000 tokens/day"])
    assert largest(chat(), settings, used=700) == 200
    assert largest(chat(), settings, used=700, reserved=100) == 100
    assert largest(chat(), settings, used=850) == 50
    assert largest(chat(), settings, used=851) is None


def test_the_tightest_of_several_quotas_counts() -> None:
    settings = config(quotas=["700 tokens/day", "450 tokens/month"])
    assert largest(chat(), settings, used=100) == 250


def test_of_money_the_price_counts() -> None:
    settings = config(quotas=["0.0006 USD/day"])
    assert largest(chat(settings={"price": PRICE}), settings) == 250  # 100 + 2 x 250 millionths


def test_a_rate_reduces_by_its_whole_amount_only() -> None:
    settings = config(quotas=["400 tokens/minute"])
    assert largest(chat(), settings, used=399) == 300


def test_several_candidates_share_what_is_left() -> None:
    settings = config(quotas=["1000 tokens/day"])
    assert largest(chat(n=3), settings, used=450) == 150


def test_other_refusals_stay() -> None:
    assert largest(chat(), config(quotas=["1 requests/day", "9k tokens/day"]), used=1) is None
    assert fit_of(chat(prompt_tokens=2000, is_prompt_exact=True), config(quotas=["1000 tokens/day"])).largest() is None


@pytest.mark.parametrize(
    "changes", [{"least": None}, {"output_limit": 9}, {"default_output": 16}, {"output_limit": 9000}]
)
def test_only_a_default_may_shrink(changes: dict[str, Any]) -> None:
    this = chat(**changes)
    assert not OutputFit.may_shrink(this)
    if "least" not in changes:
        assert shrunk(this, 5) is this


def test_a_call_that_its_whole_quotas_refuse_is_smaller_at_first() -> None:
    fit = fit_of(chat(), config(quotas=["400 tokens/day"]))
    assert fit.at_first().params.output_limit == 300
    assert fit.at_first().params.is_output_limit_added
    this = chat()
    assert fit_of(this, config(quotas=["600 tokens/day"])).at_first() is this
    hopeless = chat(prompt_tokens=380, is_prompt_exact=True)
    assert fit_of(hopeless, config(quotas=["400 tokens/day"])).at_first() is hopeless


def test_fallbacks_get_no_more() -> None:
    other = chat(least=None)
    small = chat(least=None, settings={"max_output_tokens": 7})
    assert [each.params.output_limit for each in shrunk(chat()._replace(fallbacks=(other, small)), 60).fallbacks] == [
        60,
        None,
    ]


@given(st.integers(0, 3000), st.integers(0, 2000), st.integers(0, 900), st.integers(1, 4), st.booleans())
def test_it_is_the_largest_that_fits(limit: int, prompt: int, used: int, n: int, is_exact: bool) -> None:
    settings = config(quotas=[{"tokens": limit + 1, "per": "day"}])
    this = chat(prompt, n=n, is_prompt_exact=is_exact)
    left = (limit + 1 - used - prompt) // n
    expected = None if left < 50 else min(left, 499)
    assert largest(this, settings, used=used) == expected
