"""Quotas, durations and moments as people type them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.quantities import format_quota, read_duration_s
from gateway.quota.notation import (
    Named,
    merged_quotas,
    read_limit,
    read_moment,
    read_names,
    read_quota,
)

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("unit", "text", "settings"),
    [
        ("tokens", "1000000/day", {"tokens": 1_000_000, "per": "day"}),
        ("tokens", "1_000_000/day", {"tokens": 1_000_000, "per": "day"}),
        ("tokens", "1,000,000/month", {"tokens": 1_000_000, "per": "month"}),
        ("tokens", "100k/day:gpt-4*", {"tokens": 100_000, "per": "day", "model": "gpt-4*"}),
        ("tokens", "1.5M/day", {"tokens": 1_500_000, "per": "day"}),
        ("requests", "60/minute", {"requests": 60, "per": "minute"}),
        ("requests", " 5 / 90s ", {"requests": 5, "per": 90}),
        ("requests", "5/15m", {"requests": 5, "per": 900}),
        ("requests", "5/90", {"requests": 5, "per": 90}),
        ("usd", "50/month", {"usd": 50, "per": "month"}),
        ("usd", "0.25/hour", {"usd": 0.25, "per": "hour"}),
        ("usd", "1/day:ft:gpt-4o:team", {"usd": 1, "per": "day", "model": "ft:gpt-4o:team"}),
        ("tokens", "none/day", {"tokens": None, "per": "day"}),
        ("requests", "5/week", {"requests": 5, "per": "week"}),
        ("tokens", "1M tokens/day", {"tokens": 1_000_000, "per": "day"}),
        ("usd", "$5/day", {"usd": 5, "per": "day"}),
        ("usd", "20 USD/month", {"usd": 20, "per": "month"}),
    ],
)
def test_quota(unit: str, text: str, settings: dict[str, Any]) -> None:
    assert read_quota(unit, text).settings == settings


@pytest.mark.parametrize(
    ("unit", "text", "says"),
    [
        ("tokens", "1000", "expected an amount and a time, such as 1M/day"),
        ("tokens", "/day", "expected an amount and a time"),
        ("usd", "5/", "expected an amount and a time, such as 20/month"),
        ("tokens", "1.5/day", "expected a whole number of tokens greater than 0, such as 1M"),
        ("requests", "0/day", "expected a whole number of requests"),
        ("requests", "-5/day", "greater than 0, such as 60"),
        ("usd", "5 tokens/day", "expected usd, such as 20/month, and not tokens"),
        ("tokens", "5 apples/day", "expected requests, tokens or USD behind the amount"),
        ("usd", "inf/day", "expected an amount in US dollars greater than 0, such as 20"),
        ("usd", "1,5/day", "expected an amount in US dollars"),
        ("tokens", "10,00/day", "expected a whole number of tokens"),
        ("tokens", "5/day:", "expected a pattern of models behind the colon, such as 1M/day:gpt-4"),
        ("tokens", "5/fortnight:m", "expected second, minute, hour, day, week, month, or a time such as 90s"),
    ],
)
def test_invalid_quotas(unit: str, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("$", r"\$")):
        read_quota(unit, text)


@given(st.sampled_from(["tokens", "requests", "usd"]), st.text(max_size=20))
def test_any_text_is_read_or_refused_in_words(unit: str, text: str) -> None:
    try:
        said = read_quota(unit, text).unit
    except ValueError as error:
        said = str(error)
    assert said == unit or "expected" in said or "is not" in said


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("3600", 3600), ("0.5", 0.5), ("90s", 90), ("15m", 900), ("1h", 3600), ("1h30m", 5400), ("2d", 172_800),
     ("1w", 604_800), (" 1H ", 3600)],
)  # fmt: skip
def test_duration(text: str, seconds: float) -> None:
    assert read_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1 hour", "-1", "1y", "1h30", "nan", "1e3"])
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 90s"):
        read_duration_s(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2027-01-01", "2027-01-01T00:00:00Z"),
        ("2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("2027-01-01T12:00:00+02:00", "2027-01-01T10:00:00Z"),
        ("2027-01-01 12:00", "2027-01-01T12:00:00Z"),
        ("30d", "2026-12-22T12:00:00Z"),
        ("+1h30m", "2026-11-22T13:30:00Z"),
    ],
)
def test_moment(text: str, moment: str) -> None:
    assert read_moment(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "tomorrow", "2027-13-01", "01.02.2027", "1e3d"])
def test_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match="expected a day such as 2027-01-01"):
        read_moment(text, NOW)


def test_moment_beyond_the_calendar() -> None:
    with pytest.raises(ValueError, match="expected a day"):
        read_moment("9999999d", NOW)
    with pytest.raises(ValueError, match="expected a day"):
        read_moment("0001-01-01T00:00:00+14:00", NOW)


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 5000 + "d", "9" * 400])
def test_impossible_numbers(text: str) -> None:
    for read in (read_duration_s, lambda text: read_moment(text, NOW), lambda text: read_quota("tokens", f"{text}/day"),
                 lambda text: read_quota("tokens", f"5/{text}")):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            read(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("n=4", ("n", 4)), (" max_tokens = 1024 ", ("max_tokens", 1024)), ("n=none", ("n", None)),
     ("deny=service_tier,logit_bias", ("deny", ["service_tier", "logit_bias"])), ("deny=none", ("deny", None))],
)  # fmt: skip
def test_limit(text: str, limit: tuple[str, Any]) -> None:
    assert read_limit(text) == limit


@pytest.mark.parametrize("text", ["n", "n=", "=4", "n=four", "n=-1", "n=1.5"])
def test_no_limit(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a limit such as n=4|expected a whole number behind n="):
        read_limit(text)


def test_names() -> None:
    assert read_names("gpt-4*, text-*,,") == ["gpt-4*", "text-*"]


KNOWN: list[dict[str, Any]] = [
    {"requests": 60, "per": "minute"},
    {"tokens": 1000, "per": "day"},
    {"tokens": 100, "per": "day", "model": "gpt-4*"},
    {"usd": 5, "per": 90},
]


def test_a_quota_that_is_named_is_set_and_all_others_stay() -> None:
    assert merged_quotas(KNOWN, [read_quota("tokens", "2000/day")]) == [
        KNOWN[0],
        {"tokens": 2000, "per": "day"},
        *KNOWN[2:],
    ]
    assert merged_quotas(KNOWN, [read_quota("tokens", "7/day:gpt-4*")])[2] == {**KNOWN[2], "tokens": 7}
    assert merged_quotas(KNOWN, [read_quota("usd", "6/90s")])[3] == {"usd": 6, "per": 90}


def test_a_quota_that_is_new_is_added() -> None:
    assert merged_quotas(KNOWN, [read_quota("tokens", "9/month")]) == [*KNOWN, {"tokens": 9, "per": "month"}]


def test_a_quota_that_is_none_goes() -> None:
    assert merged_quotas(KNOWN, [read_quota("tokens", "none/day"), read_quota("usd", "none/90s")]) == [
        KNOWN[0],
        KNOWN[2],
    ]


def test_what_is_not_there_cannot_go() -> None:
    with pytest.raises(ValueError, match="there is no quota of tokens per 90s to take away"):
        merged_quotas(KNOWN, [Named("tokens", 90, None, None)])


def test_quotas_are_formatted_as_they_are_typed() -> None:
    assert [format_quota(quota) for quota in KNOWN] == [
        "60 requests/minute", "1,000 tokens/day", "100 tokens/day:gpt-4*", "$5/90s",
    ]  # fmt: skip
