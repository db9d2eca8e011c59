"""One grammar for durations, moments, sizes, counts and quotas: in the file, on the command line, in the admin API.

    durations  90 (seconds)   90s   500ms   15m   1h30m   7d   2w
    sizes      64MB (10^6)   64MiB (2^20)   26214400 (bytes)
    counts     1000000   1_000_000   1,000,000   100k   1.5M   2G
    periods    second (s, sec)   minute (min)   hour (h)   day   week   month, or a duration
    rates      10/s   500/min   1k/90s
    quotas     1M tokens/day   60 requests/minute   20 USD/month   5 requests/week:gpt-4*
    moments    2027-01-01   2027-01-01T12:00:00+02:00   2027-01-01 12:00 (UTC)

A comma separates thousands only: `1,5` is ambiguous and refused. Each `read_...` raises `ValueError` with a sentence
that has an example of what is accepted, and never the value, which may be a secret. `format_quota` is its inverse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

MAX_CHARACTERS = 32
"""Maximum characters of an amount or a duration."""

PER_SECONDS: Mapping[str, int] = {"second": 1, "minute": 60, "hour": 3600}
CALENDAR = ("day", "week", "month")
"""Periods that begin and end with the calendar in UTC; a week is an ISO week, which begins on Monday."""
PERIODS = (*PER_SECONDS, *CALENDAR)
_SHORT: Mapping[str, str] = {"s": "second", "sec": "second", "min": "minute", "h": "hour"}
MAX_PER_S = 315360000
"""Longest period in seconds: ten years."""

DURATION_EXAMPLES = "90s, 1h30m or 7d"
SIZE_EXAMPLES = "64MB or 64MiB"
COUNT_EXAMPLES = "100, 100k or 1M"
QUOTA_EXAMPLES: Mapping[str, str] = {"requests": "60/minute", "tokens": "1M/day", "usd": "20/month"}
"""Examples without the unit, by unit."""
RATE_EXAMPLES = "10/s, 500/min, 10000/day or 100/90s"
QUOTA_EXAMPLE = "1M tokens/day, 5 requests/week or 20 USD/month"

_SECONDS: Mapping[str, Decimal] = {
    unit: Decimal(seconds)
    for unit, seconds in {"ms": "0.001", "s": "1", "m": "60", "h": "3600", "d": "86400", "w": "604800"}.items()
}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_NUMBER = r"(?:\d+|\d{1,3}(?:[_,]\d{3})+)(?:\.\d+)?"
_TIMES: Mapping[str, int] = {"g": 10**9, "m": 10**6, "k": 10**3, "": 1}
_COUNT = re.compile(rf"({_NUMBER})\s?([kKmMgG]?)")
_BYTES: Mapping[str, int] = {
    "gib": 2**30, "mib": 2**20, "kib": 2**10, "gb": 10**9, "mb": 10**6, "kb": 10**3, "b": 1, "": 1,
}  # fmt: skip
_SIZE = re.compile(rf"({_NUMBER})\s?([kmg]i?b|b|)", re.IGNORECASE)
_UNITS: Mapping[str, str] = {
    "request": "requests", "requests": "requests", "call": "requests", "calls": "requests", "token": "tokens",
    "tokens": "tokens", "usd": "usd", "$": "usd",
}  # fmt: skip
_RATE_PER = re.compile(r"(\d{0,9})\s*(s|sec|second|seconds|m|min|minute|h|hour|d|day)")
_AMOUNT_AND_UNIT = re.compile(r"(\$?)(.*?)\s*([A-Za-z]{2,}|\$)?")


# ------------------------------------------------------------------------------------------------------- durations


def read_duration_s(text: str) -> float:
    """Seconds: a number of them, or numbers with ms, s, m, h, d, w behind them."""
    plain = text.strip().lower()
    if len(plain) <= MAX_CHARACTERS and re.fullmatch(r"\d+(\.\d+)?", plain):
        return float(plain)
    if not is_duration(plain):
        raise ValueError(f"expected a time such as {DURATION_EXAMPLES}, or a number of seconds")
    parts = [(Decimal(number), unit) for number, unit in _DURATION_PART.findall(plain)]
    return float(sum(number * _SECONDS[unit] for number, unit in parts))


def is_duration(text: str) -> bool:
    """Whether this is a duration with a unit, and no bare number of seconds."""
    return len(text) <= MAX_CHARACTERS and _DURATION.fullmatch(text.strip().lower()) is not None


# ------------------------------------------------------------------------------------------------- counts and sizes


def read_count(text: str) -> int:
    """A whole number: `1000000`, `1_000_000`, `1,000,000`, `100k`, `1.5M`."""
    amount = _times(_COUNT, _TIMES, text)
    if amount is None or amount != int(amount):
        raise ValueError(f"expected a whole number such as {COUNT_EXAMPLES}")
    return int(amount)


def read_amount(text: str) -> Decimal | None:
    """A number with or without decimals, as `read_count` reads them; None where it is none."""
    return _times(_COUNT, _TIMES, text)


def read_size(text: str) -> int:
    """Bytes: a number of them, or one with B, kB, MB, GB (powers of 1000), KiB, MiB, GiB (powers of 1024)."""
    amount = _times(_SIZE, _BYTES, text)
    if amount is None or amount != int(amount):
        raise ValueError(f"expected a size such as {SIZE_EXAMPLES}, or a number of bytes")
    return int(amount)


def _times(form: re.Pattern[str], units: Mapping[str, int], text: str) -> Decimal | None:
    found = form.fullmatch(text.strip()) if len(text) <= MAX_CHARACTERS else None
    return Decimal(re.sub("[_,]", "", found[1])) * units[found[2].lower()] if found else None


# ---------------------------------------------------------------------------------------------------------- quotas


class QuotaText(NamedTuple):
    """The parts of a quota as it is written."""

    amount: str
    unit: str | None
    """requests, tokens or usd; None where it is not named."""
    per: str | int
    """One of `PERIODS`, or seconds."""
    model: str | None


def read_quota_text(text: str, example: str = QUOTA_EXAMPLE) -> QuotaText:
    """`1M tokens/day:gpt-4*`; the amount is left as it is. Raises `ValueError`."""
    amount, slash, rest = text.strip().partition("/")
    per, colon, model = rest.partition(":")
    if not slash or not amount.strip() or not per.strip():
        raise ValueError(f"expected an amount and a time, such as {example}")
    if colon and not model.strip():
        raise ValueError(f"expected a pattern of models behind the colon, such as {example.split(',')[0]}:gpt-4*")
    found = _AMOUNT_AND_UNIT.fullmatch(amount.strip())
    dollar, number, name = (part or "" for part in found.groups()) if found else ("", "", "")
    unit = _UNITS.get((name or dollar).lower())
    if name and number and (unit is None or (dollar and unit != "usd")):
        raise ValueError(f"expected requests, tokens or USD behind the amount, such as {QUOTA_EXAMPLE}")
    return QuotaText(number.strip() if unit and number else amount.strip(), unit, read_per(per), model.strip() or None)


def read_per(text: str) -> str | int:
    """A period: one of `PERIODS`, or a whole number of seconds. Raises `ValueError`."""
    plain = text.strip()
    if (period := _SHORT.get(plain, plain)) in PERIODS:
        return period
    try:
        seconds = read_duration_s(plain)
    except ValueError:
        seconds = 0
    if not 1 <= seconds <= MAX_PER_S or seconds != int(seconds):
        raise ValueError(f"expected {', '.join(PERIODS)}, or a time such as {DURATION_EXAMPLES}")
    return int(seconds)


def read_rate(text: str) -> tuple[int, int]:
    """The units and the seconds in which they refill: `500/min` is (500, 60). Raises `ValueError`."""
    amount, _, per = text.partition("/")
    found = _RATE_PER.fullmatch(per.strip())
    try:
        seconds = int(found[1] or 1) * int(_SECONDS[found[2][0]]) if found else read_duration_s(per)
        if (units := read_count(amount)) < 1 or not 1 <= seconds <= MAX_PER_S or seconds != int(seconds):
            raise ValueError
    except ValueError:
        raise ValueError(f"expected a rate such as {RATE_EXAMPLES}") from None
    return units, int(seconds)


def format_per(per: str | int) -> str:
    """A period in the notation of quotas."""
    return f"{per}s" if isinstance(per, int) else per


def format_quota(quota: Mapping[str, Any]) -> str:
    """A quota of the file as one text: `1,000,000 tokens/day:gpt-4*`, `$20/month`."""
    unit = next(unit for unit in QUOTA_EXAMPLES if unit in quota)
    amount = quota[unit]
    plain = f"${amount}" if unit == "usd" else f"{amount:,} {unit}"
    return f"{plain}/{format_per(quota['per'])}" + (f":{quota['model']}" if quota.get("model") else "")


def quota_values(value: Any) -> Any:
    """The settings of a quota from either of its forms: `1M tokens/day`, or settings such as `{tokens: 1M, per: day}`
    and `{tokens: 1M/day}`. Everything else is returned as it is. Raises `ValueError`."""
    if isinstance(value, str):
        parsed = read_quota_text(value)
        if parsed.unit is None:
            raise ValueError(f"expected an amount, its unit and a time, such as {QUOTA_EXAMPLE}")
        values = {parsed.unit: parsed.amount, "per": parsed.per}
        return values if parsed.model is None else {**values, "model": parsed.model}
    if not isinstance(value, Mapping):
        return value
    values = dict(value)
    for unit, example in QUOTA_EXAMPLES.items():
        if isinstance(text := values.get(unit), str) and "/" in text:
            parsed = read_quota_text(text, example)
            if parsed.unit not in (None, unit):
                raise ValueError(f"expected {unit} without another unit behind the amount, such as {example}")
            for name, given in (("per", parsed.per), ("model", parsed.model)):
                if given is not None and values.get(name) is not None:
                    raise ValueError(f"names {name} twice: write {unit}: {example} without {name} beside it")
                if given is not None:
                    values[name] = given
            values[unit] = parsed.amount
    return values


# --------------------------------------------------------------------------------------------------------- moments


def read_moment(text: str) -> datetime:
    """A moment in UTC; one without a zone is in UTC, and a day begins at midnight. Raises `ValueError`."""
    try:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("expected a day such as 2027-01-01, or a moment such as 2027-01-01T12:00:00Z") from None
