"""One grammar for durations, moments, sizes, counts and quotas, and the settings that take it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config, ConfigError, build, read_quota, shown_quotas
from gateway.config.quantities import (
    CALENDAR,
    MAX_PER_S,
    PERIODS,
    format_per,
    format_quota,
    quota_values,
    read_amount,
    read_count,
    read_duration_s,
    read_moment,
    read_per,
    read_quota_text,
    read_rate,
    read_size,
)

READ: list[tuple[Callable[[str], Any], str, Any]] = [
    (read_duration_s, "90", 90),
    (read_duration_s, "0.5", 0.5),
    (read_duration_s, "500ms", 0.5),
    (read_duration_s, "90s", 90),
    (read_duration_s, "15m", 900),
    (read_duration_s, "1h30m", 5400),
    (read_duration_s, "1.5h", 5400),
    (read_duration_s, "7d", 604_800),
    (read_duration_s, "2W", 1_209_600),
    (read_size, "26214400", 26_214_400),
    (read_size, "64MB", 64_000_000),
    (read_size, "64 MiB", 67_108_864),
    (read_size, "1.5GiB", 1_610_612_736),
    (read_size, "10kb", 10_000),
    (read_size, "10KiB", 10_240),
    (read_size, "5B", 5),
    (read_count, "1000000", 10**6),
    (read_count, "1_000_000", 10**6),
    (read_count, "1,000,000", 10**6),
    (read_count, "100k", 10**5),
    (read_count, "1.5M", 1_500_000),
    (read_count, "2G", 2 * 10**9),
    (read_amount, "0.15", Decimal("0.15")),
    (read_amount, "none", None),
    (read_per, "week", "week"),
    (read_per, " day ", "day"),
    (read_per, "min", "minute"),
    (read_per, "90", 90),
    (read_per, "15m", 900),
    (read_rate, "10/s", (10, 1)),
    (read_rate, "1k / 90s", (1000, 90)),
    (read_rate, "500/2 min", (500, 120)),
    (read_rate, "5/1h30m", (5, 5400)),
    (read_quota_text, "1M tokens/day", ("1M", "tokens", "day", None)),
    (read_quota_text, "1M/day", ("1M", None, "day", None)),
    (read_quota_text, "5 requests / week : gpt-4*", ("5", "requests", "week", "gpt-4*")),
    (read_quota_text, "20USD/month", ("20", "usd", "month", None)),
    (read_quota_text, "$20/month", ("20", "usd", "month", None)),
    (read_quota_text, "1 call/90s", ("1", "requests", 90, None)),
    (read_quota_text, "none/day", ("none", None, "day", None)),
    (read_moment, "2027-01-01", datetime(2027, 1, 1, tzinfo=UTC)),
    (read_moment, "2027-01-01T12:00:00+02:00", datetime(2027, 1, 1, 10, tzinfo=UTC)),
]

REFUSED: list[tuple[Callable[[str], Any], str, str]] = [
    *(
        (read_duration_s, text, "such as 90s, 1h30m or 7d")
        for text in ("", "h", "1 hour", "-1", "1y", "1h30", "9" * 40)
    ),
    *((read_size, text, "such as 64MB or 64MiB") for text in ("", "64M", "64 megabytes", "0.5B", "-1MB", "1,5MB")),
    *((read_count, text, "such as 100, 100k or 1M") for text in ("", "few", "1.5", "1,5", "10,00", "1T", "-1")),
    *((read_per, text, "week, month, or a time such as 90s") for text in ("", "weekly", "0", "0.5s", "9999d")),
    *((read_rate, text, "such as 10/s, 500/min") for text in ("", "10", "0/s", "5/month", "5/s/s", "-5/s", "5/0s")),
    (read_quota_text, "1M tokens", "expected an amount and a time, such as 1M tokens/day"),
    (read_quota_text, "1M apples/day", "expected requests, tokens or USD behind the amount"),
    (read_quota_text, "$5 tokens/day", "expected requests, tokens or USD"),
    (read_quota_text, "5 requests/day:", "expected a pattern of models behind the colon"),
    (read_moment, "01.02.2027", "such as 2027-01-01"),
]


@pytest.mark.parametrize(("read", "text", "value"), READ, ids=[f"{row[0].__name__}-{row[1]}" for row in READ])
def test_read(read: Callable[[str], Any], text: str, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize(("read", "text", "says"), REFUSED, ids=[f"{row[0].__name__}-{row[1]}" for row in REFUSED])
def test_refused_with_an_example(read: Callable[[str], Any], text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("$", r"\$")):
        read(text)


@given(st.text(max_size=20))
def test_no_text_is_repeated_in_a_refusal(text: str) -> None:
    for read in (read_duration_s, read_size, read_count, read_per, read_quota_text, read_moment):
        said = ""
        try:
            read(f"secret {text}")
        except ValueError as error:
            said = str(error)
        assert "secret" not in said


MODELS = st.none() | st.from_regex(r"[a-z0-9*?.:/-]{1,12}", fullmatch=True)
PERS = st.sampled_from(PERIODS) | st.integers(1, MAX_PER_S)
AMOUNTS = st.one_of(
    st.tuples(st.sampled_from(["requests", "tokens"]), st.integers(1, 2**53 - 1)),
    st.tuples(st.just("usd"), st.integers(1, 10**6) | st.integers(1, 10**6).map(lambda cents: cents / 100)),
)


@given(AMOUNTS, PERS, MODELS)
def test_a_quota_that_is_written_is_read_as_the_same(
    amount: tuple[str, float], per: str | int, model: str | None
) -> None:
    settings = {amount[0]: amount[1], "per": per} | ({"model": model} if model is not None else {})
    quota = read_quota(settings)
    text = format_quota(shown_quotas((quota,))[0])
    assert read_quota(quota_values(text)) == quota
    assert read_per(format_per(per)) == per


@pytest.mark.parametrize(
    "quota",
    [
        "1M tokens/week:gpt-4*",
        {"tokens": "1M/week", "model": "gpt-4*"},
        {"tokens": "1M/week:gpt-4*"},
        {"tokens": "1,000,000", "per": "week", "model": "gpt-4*"},
        {"tokens": 1_000_000, "per": "week", "model": "gpt-4*"},
    ],
)
def test_each_form_of_a_quota_means_the_same(quota: Any) -> None:
    found = read_quota({"tokens": 1_000_000, "per": "week", "model": "gpt-4*"})
    assert read_quota(quota) == found
    assert found.per_s is None


@pytest.mark.parametrize(
    ("quota", "says"),
    [
        ("1M/day", "expected an amount, its unit and a time, such as 1M tokens/day"),
        ({"tokens": "1M/day", "per": "week"}, "names per twice"),
        ({"tokens": "5 USD/day"}, "expected tokens without another unit"),
        ({"tokens": "1M"}, "is required"),
        ({"usd": "5", "per": "weekly"}, "expected second, minute, hour, day, week, month"),
    ],
)
def test_a_quota_with_invalid_notation(quota: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_quota(quota)


MODEL = {"routes": [{"upstream": "up"}], "max_output_tokens": "4k"}


def config(**changes: Any) -> Config:
    base = {"base_url": "https://api.example.com/v1"} | changes.pop("upstream", {})
    return build({"upstreams": {"up": base}, "models": {"m": MODEL}} | changes)


@pytest.mark.parametrize(
    ("values", "read", "value"),
    [
        ({"server": {"max_request_bytes": "64MiB"}}, lambda c: c.server.max_request_bytes, 2**26),
        ({"server": {"max_request_bytes": "1000"}}, lambda c: c.server.max_request_bytes, 1000),
        ({"server": {"drain_timeout_s": "2m"}}, lambda c: c.server.drain_timeout_s, 120),
        ({"server": {"drain_timeout_s": "1e2"}}, lambda c: c.server.drain_timeout_s, 100),  # as before
        ({"server": {"max_in_flight": "2k"}}, lambda c: c.server.max_in_flight, 2000),
        ({"store": {"sums_days": "52w"}}, lambda c: c.store.sums_days, 364),
        ({"store": {"sums_days": "90"}}, lambda c: c.store.sums_days, 90),
        ({"upstream": {"timeouts": {"total_s": "10m"}}}, lambda c: c.upstreams["up"].timeouts.total_s, 600),
        ({"quotas": ["60 requests/minute"]}, lambda c: (c.quotas[0].limit, c.quotas[0].per_s), (60, 60)),
        ({"quotas": [{"usd": "1k/month"}]}, lambda c: c.quotas[0].limit, 10**12),
    ],
)
def test_settings_take_the_grammar(values: dict[str, Any], read: Callable[[Config], Any], value: Any) -> None:
    assert read(config(**values)) == value


@pytest.mark.parametrize(
    ("values", "path", "says"),
    [
        ({"server": {"max_request_bytes": "64 megs"}}, "server.max_request_bytes", "such as 64MB or 64MiB"),
        ({"server": {"drain_timeout_s": "two"}}, "server.drain_timeout_s", "such as 90s, 1h30m or 7d"),
        ({"store": {"sums_days": "36h"}}, "store.sums_days", "whole days, from 1 to 36500, such as 800, 90d"),
        ({"quotas": ["5/week"]}, "quotas[0]", "such as 1M tokens/day, 5 requests/week or 20 USD/month"),
    ],
)
def test_settings_say_what_they_take(values: dict[str, Any], path: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**values)
    assert [fault.path for fault in caught.value.faults] == [path]
    assert says in str(caught.value)


def test_calendar_periods_are_periods() -> None:
    assert set(CALENDAR) < set(PERIODS)
