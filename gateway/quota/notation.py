"""Quotas, limits, moments and names as arguments of commands; the grammar of their values is `config/quantities.py`.

    1M/day   60/minute   2.50/month   100k/day:gpt-4*   500/90s   none/day
    2027-01-01   2027-01-01T12:00:00+02:00   30d (from now)
    n=4   deny=service_tier,logit_bias   n=none

Everything raises `ValueError` with a sentence about the expected text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from gateway.config import quantities
from gateway.config.quantities import QUOTA_EXAMPLES, format_per, is_duration, read_amount, read_count

NONE = "none"
"""Takes a setting back to its default, and a quota away."""


class Named(NamedTuple):
    """A quota that was named: which one it is, and how much it holds."""

    unit: str
    per: str | int
    """Name of a period, or its length in seconds."""
    model: str | None
    amount: int | float | None
    """None: it is to go."""

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the quota in the form of the configuration file."""
        settings = {self.unit: self.amount, "per": self.per}
        return settings if self.model is None else {**settings, "model": self.model}

    def is_that(self, quota: Mapping[str, Any]) -> bool:
        """Whether these settings are of the quota that is named: same unit, time and models, and without a label."""
        which = quota["per"], quota.get("model"), quota.get("label")
        return self.unit in quota and which == (self.per, self.model, None)


def read_quota(unit: str, text: str) -> Named:
    """`1M/day`; for some models only, `100000/day:gpt-4*`; `none/day` names the one that is to go."""
    parsed = quantities.read_quota_text(text, QUOTA_EXAMPLES[unit])
    if parsed.unit not in (None, unit):
        raise ValueError(f"expected {unit}, such as {QUOTA_EXAMPLES[unit]}, and not {parsed.unit}")
    return Named(unit, parsed.per, parsed.model, _read_amount(unit, parsed.amount))


def _read_amount(unit: str, text: str) -> int | float | None:
    if text == NONE:
        return None
    amount = read_amount(text)
    if amount is None or amount <= 0 or (unit != "usd" and amount != int(amount)):
        what = "an amount in US dollars" if unit == "usd" else f"a whole number of {unit}"
        raise ValueError(f"expected {what} greater than 0, such as {QUOTA_EXAMPLES[unit].split('/')[0]}")
    return int(amount) if amount == int(amount) else float(amount)


def read_moment(text: str, now: datetime) -> str:
    """A point in time in the form of the configuration file; a duration counts from now."""
    plain = text.strip().removeprefix("+")
    try:
        if is_duration(plain):
            moment = now + timedelta(seconds=quantities.read_duration_s(plain))
        else:
            moment = quantities.read_moment(text)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        raise ValueError(
            "expected a day such as 2027-01-01, a moment such as 2027-01-01T12:00:00Z, or a time from now such as 30d"
        ) from None


def read_since(text: str, now: datetime) -> float:
    """The Unix time of a moment in the past; a duration counts back from now. Raises `ValueError`."""
    try:
        if is_duration(text):
            return (now - timedelta(seconds=quantities.read_duration_s(text))).timestamp()
        return quantities.read_moment(text).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time back from now such as 1d or 2h, a day such as 2026-11-20, or a moment such as "
            "2026-11-20T12:00:00Z"
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
    try:
        return name, read_count(value)
    except ValueError:
        raise ValueError(f"{text!r}: expected a whole number behind {name}=, such as n=4 or max_tokens=4k") from None


def read_names(text: str) -> list[str]:
    """Splits names at commas and drops empty ones."""
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
