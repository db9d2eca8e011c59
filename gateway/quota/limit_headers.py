"""Limits in answers to the caller: rate limit headers, and the two kinds of 429.

A rate that ran out, or a running call's reservation, ends by itself: `rate_limit_exceeded` with the time to wait. A
calendar quota spent by settled usage does not: `insufficient_quota` with `x-should-retry: false`, the one signal that
keeps both official SDKs from trying again.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from gateway.errors import GatewayError, QuotaSpent, RateLimited
from gateway.records import Refused, Unit, Window, WindowStatus

from .pricing import format_usd
from .scopes import format_scope, scope_kind
from .windows import format_per, format_time, is_of_upstream

_HEADERS: Mapping[Unit, tuple[str, str, str]] = {
    unit: (f"x-ratelimit-limit-{unit}", f"x-ratelimit-remaining-{unit}", f"x-ratelimit-reset-{unit}")
    for unit in ("requests", "tokens")
}
"""OpenAI has no such headers for money and parallel calls; clients would not read them."""


LIMIT_HEADER = "x-gateway-limit"

_PLAIN = frozenset(b":/@#*?+=[]! _.-~" + string.ascii_letters.encode() + string.digits.encode())
"""Signs of names that stay as they are in that header; others are written as in an address."""

WritesHeaders = Callable[[Iterable[WindowStatus], float], Mapping[str, str]]
"""Rate limit headers from the state of windows at a Unix time in seconds."""


def rate_headers(statuses: Iterable[WindowStatus], now: float = 0.0) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of the tightest window of each unit.

    The reset is a duration, whatever the time is.
    """
    headers = {}
    for unit, (remaining, before_reset_us, limit) in _tightest(statuses).items():
        of_limit, of_remaining, of_reset = _HEADERS[unit]
        headers[of_limit] = str(limit)
        headers[of_remaining] = str(remaining)
        headers[of_reset] = go_duration(-before_reset_us)
    return headers


