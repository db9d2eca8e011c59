"""Quotas, durations and moments as people type them on a command line: read once, here.

    1000000/day   60/minute   2.50/month   100k/day:gpt-4*   500/90s   none/day
    90   90s   15m   1h30m   2d   1w
    2027-01-01   2027-01-01T12:00:00+02:00   2027-01-01 12:00   30d (from now)

Everything raises `ValueError` with a sentence that says what is expected. Moments without a zone are in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from gateway.config.sections import PER_SECONDS

NONE = "none"
"""Takes a setting back to its default, and a quota away."""

MAX_DIGITS = 32
"""Longest accepted number, in characters."""

CALENDAR = ("day", "month")
_SECONDS: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_TIMES: Mapping[str, int] = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_DURATION = re.compile(r"(?:\d+[smhdw])+")
_AMOUNT = re.compile(r"((?:\d+|\d{1,3}(?:[_,]\d{3})+)(?:\.\d+)?)([kKmMgG]?)")
"""A comma separates thousands only: `1,5` is ambiguous and refused."""


class Named(NamedTuple):
    """A quota that was named: which one it is, and how much it holds."""

    unit: str
    per: str | int
    """A word, or seconds."""
    model: str | None
    amount: int | float | None
    """None: it is to go."""

    @property
    def settings(self) -> dict[str, Any]:
        """In the form of the configuration file."""
        spelt = {self.unit: self.amount, "per": self.per}
        return spelt if self.model is None else {**spelt, "model": self.model}

    def is_that(self, quota: Mapping[str, Any]) -> bool:
        """Whether these settings are of the quota that is named: same unit, time and models."""
        return self.unit in quota and (quota["per"], quota.get("model")) == (self.per, self.model)


def read_quota(unit: str, text: str) -> Named:
    """`1000000/day`; for some models only, `100000/day:gpt-4*`; `none/day` names the one that is to go."""
    amount, slash, rest = text.strip().partition("/")
    per, colon, model = rest.partition(":")
    if not slash or not amount or not per:
        raise ValueError(f"expected an amount and a time, such as {_EXAMPLES[unit]}")
    if colon and not model.strip():
        raise ValueError(f"expected a pattern of models behind the colon, such as {_EXAMPLES[unit]}:gpt-4*")
    return Named(unit, _read_per(per.strip()), model.strip() or None, _read_amount(unit, amount.strip()))


_EXAMPLES = {"tokens": "1000000/day", "requests": "60/minute", "usd": "50/month"}


def _read_amount(unit: str, text: str) -> int | float | None:
    if text == NONE:
        return None
    found = _AMOUNT.fullmatch(text) if len(text) <= MAX_DIGITS else None
    amount = Decimal(re.sub("[_,]", "", found[1])) * _TIMES[found[2].lower()] if found else Decimal(0)
    if amount <= 0 or (unit != "usd" and amount != int(amount)):
        what = "an amount in US dollars" if unit == "usd" else f"a whole number of {unit}"
        raise ValueError(f"{text!r} is not {what} greater than 0, such as {_EXAMPLES[unit].partition('/')[0]}")
    return int(amount) if amount == int(amount) else float(amount)


def _read_per(text: str) -> str | int:
    if text in PER_SECONDS or text in CALENDAR:
        return text
    try:
        return int(read_duration_s(text))
    except ValueError:
        words = ", ".join([*PER_SECONDS, *CALENDAR])
        raise ValueError(f"{text!r} is not one of {words}, nor a number of seconds") from None


def read_duration_s(text: str) -> float:
    """Seconds: a number of them, or numbers with s, m, h, d, w behind them."""
    spelt = text.strip().lower()
    if len(spelt) <= MAX_DIGITS and re.fullmatch(r"\d+(\.\d+)?", spelt):
        return float(spelt)
    if len(spelt) > MAX_DIGITS or not _DURATION.fullmatch(spelt):
        raise ValueError(f"{text!r} is not a time such as 3600, 90s, 15m, 1h30m or 2d")
    return float(sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"(\d+)([smhdw])", spelt)))


def read_moment(text: str, now: datetime) -> str:
    """A point in time in the form of the configuration file; a duration counts from now."""
    spelt = text.strip()
    try:
        if _DURATION.fullmatch(spelt.removeprefix("+").lower()):
            moment = now + timedelta(seconds=read_duration_s(spelt.removeprefix("+")))
        else:
            moment = datetime.fromisoformat(spelt)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a day such as 2027-01-01, a moment such as 2027-01-01T12:00:00Z, or a time from now "
            "such as 30d"
        ) from None


def read_limit(text: str) -> tuple[str, Any]:
    """`n=4`, `deny=service_tier,logit_bias`; `n=none` takes it away."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name or not value:
        raise ValueError(f"{text!r} is not a limit such as n=4 or deny=service_tier")
    if value == NONE:
        return name, None
    if name == "deny":
        return name, read_names(value)
    if not value.isdecimal():
        raise ValueError(f"{text!r}: expected a whole number behind {name}=")
    return name, int(value)


def read_names(text: str) -> list[str]:
    """Names with commas between."""
    return [name for part in text.split(",") if (name := part.strip())]


def merged_quotas(known: Sequence[Mapping[str, Any]], named: Sequence[Named]) -> list[dict[str, Any]]:
    """Quotas with those that were named set or gone; all others stay as they are.

    Raises `ValueError` for one that is to go and is not there.
    """
    quotas = [dict(quota) for quota in known]
    for each in named:
        place = next((number for number, quota in enumerate(quotas) if each.is_that(quota)), None)
        if each.amount is None and place is None:
            raise ValueError(f"there is no quota of {each.unit} per {format_per(each.per)} to take away")
        if each.amount is None and place is not None:
            del quotas[place]
        elif place is None:
            quotas.append(each.settings)
        else:
            quotas[place] = each.settings
    return quotas


def format_per(per: str | int) -> str:
    """A time as it is typed."""
    return f"{per}s" if isinstance(per, int) else per


def format_quota(quota: Mapping[str, Any]) -> str:
    """A quota as it is typed, without its unit's option: `1,000,000 tokens/day:gpt-4*`."""
    unit = next(unit for unit in _EXAMPLES if unit in quota)
    amount = quota[unit]
    shown = f"${amount}" if unit == "usd" else f"{amount:,} {unit}"
    return f"{shown}/{format_per(quota['per'])}" + (f":{quota['model']}" if quota.get("model") else "")
