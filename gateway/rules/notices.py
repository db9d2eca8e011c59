"""What a caller is told of its limits: rate headers, and the two kinds of 429.

A rate that ran out, or a running call's reservation, ends by itself: `rate_limit_exceeded` with the time to wait. A
calendar quota spent by settled usage does not: `insufficient_quota` with `x-should-retry: false`, the one signal that
keeps both official SDKs from trying again.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import GatewayError, QuotaSpent, RateLimited
from gateway.records import Refused, Standing, Unit, Window

from .limits import spell_per, spell_scope
from .pricing import spell_usd


def rate_headers(standings: Iterable[Standing]) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of the tightest window of each unit.

    Of money and of parallel calls OpenAI has no such headers: clients would not know them.
    """
    tightest: dict[Unit, tuple[float, Standing]] = {}
    for standing in standings:
        window = standing.window
        if window.unit in ("parallel", "usd"):
            continue
        share = standing.remaining / window.limit
        known = tightest.get(window.unit)
        if known is None or share < known[0]:
            tightest[window.unit] = (share, standing)
    headers = {}
    for unit, (_, standing) in tightest.items():
        headers[f"x-ratelimit-limit-{unit}"] = str(standing.window.limit)
        headers[f"x-ratelimit-remaining-{unit}"] = str(standing.remaining)
        headers[f"x-ratelimit-reset-{unit}"] = go_duration(standing.reset_us)
    return headers


def refusal(refused: Refused) -> GatewayError:
    """The 429 for a draw that was refused."""
    standing, window = refused.standing, refused.standing.window
    headers = rate_headers([standing])
    amounts = (window.limit, standing.used, standing.reserved, refused.asked)
    limit, used, reserved, asked = [spell_usd(each) if window.unit == "usd" else str(each) for each in amounts]
    numbers = f"Limit {limit}, Used {used}, Reserved {reserved}, Requested {asked}."
    whose = spell_scope(window.scope)
    if refused.retry_after_us is None:
        return QuotaSpent(
            f"You exceeded the quota of {whose} of {_what(window)}: {numbers} It starts anew in "
            f"{go_duration(standing.reset_us)}; ask whoever runs the gateway if you need more before.",
            headers=headers,
        )
    wait = go_duration(refused.retry_after_us)
    return RateLimited(
        f"Rate limit reached for {whose} on {_what(window)}: {numbers} Please try again in {wait}.",
        unit=window.unit,
        retry_after_s=refused.retry_after_us / 1e6,
        headers=headers,
    )


def _what(window: Window) -> str:
    if window.unit == "parallel":
        return "parallel requests"
    models = f" for models {window.model}" if window.model else ""
    unit = "US dollars" if window.unit == "usd" else window.unit
    return f"{unit} per {spell_per(window.per)}{models}"


def go_duration(us: int) -> str:
    """Microseconds as OpenAI writes durations, rounded up to milliseconds: 6m0s, 1.5s, 20ms."""
    ms = max(0, -(-us // 1000))
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    spelt = f"{seconds}.{ms:03d}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{spelt}"
    return f"{minutes}m{spelt}" if minutes else spelt