def anthropic_headers(statuses: Iterable[WindowStatus], now: float) -> dict[str, str]:
    """`anthropic-ratelimit-{requests,tokens}-{limit,remaining,reset}` of the same windows; the reset is a time in RFC
    3339 (Anthropic's API overview, "Response headers")."""
    headers = {}
    for unit, (remaining, before_reset_us, limit) in _tightest(statuses).items():
        resets = datetime.fromtimestamp(-(-(now * 1_000_000 - before_reset_us) // 1_000_000), UTC)
        headers[f"anthropic-ratelimit-{unit}-limit"] = str(limit)
        headers[f"anthropic-ratelimit-{unit}-remaining"] = str(remaining)
        headers[f"anthropic-ratelimit-{unit}-reset"] = resets.strftime("%Y-%m-%dT%H:%M:%SZ")
    return headers


def _tightest(statuses: Iterable[WindowStatus]) -> dict[Unit, tuple[int, int, int]]:
    """The tightest window of each unit: what is left, the microseconds until its reset as a negative number, its limit.

    That is the one with the fewest units left, for it is the first to refuse; of two, the one that is full again later.
    Windows in shadow mode are left out: a client that paces itself by these headers would wait without need.
    """
    tightest: dict[Unit, tuple[int, int, int]] = {}
    for status in statuses:
        window = status.window
        if window.unit not in _HEADERS or not window.is_enforced:
            continue
        room = status.remaining, -status.reset_us, window.limit
        known = tightest.get(window.unit)
        if known is None or room < known:
            tightest[window.unit] = room
    return tightest


def refusal(refused: Refused, write_headers: WritesHeaders = rate_headers, now: float = 0.0) -> GatewayError:
    """The 429 for a reservation that was refused at this Unix time. For its unit, the headers describe the window with
    the longest wait."""
    status, window = refused.window_status, refused.window_status.window
    amounts = (window.limit, status.used, status.reserved, refused.asked, status.remaining)
    limit, used, reserved, asked, left = [format_amount(window.unit, each) for each in amounts]
    numbers = f"Limit {limit}, Used {used}, Reserved {reserved}, Requested {asked}"
    headers = {**write_headers(refused.window_statuses, now), **write_headers([status], now), **limit_header(refused)}
    whose = format_scope(window.scope)
    error: GatewayError
    if refused.retry_after_us is None:
        advice = f" A smaller request may still use the {left} that are left." if status.remaining else ""
        error = QuotaSpent(
            f"You exceeded the quota of {whose} of {_what(window)}: {numbers}.{advice} It starts anew in "
            f"{go_duration(status.reset_us)}, at {format_time(window.resets_us)}; ask "
            f"{scope_kind(window.scope).raisers} if you need more before.",
            headers=headers,
        )
    else:
        wait = go_duration(refused.retry_after_us)
        error = RateLimited(
            f"Rate limit reached for {whose} on {_what(window)}: {numbers}.{_in_the_way(status)} Please try again in "
            f"{wait}. This limit can be raised by {scope_kind(window.scope).raisers}.",
            unit=window.unit,
            retry_after_ms=-(-refused.retry_after_us // 1000),
            headers=headers,
        )
    error.limit, error.limit_state = limit_name(window), numbers
    return error


def limit_name(window: Window) -> str:
    """A limit as logs and refusals name it."""
    return f"{window.scope} {_what(window)}"


def limit_header(refused: Refused) -> dict[str, str]:
    """Whose limit refused a call, its state, and who may raise it: `x-gateway-limit`, whose value is the scope and
    parameters. Money in US dollars; names are written as in an address. No amounts of an upstream, whose use is not
    the caller's."""
    status, window = refused.window_status, refused.window_status.window
    amounts = {
        "limit": window.limit, "used": status.used, "reserved": status.reserved, "requested": refused.asked,
    }  # fmt: skip
    if is_of_upstream(window):
        amounts = {}
    members = {"unit": window.unit, "per": window.per, "model": encoded(window.model or "")}
    members |= {name: format_usd(each)[1:] if window.unit == "usd" else str(each) for name, each in amounts.items()}
    members["raised-by"] = scope_kind(window.scope).raised_by
    parts = [encoded(window.scope), *[f"{name}={value}" for name, value in members.items() if value]]
    return {LIMIT_HEADER: "; ".join(parts)}


def format_amount(unit: Unit, amount: int) -> str:
    """An amount of a window in words: money with its sign."""
    return format_usd(amount) if unit == "usd" else str(amount)


def encoded(name: str) -> str:
    return "".join([chr(sign) if sign in _PLAIN else f"%{sign:02X}" for sign in name.encode()])


def _in_the_way(status: WindowStatus) -> str:
    """The condition to wait for if it is the end of other calls: the reported time is then an estimate."""
    if status.window.unit == "parallel":
        return " One is free again when a running request ends."
    # A rate counts the reservations of running calls as used, and refills independently of their end.
    return " Running requests have reserved what is left, and free what they do not use." if status.reserved else ""


def _what(window: Window) -> str:
    if window.unit == "parallel":
        return "parallel requests"
    models = f" for models {window.model}" if window.model else ""
    unit = "US dollars" if window.unit == "usd" else window.unit
    return f"{unit} per {format_per(window.per)}{models}"


def go_duration(us: int) -> str:
    """Microseconds as OpenAI writes durations, rounded up to milliseconds: 6m0s, 1.5s, 20ms."""
    ms = max(0, -(-us // 1000))
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    fraction = f".{ms % 1000:03d}".rstrip("0") if ms % 1000 else ""
    seconds_text = f"{ms // 1000 % 60}{fraction}s"
    if ms >= 3_600_000:
        return f"{ms // 3_600_000}h{ms // 60_000 % 60}m{seconds_text}"
    return f"{ms // 60_000}m{seconds_text}" if ms >= 60_000 else seconds_text
