"""The rate limit headers of answers (x-ratelimit-*)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import QuotaSpent, RateLimited, UpstreamFailed
from gateway.quota import limit_headers
from gateway.records import Failure, Fault, Phase, Refused, Window, WindowStatus


@pytest.mark.parametrize(
    ("us", "spelt"),
    [
        (0, "0s"),
        (-5, "0s"),
        (1, "1ms"),
        (1000, "1ms"),
        (1001, "2ms"),
        (20_000, "20ms"),
        (999_000, "999ms"),
        (999_001, "1s"),
        (1_000_000, "1s"),
        (1_500_000, "1.5s"),
        (18_642_000, "18.642s"),
        (59_999_999, "1m0s"),
        (60_000_000, "1m0s"),
        (90_250_000, "1m30.25s"),
        (360_000_000, "6m0s"),
        (3_600_000_000, "1h0m0s"),
        (3_661_001_000, "1h1m1.001s"),
        (86_400_000_000, "24h0m0s"),
        (2_678_400_000_000, "744h0m0s"),
    ],
)
def test_go_duration(us: int, spelt: str) -> None:
    assert limit_headers.go_duration(us) == spelt


@given(st.integers(0, 10**13))
def test_go_duration_can_be_read_back(us: int) -> None:
    """To the millisecond, rounded up: a call after this time is not too early."""
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)(?:\.(\d+))?s)?|(\d+)ms", limit_headers.go_duration(us))
    assert parts is not None
    hours, minutes, seconds, fraction, only_ms = parts.groups()
    ms = int(only_ms or 0) + 1000 * (3600 * int(hours or 0) + 60 * int(minutes or 0) + int(seconds or 0))
    ms += int((fraction or "").ljust(3, "0"))
    assert ms == -(-us // 1000)


def window(unit: str = "requests", per: str = "minute", limit: int = 10, **changes: Any) -> Window:
    return Window("w", changes.pop("scope", "key:k"), unit, per, changes.pop("model", None), limit, **changes)  # type: ignore[arg-type]


def test_headers_have_the_tightest_window_of_each_unit() -> None:
    headers = limit_headers.rate_headers([
        WindowStatus(window(limit=100), 50, 0, 30_000_000),
        WindowStatus(window(per="day", limit=10), 2, 6, 60_000_000),
        WindowStatus(window("tokens", limit=1000), 0, 0, 0),
        WindowStatus(window("parallel", per="", limit=1), 1, 0, 0),
        WindowStatus(window("usd", "month", limit=10**10), 10**10, 0, 0),  # OpenAI has no such headers
    ])  # fmt: skip
    assert headers == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1000",
        "x-ratelimit-reset-tokens": "0s",
    }


@pytest.mark.parametrize(
    ("others", "limit"),
    [
        # 30 more are admitted, although the share of the day that is left is much smaller.
        ([WindowStatus(window(per="day", limit=1000), 900, 0, 9)], "60"),
        ([WindowStatus(window(per="day", limit=1000), 971, 0, 9)], "1000"),
        ([WindowStatus(window(per="day", limit=1000), 900, 71, 9)], "1000"),
        ([WindowStatus(window(per="hour", limit=500), 470, 0, 31_000_000)], "500"),  # the same for a longer time
        ([WindowStatus(window(per="hour", limit=500), 470, 0, 29_000_000)], "60"),
        ([WindowStatus(window(limit=5, is_enforced=False), 9, 0, 1)], "60"),  # a shadow quota refuses no call
    ],
)
def test_the_tightest_window_is_the_first_to_refuse(others: list[WindowStatus], limit: str) -> None:
    minute = WindowStatus(window(limit=60), 30, 0, 30_000_000)
    for standings in ([minute, *others], [*others, minute]):
        assert limit_headers.rate_headers(standings)["x-ratelimit-limit-requests"] == limit


def test_what_is_overdrawn_has_nothing_remaining() -> None:
    headers = limit_headers.rate_headers([WindowStatus(window(), 25, 0, 1)])
    assert headers["x-ratelimit-remaining-requests"] == "0"


def test_no_windows_no_headers() -> None:
    assert limit_headers.rate_headers([]) == {}
    assert limit_headers.rate_headers([WindowStatus(window("parallel", per=""), 1, 0, 0)]) == {}
    assert limit_headers.rate_headers([WindowStatus(window(is_enforced=False), 1, 0, 0)]) == {}


def test_a_refusal_has_the_headers_of_all_windows_and_of_the_blocking_one() -> None:
    hour = WindowStatus(window("tokens", "hour", limit=5000), 4900, 0, 3_000_000_000)
    minute = WindowStatus(window("tokens", limit=1000), 980, 0, 58_000_000)
    others = (
        hour,
        minute,
        WindowStatus(window(limit=60), 12, 0, 12_000_000),
        WindowStatus(window("parallel", ""), 1, 0, 0),
    )
    for asked, limit in ((101, "5000"), (99, "1000")):
        standing = hour if limit == "5000" else minute
        headers = limit_headers.refusal(Refused(standing, asked, 2_000_000, others)).headers
        assert headers["x-ratelimit-limit-tokens"] == limit
        assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("60", "48")
    money = Refused(WindowStatus(window("usd", "hour", limit=10**9), 10**9, 0, 0), 10**8, 9_000_000, others)
    assert limit_headers.refusal(money).headers["x-ratelimit-limit-tokens"] == "1000"


@pytest.mark.parametrize(
    ("refused", "error_type", "message", "headers"),
    [
        (
            Refused(WindowStatus(window(), 10, 0, 60_000_000), 3, 18_000_000),
            "requests",
            (
                "Rate limit reached for your key on requests per minute: Limit 10, Used 10, Reserved 0, Requested 3. "
                "Please try again in 18s."
            ),
            {"Retry-After": "18", "Retry-After-Ms": "18000", "x-ratelimit-remaining-requests": "0"},
        ),
        (
            Refused(WindowStatus(window("tokens", "90", scope="team:red", model="gpt-4*"), 9, 0, 1), 3, 1_001),
            "tokens",
            (
                "Rate limit reached for your team red on tokens per 90 seconds for models gpt-4*: Limit 10, Used 9, "
                "Reserved 0, Requested 3. Please try again in 2ms."
            ),
            {"Retry-After": "1", "Retry-After-Ms": "2", "x-ratelimit-remaining-tokens": "1"},
        ),
        (
            Refused(WindowStatus(window("tokens", "day", scope="gateway", starts="2026-11-20"), 2, 8, 1), 3, 1_000_000),
            "tokens",
            (
                "Rate limit reached for the whole gateway on tokens per day: Limit 10, Used 2, Reserved 8, "
                "Requested 3. Running requests have reserved what is left, and free what they do not use. "
                "Please try again in 1s."
            ),
            {"Retry-After": "1", "Retry-After-Ms": "1000", "x-ratelimit-limit-tokens": "10"},
        ),
        (
            Refused(WindowStatus(window("parallel", ""), 10, 0, 0), 3, 1_000_000),
            "requests",
            (
                "Rate limit reached for your key on parallel requests: Limit 10, Used 10, Reserved 0, Requested 3. "
                "One is free again when a running request ends. Please try again in 1s."
            ),
            {"Retry-After": "1", "Retry-After-Ms": "1000"},
        ),
    ],
)
def test_a_wait_that_helps(refused: Refused, error_type: str, message: str, headers: dict[str, str]) -> None:
    error = limit_headers.refusal(refused)
    assert isinstance(error, RateLimited)
    assert (error.status, error.type, error.code, error.param) == (429, error_type, "rate_limit_exceeded", None)
    assert error.message.startswith(message)
    assert "This limit can be raised by the operator of the gateway" in error.message
    assert headers.items() <= dict(error.headers).items()
    assert "X-Should-Retry" not in error.headers


DECEMBER_US = 1_796_083_200_000_000
NOVEMBER: dict[str, Any] = {"per": "month", "starts": "2026-11", "resets_us": DECEMBER_US}


def test_no_wait_helps() -> None:
    spent = WindowStatus(window("tokens", limit=1000, **NOVEMBER), 998, 0, 90_000_000)
    error = limit_headers.refusal(Refused(spent, 3, None))
    assert isinstance(error, QuotaSpent)
    assert (error.status, error.type, error.code) == (429, "insufficient_quota", "insufficient_quota")
    assert "the quota of your key of tokens per month: Limit 1000, Used 998, Reserved 0, Requested 3." in error.message
    assert "A smaller request may still use the 2 that are left. It starts anew in 1m30s, at 2026-12-01T00:00:00Z;" in (
        error.message
    )
    assert error.headers["X-Should-Retry"] == "false"
    assert error.headers["x-ratelimit-reset-tokens"] == "1m30s"
    assert not {"Retry-After", "Retry-After-Ms"} & set(error.headers)


def test_nothing_is_left_for_a_smaller_request() -> None:
    for used, reserved in ((1000, 0), (1003, 0), (998, 2)):
        spent = WindowStatus(window("tokens", limit=1000, **NOVEMBER), used, reserved, 90_000_000)
        assert "smaller" not in limit_headers.refusal(Refused(spent, 3, None)).message


def test_money_is_shown_in_dollars() -> None:
    spent = WindowStatus(window("usd", limit=50 * 10**9, **NOVEMBER), 49_990_000_000, 5_000, 90_000_000)
    error = limit_headers.refusal(Refused(spent, 12_345_600, None))
    assert isinstance(error, QuotaSpent)
    assert error.message.startswith(
        "You exceeded the quota of your key of US dollars per month: Limit $50.00, Used $49.99, Reserved $0.000005, "
        "Requested $0.0123456. A smaller request may still use the $0.009995 that are left. It starts anew in 1m30s, "
        "at 2026-12-01T00:00:00Z;"
    )
    assert set(error.headers) == {"X-Should-Retry", "x-gateway-limit"}


def test_a_rate_of_money_ends_by_itself() -> None:
    error = limit_headers.refusal(
        Refused(WindowStatus(window("usd", "90", limit=10**9), 10**9, 0, 0), 10**8, 9_000_000)
    )
    assert isinstance(error, RateLimited)
    assert (error.type, error.code) == ("requests", "rate_limit_exceeded")
    assert "on US dollars per 90 seconds: Limit $1.00, Used $1.00, Reserved $0.00, Requested $0.10." in error.message
    assert set(error.headers) == {"Retry-After", "Retry-After-Ms", "x-gateway-limit"}


OPERATOR = "the operator of the gateway"


@pytest.mark.parametrize(
    ("scope", "whose", "raisers", "header"),
    [
        ("key:k", "your key", f"{OPERATOR} or the lead of your team", "key:k; raised-by=operator lead"),
        ("person:ann|1;é", "the person ann|1;é over all her keys", OPERATOR, "person:ann%7C1%3B%C3%A9"),
        ("member:red/ann", "the person ann in the team red", OPERATOR, "member:red/ann"),
        ("team:red", "your team red", OPERATOR, "team:red"),
        ("gateway", "the whole gateway", OPERATOR, "gateway"),
    ],
)
def test_a_refusal_says_whose_limit_it_was_and_who_may_raise_it(
    scope: str, whose: str, raisers: str, header: str
) -> None:
    state = WindowStatus(window("usd", limit=50 * 10**9, scope=scope, model="gpt-4*", **NOVEMBER), 49 * 10**9, 5, 90)
    for wait_us in (None, 1_000_000):
        error = limit_headers.refusal(Refused(state, 10**9, wait_us))
        assert f" {whose} o" in error.message
        assert raisers in error.message
        assert ("the lead" in error.message) == ("the lead" in raisers)
        name, _, raised = header.partition("; raised-by=")
        assert error.headers["x-gateway-limit"] == (
            f"{name}; unit=usd; per=month; model=gpt-4*; limit=50.00; used=49.00; reserved=0.000000005; "
            f"requested=1.00; raised-by={raised or 'operator'}"
        )
        assert error.limit == f"{scope} US dollars per month for models gpt-4*"


@given(st.integers(1, 10**15))
def test_retry_after_is_never_too_early_and_never_0(us: int) -> None:
    headers = limit_headers.refusal(Refused(WindowStatus(window(), 10, 0, 0), 3, us)).headers
    ms, seconds = int(headers["Retry-After-Ms"]), int(headers["Retry-After"])
    assert us <= ms * 1000 < us + 1000  # to the millisecond, however long
    assert us <= seconds * 1_000_000 < us + 1_001_000
    assert (
        f" Please try again in {limit_headers.go_duration(ms * 1000)}."
        in limit_headers.refusal(Refused(WindowStatus(window(), 10, 0, 0), 3, us)).message
    )


@pytest.mark.parametrize(("us", "is_received"), [(1, False), (120_000_000, False), (120_000_001, True), (10**12, True)])
def test_what_no_sdk_sits_out_is_not_tried_again_by_it(us: int, is_received: bool) -> None:
    """openai-python waits up to 120 s; for more, openai-node waits half a second (7) or an hour (6)."""
    error = limit_headers.refusal(Refused(WindowStatus(window(), 10, 0, 0), 3, us))
    assert (error.code, error.headers.get("X-Should-Retry")) == (
        "rate_limit_exceeded",
        "false" if is_received else None,
    )
    assert "Retry-After-Ms" in error.headers


@pytest.mark.parametrize(
    ("received_s", "headers"),
    [
        (None, {"Retry-After-Ms": "1000", "Retry-After": "1"}),
        (0.0, {"Retry-After-Ms": "1", "Retry-After": "1"}),
        (0.0305, {"Retry-After-Ms": "31", "Retry-After": "1"}),
        (20.0, {"Retry-After-Ms": "20000", "Retry-After": "20"}),
        (300.0, {"Retry-After-Ms": "300000", "Retry-After": "300", "X-Should-Retry": "false"}),
    ],
)
def test_the_wait_for_an_upstream_has_the_same_headers(received_s: float | None, headers: dict[str, str]) -> None:
    failure = Failure("up", Phase.REFUSED, Fault.RATE_LIMITED, status=429, retry_after_s=received_s)
    assert UpstreamFailed.after(failure).headers == headers
