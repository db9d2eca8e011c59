"""Limits in answers to the caller: rate limit headers, and the two kinds of 429.

A rate that ran out, or a running call's reservation, ends by itself: `rate_limit_exceeded` with the time to wait. A
calendar quota spent by settled usage does not: `insufficient_quota` with `x-should-retry: false`, the one signal that
keeps both official SDKs from trying again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.errors import GatewayError, QuotaSpent, RateLimited
from gateway.records import Refused, Unit, Window, WindowStatus

from .pricing import format_usd
from .windows import format_per, format_scope, format_time

_HEADERS: Mapping[Unit, tuple[str, str, str]] = {
    unit: (f"x-ratelimit-limit-{unit}", f"x-ratelimit-remaining-{unit}", f"x-ratelimit-reset-{unit}")
    for unit in ("requests", "tokens")
}
"""OpenAI has no such headers for money and parallel calls; clients would not read them."""


def rate_headers(standings: Iterable[WindowStatus]) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of the tightest window of each unit.

    That is the one with the fewest units left, for it is the first to refuse; of two, the one that is full again later.
    Windows in shadow mode are left out: a client that paces itself by these headers would wait without need.
    """
    tightest: dict[Unit, tuple[int, int, int]] = {}
    for standing in standings:
        window = standing.window
        if window.unit not in _HEADERS or not window.is_enforced:
            continue
        room = standing.remaining, -standing.reset_us, window.limit
        known = tightest.get(window.unit)
        if known is None or room < known:
            tightest[window.unit] = room
    headers = {}
    for unit, (remaining, before_reset_us, limit) in tightest.items():
        of_limit, of_remaining, of_reset = _HEADERS[unit]
        headers[of_limit] = str(limit)
        headers[of_remaining] = str(remaining)
        headers[of_reset] = go_duration(-before_reset_us)
    return headers


def refusal(refused: Refused) -> GatewayError:
    """The 429 for a refused reservation. For its unit, the headers describe the window with the longest wait."""
    standing, window = refused.standing, refused.standing.window
    amounts = (window.limit, standing.used, standing.reserved, refused.asked, standing.remaining)
    limit, used, reserved, asked, left = [format_usd(each) if window.unit == "usd" else str(each) for each in amounts]
    numbers = f"Limit {limit}, Used {used}, Reserved {reserved}, Requested {asked}"
    headers = {**rate_headers(refused.standings), **rate_headers([standing])}
    whose = format_scope(window.scope)
    error: GatewayError
    if refused.retry_after_us is None:
        advice = f" A smaller request may still use the {left} that are left." if standing.remaining else ""
        error = QuotaSpent(
            f"You exceeded the quota of {whose} of {_what(window)}: {numbers}.{advice} It starts anew in "
            f"{go_duration(standing.reset_us)}, at {format_time(window.resets_us)}; ask the operator of the gateway "
            "if you need more before.",
            headers=headers,
        )
    else:
        wait = go_duration(refused.retry_after_us)
        error = RateLimited(
            f"Rate limit reached for {whose} on {_what(window)}: {numbers}.{_in_the_way(standing)} Please try again in "
            f"{wait}.",
            unit=window.unit,
            retry_after_ms=_whole_ms(refused.retry_after_us),
            headers=headers,
        )
    error.limit, error.limit_state = f"{window.scope} {_what(window)}", numbers
    return error


def _in_the_way(standing: WindowStatus) -> str:
    """The condition to wait for if it is the end of other calls: the reported time is then an estimate."""
    if standing.window.unit == "parallel":
        return " One is free again when a running request ends."
    # A rate counts the reservations of running calls as used, and refills independently of their end.
    return " Running requests have reserved what is left, and free what they do not use." if standing.reserved else ""


def _what(window: Window) -> str:
    if window.unit == "parallel":
        return "parallel requests"
    models = f" for models {window.model}" if window.model else ""
    unit = "US dollars" if window.unit == "usd" else window.unit
    return f"{unit} per {format_per(window.per)}{models}"


def go_duration(us: int) -> str:
    """Microseconds as OpenAI writes durations, rounded up to milliseconds: 6m0s, 1.5s, 20ms."""
    ms = max(0, _whole_ms(us))
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    fraction = f".{ms % 1000:03d}".rstrip("0") if ms % 1000 else ""
    spelt = f"{ms // 1000 % 60}{fraction}s"
    if ms >= 3_600_000:
        return f"{ms // 3_600_000}h{ms // 60_000 % 60}m{spelt}"
    return f"{ms // 60_000}m{spelt}" if ms >= 60_000 else spelt


def _whole_ms(us: int) -> int:
    """Rounded up, so that it is over by then."""
    return -(-us // 1000)
